package session

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Use records a request id of the session, and reports whether no instance has seen it before. It remembers an id for the lifetime of an
// unused session, which limits the number of stored ids.
func (s *Store) Use(ctx context.Context, sess *Session, id json.RawMessage) (fresh bool, err error) {
	text := "n" + string(id)
	if value, ok := jsonrpc.String(id); ok { // a string has several JSON forms
		text = "s" + value
	}
	h := sha256.Sum256([]byte(text))
	err = s.DB.Write(ctx, store.Put(store.Item{
		Key:     itemKey(sess.Key, sortUsed+base64.RawURLEncoding.EncodeToString(h[:])),
		Expires: time.Now().Add(TTL),
	}, store.Absent()))
	if errors.Is(err, store.ErrConflict) {
		return false, nil
	}
	return err == nil, fault.Wrap(fault.Unavailable, err, "record a request id")
}

// Opened records that the session's newest stream is open, at the longest until the given time.
func (s *Store) Opened(ctx context.Context, key string, until time.Time) (lease int64, err error) {
	lease = rand.Int64N(1<<62) + 1
	err = s.DB.Write(ctx, store.Put(store.Item{Key: itemKey(key, sortOpen), Version: lease, Expires: until}))
	return lease, fault.Wrap(fault.Unavailable, err, "record the open stream")
}

// Closed undoes [Store.Opened] unless a newer stream has opened.
func (s *Store) Closed(ctx context.Context, key string, lease int64) error {
	err := s.DB.Write(ctx, store.Delete(itemKey(key, sortOpen), store.VersionIs(lease)))
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return fault.Wrap(fault.Unavailable, err, "record the end of the stream")
}

// Streaming reports whether a stream of the session is open at any instance.
func (s *Store) Streaming(ctx context.Context, key string) (bool, error) {
	items, err := s.DB.Get(ctx, itemKey(key, sortOpen))
	if err != nil {
		return false, fault.Wrap(fault.Unavailable, err, "look for the session's stream")
	}
	return items[0] != nil, nil
}
