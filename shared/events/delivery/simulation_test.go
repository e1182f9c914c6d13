//go:build !race

package delivery

// Simulations of days and crowds. The race detector makes each take ten times as long, and finds no more races than in the
// other tests of the same code. So both make test and make test-full run them without it.

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/lane"
	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/fanout"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestAnOutageOfTwoDays lets an endpoint fail for 48 hours. It gets an event every 20 minutes, and so do two healthy endpoints,
// one of the same origin and one of another origin.
func TestAnOutageOfTwoDays(t *testing.T) {
	t.Parallel()
	const (
		outage = 48 * time.Hour
		well   = 50 * time.Millisecond
		events = int(outage / (20 * time.Minute))
	)
	for _, c := range []struct {
		name string
		out  webhook.Outcome
		// late is by how much an attempt may come after its time, as a delivery has one. The queue counts
		// in seconds; behind an endpoint that is paused, deliveries take turns, and then it is
		// after the endpoint has recovered.
		late   time.Duration
		paused bool
		// atMost is how many attempts there are while it is down.
		atMost int
		// perHour is how many messages of the slow queue an hour of one delivery's waiting takes.
		perHour float64
	}{
		{
			"WHK-09 it refuses connections: each delivery keeps its schedule",
			webhook.Outcome{Category: webhook.ConnectionRefused, Took: time.Millisecond},
			3 * time.Second, false, 10 * events, 1,
		},
		{
			"WHK-09 it answers 503: it is asked once in five minutes, and all arrive when it is back",
			webhook.Outcome{Status: 503, Category: webhook.HTTP5xx, Took: well},
			30 * time.Minute, true, int(outage / (5 * time.Minute) * 13 / 10), 25,
		},
		{
			"WHK-16 it hangs: it is asked once in 80 s, and all arrive when it is back",
			takes(time.Hour),
			30 * time.Minute, true, int(outage / (time.Minute + 20*time.Second) * 13 / 10), 25,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, embedded(), func(w *world) {
				urls := append(oneOrigin(2), "https://other.example.com/hook")
				w.to(urls...)
				var down atomic.Bool
				down.Store(true)
				w.answer = func(r webhook.Request) webhook.Outcome {
					if r.URL == urls[0] && down.Load() {
						return c.out
					}
					return takes(well)
				}
				at := w.send("e", events, outage)
				w.mu.Lock()
				mostDown := w.most[urls[0]]
				clear(w.most)
				w.mu.Unlock()
				recovered := time.Now()
				down.Store(false)
				maps.Copy(at, w.send("after", 12, time.Hour))
				time.Sleep(30 * time.Hour)

				for _, url := range urls[1:] {
					w.arrive(url, at, time.Second)
				}
				lags := w.arrive(urls[0], at, 0)
				var waited time.Duration
				for _, lag := range lags {
					waited += lag
				}
				n, _ := slices.BinarySearchFunc(w.attemptsTo(urls[0]), recovered, time.Time.Compare)
				expect.AtMost(t, "the attempts while it was down", n, c.atMost)
				var from time.Time
				if c.paused {
					from = recovered
				}
				latest := w.schedule(t, urls[0], at, from, c.late)
				perSecond, perMinute := w.rate(urls[0], recovered, time.Second), w.rate(urls[0], recovered, time.Minute)
				if n := w.mostTo(urls[0]); n > 8 || mostDown > mostHanging || perSecond > 16 || perMinute > 240 {
					t.Errorf("the recovered endpoint had %d attempts under way, %d a second, %d a minute, and %d under way while it was down, want at most 8, 16, 240 and %d", n, perSecond, perMinute, mostDown, mostHanging)
				}
				receives := float64(w.received) / waited.Hours()
				expect.AtMost(t, "the messages of a delivery per hour", receives, c.perHour)
				t.Logf("%d attempts while it was down; the latest by %v; recovered: %d under way, %d a second, %d a minute; %.2f slow receives an hour of a delivery",
					n, latest.Round(time.Millisecond), w.mostTo(urls[0]), perSecond, perMinute, receives)
			})
		})
	}
}

// TestAHealthyEndpointBesideCrowds: WHK-16. The slots, bytes and slow lane workers that many bad endpoints use together are
// limited, so that they do not delay a healthy endpoint.
func TestAHealthyEndpointBesideCrowds(t *testing.T) {
	t.Parallel()
	const (
		healthy = "https://well.example.com/hook"
		well    = 50 * time.Millisecond
	)
	large := `{"ok":"` + strings.Repeat("x", 180<<10) + `"}`
	for name, c := range map[string]struct {
		crowd   func(i int) string
		n       int
		takes   time.Duration
		payload string
		retried bool // the first attempt at the healthy one fails
		most    time.Duration
	}{
		"of two endpoints with many subscriptions, almost slow": {
			func(i int) string { return fmt.Sprintf("https://slow%d.example.com/hook?%d", i%2, i) }, 300, 1900 * time.Millisecond, "", false, time.Second,
		},
		"of endpoints that hang, with large bodies": {
			func(i int) string { return fmt.Sprintf("https://hang%d.example.com/hook", i) }, 15, time.Hour, large, false, 3 * time.Second,
		},
		"of endpoints that hang, each at an origin of its own: first attempts": {
			func(i int) string { return fmt.Sprintf("https://hang%d.example.com/hook", i) }, 100, time.Hour, "", false, 3 * time.Second,
		},
		"of endpoints that hang, each at an origin of its own: retries": {
			func(i int) string { return fmt.Sprintf("https://hang%d.example.com/hook", i) }, 100, time.Hour, "", true, 13 * time.Second,
		},
		"of endpoints that hang at one origin: retries": {
			func(i int) string { return fmt.Sprintf("https://hang.example.com/hook/%d", i) }, 400, time.Hour, "", true, 13 * time.Second,
		},
	} {
		t.Run("WHK-16 a crowd "+name, func(t *testing.T) {
			options := embedded()
			options.Bytes = 32 << 20 // as the server has it
			inWorld(t, options, func(w *world) {
				w.payload = c.payload
				urls := []string{healthy}
				for i := range c.n {
					urls = append(urls, c.crowd(i))
				}
				w.to(urls...)
				w.answer = func(r webhook.Request) webhook.Outcome {
					if r.URL != healthy {
						return takes(c.takes)
					}
					w.mu.Lock()
					defer w.mu.Unlock()
					if c.retried && len(w.attempts[r.ID+" "+r.URL]) == 1 {
						return webhook.Outcome{Status: 500, Category: webhook.HTTP5xx, Took: well}
					}
					return takes(well)
				}
				at := w.send("e", 20, 20*time.Second)
				time.Sleep(time.Minute)
				w.arrive(healthy, at, c.most)
			})
		})
	}
}

// TestAWS04OneEventToTenThousand: AWS-04. One event goes to 10,000 subscriptions, and one endpoint in a hundred has just begun to hang, so
// on AWS nearly every batch of pages contains one. On AWS, a batch may wait half a second for it.
func TestAWS04OneEventToTenThousand(t *testing.T) {
	t.Parallel()
	const count, processes, batches = 10_000, 2, 40
	for name, mode := range map[string]struct {
		run    way
		answer time.Duration
		most   func(without time.Duration) time.Duration // the time that the other deliveries may take
	}{
		"stand-alone": {standAlone, 200 * time.Millisecond, func(without time.Duration) time.Duration { return without * 3 / 2 }},
		"on AWS": {
			functions(processes, 5*time.Millisecond), 50 * time.Millisecond,
			func(without time.Duration) time.Duration { return without + batches/processes*time.Second/2 },
		},
	} {
		took := func(t *testing.T, hangs bool) (last time.Duration) {
			mode.run(t, func(w *world) {
				var urls, others []string
				bad := map[string]bool{}
				for i := range count {
					urls = append(urls, fmt.Sprintf("https://h%d.example.com/hook", i))
					if bad[urls[i]] = i%100 == 0; !bad[urls[i]] {
						others = append(others, urls[i])
					}
				}
				w.services.Store.QuotaOf = func(context.Context, string, string) int64 { return 2 * count }
				w.to(urls...)
				var begun atomic.Bool
				w.answer = func(r webhook.Request) webhook.Outcome {
					if bad[r.URL] && begun.Load() {
						return takes(time.Hour)
					}
					return takes(mode.answer)
				}
				w.send("before", 1, time.Minute)
				begun.Store(hangs)
				at := w.send("e", 1, 2*time.Minute)
				for _, url := range others {
					lags, missing := w.lags(url, at)
					expect.MustEqual(t, fmt.Sprintf("hangs %v: events that %s misses after two minutes", hangs, url), missing, 0)
					last = max(last, lags[0])
				}
			})
			return last
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			without, with := took(t, false), took(t, true)
			t.Logf("the others had it after %v without, %v with 1 %% that hang: %.2f ×", without, with, float64(with)/float64(without))
			expect.AtMost(t, "the time after which the others had it", with, mode.most(without))
		})
	}
}

// EVX-11: deliveries fail, are retried, given up or suspended, and processes die. The cursor of a webhook or a refresh still
// never skips an event that is not yet acknowledged or abandoned, and it has moved when all deliveries are settled.
func TestTheWatermarkSkipsNothing(t *testing.T) {
	t.Parallel()
	moved, deaths := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		h := newHistory(t, rapid.Uint64().Draw(rt, "seed"))
		published := 0
		check := func(cursor string) {
			if what := h.skipped(cursor); what != "" {
				rt.Fatalf("the cursor skips %s", what)
			}
		}
		for range rapid.IntRange(30, 100).Draw(rt, "steps") {
			budget := 0
			if rapid.IntRange(0, 3).Draw(rt, "dies") == 0 {
				budget = rapid.IntRange(1, 12).Draw(rt, "after")
				deaths++
			}
			switch rapid.IntRange(0, 15).Draw(rt, "step") {
			case 0, 1:
				for range rapid.IntRange(1, 3).Draw(rt, "events") {
					h.publish(fmt.Sprint("e-", published))
					published++
				}
			case 2, 3:
				h.handleSome(queue.Events, budget)
			case 4, 5, 12, 13:
				h.handleSome(queue.Deliveries, budget)
			case 6:
				h.handleSome(queue.Slow, budget)
			case 7:
				h.retryDue(budget)
			case 8, 14:
				// The watermark assumes that workers handle all queued messages within a limited time.
				h.all = true
				h.handleSome(queue.Events, 0)
				h.handleSome(queue.Deliveries, 0)
				h.all = false
				h.wait(rapid.SampledFrom([]time.Duration{time.Second, time.Minute, 6 * time.Minute, 20 * time.Minute, 2 * time.Hour, 2 * time.Hour}).Draw(rt, "time"))
			case 9:
				h.fails = rapid.SampledFrom([]int{0, 30, 70}).Draw(rt, "fails")
			case 10, 15:
				if got := h.subscribe(); got != nil {
					check(got.Cursor)
				}
			case 11:
				if rapid.IntRange(0, 5).Draw(rt, "suspend") == 0 {
					h.suspend(h.id)
				}
			}
			if h.body != "" {
				check(h.body)
			}
		}
		h.fails = 0
		calm := func() {
			for range 40 {
				for _, q := range []queue.Name{queue.Events, queue.Deliveries, queue.Slow} {
					h.handleSome(q, 0)
				}
				h.wait(time.Minute)
				h.retryDue(0)
			}
		}
		h.subscribe()
		calm()
		h.wait(2 * time.Hour)
		end := h.log.Position()
		h.publish("last")
		calm()
		got := h.subscribe()
		check(got.Cursor)
		c, err := h.sealer.Open("default", got.Cursor)
		if err != nil {
			rt.Fatal(err)
		}
		if c.At < end {
			rt.Fatalf("the cursor is at %d, want at least %d, because all events up to that were delivered long ago", c.At, end)
		}
		moved++
	})
	if moved == 0 || deaths == 0 {
		t.Errorf("got %d histories and %d deaths, want some of each", moved, deaths)
	}
}

// WHK-18: the event of a delivery is stored as long as the delivery can need it. An event that is delivered again on its eleventh day has all attempts.
func TestAStoredEventOutlivesItsSchedule(t *testing.T) {
	t.Parallel()
	options := embedded()
	options.Schedule = retry.Schedule{0, 24 * time.Hour, 24 * time.Hour}
	inWorld(t, options, func(w *world) {
		url := oneOrigin(1)[0]
		sub := w.to(url)[0]
		var outcome atomic.Value // of the attempts from now on
		outcome.Store(tooLarge(0))
		w.answer = func(webhook.Request) webhook.Outcome { return outcome.Load().(webhook.Outcome) }
		expect.OK(t, w.enqueue("evt_1", `{"ok":true}`))
		time.Sleep(11 * 24 * time.Hour)
		operations := deadletter.NewOperations(deadletter.Options{DB: w.db, Queue: w.queued})
		stored := func() *event.Event {
			return expect.Value(operations.FindStoredEvent(w.t.Context(), "default", "event://ci/build-finished", "evt_1"))(t)
		}
		e := stored()
		expect.MustEqual(t, "the event is stored", e != nil, true)
		outcome.Store(succeeds(0))
		expect.OK(t, w.enqueue("evt_2", `{"ok":true}`)) // so that the subscription is not disabled
		time.Sleep(time.Minute)
		outcome.Store(fails(0))
		before := len(w.attemptsTo(url)) // counted first, because the workers do not wait for Deliver to return
		expect.OK(t, operations.Deliver(w.t.Context(), sub, e))
		time.Sleep(6 * 24 * time.Hour)
		expect.Equal(t, "attempts", len(w.attemptsTo(url))-before, len(options.Schedule))
		expect.True(t, "its dead letter still has the event", stored() != nil)
	})
}

// These simulate minutes of many deliveries, which take too long with the race detector.

// way is a way of running the pipeline.
type way func(t *testing.T, do func(w *world))

func standAlone(t *testing.T, do func(w *world)) { inWorld(t, embedded(), do) }

// functions returns the way with n processes of each function, whose requests take the given time.
func functions(n int, request time.Duration) way {
	return func(t *testing.T, do func(w *world)) { inFunctions(t, n, request, do) }
}

func TestSlowEndpointsDoNotDelayQuickOnes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                     string
		run                      way
		slow, perSecond, seconds int
		took, p50, p99           time.Duration
	}{
		{"stand-alone", standAlone, 4, 60, 20, 1900 * time.Millisecond, 30 * time.Millisecond, 30 * time.Millisecond},
		{"stand-alone", standAlone, 10, 50, 20, 400 * time.Millisecond, 30 * time.Millisecond, 30 * time.Millisecond},
		{"on AWS", functions(2, 0), 1, 20, 120, 200 * time.Millisecond, 200 * time.Millisecond, 2 * time.Second},
		{"on AWS", functions(2, 0), 1, 20, 120, 1900 * time.Millisecond, 200 * time.Millisecond, 2 * time.Second},
	} {
		t.Run(fmt.Sprintf("WHK-16 %s, when %d endpoints that answer in %v get %d events per second", c.name, c.slow, c.took, c.perSecond), func(t *testing.T) {
			c.run(t, func(w *world) {
				w.subscribeVictim(victim)
				w.to(oneOrigin(c.slow)...)
				w.answer = quick(c.took)
				at := map[string]time.Time{}
				for second := range c.seconds {
					id := fmt.Sprint("v", second)
					at[id] = time.Now()
					if c.slow > 1 {
						w.sendArray(fmt.Sprint("s", second, "_"), c.perSecond)
						w.sendVictim(id)
						time.Sleep(time.Second)
					} else {
						w.sendVictim(id)
						w.send(fmt.Sprint("s", second, "_"), c.perSecond, time.Second)
					}
				}
				time.Sleep(10 * time.Minute)
				lags := w.arrive(victim, at, 0)
				if p50, p99 := lags[len(lags)/2], lags[len(lags)*99/100]; p50 > c.p50 || p99 > c.p99 {
					t.Errorf("got p50 %v and p99 %v at the quick endpoint, want at most %v and %v", p50, p99, c.p50, c.p99)
				}
			})
		})
	}
}

// WHK-16: another principal's endpoint answers in 2.5 s next to 300 that hang.
func TestManyEndpointsThatHangDoNotDelayASlowOneOfTheirOrigin(t *testing.T) {
	t.Parallel()
	inWorld(t, embedded(), func(w *world) {
		const slow = "https://hooks.example.com/slow"
		w.subscribeVictim(slow)
		w.to(oneOrigin(300)...)
		w.answer = answers(time.Hour, map[string]webhook.Outcome{slow: takes(2500 * time.Millisecond)})
		at := map[string]time.Time{}
		for i := range 60 {
			if i%6 == 0 {
				w.sendArray(fmt.Sprint("s", i), 1)
			}
			id := fmt.Sprint("v", i)
			at[id] = time.Now()
			w.sendVictim(id)
			time.Sleep(10 * time.Second)
		}
		time.Sleep(20 * time.Minute)
		lags, missing := w.lags(slow, at)
		if missing > 0 || lags[len(lags)*9/10] > 10*time.Second || lags[len(lags)-1] > 2*time.Minute {
			t.Errorf("the slow endpoint misses %d events, p50 %v, p90 %v, worst %v; want 10s and 2m", missing, lags[len(lags)/2], lags[len(lags)*9/10], lags[len(lags)-1])
		}
	})
}

// WHK-16: an endpoint that answers 503 for ten minutes has few messages in flight, and one per delivery.
func TestDeliveriesToAPausedEndpointWaitInTheDueTable(t *testing.T) {
	t.Parallel()
	inWorld(t, embedded(), func(w *world) {
		url := oneOrigin(1)[0]
		w.to(url)
		w.answer = func(webhook.Request) webhook.Outcome {
			return webhook.Outcome{Status: 503, Category: webhook.HTTP5xx, Took: 20 * time.Millisecond}
		}
		const perSecond = 5
		most := 0
		for minute := range 10 {
			w.send(fmt.Sprint("m", minute, "_"), 60*perSecond, time.Minute)
			d := expect.Value(w.queued.Depth(w.t.Context(), queue.Slow))(t)
			most = max(most, d.InFlight+d.Visible)
			expect.AtMost(t, "the messages, one for each delivery", d.InFlight+d.Visible+d.Delayed, (minute+1)*60*perSecond)
		}
		// SQS allows 120,000 messages in flight, which may be the deliveries of 400 per second.
		expect.AtMost(t, "the messages in flight or visible", most, 120_000/400*perSecond)
	})
}

// inFunctions runs the pipeline as functions on AWS do: n batches of pages and n of the slow lane at the same time. Each request of
// dispatch to the store and the queues takes the given time.
func inFunctions(t *testing.T, n int, request time.Duration, do func(w *world)) {
	inFunctionsOver(t, n, request, func(q queue.Sender) queue.Sender { return q }, do)
}

// inFunctionsOver is [inFunctions] with the queue that ofQueue makes from the world's queue.
func inFunctionsOver(t *testing.T, n int, request time.Duration, ofQueue func(queue.Sender) queue.Sender, do func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		w, config := newWorld(t)
		config.DB, config.Queue, config.Options = storetest.Slow{Unordered: storetest.Unordered{DB: w.db}, Took: request}, ofQueue(slowSender{w.queued, request}), functionOptions()
		var mu sync.Mutex
		var free []*Dispatcher // as on AWS, the process that was used last is used first
		invoke := func(h func(*Dispatcher) queue.Handler) queue.Handler {
			return func(ctx context.Context, batch []queue.Message) ([]string, error) {
				mu.Lock()
				if len(free) == 0 {
					free = append(free, NewDispatcher(config))
				}
				d := free[len(free)-1]
				free = free[:len(free)-1]
				mu.Unlock()
				defer func() {
					mu.Lock()
					defer mu.Unlock()
					free = append(free, d)
				}()
				return h(d)(ctx, batch)
			}
		}
		fanout := &fanout.Fanout{DB: w.db, Log: &eventlog.Log{DB: w.db}, Catalog: w.catalogs, Queue: ofQueue(sendOnly{w.queued})}
		var workers sync.WaitGroup
		w.consume(ctx, &workers, queue.Events, fanout.Handle, queue.ConsumeOptions{Batch: 10, Concurrency: 2, Visibility: 20 * time.Second})
		w.consume(ctx, &workers, queue.Deliveries, invoke(func(d *Dispatcher) queue.Handler { return d.HandlePages }),
			queue.ConsumeOptions{Batch: 10, Concurrency: n, Visibility: 58 * time.Second})
		w.consume(ctx, &workers, queue.Slow, invoke(func(d *Dispatcher) queue.Handler { return d.HandleSingles }),
			queue.ConsumeOptions{Batch: 100, Concurrency: n, Visibility: 58 * time.Second})
		do(w)
		stop()
		workers.Wait()
		_ = w.queued.Close()
	})
}

// sendOnly hides that the queues can forward, which SQS cannot.
type sendOnly struct{ queue.Sender }

// slowSender is a queue like SQS in which each request takes a while.
type slowSender struct {
	queue.Sender
	took time.Duration
}

func (s slowSender) Send(ctx context.Context, q queue.Name, msgs ...queue.Outgoing) error {
	time.Sleep(s.took)
	return s.Sender.Send(ctx, q, msgs...)
}

// [TestAnEndpointThatBeginsToHangHarmsNoOther] has events at random times, and functions whose requests take a while.
func TestAHangingEndpointHarmsNoOther(t *testing.T) {
	t.Parallel()
	const answer = 50 * time.Millisecond // of the other endpoints
	for name, c := range map[string]struct {
		run    way
		events int
		over   time.Duration
	}{
		"stand-alone":                       {standAlone, 400, 10 * time.Second},
		"in two processes of each function": {functions(2, 0), 2400, 10 * time.Minute},
		"in ten processes of each function": {functions(10, 0), 2400, 10 * time.Minute},
	} {
		t.Run("WHK-16 "+name+", when one of twenty endpoints of an origin hangs, then the p99 of the others grows by less than 10 %", func(t *testing.T) {
			p99 := map[bool]time.Duration{} // by whether the endpoint hangs
			for _, hangs := range []bool{false, true} {
				c.run(t, func(w *world) {
					urls := oneOrigin(20)
					w.to(urls...)
					w.answer = answers(answer, map[string]webhook.Outcome{urls[0]: takes(map[bool]time.Duration{true: time.Hour, false: answer}[hangs])})
					at := w.send("e", c.events, c.over)
					time.Sleep(10 * time.Second)
					var all []time.Duration
					for _, url := range urls[1:] {
						all = append(all, w.arrive(url, at, 0)...)
					}
					slices.Sort(all)
					p99[hangs] = all[len(all)*99/100]
				})
			}
			t.Logf("p99 %v next to the hanging endpoint, %v without it", p99[true], p99[false])
			expect.AtMost(t, "the p99 next to the hanging endpoint", p99[true], p99[false]*11/10)
		})
	}
}

// WHK-16: given 24 events per second to twenty endpoints that answer in 30 ms, and functions whose requests take 10 ms, when one of
// the endpoints begins to hang, then the others notice little in the first three seconds, and nothing after that.
func TestAnEndpointThatBeginsToHangHarmsNoOther(t *testing.T) {
	t.Parallel()
	const answer = 30 * time.Millisecond
	for _, processes := range []int{2, 10} {
		t.Run(fmt.Sprintf("WHK-16 in %d processes of each function", processes), func(t *testing.T) {
			type phases [2][]time.Duration // the lags in the first three seconds, and after them
			measure := func(hangs bool, seed uint64) (lags phases) {
				functions(processes, 10*time.Millisecond)(t, func(w *world) {
					urls := oneOrigin(20)
					w.to(urls...)
					w.answer = answers(answer, nil)
					random := rand.New(rand.NewPCG(seed, 2))
					send := func(phase string, period time.Duration) map[string]time.Time {
						at := map[string]time.Time{}
						for end := time.Now().Add(period); time.Now().Before(end); {
							id := fmt.Sprint(phase, len(at))
							at[id] = time.Now()
							expect.OK(t, w.enqueue(id, `{"ok":true}`))
							time.Sleep(time.Duration(random.ExpFloat64() * float64(time.Second/24)))
						}
						return at
					}
					send("warm", 5*time.Second)
					if hangs {
						w.mu.Lock()
						w.answer = answers(answer, map[string]webhook.Outcome{urls[0]: takes(time.Hour)})
						w.mu.Unlock()
					}
					sent := []map[string]time.Time{send("first", 3*time.Second), send("later", 12*time.Second)}
					time.Sleep(5 * time.Second)
					for i, at := range sent {
						for _, url := range urls[1:] {
							lags[i] = append(lags[i], w.arrive(url, at, 0)...)
						}
					}
				})
				return lags
			}
			var without, with phases
			for seed := range uint64(4) {
				for i, lags := range measure(false, seed) {
					without[i] = append(without[i], lags...)
				}
				for i, lags := range measure(true, seed) {
					with[i] = append(with[i], lags...)
				}
			}
			p99 := func(lags []time.Duration) float64 {
				slices.Sort(lags)
				return lags[len(lags)*99/100].Seconds()
			}
			for i, most := range []float64{1.5, 1.1} {
				ratio := p99(with[i]) / p99(without[i])
				t.Logf("p99 %.1f ms without, %.1f ms with the hanging endpoint: %.2f", p99(without[i])*1e3, p99(with[i])*1e3, ratio)
				expect.AtMost(t, fmt.Sprintf("the factor of the p99 in phase %d", i), ratio, most)
			}
		})
	}
}

// WHK-16: given a burst of 1,000 events for a quick endpoint and a slow one, and two processes of each function whose requests take
// 15 ms, when the endpoint of another event type gets events, then each arrives within a second. This holds even if the queue
// serves all groups in the order of arrival, as SQS does before it notices that one group has most of the messages.
func TestABurstToASlowEndpointDoesNotDelayOthersOnAWS(t *testing.T) {
	t.Parallel()
	for name, ofQueue := range map[string]func(queue.Sender) queue.Sender{
		"a fair queue":             func(q queue.Sender) queue.Sender { return q },
		"a queue in arrival order": func(q queue.Sender) queue.Sender { return groupless{q} },
	} {
		t.Run(name, func(t *testing.T) {
			inFunctionsOver(t, 2, 15*time.Millisecond, ofQueue, func(w *world) {
				urls := oneOrigin(2)
				w.subscribeVictim(victim)
				w.to(urls...)
				w.answer = answers(1500*time.Millisecond, map[string]webhook.Outcome{victim: takes(20 * time.Millisecond), urls[0]: takes(20 * time.Millisecond)})
				w.sendArray("warm", 50)
				time.Sleep(20 * time.Second) // both processes know which endpoint is slow
				w.sendArray("burst", 1000)
				at := map[string]time.Time{}
				for i := range 10 {
					id := fmt.Sprint("v", i)
					at[id] = time.Now()
					w.sendVictim(id)
					time.Sleep(500 * time.Millisecond)
				}
				time.Sleep(10 * time.Minute)
				lags := w.arrive(victim, at, time.Second)
				t.Logf("the other endpoint got its events after %v", lags)
			})
		})
	}
}

// groupless sends messages of standard queues without a group, so that the queue serves them in the order of arrival.
type groupless struct{ queue.Sender }

func (s groupless) Send(ctx context.Context, q queue.Name, msgs ...queue.Outgoing) error {
	msgs = slices.Clone(msgs)
	for i := range msgs {
		if !q.FIFO() {
			msgs[i].Group = ""
		}
	}
	return s.Sender.Send(ctx, q, msgs...)
}

// WHK-24: an endpoint that answers in 200 ms receives 30 events per second.
func TestOneSubscriberOnAWS(t *testing.T) {
	t.Parallel()
	inFunctions(t, 2, 0, func(w *world) {
		const url = "https://busy.example.com/hook"
		w.to(url)
		w.answer = quick(200 * time.Millisecond)
		at := w.send("e", 60*30, time.Minute)
		time.Sleep(10 * time.Minute)
		w.arrive(url, at, 2*time.Second)
	})
}

// TestEndpointRates: WHK-16.
func TestTheRateOfAnEndpoint(t *testing.T) {
	t.Parallel()
	t.Run("WHK-16 what is over the rate is delivered later, at its pace, and none is lost", func(t *testing.T) {
		options := embedded()
		options.EndpointRate = 10
		inWorld(t, options, func(w *world) {
			urls := oneOrigin(2)
			w.to(urls...)
			w.answer = answers(10*time.Millisecond, nil)
			at := w.send("e", 200, 2*time.Second)
			time.Sleep(2 * time.Minute)
			for _, url := range urls {
				lags := w.arrive(url, at, 0)
				expect.Equal(t, "the attempts", len(w.attemptsTo(url)), len(at))
				expect.AtMost(t, "the attempts in a second", w.perSecond(url), 10)
				if last := lags[len(lags)-1]; last < 17*time.Second || last > 45*time.Second {
					t.Errorf("the last came after %v, want 17s to 45s, because 200 take 20 s at 10 a second", last)
				}
			}
		})
	})
	t.Run("WHK-18 each delivery is made, and none is given up without an attempt", func(t *testing.T) {
		options := embedded()
		options.EndpointRate = 2
		options.Schedule = retry.Schedule{0, time.Second}
		inWorld(t, options, func(w *world) {
			url := oneOrigin(1)[0]
			w.to(url)
			w.answer = answers(10*time.Millisecond, nil)
			// Another process uses half of the rate.
			foreign := lane.New(w.db, lane.Limits{Attempts: 1, PerEndpoint: 1, Bytes: 1 << 20, Rate: options.EndpointRate}, time.Now)
			stop := time.Now().Add(40 * time.Minute)
			go func() {
				for time.Now().Before(stop) {
					ctx := context.WithoutCancel(w.t.Context())
					if s, v := foreign.Reserve(ctx, lane.Call{Endpoint: task.EndpointID(url), URL: url}, lane.PageWait{}); v == lane.Granted {
						s.Start(ctx, url)
						s.Done(lane.Unused)
					}
					time.Sleep(time.Second)
				}
			}()
			at := w.send("e", 1500, time.Second)
			time.Sleep(3 * time.Hour)
			w.arrive(url, at, 0)
			expect.Equal(t, "the dead letters", len(w.dead(t)), 0)
			expect.AtMost(t, "the attempts in a second", w.perSecond(url), int(options.EndpointRate))
		})
	})
}

// perSecond returns the largest number of attempts to an endpoint within one clock second.
func (w *world) perSecond(url string) (most int) {
	in := map[int64]int{}
	for _, at := range w.attemptsTo(url) {
		in[at.Unix()]++
		most = max(most, in[at.Unix()])
	}
	return most
}

func TestSchedules(t *testing.T) {
	t.Parallel()
	t.Run("WHK-10 the delays of each kind, by default and as configured", func(t *testing.T) {
		const s, m, h = time.Second, time.Minute, time.Hour
		standard := retry.Schedule{0, 5 * s, 5 * m, 30 * m, 2 * h, 5 * h, 10 * h, 14 * h, 20 * h, 24 * h} // of Standard Webhooks
		for name, tc := range map[string]struct {
			options Options
			want    map[subscription.Origin]retry.Schedule
		}{
			"by default": {Options{}, map[subscription.Origin]retry.Schedule{subscription.SEP1803: standard, subscription.MCPEvents: retry.EventsSchedule}},
			"configured": {Options{Schedule: retry.Schedule{0, s}, EventsSchedule: retry.Schedule{0, m}}, map[subscription.Origin]retry.Schedule{
				subscription.SEP1803: {0, s}, subscription.MCPEvents: {0, m},
			}},
		} {
			d := NewDispatcher(Config{DB: newRig(t).db, Options: tc.options})
			for origin, want := range tc.want {
				expect.List(t, fmt.Sprintf("%s: the schedule of %v", name, origin), d.outcomes.Schedules.ScheduleFor(origin), want)
			}
		}
		if n, took := len(retry.EventsSchedule), retry.EventsSchedule.Total(); n != 5 || took > 15*m {
			t.Errorf("MCP Events: %d attempts within %v, want 5 within 15 minutes", n, took)
		}
	})

	t.Run("WHK-10 a delay varies by a fifth either way, and the last attempt has none after it", func(t *testing.T) {
		for i, delay := range retry.StandardSchedule {
			if i == 0 {
				continue
			}
			least, most := delay*2, time.Duration(0)
			for range 2000 {
				got, ok := retry.StandardSchedule.Next(i, 0)
				expect.MustEqual(t, fmt.Sprintf("attempt %d follows", i+1), ok, true)
				least, most = min(least, got), max(most, got)
			}
			if least < delay*4/5 || least > delay*9/10 || most < delay*11/10 || most > delay*6/5 {
				t.Errorf("the delay before attempt %d is from %v to %v, want a fifth about %v", i+1, least, most, delay)
			}
		}
		_, ok := retry.StandardSchedule.Next(len(retry.StandardSchedule), 0)
		expect.True(t, "no attempt follows the last", !ok)
	})
	t.Run("WHK-09 a Retry-After lengthens the delay, up to a day", func(t *testing.T) {
		for retryAfter, want := range map[time.Duration]time.Duration{time.Hour: time.Hour, 25 * time.Hour: 24 * time.Hour} {
			got, _ := retry.EventsSchedule.Next(1, retryAfter)
			expect.Equal(t, fmt.Sprint("the delay with Retry-After ", retryAfter), got, want)
		}
	})

	for _, category := range []webhook.Category{
		webhook.DNSError, webhook.TLSError, webhook.ConnectionRefused, webhook.Timeout, webhook.HTTP5xx, webhook.HTTP4xx,
	} {
		t.Run(fmt.Sprintf("WHK-10 %s is tried again to the end of each schedule", category), func(t *testing.T) {
			r := newRig(t)
			plain, events := r.register("event://ci/build-finished").ID, r.subscribe().ID
			r.script = func(int) webhook.Outcome { return webhook.Outcome{Category: category, Status: statusOf(category)} }
			r.publish("evt_1")
			for end := r.now.Add(retry.StandardSchedule.Total()); r.now.Before(end); {
				r.run()
			}
			got := map[string]int{}
			for _, p := range r.posts {
				if p.ID != "evt_1" {
					continue // a gap notice, which is retried for longer
				}
				got[p.SubscriptionID]++
			}
			if got[plain] != len(retry.StandardSchedule) || got[events] != len(retry.EventsSchedule) {
				t.Errorf("got %d and %d attempts, want %d and %d", got[plain], got[events], len(retry.StandardSchedule), len(retry.EventsSchedule))
			}
		})
	}
}

func statusOf(c webhook.Category) int {
	return map[webhook.Category]int{webhook.HTTP4xx: 404, webhook.HTTP5xx: 500}[c]
}

// TestADeadEventIsReplayed: WHK-18, OPS-05. An event with a dead letter is delivered again, and its first new attempt does
// not succeed: the event is retried all the same.
func TestADeadEventIsReplayed(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]struct {
		paused bool // the endpoint, by the dispatcher
		fails  int  // attempts
	}{
		"to an endpoint that the dispatcher paused": {true, 0}, "to an endpoint that fails once more": {false, 1},
	} {
		t.Run("WHK-18 "+name, func(t *testing.T) {
			r, sub := registered(t)
			since := r.now.Add(-time.Hour)
			r.script = tooLarge
			r.run("evt_1")
			expect.Equal(t, "the delivery of evt_1", r.deliveryState(sub.ID, "evt_1"), state.Dead)
			var pause []string // the events whose answers pause the endpoint
			if first.paused {
				pause = []string{"evt_2", "evt_3", "evt_4"}
			}
			r.script = overloaded
			d, retry := r.firstAttempts(pause...)
			before := posted(r)["evt_1"]
			r.script = failsFirst(len(r.posts) + first.fails)
			job := r.replay(r.replays(), sub, deadletter.ReplaySelect{Events: true, Subscription: sub.ID, Since: since})
			r.drain(d, retry)
			expect.AtLeast(t, "the replayed events", job.Replayed, 1)
			expect.AtLeast(t, "the posts after the replay", posted(r)["evt_1"]-before, first.fails+1)
		})
	}
	t.Run("WHK-18 EVX-11 to a subscription that was created again with an older cursor", func(t *testing.T) {
		r := newRig(t)
		got := r.subscribe()
		r.script = fails
		r.run("evt_1", "evt_2")
		r.script = overloaded
		d, retry := r.firstAttempts("evt_3")
		r.end(got.ID)
		r.script = succeeds
		r.now = r.now.Add(time.Second)
		before := posted(r)
		r.subscribeFrom(got.Cursor)
		r.drain(d, retry)
		for _, id := range []string{"evt_1", "evt_2", "evt_3"} {
			expect.Differ(t, "the posts of "+id+" after the cursor", posted(r)[id], before[id])
		}
	})
	t.Run("EVX-13 to a subscription that was created again, and the event is lost again: the gap is announced", func(t *testing.T) {
		r := newRig(t)
		got := r.subscribe()
		r.script = refuse(r, fails(0))
		r.run("evt_1")
		r.end(got.ID)
		r.now = r.now.Add(time.Second)
		r.posts = nil
		r.subscribeFrom(got.Cursor)
		r.run()
		expect.Equal(t, "attempts of the event", posted(r)["evt_1"], len(retry.EventsSchedule))
		ids, _ := r.gaps(t)
		expect.Len(t, "the gaps that were announced", ids, 1)
	})
	t.Run("WHK-12 to an endpoint that is gone: its answer 410 counts, and one new dead letter is kept", func(t *testing.T) {
		r, sub := registered(t)
		since := r.now.Add(-time.Hour)
		r.script = tooLarge
		r.run("evt_1")
		r.now = r.now.Add(time.Minute)
		r.script = func(int) webhook.Outcome { return webhook.Outcome{Status: 410, Category: webhook.HTTP4xx} }
		r.replay(r.replays(), sub, deadletter.ReplaySelect{Events: true, Subscription: sub.ID, Since: since})
		_, d, retry := r.process()
		r.drain(d, retry)
		expect.Equal(t, "the subscription", r.record(sub.ID).State, subscription.Disabled)
		expect.Len(t, "the attempts of the dead letter", r.letterOf(sub).Attempts, 2)
	})
}
