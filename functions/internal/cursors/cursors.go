// Package cursors keeps the key that authenticates stream cursors: one for the
// deployment, so that a cursor of one instance is good at every other.
package cursors

import (
	"context"
	"crypto/rand"
	"errors"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// The partition is one of those that the template lets functions/keys write.
var location = store.Key{Table: store.Settings, Partition: "cursors", Sort: "key"}

// Create makes the key unless there is one.
func Create(ctx context.Context, db store.DB) error {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails (Go 1.24)
	err := db.Write(ctx, store.Put(store.Item{Key: location, Value: key, Version: 1}, store.Absent()))
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return fault.Wrap(fault.Unavailable, err, "write the cursor key")
}

// Sealer reads the key and makes a sealer with it.
func Sealer(ctx context.Context, db store.DB) (*eventlog.Sealer, error) {
	key, err := Key(ctx, db)
	if err != nil {
		return nil, err
	}
	return eventlog.NewSealer(key)
}

// Key reads the key. What else is handed to clients and comes back is sealed by keys that are
// derived from it.
func Key(ctx context.Context, db store.DB) ([]byte, error) {
	items, err := db.Get(ctx, location)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the cursor key")
	}
	if items[0] == nil {
		return nil, fault.New(fault.Unavailable, "the cursor key does not exist yet")
	}
	return items[0].Value, nil
}
