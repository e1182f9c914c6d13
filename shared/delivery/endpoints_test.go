package delivery

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/webhook"
)

// TestEndpointPlaces: WHK-16.
func TestEndpointPlaces(t *testing.T) {
	const url = "https://hooks.example.com/a"
	t.Run("WHK-16 as many wait for a slot as there are slots, for half a second, the oldest first", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := &endpoints{atOnce: 2, maxWaiting: 2}
			enter := func() bool { return h.enterFast(t.Context(), "a", url, time.Now()) }
			for range 2 {
				if !enter() {
					t.Fatal("there are two places")
				}
			}
			got := make(chan string, 2)
			for i := range 2 {
				go func() { got <- fmt.Sprint(i, enter()) }()
				synctest.Wait()
			}
			began := time.Now()
			if enter() || time.Since(began) > 0 {
				t.Errorf("a fifth attempt got a slot or waited %v", time.Since(began))
			}
			h.leaveFast("a", url, webhook.Outcome{Status: 200}, time.Now())
			if first := <-got; first != "0 true" {
				t.Errorf("the slot went to %s", first)
			}
			if second := <-got; second != "1 false" || time.Since(began) != slotWait {
				t.Errorf("the other one: %s after %v", second, time.Since(began))
			}
			h.leaveFast("a", url, webhook.Outcome{Status: 200}, time.Now())
			h.leaveFast("a", url, webhook.Outcome{Status: 200}, time.Now())
			if e := h.byID["a"]; e.fast != 0 || len(e.waiting) != 0 {
				t.Errorf("%d places are taken, %d wait", e.fast, len(e.waiting))
			}
		})
	})

	t.Run("WHK-16 what is known of endpoints is bounded; those with attempts under way stay", func(t *testing.T) {
		h := &endpoints{atOnce: 2, maxWaiting: 2}
		now := time.Now()
		for i := range 3 * maxEndpoint {
			id, url := fmt.Sprint(i), fmt.Sprintf("https://h%d.example.com/", i)
			if !h.enterFast(t.Context(), id, url, now) {
				t.Fatal("a new endpoint has no slot")
			}
			if i%1000 != 0 {
				h.leaveFast(id, url, webhook.Outcome{Status: 200}, now)
			}
			if len(h.byID) > maxEndpoint || len(h.origins) > maxEndpoint {
				t.Fatalf("%d endpoints of %d origins are known", len(h.byID), len(h.origins))
			}
		}
		for i := 0; i < 3*maxEndpoint; i += 1000 {
			if e := h.byID[fmt.Sprint(i)]; e == nil || e.fast != 1 {
				t.Fatalf("endpoint %d with an attempt under way is forgotten", i)
			}
		}
	})
}

// TestPlacesInTheSlowLane: WHK-16.
func TestPlacesInTheSlowLane(t *testing.T) {
	const url = "https://hooks.example.com/a"
	const attempts = 100
	for _, c := range []struct {
		name string
		out  webhook.Outcome
		made func(n int) bool // of the attempts, when all were handed out together once
	}{
		{
			"WHK-16 an endpoint that fails at once is asked as fast as it answers, four at a time",
			webhook.Outcome{Status: 500, Category: webhook.HTTP5xx, Took: 10 * time.Millisecond},
			func(n int) bool { return n == attempts },
		},
		{
			"WHK-16 one that takes a second is not waited for",
			webhook.Outcome{Status: 500, Category: webhook.HTTP5xx, Took: time.Second},
			func(n int) bool { return n == slowAtOnce },
		},
		{
			"WHK-16 one that asks for less is left alone",
			webhook.Outcome{Status: 503, Category: webhook.HTTP5xx, Took: 10 * time.Millisecond},
			func(n int) bool { return n <= slowAtOnce },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &endpoints{atOnce: 2, maxWaiting: attempts}
				if !h.enterFast(t.Context(), "a", url, time.Now()) {
					t.Fatal("no slot for the first")
				}
				h.leaveFast("a", url, c.out, time.Now())
				time.Sleep(hangPause)
				var made, now, most atomic.Int64
				var running sync.WaitGroup
				for range attempts {
					running.Go(func() {
						if _, ok := h.enterSlow(t.Context(), "a", time.Now()); !ok {
							return
						}
						made.Add(1)
						most.Store(max(most.Load(), now.Add(1)))
						time.Sleep(c.out.Took)
						now.Add(-1)
						h.leaveSlow("a", url, c.out, time.Now())
					})
				}
				running.Wait()
				if n := int(made.Load()); !c.made(n) || most.Load() > slowAtOnce {
					t.Errorf("%d attempts, %d at once", n, most.Load())
				}
				if e := h.byID["a"]; e.slow != 0 || len(e.queued) != 0 || h.waiting != 0 || e.origin.slow != 0 {
					t.Errorf("%d places are taken, %d and %d wait", e.slow, len(e.queued), h.waiting)
				}
			})
		})
	}
}

// TestPausesGrowByAttemptsAndNotByBursts: WHK-09.
func TestPausesGrowByAttemptsAndNotByBursts(t *testing.T) {
	const url = "https://hooks.example.com/a"
	asksForLess := func(status int, retryAfter time.Duration) webhook.Outcome {
		return webhook.Outcome{Status: status, Category: ofStatus(status), RetryAfter: retryAfter}
	}
	for status, want := range map[int][2]time.Duration{
		429: {busyPause, time.Hour}, 502: {busyPause, time.Hour}, 503: {busyPause, time.Hour}, 504: {busyPause, time.Hour}, 500: {}, 404: {},
	} {
		t.Run(fmt.Sprintf("WHK-09 the pause after %d, and after one with Retry-After", status), func(t *testing.T) {
			for i, retryAfter := range []time.Duration{0, time.Hour} {
				e := &endpointState{}
				if got := e.pause(asksForLess(status, retryAfter), false); got != want[i] {
					t.Errorf("Retry-After %v: paused for %v, want %v", retryAfter, got, want[i])
				}
			}
		})
	}
	busy := func(retryAfter time.Duration) webhook.Outcome { return asksForLess(503, retryAfter) }
	h, now := &endpoints{atOnce: 100, maxWaiting: 10}, time.Now()
	e := h.get("a", url)
	burst := func(retryAfter time.Duration) time.Duration {
		for range 50 { // all were under way when the first was refused
			h.record(e, "a", busy(retryAfter), now)
		}
		pause := e.openUntil.Sub(now)
		now = e.openUntil
		return pause
	}
	for _, c := range []struct {
		name       string
		retryAfter time.Duration
		want       time.Duration
	}{
		{"WHK-09 a burst of refusals is one", 0, busyPause},
		{"WHK-09 the pause is doubled by an attempt after it", 0, 2 * busyPause},
		{"WHK-09 Retry-After takes its place", time.Hour, time.Hour},
		{"WHK-09 and does not count", 0, 4 * busyPause},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := burst(c.retryAfter); got != c.want {
				t.Errorf("paused for %v, want %v", got, c.want)
			}
		})
	}
	t.Run("WHK-09 of a burst the longest Retry-After holds", func(t *testing.T) {
		h.record(e, "a", busy(time.Hour), now)
		h.record(e, "a", busy(time.Second), now)
		if got := e.openUntil.Sub(now); got != time.Hour {
			t.Errorf("paused for %v", got)
		}
	})
}

func TestAnOriginIsJudgedByItsEndpoints(t *testing.T) {
	failed := webhook.Outcome{Status: 500, Category: webhook.HTTP5xx}
	refused := webhook.Outcome{Category: webhook.ConnectionRefused}
	good := webhook.Outcome{Status: 200}
	type step struct {
		endpoint int
		out      webhook.Outcome
	}
	steps := func(out webhook.Outcome, endpoints ...int) (s []step) {
		for _, e := range endpoints {
			s = append(s, step{e, out})
		}
		return s
	}
	for _, c := range []struct {
		name  string
		steps []step
		slow  bool // for an endpoint that nothing is known of
	}{
		{"WHK-16 one endpoint fails however often: its neighbours are not slow", steps(failed, 1, 1, 1, 1, 1, 1, 1, 1), false},
		{"WHK-16 four endpoints fail", steps(failed, 1, 2, 3, 4), false},
		{"WHK-16 five endpoints fail with no success in between", steps(failed, 1, 2, 3, 4, 5), true},
		{"WHK-16 a success in between", append(append(steps(failed, 1, 2, 3, 4), step{6, good}), steps(failed, 5)...), false},
		{"WHK-16 a success afterwards", append(steps(failed, 1, 2, 3, 4, 5), step{1, good}), false},
		{"WHK-16 it cannot be connected to three times", steps(refused, 1, 1, 1), true},
		{"WHK-16 twice, a success, once more", append(append(steps(refused, 1, 1), step{2, good}), steps(refused, 1)...), false},
		{"WHK-16 what fails on our side says nothing", steps(webhook.Outcome{Category: webhook.Internal}, 1, 2, 3, 4, 5, 6), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &endpoints{atOnce: 10, maxWaiting: 10}
			urls, now := oneOrigin(10), time.Now()
			for _, s := range c.steps {
				h.mu.Lock()
				id := endpointID(urls[s.endpoint])
				e := h.get(id, urls[s.endpoint])
				h.record(e, id, s.out, now)
				h.mu.Unlock()
			}
			if got := !h.enterFast(t.Context(), endpointID(urls[0]), urls[0], now); got != c.slow {
				t.Errorf("a neighbour is slow: %v, want %v", got, c.slow)
			}
			const other = "https://other.example.com/hook"
			if !h.enterFast(t.Context(), endpointID(other), other, now) {
				t.Error("another origin is slow")
			}
		})
	}
}
