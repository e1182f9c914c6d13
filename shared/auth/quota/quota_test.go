package quota

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic/periodictest"
	"github.com/mcp-events/mcpevents/test/expect"
)

func burst(n float64) func(float64) float64 { return func(float64) float64 { return n } }

// AUT-07: a principal may use its limit again after Lambda has frozen the process, although the monotonic clock may stand still.
func TestALimitIsRestoredDuringAFreeze(t *testing.T) {
	r := NewRate("publishRate", "events", FixedLimit(1), burst(2))
	p, now := auth.Principal{ID: "p", Workspace: "w"}, time.Now()
	expect.OK(t, r.Take(t.Context(), p, 2, now))
	expect.Fault(t, "one more", r.Take(t.Context(), p, 1, now), fault.Exhausted)
	expect.OK(t, r.Take(t.Context(), p, 2, periodictest.AfterFreeze(now, 2*time.Second)))
}

// AUT-07: an active principal is not forgotten among many others.
func TestAnActivePrincipalIsNotForgotten(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	r := NewRate("publishRate", "events", FixedLimit(1), burst(2))
	busy := auth.Principal{ID: "busy", Workspace: "w"}
	expect.OK(t, r.Take(t.Context(), busy, 2, now))
	for i := range 5 * (maxPrincipals / 2) {
		_ = r.Take(t.Context(), auth.Principal{ID: fmt.Sprint(i)}, 1, now)
		if i%(maxPrincipals/2) == 0 {
			expect.Fault(t, fmt.Sprintf("an active principal among %d others", i), r.Take(t.Context(), busy, 1, now), fault.Exhausted)
		}
	}
}

// AUT-07: of many concurrent requests, exactly as many pass as the limit allows.
func TestConcurrentRequests(t *testing.T) {
	now := time.Now()
	r := NewRate("publishRate", "events", FixedLimit(1), burst(10))
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
	r := NewRate("publishRate", "events", func(_ context.Context, p auth.Principal) float64 { return of[p.ID] }, func(n float64) float64 { return n })
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

// take takes n for a principal and returns how many were granted.
func take(t *testing.T, h *Concurrency, p auth.Principal, n int) (releases []func()) {
	t.Helper()
	for range n {
		release, err := h.Take(t.Context(), p)
		switch {
		case err == nil:
			releases = append(releases, release)
		case !fault.Is(err, fault.Exhausted) || fault.LimitOf(err) != "calls":
			t.Fatalf("got error %v, want the limit calls", err)
		}
	}
	return releases
}

func TestAPrincipalHoldsAsMuchAsItsQuotaAllows(t *testing.T) {
	h := NewConcurrency("calls", "calls", FixedLimit(2), 5)
	alice, bob := auth.Principal{ID: "alice", Workspace: "w"}, auth.Principal{ID: "bob", Workspace: "w"}
	of := take(t, h, alice, 3)
	expect.MustEqual(t, "AUT-07 alice's calls", len(of), 2)
	expect.Equal(t, "AUT-07: bob's share while alice holds all of hers", len(take(t, h, bob, 3)), 2)
	of[0]()
	expect.Equal(t, "AUT-07: alice's share after a release", len(take(t, h, alice, 2)), 1)
	expect.Equal(t, "carol's share of the one that is left of the total", len(take(t, h, auth.Principal{ID: "carol"}, 2)), 1)
}

func TestAnonymousCallersAreBoundByTheTotal(t *testing.T) {
	h := NewConcurrency("calls", "calls", FixedLimit(2), 5)
	anonymous := auth.Principal{ID: "anonymous", Anonymous: true}
	of := take(t, h, anonymous, 7)
	expect.Equal(t, "the holders", len(of), 5)
	for _, release := range of {
		release()
	}
	expect.Equal(t, "the remembered principals", len(h.held.byPrincipal), 0)
	expect.Equal(t, "the remembered calls", h.held.sum, 0)
}

func TestKeyedBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewBuckets[string](1, 2, 100)
		granted := func(host string, tries int) (n int) {
			for range tries {
				if l.Get(host).Allow() {
					n++
				}
			}
			return n
		}
		expect.Equal(t, "a burst", granted("a", 3), 2)
		expect.Equal(t, "the tokens of another key", granted("b", 1), 1)
		time.Sleep(time.Second)
		expect.Equal(t, "the tokens after a second", granted("a", 2), 1)
		time.Sleep(time.Hour)
		expect.Equal(t, "a burst after an hour", granted("a", 3), 2)
	})
}

func TestMemoryIsSharedBetweenPrincipals(t *testing.T) {
	s := NewShare("answerBytes", "answers", 100)
	take := func(who string) (releases []func()) {
		for {
			release, err := s.Take(auth.Principal{ID: who}, 10)
			if fault.LimitOf(err) == "answerBytes" {
				return releases
			}
			expect.OK(t, err)
			releases = append(releases, release)
		}
	}
	first := take("first")
	expect.Equal(t, "AUT-07 the tenths of one principal", len(first), 5)
	expect.Equal(t, "AUT-07 the tenths of another one", len(take("second")), 2)
	for _, release := range first {
		release()
	}
	expect.Equal(t, "AUT-07 the tenths of a third one after the first one has left", len(take("third")), 4)
}
