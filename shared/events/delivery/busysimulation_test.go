//go:build !race

package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/subscription/review"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	queuesqlite "github.com/mcp-events/mcpevents/shared/storage/queue/sqlite"

	"github.com/mcp-events/mcpevents/shared/events/fanout"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
)

// These simulate minutes of many deliveries, which take too long with the race detector.

func TestSlowEndpointsDoNotDelayQuickOnes(t *testing.T) {
	for _, c := range []struct {
		slow, perSecond int
		took            time.Duration
	}{{4, 60, 1900 * time.Millisecond}, {20, 15, 1900 * time.Millisecond}, {10, 50, 400 * time.Millisecond}} {
		t.Run(fmt.Sprintf("WHK-16 %d endpoints that answer in %v get %d events per second", c.slow, c.took, c.perSecond), func(t *testing.T) {
			inWorld(t, embedded(), func(w *world) {
				w.subscribeVictim(victim)
				w.to(oneOrigin(c.slow)...)
				w.answer = quick(c.took)
				at := map[string]time.Time{}
				for second := range 20 {
					w.sendArray(fmt.Sprint("s", second, "_"), c.perSecond)
					id := fmt.Sprint("v", second)
					at[id] = time.Now()
					w.sendVictim(id)
					time.Sleep(time.Second)
				}
				time.Sleep(time.Minute)
				lags, missing := w.lags(victim, at)
				if missing > 0 || lags[len(lags)-1] > 30*time.Millisecond {
					t.Errorf("the quick endpoint misses %d events, p50 %v, worst %v; want 30ms, 1.5 times its answer", missing, lags[len(lags)/2], lags[len(lags)-1])
				}
			})
		})
	}
}

func TestManyEndpointsThatHangDoNotDelayASlowOneOfTheirOrigin(t *testing.T) {
	t.Run("WHK-16 another principal's endpoint answers in 2.5 s next to 300 that hang", func(t *testing.T) {
		inWorld(t, embedded(), func(w *world) {
			const slow = "https://hooks.example.com/slow"
			w.subscribeVictim(slow)
			w.to(oneOrigin(300)...)
			w.answer = func(r webhook.Request) webhook.Outcome {
				if r.URL == slow {
					return webhook.Outcome{Status: 200, Took: 2500 * time.Millisecond}
				}
				return webhook.Outcome{Status: 200, Took: time.Hour}
			}
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
	})
}

func TestDeliveriesToAPausedEndpointWaitInTheDueTable(t *testing.T) {
	t.Run("WHK-16 an endpoint that answers 503 for ten minutes has few messages in flight, and one per delivery", func(t *testing.T) {
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
				d, err := w.queued.Depth(w.t.Context(), queue.Slow)
				if err != nil {
					t.Fatal(err)
				}
				most = max(most, d.InFlight+d.Visible)
				if all := (minute + 1) * 60 * perSecond; d.InFlight+d.Visible+d.Delayed > all {
					t.Fatalf("%d messages for %d deliveries: %+v", d.InFlight+d.Visible+d.Delayed, all, d)
				}
			}
			if limit := 120_000 / 400 * perSecond; most > limit {
				t.Errorf("%d messages were in flight or visible at %d deliveries per second, want %d: SQS allows 120,000", most, perSecond, limit)
			}
		})
	})
}

// inFunctions runs the pipeline as n processes of each function do. Each request of dispatch to the store and the queues takes the
// given time.
func inFunctions(t *testing.T, n int, request time.Duration, do func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		w := &world{rig: newRig(t), attempts: map[string][]time.Time{}, arrived: map[string]map[string]time.Time{}, under: map[string]int{}, most: map[string]int{}}
		log := slog.New(slog.DiscardHandler)
		queues, err := queuesqlite.Open(w.db.Engine(), queuesqlite.Options{Log: log})
		if err != nil {
			t.Fatal(err)
		}
		w.queued = queues
		w.services.Records.Now, w.services.Lists.Now = time.Now, time.Now
		services := &subscription.Service{Records: subscription.Records{DB: w.db}, Catalog: w.catalogs, Log: w.log}
		instances := func() chan *Dispatcher {
			free := make(chan *Dispatcher, n)
			for range n {
				free <- NewDispatcher(Config{
					DB: slowStore{unorderedStore{w.db}, request}, Queue: slowSender{queues, request}, Subscriptions: services, Catalog: w.catalogs, Poster: w, Opener: plain{}, Log: log,
					Terminator: &lifecycle.Terminator{
						Queue: queues, Subscriptions: services, Lists: w.services.Lists, Log: log,
						Review:      &review.Review{DB: w.db, Catalog: w.catalogs},
						ErrorObject: func(spec.Profile, error) json.RawMessage { return []byte(`"x"`) },
					},
					Options: functionOptions(),
				})
			}
			return free
		}
		invoke := func(free chan *Dispatcher, h func(*Dispatcher) queue.Handler) queue.Handler {
			return func(ctx context.Context, batch []queue.Message) ([]string, error) {
				d := <-free
				defer func() { free <- d }()
				return h(d)(ctx, batch)
			}
		}
		fanout := &fanout.Fanout{DB: w.db, Log: &eventlog.Log{DB: w.db}, Catalog: w.catalogs, Queue: sendOnly{queues}}
		var workers sync.WaitGroup
		for _, c := range []struct {
			name queue.Name
			h    queue.Handler
			o    queue.ConsumeOptions
		}{
			{queue.Events, fanout.Handle, queue.ConsumeOptions{Batch: 10, Concurrency: 2, Visibility: 20 * time.Second}},
			{
				queue.Deliveries, invoke(instances(), func(d *Dispatcher) queue.Handler { return d.Pages }),
				queue.ConsumeOptions{Batch: 10, Concurrency: n, Visibility: 58 * time.Second},
			},
			{
				queue.Slow, invoke(instances(), func(d *Dispatcher) queue.Handler { return d.Singles }),
				queue.ConsumeOptions{Batch: 100, Concurrency: n, Visibility: 58 * time.Second},
			},
		} {
			workers.Go(func() { _ = queues.Consume(ctx, c.name, c.h, c.o) })
		}
		do(w)
		stop()
		workers.Wait()
		_ = queues.Close()
	})
}

// sendOnly hides that the queues can forward, which SQS cannot.
type sendOnly struct{ queue.Sender }

func TestAHangingEndpointOnAWS(t *testing.T) {
	for name, workers := range map[string]int{"default parameters": 2, "ten workers": 10} {
		t.Run("WHK-16 given "+name+", when one of twenty endpoints of an origin hangs, then the others receive their events as without it", func(t *testing.T) {
			inFunctions(t, workers, 0, func(w *world) {
				urls := oneOrigin(20)
				w.to(urls...)
				const well = 50 * time.Millisecond
				w.answer = func(r webhook.Request) webhook.Outcome {
					if r.URL == urls[0] {
						return webhook.Outcome{Status: 200, Took: time.Hour}
					}
					return webhook.Outcome{Status: 200, Took: well}
				}
				at := w.send("e", 10*60*4, 10*time.Minute)
				time.Sleep(10 * time.Second)
				for _, url := range urls[1:] {
					lags, missing := w.lags(url, at)
					if p99 := lags[len(lags)*99/100]; missing > 0 || p99 > well*11/10 {
						t.Errorf("%s misses %d events, p99 %v, worst %v; want a p99 of %v", url, missing, p99, lags[len(lags)-1], well)
						break
					}
				}
			})
		})
	}
}

// slowSender is a queue like SQS in which each request takes a while.
type slowSender struct {
	queue.Sender
	took time.Duration
}

func (s slowSender) Send(ctx context.Context, q queue.Name, msgs ...queue.Outgoing) error {
	time.Sleep(s.took)
	return s.Sender.Send(ctx, q, msgs...)
}

// A page hands each delivery to a hanging endpoint over to the slow lane with three requests, one after the other. They may take
// as long as the attempts at the other endpoints, or a page would hold its process longer and the next one would wait for it.
func TestHandingDeliveriesOverDoesNotHoldUpPages(t *testing.T) {
	t.Run("WHK-16 given requests of 10 ms and events at random times, when one of twenty endpoints hangs, then the p99 of the others grows by less than 10 %", func(t *testing.T) {
		const well, perSecond, minutes = 50 * time.Millisecond, 8, 4
		p99 := map[bool]time.Duration{} // by whether the endpoint hangs
		for _, hangs := range []bool{false, true} {
			inFunctions(t, 2, 10*time.Millisecond, func(w *world) {
				urls := oneOrigin(20)
				w.to(urls...)
				w.answer = func(r webhook.Request) webhook.Outcome {
					if hangs && r.URL == urls[0] {
						return webhook.Outcome{Status: 200, Took: time.Hour}
					}
					return webhook.Outcome{Status: 200, Took: well}
				}
				pauses := rand.New(rand.NewPCG(1, 2))
				at := map[string]time.Time{}
				for i := range perSecond * 60 * minutes {
					id := fmt.Sprint("e", i)
					if i >= perSecond*60 { // by then the processes know that it hangs
						at[id] = time.Now()
					}
					if err := w.enqueue(id, `{"ok":true}`); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Duration(pauses.ExpFloat64() * float64(time.Second/perSecond)))
				}
				time.Sleep(10 * time.Second)
				var all []time.Duration
				for _, url := range urls[1:] {
					lags, missing := w.lags(url, at)
					if missing > 0 {
						t.Errorf("%s misses %d events, want none", url, missing)
					}
					all = append(all, lags...)
				}
				slices.Sort(all)
				p99[hangs] = all[len(all)*99/100]
			})
		}
		if p99[true] > p99[false]*11/10 {
			t.Errorf("got a p99 of %v next to the hanging endpoint and %v without it, want less than 10 %% more", p99[true], p99[false])
		}
	})
}

func TestOneSubscriberOnAWS(t *testing.T) {
	t.Run("WHK-24 an endpoint that answers in 200 ms receives 30 events per second", func(t *testing.T) {
		inFunctions(t, 2, 0, func(w *world) {
			const url = "https://busy.example.com/hook"
			w.to(url)
			w.answer = quick(200 * time.Millisecond)
			at := w.send("e", 60*30, time.Minute)
			time.Sleep(10 * time.Minute)
			lags, missing := w.lags(url, at)
			if missing > 0 || lags[len(lags)-1] > 2*time.Second {
				t.Errorf("%d events are missing, the slowest of the others took %v, want 2s", missing, lags[len(lags)-1])
			}
		})
	})
	for _, c := range []struct {
		perSecond int
		took      time.Duration
	}{{20, 200 * time.Millisecond}, {3, 1900 * time.Millisecond}, {20, 1900 * time.Millisecond}} {
		t.Run(fmt.Sprintf("WHK-16 one that answers in %v gets %d events per second, and another one is not delayed", c.took, c.perSecond), func(t *testing.T) {
			inFunctions(t, 2, 0, func(w *world) {
				w.subscribeVictim(victim)
				w.to("https://slow.example.com/hook")
				w.answer = quick(c.took)
				at := map[string]time.Time{}
				for second := range 120 {
					id := fmt.Sprint("v", second)
					at[id] = time.Now()
					w.sendVictim(id)
					w.send(fmt.Sprint("s", second, "_"), c.perSecond, time.Second)
				}
				time.Sleep(10 * time.Minute)
				lags, missing := w.lags(victim, at)
				if missing > 0 || lags[len(lags)/2] > 200*time.Millisecond || lags[len(lags)*99/100] > 2*time.Second {
					t.Errorf("the other endpoint misses %d events, p50 %v, p99 %v; want 200ms and 2s", missing, lags[len(lags)/2], lags[len(lags)*99/100])
				}
			})
		})
	}
}
