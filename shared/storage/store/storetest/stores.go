package storetest

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Hooked is a store that calls functions before its own methods. If a function returns an error, the method returns that error and does
// nothing else. Each function may be nil.
type Hooked struct {
	store.DB
	OnQuery             func() error
	OnWrite, OnWriteAll func(ctx context.Context, ops []store.Op) error
}

// Query implements [store.DB].
func (h Hooked) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if h.OnQuery != nil {
		if err := h.OnQuery(); err != nil {
			return store.Page{}, err
		}
	}
	return h.DB.Query(ctx, q)
}

// Write implements [store.DB].
func (h Hooked) Write(ctx context.Context, ops ...store.Op) error {
	if h.OnWrite != nil {
		if err := h.OnWrite(ctx, ops); err != nil {
			return err
		}
	}
	return h.DB.Write(ctx, ops...)
}

// WriteAll implements [store.DB].
func (h Hooked) WriteAll(ctx context.Context, ops ...store.Op) error {
	if h.OnWriteAll != nil {
		if err := h.OnWriteAll(ctx, ops); err != nil {
			return err
		}
	}
	return h.DB.WriteAll(ctx, ops...)
}

// Unordered is a store like DynamoDB: it does not stamp keys, and other processes write to it, too.
type Unordered struct{ store.DB }

// Stamps implements [store.DB].
func (Unordered) Stamps() bool { return false }

// Local implements [store.DB].
func (Unordered) Local() bool { return false }

// Slow is an [Unordered] store in which each Get, Query and Write takes the time Took.
type Slow struct {
	Unordered
	Took time.Duration
}

// Get implements [store.DB].
func (s Slow) Get(ctx context.Context, keys ...store.Key) ([]*store.Item, error) {
	time.Sleep(s.Took)
	return s.DB.Get(ctx, keys...)
}

// Query implements [store.DB].
func (s Slow) Query(ctx context.Context, q store.Query) (store.Page, error) {
	time.Sleep(s.Took)
	return s.DB.Query(ctx, q)
}

// Write implements [store.DB].
func (s Slow) Write(ctx context.Context, ops ...store.Op) error {
	time.Sleep(s.Took)
	return s.DB.Write(ctx, ops...)
}
