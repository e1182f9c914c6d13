//go:build unix

package fleet

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// ledger records the keys that were written to the table of sessions, because no store can list all of its entries.
type ledger struct {
	db store.DB

	mu   sync.Mutex
	keys map[store.Key]bool
}

func newLedger(db store.DB) *ledger { return &ledger{db: db, keys: map[store.Key]bool{}} }

// open returns access to the store for one instance.
func (l *ledger) open() *access { return &access{DB: l.db, ledger: l} }

// sessionKeys returns the keys in the table of sessions that exist now and whose partition has the prefix.
func (l *ledger) sessionKeys(ctx context.Context, prefix string) (keys []store.Key, err error) {
	l.mu.Lock()
	for key := range l.keys {
		if strings.HasPrefix(key.Partition, prefix) {
			keys = append(keys, key)
		}
	}
	l.mu.Unlock()
	var existing []store.Key
	for some := range slices.Chunk(keys, store.MaxGet) {
		items, err := l.db.Get(ctx, some...)
		if err != nil {
			return nil, err
		}
		for n, it := range items {
			if it != nil {
				existing = append(existing, some[n])
			}
		}
	}
	return existing, nil
}

// access counts an instance's requests to the store and can be cut off.
type access struct {
	store.DB
	ledger *ledger
	cut    atomic.Bool

	reads, writes atomic.Int64
}

var errCut = errors.New("the instance is cut off")

func (a *access) Get(ctx context.Context, keys ...store.Key) ([]*store.Item, error) {
	if a.cut.Load() {
		return nil, errCut
	}
	a.reads.Add(1)
	return a.DB.Get(ctx, keys...)
}

func (a *access) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if a.cut.Load() {
		return store.Page{}, errCut
	}
	a.reads.Add(1)
	return a.DB.Query(ctx, q)
}

func (a *access) Write(ctx context.Context, ops ...store.Op) error {
	return a.write(ctx, a.DB.Write, ops)
}

func (a *access) WriteAll(ctx context.Context, ops ...store.Op) error {
	return a.write(ctx, a.DB.WriteAll, ops)
}

func (a *access) write(ctx context.Context, do func(context.Context, ...store.Op) error, ops []store.Op) error {
	if a.cut.Load() {
		return errCut
	}
	a.writes.Add(1)
	// Record the keys before the write, so that none is missed. sessionKeys drops keys whose write failed.
	a.ledger.mu.Lock()
	for _, op := range ops {
		if op.Item.Table == store.Sessions && op.Kind != store.OpDelete && op.Kind != store.OpCheck {
			a.ledger.keys[op.Item.Key] = true
		}
	}
	a.ledger.mu.Unlock()
	return do(ctx, ops...)
}
