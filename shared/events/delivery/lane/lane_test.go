package lane

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// someLanes returns the lanes of a process with limits on the attempts under way, in total and per endpoint.
func someLanes(attempts, perEndpoint int) *Lanes {
	return New(nil, Limits{
		Attempts: attempts, PerEndpoint: perEndpoint, Detached: 10, Bytes: 64 << 20, Patience: 3 * time.Second, SlowAnswer: time.Second,
	}, time.Now)
}

// to returns a call of an endpoint for its owner.
func to(url string) Call {
	return Call{Endpoint: url, URL: url, Principal: "owner of " + url, Bytes: 100}
}

// bubble runs a subtest that has a clock of its own.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// mustReserve reserves a slot for a first attempt, and ends the test if the lane gives no slot.
func (l *Lanes) mustReserve(t *testing.T, url string, w PageWait) *FastSlot {
	t.Helper()
	s, v := l.Reserve(t.Context(), to(url), w)
	expect.MustEqual(t, "the verdict for "+url, v, Granted)
	return s
}

// waitFor returns the patience of a page that starts to wait now.
func waitFor(busy, others time.Duration) PageWait {
	return PageWait{IfBusy: time.Now().Add(busy), IfFull: time.Now().Add(others)}
}

func TestEndpointSlots(t *testing.T) {
	const url = "https://hooks.example.com/a"
	bubble(t, "WHK-25 attempts that wait for their endpoint get its slots in the order in which their events were queued", func(t *testing.T) {
		l := someLanes(8, 2)
		l.mustReserve(t, url, waitFor(time.Second, time.Minute)).Done(webhook.Outcome{Status: 200})
		var held []*FastSlot
		for range 2 {
			held = append(held, l.mustReserve(t, url, waitFor(time.Second, time.Minute)))
		}
		type result struct {
			since int64
			v     Verdict
			after time.Duration
		}
		began, got := time.Now(), make(chan result, 3)
		for _, since := range []int64{30, 10, 20} {
			go func() {
				c := to(url)
				c.Since = since
				_, v := l.Reserve(t.Context(), c, waitFor(time.Second, time.Minute))
				got <- result{since, v, time.Since(began)}
			}()
			synctest.Wait()
		}
		for i, want := range []int64{10, 20} {
			held[i].Done(webhook.Outcome{Status: 200})
			expect.Equal(t, fmt.Sprint("the event that gets slot ", i), <-got, result{want, Granted, 0})
		}
		expect.Equal(t, "the last one", <-got, (result{30, TooLate, time.Second}))
		if e := l.byID[url]; e.fast != 2 || len(e.flows) != 0 || l.waiters != 0 || len(l.waiting) != 0 {
			t.Errorf("%d slots are taken, want 2; %d flows, %d wait, want none", e.fast, len(e.flows), l.waiters)
		}
	})

	t.Run("WHK-16 what is known of endpoints is bounded; those with attempts under way stay", func(t *testing.T) {
		l := someLanes(1000, 2)
		for i := range 3 * maxEndpoint {
			s := l.mustReserve(t, fmt.Sprintf("https://h%d.example.com/", i), PageWait{})
			if i%1000 != 0 {
				s.Done(webhook.Outcome{Status: 200})
			}
			if len(l.byID) > maxEndpoint || len(l.origins) > maxEndpoint {
				t.Fatalf("%d endpoints of %d origins are known, want at most %d", len(l.byID), len(l.origins), maxEndpoint)
			}
		}
		for i := 0; i < 3*maxEndpoint; i += 1000 {
			if e := l.byID[fmt.Sprintf("https://h%d.example.com/", i)]; e == nil || e.fast != 1 {
				t.Fatalf("endpoint %d with an attempt under way is forgotten", i)
			}
		}
	})
}

// Endpoints that never answered, and some that answered quickly before, hang: as many attempts as there are slots. Each has a
// host of its own, so that only the limits of the lane hold.
func TestEndpointsThatMayHangLeaveRoomForTheOthers(t *testing.T) {
	for name, proven := range map[string]bool{"WHK-16 new endpoints": false, "WHK-16 endpoints that hung before": true} {
		bubble(t, name, func(t *testing.T) {
			l := someLanes(32, 8)
			reserve := func(url string) (*FastSlot, Verdict) { return l.Reserve(t.Context(), to(url), PageWait{}) }
			good, _ := reserve("https://good.example.com/")
			good.Done(webhook.Outcome{Status: 200, Took: 20 * time.Millisecond})
			for i := range 32 {
				url := fmt.Sprintf("https://h%d.example.com/", i)
				if proven {
					s, _ := reserve(url)
					s.Done(webhook.Outcome{Status: 200, Took: 20 * time.Millisecond})
					s, _ = reserve(url)
					s.Detach().Done(Unused)
				}
			}
			time.Sleep(slowFor)
			taken := 0
			for i := range 32 {
				if _, v := reserve(fmt.Sprintf("https://h%d.example.com/", i)); v == Granted {
					taken++
				}
			}
			expect.Equal(t, "the attempts to endpoints that may hang, three quarters of 32", taken, 24)
			l.mustReserve(t, "https://good.example.com/", PageWait{}).Done(Unused)
		})
	}
}

func TestProbesOfAnEndpointThatHangsBecomeRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := someLanes(32, 0)
		const url = "https://hooks.example.com/a"
		// wait returns how long first attempts take the slow lane after an attempt that was not answered in time.
		wait := func() time.Duration {
			l.mustReserve(t, url, PageWait{}).Detach().Done(Unused)
			return time.Until(l.byID[url].slowUntil)
		}
		check := func(name string, got, most time.Duration) {
			t.Helper()
			expect.AtMost(t, name+": the time for which first attempts take the slow lane", got, most)
			expect.AtLeast(t, name+": that time, up to a third less", got, most*2/3)
		}
		for _, c := range []struct {
			name string
			want time.Duration
		}{
			{"WHK-16 the first attempt that is not answered in time", slowFor},
			{"WHK-16 a probe is not answered in time", 2 * slowFor},
			{"WHK-16 another one", 4 * slowFor},
			{"WHK-16 many", 8 * slowFor},
			{"WHK-16 and many more", maxHold},
		} {
			got := wait()
			check(c.name, got, c.want)
			time.Sleep(got)
		}
		l.mustReserve(t, url, PageWait{}).Done(webhook.Outcome{Status: 200, Took: 20 * time.Millisecond})
		check("WHK-16 after a success", wait(), slowFor)
	})
}

func TestAttemptsInAHurry(t *testing.T) {
	const url = "https://hooks.example.com/a"
	hurried := func(t *testing.T, took ...time.Duration) (*Lanes, func() *FastSlot) {
		l := someLanes(128, 64)
		l.limits.MinWait, l.limits.Detached = 100*time.Millisecond, 128
		l.rate.db = openStore(t)
		for _, took := range took {
			s, _ := l.Reserve(t.Context(), to(url), PageWait{})
			s.Done(webhook.Outcome{Status: 200, Took: took})
		}
		return l, func() *FastSlot { return l.mustReserve(t, url, PageWait{InHurry: true}) }
	}
	const ms = time.Millisecond
	steady := func(took time.Duration) []time.Duration { return slices.Repeat([]time.Duration{took}, 50) }
	for name, c := range map[string]struct {
		took []time.Duration
		want time.Duration
	}{
		"WHK-16 an endpoint that has not answered yet: half of the time of a slow answer":    {nil, 500 * ms},
		"WHK-16 answers in 20 ms: five times as long, because a new connection takes longer": {steady(20 * ms), 100 * ms},
		"WHK-16 answers in 300 ms, twice 380 ms":                                             {append(steady(300*ms), 380*ms, 380*ms), 449 * ms},
		"WHK-16 answers in 100 ms and 900 ms, in turn":                                       {slices.Repeat([]time.Duration{100 * ms, 900 * ms}, 25), 2233 * ms},
	} {
		bubble(t, name, func(t *testing.T) {
			_, reserve := hurried(t, c.took...)
			if s := reserve(); s.Wait.Round(ms) != c.want || s.Rest != 0 && s.Wait+s.Rest != 3*time.Second {
				t.Errorf("a page waits for %v and the attempt for another %v, want %v of 3s", s.Wait, s.Rest, c.want)
			}
		})
	}
	bubble(t, "WHK-16 the first attempt of a burst is late: pages wait only as long as usual, and it counts as slow after a second", func(t *testing.T) {
		l, reserve := hurried(t, steady(20*ms)...)
		first := reserve().Detach()
		if first.HangsAfter != 900*ms || first.Rest != 2*time.Second {
			t.Errorf("the attempt hangs after %v and ends after another %v, want 900ms and 2s", first.HangsAfter, first.Rest)
		}
		second := reserve()
		expect.Equal(t, "the time for which the next page waits", second.Wait.Round(ms), 20*ms)
		second.Done(webhook.Outcome{Status: 200, Took: 20 * ms})
		first.Hang(t.Context())
		if _, v := l.Reserve(t.Context(), to(url), PageWait{}); v != SlowLane {
			t.Errorf("got verdict %v, want the slow lane", v)
		}
		first.Done(webhook.Outcome{Status: 200, Took: 900 * ms})
		reserve()
	})
	bubble(t, "WHK-16 a burst makes an endpoint slower: as many attempts as may are detached, and the other ones have time", func(t *testing.T) {
		_, reserve := hurried(t, steady(20*ms)...)
		var slots []*FastSlot
		for range 64 {
			slots = append(slots, reserve())
		}
		detached := 0
		for _, s := range slots {
			if s.Detach() != nil {
				detached++
			} else if s.Rest != 2900*ms {
				t.Fatalf("it has another %v, want 2.9s", s.Rest)
			}
		}
		expect.Equal(t, "detached attempts", detached, maxHanging)
	})
}

// On AWS, pages do not probe an endpoint that hangs while the slow lane of another process does.
func TestTheSlowLaneProbesForAllProcesses(t *testing.T) {
	const url = "https://hooks.example.com/a"
	for name, c := range map[string]struct {
		warns bool            // in the slow lane of another process, an attempt hangs after 30 s
		want  map[int]Verdict // by the seconds since the first attempt
	}{
		"WHK-16 the attempts of the slow lane hang: no probe until the last one is two minutes old": {
			true, map[int]Verdict{31: SlowLane, 62: SlowLane, 93: SlowLane, 124: SlowLane, 183: Granted},
		},
		"WHK-16 the slow lane has no attempt: a probe after half a minute": {false, map[int]Verdict{31: Granted}},
	} {
		bubble(t, name, func(t *testing.T) {
			pages, other := someLanes(128, 64), someLanes(128, 64)
			pages.limits.MinWait, other.limits.MinWait = 100*time.Millisecond, 100*time.Millisecond
			pages.rate.db = openStore(t)
			other.rate.db = pages.rate.db
			began := time.Now()
			s, _ := pages.Reserve(t.Context(), to(url), PageWait{})
			s.Hang(t.Context())
			s.Done(Unused)
			time.Sleep(30 * time.Second)
			if c.warns {
				s, _ := other.ReserveSlow(t.Context(), to(url))
				s.Warn(t.Context())
				s.Done(webhook.Outcome{Category: webhook.Timeout, Took: 20 * time.Second})
			}
			for _, second := range slices.Sorted(maps.Keys(c.want)) {
				time.Sleep(time.Until(began.Add(time.Duration(second) * time.Second)))
				s, got := pages.Reserve(t.Context(), to(url), PageWait{})
				expect.Equal(t, fmt.Sprintf("the verdict after %d s", second), got, c.want[second])
				if s != nil {
					s.Done(Unused)
				}
			}
		})
	}
}

func TestAProbeAfterATimeoutInTheSlowLaneIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := someLanes(32, 0)
		const url = "https://hooks.example.com/a"
		s, _ := l.ReserveSlow(t.Context(), to(url))
		s.Done(webhook.Outcome{Category: webhook.Timeout, Took: 20 * time.Second})
		time.Sleep(hangPause)
		probe := l.mustReserve(t, url, PageWait{})
		expect.Equal(t, "WHK-16 how long the page waits for the probe", probe.Wait, 500*time.Millisecond)
		probe.Detach().Done(Unused)
		if got := time.Until(l.byID[url].slowUntil); got <= slowFor*2/3-time.Millisecond || got > slowFor {
			t.Errorf("WHK-16 first attempts take the slow lane for %v, want up to a third less than %v", got, slowFor)
		}
	})
}

// A principal has many endpoints that answer late, or hang, and get large events.
func TestAPrincipalLeavesMemoryOfTheSlowLane(t *testing.T) {
	for name, hang := range map[string]bool{"WHK-16 endpoints that answer late": false, "WHK-16 endpoints that hang": true} {
		bubble(t, name, func(t *testing.T) {
			l := someLanes(100, 25)
			l.limits.Bytes = 32 << 20
			reserve := func(host, principal string) *SlowSlot {
				url := "https://" + host + ".example.com/"
				if hang && l.byID[url] == nil {
					s, _ := l.Reserve(t.Context(), to(url), PageWait{})
					s.Done(webhook.Outcome{Status: 503, Category: webhook.HTTP5xx})
					time.Sleep(busyPause)
				}
				s, _ := l.ReserveSlow(t.Context(), Call{Endpoint: url, URL: url, Principal: principal, Bytes: 240 << 10})
				return s
			}
			var slots []*SlowSlot
			for i := range 100 {
				if s := reserve(fmt.Sprint("h", i), "mallory"); s != nil {
					slots = append(slots, s)
				}
			}
			if held := l.slowBytes.total + l.hangingBytes.total; held > l.limits.Bytes*3/16 || held < l.limits.Bytes/8 {
				t.Errorf("the endpoints of one principal hold %d bytes, want at most three quarters of %d", held, l.limits.Bytes/4)
			}
			if s := reserve("good", "alice"); s == nil {
				t.Error("another principal's endpoint has to wait")
			} else {
				slots = append(slots, s)
			}
			for _, s := range slots {
				s.Done(Unused)
			}
			if n := l.slowBytes.total + l.hangingBytes.total; n != 0 || len(l.slowBytes.by)+len(l.hangingBytes.by) != 0 {
				t.Errorf("%d bytes are held at the end, want none", n)
			}
		})
	}
}

// TestSlotsOfTheSlowLane: WHK-16.
func TestSlotsOfTheSlowLane(t *testing.T) {
	const url = "https://hooks.example.com/a"
	const attempts = 100
	for _, c := range []struct {
		name string
		out  webhook.Outcome
		made func(n int) bool // of the attempts, when all were received together once
	}{
		{
			"WHK-16 an endpoint that fails immediately gets attempts as fast as it answers, four at a time",
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
		bubble(t, c.name, func(t *testing.T) {
			l := someLanes(8*attempts, 2)
			l.mustReserve(t, url, PageWait{}).Done(c.out)
			time.Sleep(hangPause)
			var made, now, most atomic.Int64
			var running sync.WaitGroup
			for range attempts {
				running.Go(func() {
					s, _ := l.ReserveSlow(t.Context(), to(url))
					if s == nil {
						return
					}
					made.Add(1)
					most.Store(max(most.Load(), now.Add(1)))
					time.Sleep(c.out.Took)
					now.Add(-1)
					s.Done(c.out)
				})
			}
			running.Wait()
			if n := int(made.Load()); !c.made(n) || most.Load() > slowAtOnce {
				t.Errorf("got %d attempts, %d at the same time, want what the test's name says, and at most %d", n, most.Load(), slowAtOnce)
			}
			if e := l.byID[url]; e.slow != 0 || len(e.queued) != 0 || l.queued != 0 || e.origin.doubtful.total != 0 || l.slowBytes.total != 0 || l.hangingBytes.total != 0 {
				t.Errorf("%d slots with %d bytes are taken, %d and %d wait, want none", e.slow, l.slowBytes.total+l.hangingBytes.total, len(e.queued), l.queued)
			}
		})
	}
}

// TestPausesGrowByAttemptsAndNotByBursts: WHK-09.
func TestPausesGrowByAttemptsAndNotByBursts(t *testing.T) {
	const url = "https://hooks.example.com/a"
	asksForLess := func(status int, retryAfter time.Duration) webhook.Outcome {
		return webhook.Outcome{Status: status, Category: map[bool]webhook.Category{true: webhook.HTTP4xx, false: webhook.HTTP5xx}[status < 500], RetryAfter: retryAfter}
	}
	for status, want := range map[int][2]time.Duration{
		429: {busyPause, time.Hour}, 502: {busyPause, time.Hour}, 503: {busyPause, time.Hour}, 504: {busyPause, time.Hour}, 500: {}, 404: {},
	} {
		t.Run(fmt.Sprintf("WHK-09 the pause after %d, and after one with Retry-After", status), func(t *testing.T) {
			for i, retryAfter := range []time.Duration{0, time.Hour} {
				e := &endpointState{}
				expect.Equal(t, fmt.Sprintf("Retry-After %v: the pause", retryAfter), e.nextPause(asksForLess(status, retryAfter), false), want[i])
			}
		})
	}
	busy := func(retryAfter time.Duration) webhook.Outcome { return asksForLess(503, retryAfter) }
	l, now := someLanes(400, 100), time.Now()
	e := l.get("a", url)
	burst := func(retryAfter time.Duration) time.Duration {
		for range 50 { // all were under way when the first was refused
			l.record("a", url, busy(retryAfter), now)
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
			expect.Equal(t, "the pause", burst(c.retryAfter), c.want)
		})
	}
	t.Run("WHK-09 of a burst the longest Retry-After holds", func(t *testing.T) {
		l.record("a", url, busy(time.Hour), now)
		l.record("a", url, busy(time.Second), now)
		expect.Equal(t, "the pause", e.openUntil.Sub(now), time.Hour)
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
		slow  bool // for an unknown endpoint
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
			now := time.Now()
			l := someLanes(100, 10)
			l.now = func() time.Time { return now }
			var urls []string
			for i := range 10 {
				urls = append(urls, fmt.Sprintf("https://hooks.example.com/callbacks/%d", i))
			}
			for _, s := range c.steps {
				l.mu.Lock()
				l.record(urls[s.endpoint], urls[s.endpoint], s.out, now)
				l.mu.Unlock()
			}
			_, v := l.Reserve(t.Context(), to(urls[0]), PageWait{})
			expect.Equal(t, "a neighbor is slow", v == SlowLane, c.slow)
			l.mustReserve(t, "https://other.example.com/hook", PageWait{})
		})
	}
}

func openStore(t *testing.T) store.DB {
	t.Helper()
	db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// slowLeases returns the store with slow writes of the leases of the endpoint "one".
func slowLeases(db store.DB, takes time.Duration) store.DB {
	return storetest.Hooked{DB: db, OnWrite: func(_ context.Context, ops []store.Op) error {
		if ops[0].Item.Partition == "t#one" {
			time.Sleep(takes)
		}
		return nil
	}}
}

func newRates(db store.DB, limit int64) *endpointRates {
	return &endpointRates{db: db, limit: limit, now: time.Now}
}

// TestEndpointRatesOverASlowStore: WHK-16.
func TestEndpointRatesOverASlowStore(t *testing.T) {
	bubble(t, "WHK-16 while the store writes for one endpoint, the attempts to others go on", func(t *testing.T) {
		rates := newRates(slowLeases(openStore(t), 20*time.Second), 20)
		go rates.allow(t.Context(), "one")
		synctest.Wait()
		began := time.Now()
		if !rates.allow(t.Context(), "other") || time.Since(began) > 0 {
			t.Errorf("the other endpoint waited %v, want a token immediately", time.Since(began))
		}
		time.Sleep(time.Minute)
	})
	bubble(t, "WHK-16 an attempt that waited is one of the second in which it is made", func(t *testing.T) {
		db := openStore(t)
		rates := newRates(slowLeases(db, 1500*time.Millisecond), 20)
		start := time.Now()
		go rates.allow(t.Context(), "one")
		synctest.Wait()
		expect.True(t, "the attempt is allowed", rates.allow(t.Context(), "one"))
		key := store.Key{Table: store.Deliveries, Partition: "t#one", Sort: fmt.Sprint(start.Add(1500 * time.Millisecond).Unix())}
		items, err := db.Get(t.Context(), key)
		if err != nil || items[0] == nil {
			t.Errorf("got no lease of its second: %v, %v", items, err)
		}
	})
}

// TestTurnsAfterTheClockWasSetBack: WHK-16.
func TestTurnsAfterTheClockWasSetBack(t *testing.T) {
	rates, before := newRates(openStore(t), 8), time.Now()
	rates.reserve(t.Context(), "one", before)
	now := before.Add(-2 * time.Hour)
	expect.True(t, "first attempts do not wait until the clock has caught up", !rates.hasWaiting("one", now))
	expect.AtMost(t, "the time until the next turn", rates.reserve(t.Context(), "one", now), 2*time.Second)
}

// TestEndpointRates: WHK-16. Several processes share the rate limit of an endpoint.
func TestEndpointRates(t *testing.T) {
	bubble(t, "WHK-16 two processes together make as many attempts a second as the endpoint may have, not one more", func(t *testing.T) {
		db := openStore(t)
		const limit = 20
		two := []*endpointRates{newRates(db, limit), newRates(db, limit)}
		var mu sync.Mutex
		perSecond := map[int64]int{}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for range 500 {
					now := time.Now()
					if two[i%2].allow(t.Context(), "one") {
						mu.Lock()
						perSecond[now.Unix()]++
						mu.Unlock()
					}
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		wg.Wait()
		for second, n := range perSecond {
			expect.Equal(t, fmt.Sprintf("attempts in second %d", second), n, limit)
		}
		expect.AtLeast(t, "the seconds with attempts", len(perSecond), 5)
	})
	bubble(t, "WHK-16 the turns of all processes together are as many per second as the endpoint can have", func(t *testing.T) {
		db := openStore(t)
		const limit, processes, deliveries = 8, 4, 800
		now := time.Now()
		turns := map[int64]int{}
		var last int64
		var rates []*endpointRates
		for range processes {
			rates = append(rates, newRates(db, limit))
		}
		for i := range deliveries {
			second := now.Add(rates[i%processes].reserve(t.Context(), "one", now)).Unix()
			turns[second]++
			last = max(last, second)
		}
		for second, n := range turns {
			if n > limit || second <= now.Unix() {
				t.Errorf("%d deliveries have their turn after %d s, want at most %d, later than now", n, second-now.Unix(), limit)
			}
		}
		expect.AtMost(t, "the seconds until the last turn", last-now.Unix(), 3*deliveries/limit)
		expect.True(t, "a first attempt to the endpoint waits", rates[0].hasWaiting("one", now))
		expect.True(t, "a first attempt to another endpoint does not wait", !rates[0].hasWaiting("other", now))
	})
}
