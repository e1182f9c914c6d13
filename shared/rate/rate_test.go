package rate

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/fault"
)

// AUT-07: an active principal is not forgotten among many others.
func TestAnActivePrincipalIsNotForgotten(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	r := New("publishRate", "events", 1, 2)
	busy := auth.Principal{ID: "busy", Workspace: "w"}
	if err := r.Take(busy, 2, now); err != nil {
		t.Error(err)
	}
	for i := range 5 * (maxPrincipals / 2) {
		_ = r.Take(auth.Principal{ID: fmt.Sprint(i)}, 1, now)
		if i%(maxPrincipals/2) == 0 {
			if err := r.Take(busy, 1, now); !fault.Is(err, fault.Exhausted) {
				t.Errorf("an active principal was forgotten among %d others: %v", i, err)
			}
		}
	}
}

// AUT-07: of many at once just as many pass as the limit lets.
func TestManyAtOnce(t *testing.T) {
	now := time.Now()
	r := New("publishRate", "events", 1, 10)
	var passed atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if r.Take(auth.Principal{ID: "p"}, 1, now) == nil {
				passed.Add(1)
			}
		})
	}
	wg.Wait()
	if n := passed.Load(); n != 10 {
		t.Errorf("%d passed, want 10", n)
	}
}
