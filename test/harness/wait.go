//go:build unix

package harness

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/periodic"
)

// Patience is how long the harness waits for something that happens immediately on an idle machine. It is long because
// test machines are busy and the race detector is slow. A test that passes does not take longer because of it.
const Patience = 3 * time.Minute

// Eventually polls until cond holds. A test that waits on a process of its own
// has no better clock; the deadline only decides when it has failed.
func Eventually(tb testing.TB, within time.Duration, what string, cond func() bool) {
	tb.Helper()
	if !Within(tb, within, cond) {
		tb.Fatalf("not within %v: %s", within, what)
	}
}

// Within polls until cond holds, and reports whether it did before the deadline. It waits twice as long as cond took,
// so that costly conditions, e.g. an invocation of a function, leave the machine to the system that they wait for.
func Within(tb testing.TB, within time.Duration, cond func() bool) bool {
	tb.Helper()
	for deadline := time.Now().Add(within); ; {
		began := time.Now()
		if cond() {
			return true
		}
		pause := min(max(5*time.Millisecond, 2*time.Since(began)), time.Second)
		select {
		case <-time.After(min(pause, time.Until(deadline))):
		case <-tb.Context().Done():
			return cond()
		}
		if time.Now().After(deadline) {
			return cond()
		}
	}
}

// Sleep waits, and reports false if ctx ends before.
func Sleep(ctx context.Context, d time.Duration) bool {
	return periodic.Sleep(ctx, d) == nil
}

// About returns a random time between half and one and a half of d.
func About(r *rand.Rand, d time.Duration) time.Duration {
	return d/2 + time.Duration(r.Int64N(int64(d)))
}

// read returns a value that the mutex guards.
func read[T any](mu *sync.Mutex, v *T) T {
	mu.Lock()
	defer mu.Unlock()
	return *v
}

// set changes a value that the mutex guards.
func set[T any](mu *sync.Mutex, v *T, to T) {
	mu.Lock()
	defer mu.Unlock()
	*v = to
}
