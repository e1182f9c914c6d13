package gateway

import (
	"context"
	"time"
)

// flight is something under way that several callers want: one of them does it, and
// the others wait for what comes of it.
type flight[T any] struct {
	began time.Time
	done  chan struct{}

	// Set when done is closed.
	value T
	err   error
	// left is true when the one who did it was called off, which says nothing to the others.
	left bool
}

func newFlight[T any]() *flight[T] {
	return &flight[T]{began: time.Now(), done: make(chan struct{}), left: true}
}

// fly does it. No caller waits after that, even if do panics.
func (f *flight[T]) fly(ctx context.Context, do func() (T, error)) (T, error) {
	defer close(f.done)
	f.value, f.err = do()
	f.left = f.err != nil && ctx.Err() != nil
	return f.value, f.err
}

// wait waits for the other who does it. Without ok nothing came of it, and it has to be tried
// again.
func (f *flight[T]) wait(ctx context.Context) (value T, err error, ok bool) {
	select {
	case <-f.done:
		return f.value, f.err, !f.left
	case <-ctx.Done():
		return value, ctx.Err(), true
	}
}
