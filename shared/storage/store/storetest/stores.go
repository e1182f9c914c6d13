package storetest

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Hooked is a store that calls a function, which may be nil, before each of the methods Query, Write and WriteAll. If the function
// returns an error, the method returns it.
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

// Faulty is a store that disturbs one of its calls: the call with the number At, counted from 1. To disturb each call of an operation in
// turn, a test repeats the operation with a greater At each time, until the operation makes fewer calls than At.
type Faulty struct {
	store.DB
	At, Calls int
	// Meanwhile, if not nil, runs before the disturbed call. If it is nil, the call fails instead: before its writes or, if Late is true,
	// after them.
	Meanwhile func()
	Late      bool
	// Dies makes all calls after the disturbed one fail too, as if the process had died.
	Dies bool

	mu sync.Mutex // guards Calls while calls are running
}

func (f *Faulty) do(writes bool, call func() error) error {
	f.mu.Lock()
	f.Calls++
	n := f.Calls
	f.mu.Unlock()
	switch {
	case n < f.At, n > f.At && !f.Dies:
	case f.Meanwhile != nil:
		f.Meanwhile()
	case f.Late && writes && n == f.At:
		return cmp.Or[error](call(), fault.New(fault.Unavailable, "the response was lost"))
	default:
		return fault.New(fault.Unavailable, "the request was lost")
	}
	return call()
}

// Get implements [store.DB].
func (f *Faulty) Get(ctx context.Context, keys ...store.Key) (items []*store.Item, err error) {
	err = f.do(false, func() error { items, err = f.DB.Get(ctx, keys...); return err })
	return items, err
}

// Query implements [store.DB].
func (f *Faulty) Query(ctx context.Context, q store.Query) (page store.Page, err error) {
	err = f.do(false, func() error { page, err = f.DB.Query(ctx, q); return err })
	return page, err
}

// Write implements [store.DB].
func (f *Faulty) Write(ctx context.Context, ops ...store.Op) error {
	return f.do(true, func() error { return f.DB.Write(ctx, ops...) })
}

// WriteAll implements [store.DB].
func (f *Faulty) WriteAll(ctx context.Context, ops ...store.Op) error {
	return f.do(true, func() error { return f.DB.WriteAll(ctx, ops...) })
}

// Unordered is a store that behaves like the store in DynamoDB: it does not support stamps (see [store.AtCommit]), and other processes
// may write to it too.
type Unordered struct{ store.DB }

// Local implements [store.DB].
func (Unordered) Local() bool { return false }

// End implements [store.DB].
func (Unordered) End() int64 { return 0 }

// Slow is an [Unordered] store whose methods Get, Query and Write take the time Took.
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
