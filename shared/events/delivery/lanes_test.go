package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lane"
	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// WHK-09: an answer that asks for less slows the whole endpoint down, for as long as Retry-After says. Package lane has all statuses.
func TestOverloadAnswersSlowTheWholeEndpointDown(t *testing.T) {
	const (
		well  = 50 * time.Millisecond // an ordinary answer over the Internet
		after = 3 * time.Hour
	)
	inWorld(t, embedded(), func(w *world) {
		urls := oneOrigin(2)
		w.to(urls...)
		var refused time.Time
		var mu sync.Mutex
		early := 0
		w.answer = func(r webhook.Request) webhook.Outcome {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case r.URL != urls[0]:
			case refused.IsZero():
				refused = time.Now()
				return webhook.Outcome{Status: 503, Category: webhook.HTTP5xx, RetryAfter: after, Took: well}
			case time.Since(refused) < after:
				early++
			}
			return takes(well)
		}
		at := w.send("e", 20, 20*time.Second)
		time.Sleep(after*5/4 + 40*time.Minute)
		expect.Equal(t, "the attempts before their time", early, 0)
		w.arrive(urls[0], at, 0)
		w.arrive(urls[1], at, time.Second)
	})
}

// TestTheBodiesUnderWayAreBounded: WHK-16. Large payloads for a slow endpoint and for one that
// hangs use a limited amount of memory, and all arrive.
func TestTheBodiesUnderWayAreBounded(t *testing.T) {
	options := embedded()
	options.Bytes = 1 << 20
	inWorld(t, options, func(w *world) {
		urls := oneOrigin(3)
		w.to(urls...)
		w.payload = `{"ok":"` + strings.Repeat("x", 12<<10) + `"}`
		w.answer = answers(10*time.Millisecond, map[string]webhook.Outcome{urls[0]: takes(time.Second), urls[1]: takes(time.Hour)})
		at := w.send("e", 140, 2*time.Second)
		time.Sleep(20 * time.Minute)
		w.arrive(urls[0], at, 0)
		w.arrive(urls[2], at, 0)
		expect.AtMost(t, "the bytes of bodies under way", w.mostHeld, int(options.Bytes))
		expect.AtLeast(t, "the bytes of bodies under way, so that the test shows something", w.mostHeld, 1<<16)
	})
}

// TestInternalFailuresStayWhereTheyHappen: WHK-19, AWS-05.
func TestInternalFailuresStayWhereTheyHappen(t *testing.T) {
	const well = 10 * time.Millisecond
	t.Run("AWS-05 a broken item of one subscriber repeats no webhook of the others", func(t *testing.T) {
		inWorld(t, embedded(), func(w *world) {
			urls := oneOrigin(6)
			w.to(urls...)
			w.answer = answers(well, nil)
			broken := expect.Value(w.db.Query(w.t.Context(), store.Query{
				Table: store.Subscriptions, Partition: subscription.HeaderKey("default", "event://ci/build-finished").Partition, After: "#",
			}))(t).Items[2]
			var sub subscription.Subscriber
			_ = json.Unmarshal(broken.Value, &sub)
			broken.Value = []byte(`{"v":`)
			expect.OK(t, w.db.Write(w.t.Context(), store.Put(broken)))
			w.send("e", 1, time.Second)
			time.Sleep(time.Hour)
			for _, url := range urls {
				want := 1
				if url == sub.Target.URL {
					want = 0
				}
				expect.Equal(t, "the attempts to "+url, w.count("e0", url), want)
			}
			expect.Equal(t, "visible dead letters", expect.Value(w.queued.Depth(w.t.Context(), queue.Dead))(t).Visible, 1)
		})
	})
	t.Run("AWS-05 a secret that cannot be opened is a dead letter of its subscription, the others are served once", func(t *testing.T) {
		options := embedded()
		options.Schedule = retry.Schedule{0, time.Minute, time.Hour}
		inWorld(t, options, func(w *world) {
			urls := oneOrigin(6)
			w.to(urls...)
			w.d.sender.opener = refusing{urls[3]}
			w.answer = answers(well, nil)
			at := w.send("e", 3, time.Second)
			time.Sleep(2 * time.Hour)
			for i, url := range urls {
				want := 1
				if i == 3 {
					want = 0
				}
				for id := range at {
					expect.Equal(t, "the attempts of "+id+" to "+url, w.count(id, url), want)
				}
			}
			dead := w.dead(t)
			for _, del := range dead {
				if del.Target != urls[3] || del.Attempts[len(del.Attempts)-1].Category != string(webhook.Internal) {
					t.Errorf("got the dead letter %+v, want one to %s of the category internal", del, urls[3])
				}
			}
			expect.Equal(t, "dead letters", len(dead), 3)
		})
	})
}

// refusing cannot open the secrets of one target.
type refusing struct{ target string }

func (o refusing) Open(_ context.Context, sealed []byte, b webhook.Binding) ([]byte, error) {
	if b.Target == o.target {
		return nil, errDied
	}
	return sealed, nil
}

// victim is a quick endpoint that sometimes gets an event of another type, next to the load of a test.
const victim = "https://well.example.com/hook"

// subscribeVictim registers the victim.
func (w *world) subscribeVictim(url string) {
	w.registerAs(w.principal(), url, "event://github/acme/site/push")
}

// sendVictim publishes an event for the victim.
func (w *world) sendVictim(id string) {
	w.t.Helper()
	m := w.message("event://github/acme/site/push", "github.push", id, `{}`, time.Now())
	m.Group, m.Dedup = "v", id
	expect.OK(w.t, w.queued.Send(w.t.Context(), queue.Events, m))
}

// sendArray publishes n events in one request.
func (w *world) sendArray(prefix string, n int) (at map[string]time.Time) {
	w.t.Helper()
	at = map[string]time.Time{}
	var msgs []queue.Outgoing
	for i := range n {
		id := fmt.Sprintf("%s%d", prefix, i)
		at[id] = time.Now()
		m := w.message("event://ci/build-finished", "ci.build_finished", id, `{"ok":true}`, time.Now())
		m.Group, m.Dedup = "g", id
		msgs = append(msgs, m)
	}
	expect.OK(w.t, w.queued.Send(w.t.Context(), queue.Events, msgs...))
	return at
}

// quick answers the victim in 20 ms, and all other endpoints after the given time.
func quick(others time.Duration) func(webhook.Request) webhook.Outcome {
	return answers(others, map[string]webhook.Outcome{victim: takes(20 * time.Millisecond)})
}

func TestABusyEndpointStaysInTheFastLane(t *testing.T) {
	const url = "https://busy.example.com/hook"
	t.Run("WHK-24 an array of 100 events arrives within half a second at an endpoint that answers in 100 ms", func(t *testing.T) {
		inWorld(t, embedded(), func(w *world) {
			w.to(url)
			w.answer = quick(100 * time.Millisecond)
			at := w.sendArray("e", 100)
			time.Sleep(time.Minute)
			w.arrive(url, at, 500*time.Millisecond)
		})
	})

	t.Run("WHK-25 a burst of 5,000 events is delivered as fast as the endpoint's concurrency allows", func(t *testing.T) {
		inWorld(t, embedded(), func(w *world) {
			w.to(url)
			w.answer = quick(200 * time.Millisecond)
			began, at := time.Now(), map[string]time.Time{}
			for i := range 100 {
				maps.Copy(at, w.sendArray(fmt.Sprint("e", i, "_"), 50))
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(5 * time.Minute)
			lags := w.arrive(url, at, 0)
			var last time.Time
			w.mu.Lock()
			for _, arrived := range w.arrived[url] {
				last = periodic.Later(last, arrived)
			}
			w.mu.Unlock()
			best := time.Duration(len(at)) * 200 * time.Millisecond / 64
			if took := last.Sub(began); took > best*3/2 {
				t.Errorf("delivered after %v, want 1.5 times %v; the slowest took %v", took, best, lags[len(lags)-1])
			}
			expect.AtMost(t, "the attempts under way", w.mostTo(url), 64)
		})
	})
}

func TestPausingASubscriptionStopsThePageThatIsBeingSent(t *testing.T) {
	for _, kind := range []string{"subscription", "origin"} {
		t.Run("WHK-22 its "+kind+" is paused, and no attempt starts five seconds later", func(t *testing.T) {
			inWorld(t, embedded(), func(w *world) {
				set := &switches.Set{DB: w.db, Queue: w.queued, Alone: true}
				w.d.Switches = set
				url := oneOrigin(1)[0]
				sub := w.to(url)[0]
				w.answer = quick(time.Second)
				w.sendArray("e", 1000)
				time.Sleep(3 * time.Second)
				sw := switches.Switch{Name: switches.SubscriptionSwitch(sub.ID), By: "op"}
				var err error
				if kind == "origin" {
					sw.Name = switches.OriginSwitch("https://hooks.example.com")
					err = set.Pause(w.t.Context(), "default", sw)
				} else {
					_, err = w.services.SetPaused(w.t.Context(), "default", sub.Principal, sub.ID, true, set.PauseOps("default", sw)...)
				}
				expect.OK(t, err)
				paused := time.Now()
				time.Sleep(10 * time.Minute)
				all := w.attemptsTo(url)
				if last := all[len(all)-1].Sub(paused); last > 5*time.Second || len(all) == 1000 {
					t.Errorf("%d of 1000 attempts were made, the last %v after the pause, want 5s", len(all), last)
				}
			})
		})
	}
}

// On AWS, a page holds one of few processes. WHK-16: while batches follow each other, a page does not wait for an attempt that
// takes longer than usual for its endpoint. A process that may be frozen after the batch waits, because it would lose the answer.
func TestAPageDoesNotWaitForALateAnswer(t *testing.T) {
	const usual, ms = 30 * time.Millisecond, time.Millisecond
	for name, c := range map[string]struct {
		pause, took time.Duration // between the batches; by the late answer
		pages       time.Duration // that the page takes
		next        int           // attempts of the next page, a second later
		attempts    int           // for the late event, in a minute
	}{
		"WHK-16 a busy process: the attempt continues without its page":          {0, 900 * ms, 100 * ms, 1, 1},
		"WHK-16 a busy process: the endpoint was slow":                           {0, 2500 * ms, 100 * ms, 0, 1},
		"WHK-16 a busy process: the endpoint hangs, and the slow lane serves it": {0, time.Hour, 100 * ms, 0, 2},
		"WHK-16 a process that was frozen before the batch waits":                {maxIdle, 2500 * ms, 2500 * ms, 0, 1},
		"WHK-16 a process that was frozen, and the endpoint hangs":               {maxIdle, time.Hour, 3 * time.Second, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world, config Config) {
				ctx, stop := context.WithCancel(t.Context())
				d := NewDispatcher(config)
				url := oneOrigin(1)[0]
				sub := w.to(url)[0]
				var late atomic.Bool
				w.answer = func(r webhook.Request) webhook.Outcome {
					if r.ID == "e1" && !late.Swap(true) {
						return takes(c.took)
					}
					return takes(usual)
				}
				var workers sync.WaitGroup
				w.consume(ctx, &workers, queue.Slow, d.HandleSingles, queue.ConsumeOptions{Batch: 100, Concurrency: 1, Visibility: 58 * time.Second})
				events := someEvents(3, 60)
				for range 3 {
					w.timePage(d, sub, events[0])
				}
				time.Sleep(c.pause)
				expect.Equal(t, "the time of the page", w.timePage(d, sub, events[1]), c.pages)
				time.Sleep(time.Second)
				w.timePage(d, sub, events[2])
				expect.Equal(t, "the attempts of the next page", w.count("e2", url), c.next)
				time.Sleep(time.Minute)
				expect.Equal(t, "the attempts for the late event", w.count("e1", url), c.attempts)
				for _, e := range events {
					if _, arrived := w.arrived[url][e.ID]; !arrived || w.storedDelivery(sub.ID, e.ID) != nil {
						t.Errorf("%s: arrived %v, stored %+v, want it arrived and not stored", e.ID, arrived, w.storedDelivery(sub.ID, e.ID))
					}
				}
				stop()
				workers.Wait()
				d.Wait(context.Background())
			})
		})
	}
}

// WHK-16: a process notices that an endpoint hangs. The first page of a new process then waits for the endpoint only as long as for
// an unknown one, and no longer than for others when the endpoint has had time to recover.
func TestAProcessLearnsFromAnotherThatAnEndpointHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, config Config) {
		sub := w.to(oneOrigin(1)...)[0]
		w.answer = answers(time.Hour, nil)
		events := someEvents(3, 60)
		expect.Equal(t, "the page of the first process", w.timePage(NewDispatcher(config), sub, events[0]), 3*time.Second)
		expect.Equal(t, "the page of the second process", w.timePage(NewDispatcher(config), sub, events[1]), 200*time.Millisecond)
		w.mu.Lock()
		w.answer = answers(900*time.Millisecond, nil)
		w.mu.Unlock()
		time.Sleep(6 * time.Minute)
		expect.Equal(t, "the page of the third process", w.timePage(NewDispatcher(config), sub, events[2]), 900*time.Millisecond)
	})
}

// WHK-19: given a delivery whose attempts end the process, when its message is received too often, then it waits in the due table, and
// becomes a dead letter when it is older than its schedule.
func TestADeliveryThatEndsItsProcessIsGivenUp(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, config Config) {
		w.answer = answers(time.Millisecond, nil)
		sub := w.to(oneOrigin(1)...)[0]
		config.Options = Options{}
		d := NewDispatcher(config)
		e := someEvents(1, 60)[0]
		receive := func(m queue.Message) {
			m.Received = mostReceives + 1
			w.done(d.HandleSingles(t.Context(), []queue.Message{m}))
		}
		next := func() queue.Message {
			return message("m", string(task.Encode(w.storedDelivery(sub.ID, e.ID).NextTask().Task)))
		}
		receive(w.slowMessage(d, sub, e, 0))
		for waits := 2; waits <= manyWaits; waits++ {
			receive(next())
			expect.Equal(t, "the waits of the delivery", w.storedDelivery(sub.ID, e.ID).Waits, waits)
		}
		time.Sleep(d.outcomes.Schedules.ScheduleFor(w.storedDelivery(sub.ID, e.ID).Origin).Total() + time.Hour)
		receive(next())
		expect.Equal(t, "the dead letters", len(w.dead(t)), 1)
		expect.Equal(t, "the attempts", len(w.attempts), 0)
	})
}

// WHK-16: given a batch of the slow lane for an endpoint that hangs, when the deliveries have waited in the queue often enough, then
// they are moved to the due table a few at a time, so that the requests of pages do not wait behind them.
func TestDeliveriesThatWaitAreWrittenAFewAtATime(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, config Config) {
		var writing, most atomic.Int64
		config.DB = storetest.Hooked{DB: w.db, OnWrite: func(context.Context, []store.Op) error {
			most.Store(max(most.Load(), writing.Add(1)))
			time.Sleep(10 * time.Millisecond)
			writing.Add(-1)
			return nil
		}}
		url := oneOrigin(1)[0]
		sub := w.to(url)[0]
		d := NewDispatcher(config)
		slot, _ := d.lanes.ReserveSlow(t.Context(), lane.Call{Endpoint: task.EndpointID(url), URL: url})
		slot.Done(webhook.Outcome{Category: webhook.Timeout, Took: 20 * time.Second})
		var batch []queue.Message
		for _, e := range someEvents(40, 60) {
			batch = append(batch, w.slowMessage(d, sub, e, laterReceives))
		}
		most.Store(0)
		w.done(d.HandleSingles(t.Context(), batch))
		expect.Equal(t, "the concurrent writes", most.Load(), maxWaitWrites)
		expect.Equal(t, "the waits of the last delivery", w.storedDelivery(sub.ID, "e39").Waits, 1)
	})
}

// AWS-04: given a full batch of the slow lane whose endpoints all hang, an invocation makes each of its 100 attempts.
func TestABatchOfTheSlowLaneIsAttemptedTogether(t *testing.T) {
	const batchSize = 100 // of DispatchFromSlow in template.yaml
	inBubble(t, func(t *testing.T, w *world, config Config) {
		w.answer = answers(time.Hour, nil)
		var urls []string
		for i := range batchSize {
			urls = append(urls, fmt.Sprintf("https://h%d.example.com/hook", i))
		}
		d := NewDispatcher(config)
		var batch []queue.Message
		for _, sub := range w.to(urls...) {
			batch = append(batch, w.slowMessage(d, sub, someEvents(1, 60)[0], 0))
		}
		began := time.Now()
		w.done(d.HandleSingles(t.Context(), batch))
		expect.Equal(t, "the endpoints that were attempted", len(w.attempts), batchSize)
		expect.AtMost(t, "the time", time.Since(began), 21*time.Second) // a timeout
	})
}
