package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lane"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
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
		d.DB, d.Queue, d.Opener = storetest.Hooked{DB: d.DB, OnWrite: failing(&broken)}, q, refusing{subs[1].Target.URL}
		d = NewDispatcher(d.Config)
		events := someEvents(2, 60)
		batch := []queue.Message{
			pageMessage("1", pageOf(subs[0].Patterns[0].Key, events[0])), pageMessage("2", pageOf(subs[0].Patterns[0].Key, events[1])),
		}
		for range 3 { // the events of the failing subscriber cannot be stored, and cannot be queued
			failed, err := d.HandlePages(t.Context(), batch)
			expect.OK(t, err)
			expect.MustLen(t, "the failed messages", failed, 2)
		}
		broken.Store(false)
		q.broken, d.sender.opener = false, plain{}
		r.done(d.HandlePages(t.Context(), batch))
		posts := map[string]int{}
		for _, p := range r.posts {
			posts[p.ID+" "+p.URL]++
		}
		for _, s := range subs {
			for _, e := range events {
				expect.Equal(t, fmt.Sprintf("how often %s was sent %s", s.Target.URL, e.ID), posts[e.ID+" "+s.Target.URL], 1)
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
		r.done(d.HandlePages(t.Context(), []queue.Message{pageMessage("1", pageOf(subs[0].Patterns[0].Key, someEvents(1, 60)...))}))
		expect.Equal(t, "posts before the rest was queued", posted, 4*task.PageTarget)
		// If the part fails, the page is redelivered as a whole, so no rest is queued.
		r.queues[queue.Deliveries] = nil
		_, d, _ = r.process()
		d.DB = storetest.Hooked{DB: d.DB, OnQuery: func() error { return errDied }}
		failed, err := d.HandlePages(t.Context(), []queue.Message{pageMessage("1", pageOf(subs[0].Patterns[0].Key, someEvents(1, 60)...))})
		if err != nil || len(failed) != 1 || len(r.queues[queue.Deliveries]) > 0 {
			t.Errorf("failed %v, %v, %d tasks; want the message and none", failed, err, len(r.queues[queue.Deliveries]))
		}
	})

	t.Run("AWS-05 records are written although the batch has ended", func(t *testing.T) {
		r := newRig(t)
		sub := r.to(oneOrigin(1)...)[0]
		_, d, _ := r.process()
		ctx, cancel := context.WithCancel(t.Context())
		r.script = func(int) webhook.Outcome {
			cancel()
			return succeeds(0)
		}
		// As a store over a network this one does nothing for a context that has ended.
		d.DB = storetest.Hooked{DB: d.DB, OnWriteAll: func(ctx context.Context, _ []store.Op) error { return ctx.Err() }}
		r.done(d.HandlePages(ctx, []queue.Message{pageMessage("1", pageOf(sub.Patterns[0].Key, someEvents(1, 60)...))}))
		expect.Len(t, "the records", r.items("r#default#"+sub.ID), 1)
	})
}

func TestWHK16AnInternalOutcomeUsesNoAttempt(t *testing.T) {
	r := newRig(t)
	sub := r.to(oneOrigin(1)...)[0]
	recorded := func() int {
		if del := r.storedDelivery(sub.ID, "evt_1"); del != nil {
			return len(del.Attempts)
		}
		return 0
	}
	// In the fast lane, posts 1 to 3 fail on our side and post 4 fails at the endpoint. In the slow lane, posts 5 to 7 fail on our
	// side and post 8 succeeds.
	wants := []int{0, 0, 0, 0, 1, 1, 1, 1}
	r.script = func(n int) webhook.Outcome {
		if n > len(wants) {
			t.Errorf("got post number %d, want at most %d", n, len(wants))
			return succeeds(0)
		}
		expect.Equal(t, fmt.Sprintf("the recorded attempts before post %d", n), recorded(), wants[n-1])
		switch n {
		case 4:
			return fails(0)
		case 8:
			return succeeds(0)
		}
		return webhook.Outcome{Category: webhook.Internal, Err: errDied}
	}
	d, _ := r.firstAttempts("evt_1")
	for range 20 { // one message at a time, as the server does
		if len(r.queues[queue.Slow]) == 0 {
			break
		}
		m := r.queues[queue.Slow][0]
		r.queues[queue.Slow] = r.queues[queue.Slow][1:]
		failed := expect.Value(d.HandleSingles(t.Context(), []queue.Message{m}))(t)
		if len(failed) > 0 {
			m.Received++
			r.queues[queue.Slow] = append(r.queues[queue.Slow], m)
		}
		r.now = r.now.Add(10 * time.Second)
	}
	expect.Equal(t, "the posts", len(r.posts), len(wants))
	expect.Equal(t, "the delivery of evt_1", r.deliveryState(sub.ID, "evt_1"), "none")
}

func TestMessagesOfTheVersionBefore(t *testing.T) {
	r := newRig(t)
	sub := r.to(oneOrigin(1)...)[0]
	down := true
	r.script = func(int) webhook.Outcome {
		if down {
			return fails(0)
		}
		return succeeds(0)
	}
	_, d, retry := r.process()
	if failed, err := d.HandlePages(t.Context(), []queue.Message{message("p", fmt.Sprintf(
		`{"v":1,"ws":"default","key":%q,"r":{},"n":1,"ev":[{"v":1,"ws":"default","id":"evt_1","uri":"event://ci/build-finished","name":"ci.build_finished","data":{}}]}`,
		sub.Patterns[0].Key))}); err != nil || len(failed) > 0 || len(r.posts) != 1 {
		t.Fatalf("AWS-06 a page without tries and hops: got failed %v, %v, %d posts, want one post", failed, err, len(r.posts))
	}
	// The previous version wrote the due entry without the time at which the entry was made.
	key := r.keyOf("evt_1")
	old := fmt.Sprintf(`{"v":1,"ws":"default","pr":"alice","sub":%q,"ev":"evt_1","k":%q,"n":2}`, sub.ID, key)
	r.queues[queue.Slow] = nil
	at := r.now.Add(3 * time.Minute)
	expect.OK(t, r.db.Write(t.Context(), store.Put(store.Item{
		Key: state.DueKey("default", sub.ID, key, at), Value: fmt.Appendf(nil, `{"t":%s,"at":%d}`, old, at.UnixMilli()),
	})))
	expect.OK(t, expect.ErrOf(retry.Run(t.Context()))) // sets the position
	r.now = r.now.Add(5 * time.Minute)
	expect.AtLeast(t, "AWS-06 the due entries without their making that moved", expect.Value(retry.Run(t.Context()))(t), 1)
	down = false
	failed, err := d.HandleSingles(t.Context(), []queue.Message{message("s", old)})
	if err != nil || len(failed) > 0 || len(r.posts) != 2 {
		t.Errorf("AWS-06 a single without its endpoint: got failed %v, %v, %d posts, want a second post", failed, err, len(r.posts))
	}
}

func someEvents(n, size int) (events []event.Event) {
	data, _ := json.Marshal(string(make([]byte, size/6))) // each becomes \u0000
	for i := range n {
		events = append(events, event.Event{
			Workspace: "default", ID: fmt.Sprintf("e%d", i), URI: "event://ci/build-finished", Name: "ci.build_finished", Data: data,
		})
	}
	return events
}

// A page that cannot be sent within the time of its batch must not return unchanged, because it would be cut off at the same
// place again.
func TestAPageOfManyEventsForASlowEndpoint(t *testing.T) {
	for name, hops := range map[string]int{
		"its rest is another page, until all events are delivered":                        0,
		"AWS-03 a row of pages has an end, after which its rest belongs to the slow lane": maxHops,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const all = 100
				w, config := newWorld(t)
				config.Queue = mortal{w.db, w.rig}
				d := NewDispatcher(config)
				asked := pageOf(w.to(oneOrigin(1)...)[0].Patterns[0].Key, someEvents(all, 60)...)
				w.answer = answers(1500*time.Millisecond, nil)
				asked.Hops = hops
				batch := []queue.Message{pageMessage("1", asked)}
				batches := 0
				for ; len(batch) > 0; batches++ {
					if batches == 20 {
						t.Fatalf("%d of %d events were sent after %d batches, want all", len(w.attempts), all, batches)
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					w.done(d.HandlePages(ctx, batch))
					cancel()
					batch = w.queues[queue.Deliveries]
					w.queues[queue.Deliveries] = nil
				}
				for id, made := range w.attempts {
					expect.Equal(t, "the attempts of "+id, len(made), 1)
				}
				slow := len(w.queues[queue.Slow])
				if (slow > 0) != (hops > 0) || (batches == 1) != (hops > 0) || slow+len(w.attempts) != all {
					t.Errorf("got %d events sent in %d pages and %d in the slow lane, want all %d, and one page and the slow lane only after the last hop", len(w.attempts), batches, slow, all)
				}
				_ = w.queued.Close()
			})
		})
	}
}

// Tasks for the same range are handled together. Their remaining events have to fit into messages again.
func TestTheRestOfAPageFitsIntoMessages(t *testing.T) {
	r := newRig(t)
	var key string
	for range 4*task.PageTarget + 1 {
		key = r.register("event://ci/build-finished").Patterns[0].Key
	}
	_, d, _ := r.process()
	var batch []queue.Message
	for i, e := range someEvents(4, 180<<10) {
		batch = append(batch, pageMessage(fmt.Sprint(i), pageOf(key, e)))
	}
	r.done(d.HandlePages(t.Context(), batch))
	for _, m := range r.queues[queue.Deliveries] {
		expect.AtMost(t, "the bytes of a task", len(m.Body), queue.MaxBody)
	}
	expect.AtLeast(t, "the tasks for other pages", len(r.queues[queue.Deliveries]), 1)
}

func TestPagesThatCannotBeWritten(t *testing.T) {
	for name, tc := range map[string]struct {
		refusal *fault.Error
		most    int // attempts
	}{
		"AWS-05 a failed delivery that can never be stored is dead-lettered after one attempt":        {fault.New(fault.TooLarge, "the item is too large"), 1},
		"AWS-05 failed deliveries of a page that cannot be stored are dead-lettered after some hours": {fault.New(fault.Unavailable, "the table is throttled"), maxPageRetries + 1},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := registered(t)
			r.script = fails
			r.publish("evt_1")
			fanout, d, _ := r.process()
			r.hand(queue.Events, fanout.Handle)
			d.manager.Deliveries.DB = storetest.Hooked{DB: r.db, OnWrite: func(_ context.Context, ops []store.Op) error {
				for _, op := range ops {
					if p := op.Item.Partition; strings.HasPrefix(p, "b#") || strings.HasPrefix(p, "d#") {
						return tc.refusal
					}
				}
				return nil
			}}
			for range 2 * maxPageRetries {
				r.hand(queue.Deliveries, d.HandlePages)
			}
			expect.AtMost(t, "the attempts", len(r.posts), tc.most)
			expect.Equal(t, "the messages of the queue Deliveries", len(r.queues[queue.Deliveries]), 0)
			expect.MustLen(t, "the dead letters", r.queues[queue.Dead], 1)
			l := expect.Value(queue.ParseDeadLetter(r.queues[queue.Dead][0].Body))(t)
			task, err := task.Decode([]byte(l.Body), func(t task.Page) int { return t.V })
			if err != nil || task.Retries != 0 || len(task.Events) != 1 || task.Events[0].ID != "evt_1" {
				t.Errorf("got a dead letter of %+v, %v, want a new task for evt_1", task, err)
			}
		})
	}
}

// A page task that was sent again many times and a new one are in the same batch, and the store fails once more.
func TestANewPageHasAllItsRetries(t *testing.T) {
	r, _ := registered(t)
	r.script = fails
	fanout, d, _ := r.process()
	for _, id := range []string{"evt_old", "evt_new"} {
		r.publish(id)
		r.hand(queue.Events, fanout.Handle)
	}
	tasks := r.queues[queue.Deliveries]
	old, err := task.Decode(tasks[0].Body, func(t task.Page) int { return t.V })
	if err != nil || len(tasks) != 2 {
		t.Fatalf("got %d page tasks, %v, want two", len(tasks), err)
	}
	old.Retries = maxPageRetries
	tasks[0].Body = old.Encode()
	d.manager.Deliveries.DB = storetest.Hooked{DB: r.db, OnWrite: func(context.Context, []store.Op) error {
		return fault.New(fault.Unavailable, "the table is throttled")
	}}
	r.hand(queue.Deliveries, d.HandlePages)
	if n := len(r.queues[queue.Dead]); n != 1 || !strings.Contains(string(r.queues[queue.Dead][0].Body), "evt_old") {
		t.Errorf("AWS-05: got %d dead letters, want one of the old page", n)
	}
	left := r.queues[queue.Deliveries]
	expect.MustLen(t, "AWS-05: the page tasks that are left, one of the new page", left, 1)
	task, err := task.Decode(left[0].Body, func(t task.Page) int { return t.V })
	if err != nil || task.Retries != 1 || len(task.Events) != 1 || task.Events[0].ID != "evt_new" {
		t.Errorf("AWS-05: got %d retries of %d events, %v, want the first retry of the new page", task.Retries, len(task.Events), err)
	}
}

// AWS-05: given a panic while a page serves one subscriber, then the other subscribers get their events, and another page task repeats the
// events of that one.
func TestAPanicConcernsOneSubscriber(t *testing.T) {
	serve := func(t *testing.T, change func(d *Dispatcher, failing *subscription.Subscriber), read time.Time, events ...event.Event) (*rig, *Dispatcher, []subscription.Subscriber, pageResult) {
		t.Helper()
		r := newRig(t)
		key := r.to(oneOrigin(2)...)[0].Patterns[0].Key
		_, d, _ := r.process()
		found := expect.Value(subscription.ReadSubscribers(t.Context(), r.db, "default", key, subscription.Range{}, 10))(t)
		expect.Equal(t, "subscribers", len(found.List), 2)
		change(d, &found.List[0])
		return r, d, found.List, d.sendAll(t.Context(), &joinedPage{Page: pageOf(key, events...)}, found.List, read)
	}
	check := func(t *testing.T, r *rig, subs []subscription.Subscriber, out pageResult, wantLeft string) {
		t.Helper()
		got := ""
		for _, left := range out.left {
			if left.Range != subscription.RangeOf(subs[0].ID) || left.Retries != 1 || left.Delay != retryPage {
				t.Errorf("got a task for %v with %d retries and the delay %v, want the first retry for %s", left.Range, left.Retries, left.Delay, subs[0].ID)
			}
			for _, e := range left.Events {
				got += e.ID + " "
			}
		}
		expect.Equal(t, "the events that are left", got, wantLeft)
		expect.Equal(t, "messages for the slow lane", len(r.queues[queue.Slow]), 0)
		for _, p := range r.posts {
			expect.Equal(t, "the target of a post", p.URL, subs[1].Target.URL)
		}
	}

	t.Run("in a filter", func(t *testing.T) {
		events := someEvents(3, 60)
		events[0].Data, events[1].Data, events[2].Data = []byte(`{}`), []byte(`{"ok":1}`), []byte(`{}`)
		r, _, subs, out := serve(t, func(_ *Dispatcher, failing *subscription.Subscriber) {
			failing.Filters = []match.Filter{{Pointer: "/ok", Values: []json.RawMessage{{}}}} // panics if an event has the member
		}, time.Now(), events...)
		check(t, r, subs, out, "e1 ")
		expect.Equal(t, "posts", len(r.posts), 3)
	})
	t.Run("while its events move to the slow lane", func(t *testing.T) {
		r, _, subs, out := serve(t, func(d *Dispatcher, failing *subscription.Subscriber) {
			d.sender.opener = refusing{failing.Target.URL}
			panics := func(context.Context, []store.Op) error { panic("a defect") }
			d.manager.Deliveries.DB = storetest.Hooked{DB: d.DB, OnWrite: panics, OnWriteAll: panics}
		}, time.Now(), someEvents(2, 60)...)
		check(t, r, subs, out, "e0 e1 ")
		expect.Equal(t, "posts", len(r.posts), 2)
	})
	t.Run("while it has a slot", func(t *testing.T) {
		_, d, subs, _ := serve(t, func(d *Dispatcher, _ *subscription.Subscriber) {
			d.lanes = lane.New(d.DB, lane.Limits{Attempts: 1, PerEndpoint: 1, Bytes: 1 << 20}, d.now)
			d.DB = storetest.Hooked{DB: d.DB, OnQuery: func() error { panic("a defect") }}
		}, time.Now().Add(-time.Minute), someEvents(1, 60)...)
		call := lane.Call{Endpoint: task.EndpointID(subs[0].Target.URL), URL: subs[0].Target.URL}
		_, verdict := d.lanes.Reserve(t.Context(), call, lane.PageWait{})
		expect.Equal(t, "the verdict for another attempt", verdict, lane.Granted)
	})
}

func message(id, body string) queue.Message {
	return queue.Message{ID: id, Outgoing: queue.Outgoing{Body: []byte(body)}}
}

// originsOfDead checks that each dead letter has its queue, its reason and its message (AWS-07).
func (r *rig) originsOfDead(want ...queue.Name) {
	r.t.Helper()
	for i, m := range r.queues[queue.Dead] {
		l := expect.Value(queue.ParseDeadLetter(m.Body))(r.t)
		body, err := l.Content()
		if err != nil || len(body) == 0 || l.Queue != want[i] || l.Reason == "" || l.Message == "" || l.Dead.IsZero() {
			r.t.Errorf("AWS-07: dead letter %d is %+v, %v; want one of %s", i, l, err, want[i])
		}
	}
}

func TestBatches(t *testing.T) {
	t.Run("WHK-19 events that cannot be read are dead-lettered, the others of the batch go on", func(t *testing.T) {
		r, _ := registered(t)
		r.publish("evt_1")
		good := r.queues[queue.Events][0]
		r.queues[queue.Events] = nil
		fanout, dispatch, _ := r.process()
		batch := []queue.Message{
			message("broken", `{"v":1`),
			message("no version", `{"id":"evt_3"}`),
			message("newer", `{"v":99}`),
			message("nobody's", `{"v":1,"ws":"default","id":"evt_2","uri":"event://gone/type","data":{}}`),
			good,
		}
		failed := expect.Value(fanout.Handle(t.Context(), batch))(t)
		expect.List(t, "the failed messages, AWS-06 the newer one only", failed, []string{"newer"})
		expect.Equal(t, "the messages of the queue Dead", len(r.queues[queue.Dead]), 3)
		pages := append(r.queues[queue.Deliveries], message("no page", `[]`),
			message("newer", `{"v":99}`), message("newer event", `{"v":1,"ev":[{"v":99}]}`))
		failed = expect.Value(dispatch.HandlePages(t.Context(), pages))(t)
		expect.List(t, "the failed messages, AWS-06 the newer ones only", failed, []string{"newer", "newer event"})
		expect.Map(t, "the posts", posted(r), map[string]int{"evt_1": 1})
		expect.Equal(t, "the messages of the queue Dead", len(r.queues[queue.Dead]), 4)
		r.originsOfDead(queue.Events, queue.Events, queue.Events, queue.Deliveries)
	})
	t.Run("WHK-19 a batch of retries reports the failed ones only", func(t *testing.T) {
		r, _ := registered(t)
		r.script = func(n int) webhook.Outcome {
			if n <= 2 {
				return fails(0)
			}
			if n == 3 { // the process canceled it, so its outcome is unknown
				return webhook.Outcome{Category: webhook.Aborted, Err: errDied}
			}
			return succeeds(0)
		}
		dispatch, _ := r.firstAttempts("evt_1", "evt_2")
		retries := append(slices.Clone(r.queues[queue.Slow]), message("poison", `"x"`), message("newer", `{"v":99}`))
		expect.MustLen(t, "the retries, the poison and the newer", retries, 4)
		failed, err := dispatch.HandleSingles(t.Context(), retries)
		if err != nil || len(failed) != 2 || !slices.Contains(failed, "newer") || slices.Contains(failed, "poison") {
			t.Errorf("failed %v, error %v; want the newer one and the one that was broken off", failed, err)
		}
		expect.Equal(t, "the messages of the queue Dead", len(r.queues[queue.Dead]), 1)
		r.originsOfDead(queue.Slow)
	})
}

// A page decodes the payload of an event once, however many of its subscribers filter.
func TestAPageDecodesAPayloadOnce(t *testing.T) {
	const all = 20
	// allocated returns the memory that a page of n subscribers allocates for a payload of many members.
	allocated := func(n int) uint64 {
		r := newRig(t)
		for i := range n {
			r.subscribe(func(s *subscription.SubscribeRequest) {
				s.Name, s.Arguments = "github.push", json.RawMessage(`{"owner":"acme","repo":"app","branch":["x","main*"]}`)
				s.URL = fmt.Sprintf("https://hooks.example.com/%d", i)
			})
		}
		const uri = "event://github/acme/app/push"
		e := event.Event{
			Workspace: "default", ID: "evt_1", URI: uri, Name: "github.push", Time: r.now, Published: r.now,
			Data: []byte(`{"branch":"other","commits":[` + strings.TrimSuffix(strings.Repeat(`{"id":"0123456789"},`, 9000), ",") + `]}`),
		}
		body := task.Encode(task.Page{V: task.Version, Workspace: "default", Pattern: uri, Count: n, Events: []event.Event{e}})
		_, d, _ := r.process()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		failed, err := d.HandlePages(t.Context(), []queue.Message{message("1", string(body))})
		runtime.ReadMemStats(&after)
		if err != nil || len(failed) > 0 || len(r.posts) > 0 {
			t.Fatalf("got failed %v, %v, %d posts, want none, because no filter accepts the event", failed, err, len(r.posts))
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	one := allocated(1)
	expect.AtMost(t, "the bytes that a page of all subscribers allocates, twice those of one", allocated(all), 2*one)
}

func TestGate(t *testing.T) {
	g := &Gate{}
	read := time.Now()
	expect.True(t, "it is open before anything ended", g.allows("a", read))
	g.Close("a")
	expect.True(t, "it is closed for subscriptions that were read before the end", !g.allows("a", read))
	expect.True(t, "it is open for subscriptions that were read after the end", g.allows("a", time.Now().Add(time.Nanosecond)))
}

// The end of a subscription and its creation under the same id may reach the gate in the wrong order.
func TestALateEndDoesNotSilenceASubscriptionMadeAnew(t *testing.T) {
	r, sub := registered(t)
	_, d, _ := r.process()
	d.Gate = &Gate{}
	d.Gate.Open(sub.ID)
	d.Gate.Close(sub.ID) // of the one before it
	r.done(d.HandlePages(t.Context(), []queue.Message{pageMessage("1", pageOf(sub.Patterns[0].Key, someEvents(1, 60)...))}))
	expect.Equal(t, "the posts", len(r.posts), 1)
}

// TestNothingStartsAfterDeregistering: EVS-11. Wherever a delivery is when its subscription is
// deregistered, no attempt of it starts afterwards.
func TestNothingStartsAfterDeregistering(t *testing.T) {
	for name, until := range map[string]func(*testing.T, *rig){
		"an event that is not fanned out": func(*testing.T, *rig) {},
		"a page that waits": func(t *testing.T, r *rig) {
			fanout, _, _ := r.process()
			r.hand(queue.Events, fanout.Handle)
			expect.MustLen(t, "the pages", r.queues[queue.Deliveries], 1)
		},
		"a retry in the slow lane": func(t *testing.T, r *rig) {
			r.script = fails
			r.work()
			expect.AtLeast(t, "the posts", len(r.posts), 1)
			expect.AtLeast(t, "the retries", len(r.queues[queue.Slow]), 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, sub := registered(t)
			id := sub.ID
			r.publish("evt_1")
			until(t, r)
			before := len(r.posts)
			expect.OK(t, r.services.Deregister(t.Context(), r.principal(), subscription.URI(id)))
			r.run()
			expect.Equal(t, "the further posts", len(r.posts)-before, 0)
		})
	}
	t.Run("EVS-11 a retry on AWS that waits for a slow store after its subscription was read", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, sub := registered(t)
			id := sub.ID
			d, _ := r.storeFailed()
			d.Options.EndpointRate = 10
			waited := false
			d.DB = storetest.Hooked{DB: d.DB, OnWrite: func(_ context.Context, ops []store.Op) error {
				if !waited && strings.HasPrefix(ops[0].Item.Partition, "t#") { // the attempt takes a token of the rate limit
					waited = true
					expect.OK(t, r.services.Deregister(t.Context(), r.principal(), subscription.URI(id)))
					time.Sleep(1500 * time.Millisecond)
				}
				return nil
			}}
			before := len(r.posts)
			r.hand(queue.Slow, NewDispatcher(d.Config).HandleSingles)
			if n := len(r.posts) - before; n != 0 || !waited {
				t.Errorf("got %d attempts 1.5 s after the answer (waited %v), want none", n, waited)
			}
		})
	})
}
