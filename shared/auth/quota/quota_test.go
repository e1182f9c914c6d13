package quota

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

func burst(n float64) func(float64) float64 { return func(float64) float64 { return n } }

// AUT-07: an active principal is not forgotten among many others.
func TestAnActivePrincipalIsNotForgotten(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	r := New("publishRate", "events", Same(1), burst(2))
	busy := auth.Principal{ID: "busy", Workspace: "w"}
	if err := r.Take(t.Context(), busy, 2, now); err != nil {
		t.Error(err)
	}
	for i := range 5 * (maxPrincipals / 2) {
		_ = r.Take(t.Context(), auth.Principal{ID: fmt.Sprint(i)}, 1, now)
		if i%(maxPrincipals/2) == 0 {
			if err := r.Take(t.Context(), busy, 1, now); !fault.Is(err, fault.Exhausted) {
				t.Errorf("an active principal was forgotten among %d others: %v", i, err)
			}
		}
	}
}

// AUT-07: of many concurrent requests, exactly as many pass as the limit allows.
func TestConcurrentRequests(t *testing.T) {
	now := time.Now()
	r := New("publishRate", "events", Same(1), burst(10))
	var passed atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if r.Take(t.Context(), auth.Principal{ID: "p"}, 1, now) == nil {
				passed.Add(1)
			}
		})
	}
	wg.Wait()
	expect.Equal(t, "calls that passed", passed.Load(), 10)
}

func TestEachPrincipalHasARateOfItsOwn(t *testing.T) {
	now, of := time.Now(), map[string]float64{"one": 1, "ten": 10, "free": 0}
	r := New("publishRate", "events", func(_ context.Context, p auth.Principal) float64 { return of[p.ID] }, func(n float64) float64 { return n })
	taken := func(who string) (n int) {
		for n < 20 && r.Take(t.Context(), auth.Principal{ID: who}, 1, now) == nil {
			n++
		}
		return n
	}
	for who, want := range map[string]int{"one": 1, "ten": 10, "free": 20} {
		expect.Equal(t, fmt.Sprintf("OPS-15: %s: calls that passed", who), taken(who), want)
	}
	of["one"] = 5 // by a changed configuration, which holds from the next event on
	_ = taken("one")
	now = now.Add(time.Second)
	expect.Equal(t, "OPS-15: calls that passed after the change", taken("one"), 5)
	err := r.Take(t.Context(), auth.Principal{ID: "one"}, 1, now)
	if fault.LimitOf(err) != "publishRate" || !strings.Contains(err.Error(), "5 events per second") {
		t.Errorf("OPS-15: %v names the limit %q", err, fault.LimitOf(err))
	}
}
