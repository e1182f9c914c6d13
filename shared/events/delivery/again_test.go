package delivery

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lane"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"

	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
)

func pageOf(pattern string, events ...event.Event) task.Page {
	return task.Page{V: task.Version, Workspace: "default", Pattern: pattern, Count: 1, Events: events}
}

func pageMessage(id string, t task.Page) queue.Message {
	return queue.Message{ID: id, Outgoing: queue.Outgoing{Body: task.Encode(t)}}
}

func TestAPageThatComesAgain(t *testing.T) {
	t.Run("AWS-05 it skips the subscribers that are done, of each message", func(t *testing.T) {
		r := newRig(t)
		subs := r.to(oneOrigin(3)...)
		_, d, _ := r.process()
		q := &watched{Sender: d.Queue, broken: true}
		var broken atomic.Bool
		broken.Store(true)
		d.DB, d.Queue, d.Opener = hooked{DB: d.DB, write: failing(&broken)}, q, refusing{subs[1].Target.URL}
		d = NewDispatcher(d.Config)
		events := someEvents(2, 60)
		batch := []queue.Message{
			pageMessage("1", pageOf(subs[0].Patterns[0].Key, events[0])), pageMessage("2", pageOf(subs[0].Patterns[0].Key, events[1])),
		}
		for range 3 { // the events of the failing subscriber cannot be stored, and cannot be queued
			failed, err := d.Pages(t.Context(), batch)
			if err != nil || len(failed) != 2 {
				t.Fatalf("failed %v, %v; want both messages", failed, err)
			}
		}
		broken.Store(false)
		q.broken, d.sender.opener = false, plain{}
		r.done(d.Pages(t.Context(), batch))
		posts := map[string]int{}
		for _, p := range r.posts {
			posts[p.ID+" "+p.URL]++
		}
		for _, s := range subs {
			for _, e := range events {
				if n := posts[e.ID+" "+s.Target.URL]; n != 1 {
					t.Errorf("%s was sent %s %d times, want once", s.Target.URL, e.ID, n)
				}
			}
		}
	})

	t.Run("AWS-05 the tasks for the rest of a range are queued after its part is done", func(t *testing.T) {
		r := newRig(t)
		subs := r.to(oneOrigin(4*task.PageTarget + 1)...)
		_, d, _ := r.process()
		posted := -1
		d.Queue = &watched{Sender: d.Queue, seen: func(q queue.Name) {
			if q == queue.Deliveries && posted < 0 {
				posted = len(r.posts)
			}
		}}
		r.done(d.Pages(t.Context(), []queue.Message{pageMessage("1", pageOf(subs[0].Patterns[0].Key, someEvents(1, 60)...))}))
		if posted != 4*task.PageTarget {
			t.Errorf("the rest was queued after %d posts, want %d", posted, 4*task.PageTarget)
		}
		// If the part fails, the page is redelivered as a whole, so no rest is queued.
		r.queues[queue.Deliveries] = nil
		_, d, _ = r.process()
		d.DB = hooked{DB: d.DB, query: func() error { return errDied }}
		failed, err := d.Pages(t.Context(), []queue.Message{pageMessage("1", pageOf(subs[0].Patterns[0].Key, someEvents(1, 60)...))})
		if err != nil || len(failed) != 1 || len(r.queues[queue.Deliveries]) > 0 {
			t.Errorf("failed %v, %v, %d tasks; want the message and none", failed, err, len(r.queues[queue.Deliveries]))
		}
	})

	t.Run("AWS-03 a row of pages has an end: what is left is the slow lane's", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			sub := r.register("event://ci/build-finished")
			_, d, _ := r.process()
			u := &unhurried{takes: 1500 * time.Millisecond, got: map[string]int{}}
			d.sender.poster, d.Now = u, time.Now
			asked := pageOf(sub.Patterns[0].Key, someEvents(100, 60)...)
			asked.Hops = maxHops
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r.done(d.Pages(ctx, []queue.Message{pageMessage("1", asked)}))
			if n := len(r.queues[queue.Deliveries]); n > 0 {
				t.Errorf("%d further pages, want none after %d hops", n, maxHops)
			}
			slow := len(r.queues[queue.Slow])
			if slow == 0 || slow+len(u.got) != 100 {
				t.Errorf("%d were sent and %d are the slow lane's, of 100", len(u.got), slow)
			}
		})
	})

	t.Run("AWS-05 records are written although the batch has ended", func(t *testing.T) {
		r := newRig(t)
		sub := r.to(oneOrigin(1)...)[0]
		_, d, _ := r.process()
		ctx, cancel := context.WithCancel(t.Context())
		r.script = func(int) webhook.Outcome {
			cancel()
			return webhook.Outcome{Status: 200}
		}
		// As a store over a network this one does nothing for a context that has ended.
		d.DB = hooked{DB: d.DB, writeAll: func(ctx context.Context, _ []store.Op) error { return ctx.Err() }}
		r.done(d.Pages(ctx, []queue.Message{pageMessage("1", pageOf(sub.Patterns[0].Key, someEvents(1, 60)...))}))
		page, err := r.db.Query(t.Context(), store.Query{Table: store.Deliveries, Partition: "r#default#" + sub.ID})
		if err != nil || len(page.Items) != 1 {
			t.Errorf("%d records, %v; want that of the delivery", len(page.Items), err)
		}
	})
}

func TestWHK16AnInternalOutcomeUsesNoAttempt(t *testing.T) {
	r := newRig(t)
	sub := r.to(oneOrigin(1)...)[0]
	recorded := func() int {
		items, err := r.db.Get(t.Context(), state.Key("default", sub.ID, r.keyOf("evt_1")))
		if err != nil {
			t.Fatal(err)
		}
		if items[0] == nil {
			return 0
		}
		del, err := state.Decode(items[0])
		if err != nil {
			t.Fatal(err)
		}
		return len(del.Attempts)
	}
	// In the fast lane, posts 1 to 3 fail on our side and post 4 fails at the endpoint. In the slow lane, posts 5 to 7 fail on our
	// side and post 8 succeeds.
	wants := []int{0, 0, 0, 0, 1, 1, 1, 1}
	r.script = func(n int) webhook.Outcome {
		if n > len(wants) {
			t.Errorf("post number %d", n)
			return webhook.Outcome{Status: 200}
		}
		if got := recorded(); got != wants[n-1] {
			t.Errorf("before post %d %d attempts are recorded, want %d", n, got, wants[n-1])
		}
		switch n {
		case 4:
			return webhook.Outcome{Status: 500, Category: webhook.HTTP5xx}
		case 8:
			return webhook.Outcome{Status: 200}
		}
		return webhook.Outcome{Category: webhook.Internal, Err: errDied}
	}
	r.publish("evt_1")
	fanout, d, _ := r.process()
	r.hand(queue.Events, fanout.Handle)
	r.hand(queue.Deliveries, d.Pages)
	for range 20 { // one message at a time, as the server does
		if len(r.queues[queue.Slow]) == 0 {
			break
		}
		m := r.queues[queue.Slow][0]
		r.queues[queue.Slow] = r.queues[queue.Slow][1:]
		failed, err := d.Singles(t.Context(), []queue.Message{m})
		if err != nil {
			t.Fatal(err)
		}
		if len(failed) > 0 {
			m.Received++
			r.queues[queue.Slow] = append(r.queues[queue.Slow], m)
		}
		r.now = r.now.Add(10 * time.Second)
	}
	if len(r.posts) != len(wants) {
		t.Errorf("%d posts, want %d", len(r.posts), len(wants))
	}
	if st := r.deliveryState(sub.ID, "evt_1"); st != "none" {
		t.Errorf("a delivery is left %s", st)
	}
}

func TestMessagesOfTheVersionBefore(t *testing.T) {
	r := newRig(t)
	sub := r.to(oneOrigin(1)...)[0]
	fails := true
	r.script = func(int) webhook.Outcome {
		if fails {
			return webhook.Outcome{Status: 500, Category: webhook.HTTP5xx}
		}
		return webhook.Outcome{Status: 200}
	}
	_, d, retry := r.process()
	if failed, err := d.Pages(t.Context(), []queue.Message{message("p", fmt.Sprintf(
		`{"v":1,"ws":"default","key":%q,"r":{},"n":1,"ev":[{"v":1,"ws":"default","id":"evt_1","uri":"event://ci/build-finished","name":"ci.build_finished","data":{}}]}`,
		sub.Patterns[0].Key))}); err != nil || len(failed) > 0 || len(r.posts) != 1 {
		t.Fatalf("AWS-06 a page without tries and hops: failed %v, %v, %d posts", failed, err, len(r.posts))
	}
	// The previous version wrote the due entry without the time at which the entry was made.
	key := r.keyOf("evt_1")
	old := fmt.Sprintf(`{"v":1,"ws":"default","pr":"alice","sub":%q,"ev":"evt_1","k":%q,"n":2}`, sub.ID, key)
	r.queues[queue.Slow] = nil
	at := r.now.Add(3 * time.Minute)
	if err := r.db.Write(t.Context(), store.Put(store.Item{
		Key: state.DueKey("default", sub.ID, key, at), Value: fmt.Appendf(nil, `{"t":%s,"at":%d}`, old, at.UnixMilli()),
	})); err != nil {
		t.Fatal(err)
	}
	if _, err := retry.Run(t.Context()); err != nil { // sets the position
		t.Fatal(err)
	}
	r.now = r.now.Add(5 * time.Minute)
	if n, err := retry.Run(t.Context()); err != nil || n == 0 {
		t.Fatalf("AWS-06 a due entry without its making: %d moved, %v", n, err)
	}
	fails = false
	failed, err := d.Singles(t.Context(), []queue.Message{message("s", old)})
	if err != nil || len(failed) > 0 || len(r.posts) != 2 {
		t.Errorf("AWS-06 a single without its endpoint: failed %v, %v, %d posts", failed, err, len(r.posts))
	}
}

// keyOf returns the key of an event that publish sent.
func (r *rig) keyOf(id string) string {
	e := event.Event{Workspace: "default", ID: id, URI: "event://ci/build-finished", Name: "ci.build_finished"}
	return e.Key()
}

// TestEndpointRates: WHK-16.
func TestEndpointRates(t *testing.T) {
	t.Run("WHK-16 what is over the rate is delivered later, at its pace, and none is lost", func(t *testing.T) {
		options := embedded()
		options.EndpointRate = 10
		inWorld(t, options, func(w *world) {
			urls := oneOrigin(2)
			w.to(urls...)
			w.answer = func(webhook.Request) webhook.Outcome {
				return webhook.Outcome{Status: 200, Took: 10 * time.Millisecond}
			}
			at := w.send("e", 200, 2*time.Second)
			time.Sleep(2 * time.Minute)
			for _, url := range urls {
				lags, missing := w.lags(url, at)
				if missing > 0 {
					t.Errorf("%s misses %d events", url, missing)
					continue
				}
				if n := len(w.attemptsTo(url)); n != len(at) {
					t.Errorf("%d attempts for %d events", n, len(at))
				}
				if n := w.perSecond(url); n > 10 {
					t.Errorf("%d attempts in a second, want at most 10", n)
				}
				if last := lags[len(lags)-1]; last < 17*time.Second || last > 45*time.Second {
					t.Errorf("the last came after %v; 200 take 20 s at 10 a second", last)
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
			sub := w.to(url)[0]
			w.answer = func(webhook.Request) webhook.Outcome {
				return webhook.Outcome{Status: 200, Took: 10 * time.Millisecond}
			}
			// Another process uses half of the rate.
			foreign := lane.New(w.db, lane.Limits{Attempts: 1, PerEndpoint: 1, Bytes: 1 << 20, Rate: options.EndpointRate}, time.Now)
			stop := time.Now().Add(40 * time.Minute)
			go func() {
				for time.Now().Before(stop) {
					ctx := context.WithoutCancel(w.t.Context())
					if s, v := foreign.Reserve(ctx, lane.Call{Endpoint: task.EndpointID(url), URL: url}, lane.Patience{}); v == lane.Granted {
						s.Start(ctx, url)
						s.Done(lane.Unused)
					}
					time.Sleep(time.Second)
				}
			}()
			at := w.send("e", 1500, time.Second)
			time.Sleep(3 * time.Hour)
			if _, missing := w.lags(url, at); missing > 0 {
				t.Errorf("%d of %d events are missing", missing, len(at))
			}
			dead := 0
			err := store.Each(w.t.Context(), w.db, state.LettersOf("default", sub.ID), "list dead letters", func(*store.Item) error {
				dead++
				return nil
			})
			if err != nil || dead > 0 {
				t.Errorf("%d dead letters (%v), want none", dead, err)
			}
			if n := w.perSecond(url); n > int(options.EndpointRate) {
				t.Errorf("%d attempts in a second, want at most %d", n, options.EndpointRate)
			}
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
