// Package cursors stores the key that authenticates the cursors of clients. The whole deployment has one key, so that each instance
// accepts the cursors from all other instances.
package cursors

import (
	"context"
	"crypto/rand"
	"errors"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Only the Lambda function keys (functions/keys) may write this partition, see template.yaml.
var location = store.Key{Table: store.Settings, Partition: "cursors", Sort: "key"}

// Create creates the key. It does nothing if the key already exists.
func Create(ctx context.Context, db store.DB) error {
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	err := db.Write(ctx, store.Put(store.Item{Key: location, Value: key, Version: 1}, store.Absent()))
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return fault.Wrap(fault.Unavailable, err, "write the cursor key")
}

// Sealer returns a sealer of cursors with the stored key.
func Sealer(ctx context.Context, db store.DB) (*eventlog.Sealer, error) {
	key, err := Key(ctx, db)
	if err != nil {
		return nil, err
	}
	return eventlog.NewSealer(key)
}

// Key returns the key that authenticates cursors. Further keys are derived from it. They seal other values that clients keep, such as the
// ids of tasks.
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
