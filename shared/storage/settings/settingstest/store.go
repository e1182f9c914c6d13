// Package settingstest has an in-memory [Store] for tests that read or write an operator's files (catalogs and configuration). It has
// only the methods that shared/storage/settings calls.
package settingstest

import (
	"context"
	"sync"

	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Store is a [store.DB] that keeps items in memory. The methods that it does not define panic.
type Store struct {
	store.DB // nil, so that the methods that Store does not define panic

	mu    sync.Mutex
	items map[store.Key]store.Item
	reads map[string]int
	fail  error
}

// New returns an empty store.
func New() *Store {
	return &Store{items: map[store.Key]store.Item{}, reads: map[string]int{}}
}

// Fail makes later reads fail with err. If err is nil, reads succeed again.
func (s *Store) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
}

// Reads returns how often items with the given sort key were read since the last call of Reads for this sort key.
func (s *Store) Reads(sort string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.reads[sort]
	delete(s.reads, sort)
	return n
}

// Local reports false, as the store in DynamoDB does.
func (s *Store) Local() bool { return false }

// Get implements [store.DB].
func (s *Store) Get(_ context.Context, keys ...store.Key) ([]*store.Item, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*store.Item, len(keys))
	for i, k := range keys {
		s.reads[k.Sort]++
		if s.fail != nil {
			return nil, s.fail
		}
		if it, ok := s.items[k]; ok {
			out[i] = &it
		}
	}
	return out, nil
}

// Write implements [store.DB], but only for puts.
func (s *Store) Write(_ context.Context, ops ...store.Op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, op := range ops {
		old, ok := s.items[op.Item.Key]
		if !op.Cond.Holds(ok, old.Version) {
			return store.ErrConflict
		}
	}
	for _, op := range ops {
		s.items[op.Item.Key] = op.Item
	}
	return nil
}
