package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/fanout"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	queuesqlite "github.com/mcp-events/mcpevents/shared/storage/queue/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestSwitches: OPS-06, WHK-22. While a switch is paused, first attempts and retries wait. After it is
// resumed, all of them are made, with the first webhook-id of their delivery.
func TestSwitches(t *testing.T) {
	for _, kind := range []string{"all", "event", "origin", "subscription"} {
		t.Run("OPS-06 WHK-22 a paused "+kind, func(t *testing.T) {
			r, sub := registered(t)
			n := map[string]switches.Name{
				"all": switches.All, "event": switches.EventSwitch("ci.build_finished"),
				"origin": switches.OriginSwitch("https://hooks.example.com"), "subscription": switches.SubscriptionSwitch(sub.ID),
			}[kind]
			r.script = failsFirst(1)
			r.firstAttempts("evt_before")
			expect.MustLen(t, "the posts", r.posts, 1)
			expect.MustLen(t, "the retries", r.queues[queue.Slow], 1)
			r.pause(n, sub)
			for i := range 3 {
				r.publish(fmt.Sprintf("evt_%d", i))
			}
			r.handle()
			expect.MustLen(t, "the posts, none of them while it was paused", r.posts, 1)
			// A pause of weeks, longer than any schedule.
			r.now = r.now.Add(20 * 24 * time.Hour)
			r.handle()
			r.resume(n, sub)
			for _, m := range r.queues[queue.Slow] {
				expect.Differ(t, "WHK-16: the owner of a message that has waited", m.Owner, "")
			}
			r.handle()
			r.posts = r.posts[1:]
			got := posted(r)
			for _, id := range []string{"evt_before", "evt_0", "evt_1", "evt_2"} {
				expect.Equal(t, fmt.Sprintf("how often %s arrived", id), got[id], 1)
			}
		})
	}
}

// TestPausedPagesHoldTheWatermark: OPS-06. A subscription's watermark does not pass events that wait for a switch.
func TestPausedPagesHoldTheWatermark(t *testing.T) {
	r, sub := registered(t)
	r.pause(switches.All, nil)
	r.publish("evt_1")
	published := r.now
	r.handle()
	r.now = r.now.Add(3 * time.Hour)
	expect.OK(t, r.db.Write(t.Context(), store.Put(store.Item{Key: progressKey, Counts: map[string]int64{"at": r.now.UnixMicro()}})))
	settled := func() int64 {
		t.Helper()
		at, _, err := (&lifecycle.Watermark{DB: r.db}).SettledPosition(t.Context(), "default", sub.ID)
		expect.OK(t, err)
		return at
	}
	expect.AtMost(t, "OPS-06: the settled position, before the paused event", settled(), published.UnixMicro()-1)
	r.resume(switches.All, nil)
	r.handle()
	expect.Len(t, "OPS-06: the posts", r.posts, 1)
	expect.AtLeast(t, "OPS-06: the settled position", settled(), published.UnixMicro())
}

// OPS-06: a page joins events of a paused type with others. While the others fail, the paused ones wait once, also if their message is
// redelivered because the process died.
func TestAPausedEventWaitsOnceWhileItsPageFails(t *testing.T) {
	for name, joined := range map[string]bool{"in messages of their own": false, "in one message": true} {
		t.Run("OPS-06 "+name, func(t *testing.T) {
			r, sub := registered(t)
			events := someEvents(2, 60)
			events[0].Name = "github.push"
			paused := switches.EventSwitch(events[0].Name)
			key := sub.Patterns[0].Key
			batch := []queue.Message{pageMessage("1", pageOf(key, events[0])), pageMessage("2", pageOf(key, events[1]))}
			if joined {
				batch = []queue.Message{pageMessage("1", pageOf(key, events...))}
			}
			r.pause(paused, nil)
			for range 3 {
				_, d, _ := r.process()
				d.Switches = r.switches()
				d.DB = storetest.Hooked{DB: d.DB, OnQuery: func() error { return errDied }}
				failed, err := d.HandlePages(t.Context(), batch)
				if err != nil || len(failed) != 1 || failed[0] != batch[len(batch)-1].ID {
					t.Fatalf("failed %v, %v; want only the message of the event that is not paused", failed, err)
				}
				r.now = r.now.Add(time.Second)
			}
			waiting := expect.Value(r.switches().CountWaiting(t.Context(), "default", paused))(t)
			expect.Equal(t, "the waiting messages", waiting.Messages, 1)
			expect.Len(t, "the marks", r.items(lifecycle.PausedPages("default")), 1)
			r.queues[queue.Deliveries] = batch
			r.handle()
			r.resume(paused, nil)
			r.now = r.now.Add(2 * switches.MaxAge)
			r.handle()
			for _, e := range events {
				expect.Equal(t, "the posts of "+e.ID, posted(r)[e.ID], 1)
			}
			expect.Len(t, "the marks at the end", r.items(lifecycle.PausedPages("default")), 0)
		})
	}
}

// TestResumingDoesNotStampede: OPS-06.
func TestResumingDoesNotStampede(t *testing.T) {
	r := newRig(t)
	set := r.switches()
	set.Alone = true
	var ops []store.Op
	const n = 2 * switches.RequeueRate * 60
	for i := range n {
		ops = append(ops, store.Put(set.Item("default", switches.All, switches.Message{Queue: queue.Slow, Body: fmt.Appendf(nil, `{"n":%d}`, i)})))
	}
	expect.OK(t, r.db.WriteAll(t.Context(), ops...))
	r.pause(switches.All, nil)
	expect.Equal(t, "OPS-06: messages that are requeued while it is paused", expect.Value(set.Requeue(t.Context()))(t), 0)
	expect.OK(t, did(set.Resume(t.Context(), "default", switches.All)))
	for round := 1; round <= 2; round++ {
		expect.OK(t, expect.ErrOf(set.Requeue(t.Context())))
		perSecond := map[time.Duration]int{}
		for _, m := range r.queues[queue.Slow] {
			perSecond[m.Delay]++
		}
		r.queues[queue.Slow] = nil
		total := 0
		for delay, n := range perSecond {
			if total += n; n > switches.RequeueRate+100 {
				t.Errorf("OPS-06: %d are requeued in the second %v, want at most %d", n, delay, switches.RequeueRate+100)
			}
		}
		if total < n/2-200 || total > n/2+200 {
			t.Errorf("OPS-06: %d are requeued in round %d, want about half of %d", total, round, n)
		}
	}
}

// TestRecords: OPS-03, WHK-14.
func TestRecords(t *testing.T) {
	r, sub := registered(t)
	r.script = func(n int) webhook.Outcome {
		if n == 1 {
			return webhook.Outcome{Category: webhook.HTTP5xx, Status: 503, Took: 7 * time.Millisecond}
		}
		return succeeds(0)
	}
	began := r.now
	r.run("evt_1")
	for name, ask := range map[string]records.Query{
		"subscription": {Subscription: sub.ID}, "event": {Event: "evt_1"}, "origin": {Origin: "https://hooks.example.com"}, "everything": {},
		"all of it": {Subscription: sub.ID, Event: "evt_1", Origin: "https://hooks.example.com", Span: records.Span{Since: began}},
	} {
		t.Run("OPS-03 WHK-14 by "+name, func(t *testing.T) {
			queries := 0
			list, next, err := records.List(t.Context(), storetest.Hooked{DB: r.db, OnQuery: func() error { queries++; return nil }}, "default", ask, "", 10)
			if err != nil || next != "" || len(list) != 2 || queries != 1 {
				t.Fatalf("got %+v, %q, %v with %d queries; want two attempts with one query", list, next, err, queries)
			}
			second, first := list[0], list[1]
			if first.Attempt != 1 || first.Outcome() != records.Failed || first.Category != "http_5xx" || first.Status != 503 || first.TookMS != 7 || first.Next.IsZero() {
				t.Errorf("the first attempt is %+v, want number 1, failed with the status 503 after 7 ms, and a next one", first)
			}
			if second.Attempt != 2 || second.Outcome() != records.Delivered || !second.Next.IsZero() || second.At.Before(first.At) {
				t.Errorf("the second attempt is %+v, want number 2, delivered, after the first one and without a next one", second)
			}
		})
	}
	for _, partition := range []string{
		records.BySubscription("default", sub.ID), records.ByEvent("default", "evt_1"), records.ByOrigin("default", "https://hooks.example.com"), records.OfAll("default"),
	} {
		items := expect.Value(r.db.Query(t.Context(), store.Query{Table: store.Deliveries, Partition: partition}))(t).Items
		expect.MustLen(t, "WHK-14 the records in "+partition, items, 2)
		expect.Equal(t, "WHK-14 for how long "+partition+" keeps the first record", items[0].Expires.Sub(began).Round(time.Minute), 7*24*time.Hour)
	}
	for name, ask := range map[string]records.Query{
		"another subscription": {Subscription: "sub_x"}, "another event": {Event: "evt_2"}, "another origin": {Origin: "https://x"},
		"another outcome": {Outcome: records.Dead}, "later": {Span: records.Span{Since: r.now.Add(time.Hour)}}, "earlier": {Span: records.Span{Until: began.Add(-time.Hour)}},
	} {
		if list, _, err := records.List(t.Context(), r.db, "default", ask, "", 10); err != nil || len(list) != 0 {
			t.Errorf("OPS-03 %s: got %+v, %v", name, list, err)
		}
	}
	if list, next, err := records.List(t.Context(), r.db, "default", records.Query{}, "", 1); err != nil || len(list) != 1 || next == "" {
		t.Errorf("OPS-03: a page of one is %+v, %q, %v", list, next, err)
	} else if rest, _, err := records.List(t.Context(), r.db, "default", records.Query{}, next, 10); err != nil || len(rest) != 1 || rest[0].Attempt != 1 {
		t.Errorf("OPS-03: the next page is %+v, %v", rest, err)
	}
}

// TestLettersAreRetried: OPS-04, WHK-13.
func TestLettersAreRetried(t *testing.T) {
	r, sub := registered(t)
	r.script = tooLarge
	r.run("evt_1")
	queries := 0
	ops := r.operationsOn(storetest.Hooked{DB: r.db, OnQuery: func() error { queries++; return nil }}, mortal{r.db, r})
	ask := func(q deadletter.LetterQuery) []deadletter.Letter {
		t.Helper()
		queries = 0
		list, _, err := ops.ListLetters(t.Context(), "default", q, "", 10)
		expect.OK(t, err)
		expect.Equal(t, "the queries of a list", queries, 1)
		return list
	}
	var letter deadletter.Letter
	for name, q := range map[string]deadletter.LetterQuery{
		"subscription": {Subscription: sub.ID}, "origin": {Origin: "https://hooks.example.com"}, "event type": {Event: "ci.build_finished"}, "everything": {},
	} {
		list := ask(q)
		if len(list) != 1 || list[0].Reason != "http_4xx" || len(list[0].Attempts) != 1 || list[0].Event != "evt_1" {
			t.Fatalf("OPS-04 WHK-13 by %s: got %+v, want evt_1 with one attempt and the reason http_4xx", name, list)
		}
		letter = list[0]
	}
	had := len(r.posts)
	r.script = failsFirst(had + 1) // it fails once more, and has its schedule from the start
	for i, want := range []bool{true, false} {
		expect.Equal(t, fmt.Sprintf("OPS-04: the answer to request %d", i+1), expect.Value(ops.Retry(t.Context(), "default", letter, sub, 0))(t), want)
	}
	r.run()
	if n := len(r.posts) - had; n != 2 || r.posts[had].ID != "evt_1" || r.posts[had+1].ID != "evt_1" {
		t.Errorf("OPS-04 WHK-13: %d posts after the retry, want two with the same webhook-id", n)
	}
	expect.Equal(t, "OPS-04: letters that are left", len(ask(deadletter.LetterQuery{})), 0)
	expect.Equal(t, "OPS-04: letters of the origin that are left", len(ask(deadletter.LetterQuery{Origin: "https://hooks.example.com"})), 0)
}

// canceling cancels a replay in the middle of a step, when the second letter's subscription is looked up.
type canceling struct {
	deadletter.Finder
	cancel func()
	asked  atomic.Int64
}

func (c *canceling) Lookup(ctx context.Context, workspace, principal, id string) (*subscription.Subscription, error) {
	if c.asked.Add(1) == 2 {
		c.cancel()
	}
	return c.Finder.Lookup(ctx, workspace, principal, id)
}

// TestACanceledReplayCountsWhatWasUnderWay: OPS-04.
func TestACanceledReplayCountsWhatWasUnderWay(t *testing.T) {
	r, _ := registered(t)
	r.script = tooLarge
	r.run("evt_1", "evt_2", "evt_3")
	ops := r.operations()
	subs := &canceling{Finder: r.services}
	replays := &deadletter.Replays{Operations: ops, Subscriptions: subs}
	job := expect.Value(replays.Start(t.Context(), "default", "chief", nil, deadletter.ReplaySelect{}, 20))(t)
	expect.MustEqual(t, "the letters to replay", job.Total, 3)
	subs.cancel = func() {
		expect.OK(t, expect.ErrOf(replays.Cancel(t.Context(), "default", job.ID)))
	}
	expect.OK(t, expect.ErrOf(replays.Run(t.Context())))
	left, _, err := ops.ListLetters(t.Context(), "default", deadletter.LetterQuery{}, "", 10)
	expect.OK(t, err)
	if job, err = replays.Find(t.Context(), "default", job.ID); err != nil || job.State != deadletter.ReplayCanceled || job.Replayed+len(left) != 3 {
		t.Errorf("OPS-04: it ended as %+v with %d letters left, %v", job, len(left), err)
	}
}

// TestTestEvents: OPS-02, WHK-15.
func TestTestEvents(t *testing.T) {
	r, sub := registered(t)
	ops := r.operations()
	id := expect.Value(ops.SendTest(t.Context(), sub))(t)
	r.run()
	if len(r.posts) != 1 || r.posts[0].ID != id || len(r.posts[0].Keys) == 0 {
		t.Fatalf("WHK-15: got %+v, want one signed webhook %s", r.posts, id)
	}
	var body struct {
		Type string
		Data struct{ Test bool }
	}
	if err := json.Unmarshal(r.posts[0].Body, &body); err != nil || body.Type != deadletter.TestType || !body.Data.Test {
		t.Errorf("WHK-15: it is not marked: %s, %v", r.posts[0].Body, err)
	}
	if list, _, err := records.List(t.Context(), r.db, "default", records.Query{Event: id}, "", 10); err != nil || len(list) != 1 || !list[0].Test {
		t.Errorf("OPS-02: its record is %+v, %v", list, err)
	}
	t.Run("EVX-13 a lost test event is not announced as a gap", func(t *testing.T) {
		r, id := subscriber(t)
		r.script = refuse(r, fails(0))
		lost := expect.Value(r.operations().SendTest(t.Context(), r.record(id).Subscription))(t)
		r.run()
		ids, _ := r.gaps(t)
		expect.Len(t, "the gap notices", ids, 0)
		expect.Equal(t, "the state of the delivery", r.deliveryState(id, lost), "dead")
	})
}

// Given an event that waits for a switch, when the URI template of its type changes and its subscriber refreshes, then the event
// is delivered, or the refresh announces a gap.
func TestAPausedEventOfASubscriptionThatMoves(t *testing.T) {
	r := newRig(t)
	r.script = succeeds
	ask := func(ask *subscription.SubscribeRequest) {
		ask.Name, ask.Arguments = "github.push", json.RawMessage(`{"owner":"acme","repo":"app"}`)
	}
	r.publish("evt_0") // so that the log has an end
	r.handle()
	r.subscribe(ask)
	r.now = r.now.Add(time.Second)
	r.pause(switches.All, nil)
	r.publishTo("event://github/acme/app/push", "github.push", "evt_1", `{"branch":"main"}`)
	r.handle()
	r.change("event://github/", "event://gh/")
	refreshed := r.subscribe(ask)
	again := r.subscribe(ask)
	r.resume(switches.All, nil)
	r.now = r.now.Add(2 * switches.MaxAge)
	r.handle()
	if n := posted(r)["evt_1"]; n == 0 && !refreshed.Truncated {
		t.Error("EVX-11 the event was not posted, and the refresh announced no gap")
	}
	expect.True(t, "EVX-11 the next refresh does not announce the gap once more", !again.Truncated)
}

// Given an event that waits for a paused subscription, when the subscription is disabled, enabled and resumed, then the event is
// delivered.
func TestAPausedSubscriptionIsDisabledAndEnabled(t *testing.T) {
	r := newRig(t)
	r.script = succeeds
	sub := r.register("event://ci/build-finished")
	name := switches.SubscriptionSwitch(sub.ID)
	r.pause(name, sub)
	r.handle("evt_1")
	expect.OK(t, expect.ErrOf(r.services.Disable(t.Context(), "default", sub.Principal, sub.ID, "gone", r.record(sub.ID).Resumed)))
	expect.OK(t, did(r.services.Enable(t.Context(), "default", sub.Principal, sub.ID)))
	r.handle()
	expect.Equal(t, "the posts of evt_1", posted(r)["evt_1"], 0)
	r.resume(name, sub)
	r.now = r.now.Add(2 * switches.MaxAge)
	r.handle()
	expect.Equal(t, "the posts of evt_1", posted(r)["evt_1"], 1)
}

// OPS-04: of two processes that make the same step of a replay, one counts a letter, and the other does not count it as skipped.
func TestALetterThatAnotherRetries(t *testing.T) {
	r, sub := registered(t)
	r.script = tooLarge
	r.run("evt_1")
	first := r.operationsOn(r.db, mortal{r.db, r})
	expect.OK(t, expect.ErrOf(first.FileMessages(t.Context(), []queue.Message{{ID: "1", From: queue.Inbox, Sent: r.now, Outgoing: queue.Outgoing{Body: []byte("x")}}})))
	for _, l := range r.letters(deadletter.LetterQuery{}, 2) {
		again := func(o *deadletter.Operations) (bool, error) { return o.Retry(t.Context(), "default", l, sub, 0) }
		db := &storetest.Faulty{DB: r.db, At: 2, Meanwhile: func() { // after the second process has read the letter
			expect.Equal(t, string(l.Queue)+": the first retries it", expect.Value(again(first))(t), true)
		}}
		expect.Equal(t, string(l.Queue)+": the second retries it", expect.Value(again(r.operationsOn(db, mortal{db, r})))(t), false)
	}
}

// OPS-04: the messages of a dead letter that is sent back to the slow queue share the workers with the messages of other principals.
func TestADeadLetterKeepsItsOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		queues := expect.Value(queuesqlite.Open(r.db.Engine(), queuesqlite.Options{Log: slog.New(slog.DiscardHandler)}))(t)
		operations := deadletter.NewOperations(deadletter.Options{DB: r.db, Queue: queues})
		expect.OK(t, queues.Send(t.Context(), queue.Slow, queue.Outgoing{Body: []byte(`{"v":1}`), Group: "endpoint", Owner: "alice"}))
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		var owners []string
		running.Go(func() {
			_ = queues.Consume(ctx, queue.Slow, func(_ context.Context, batch []queue.Message) ([]string, error) {
				owners = append(owners, batch[0].Owner)
				if len(owners) == 1 {
					return nil, errors.New("failed")
				}
				return nil, nil
			}, queue.ConsumeOptions{MaxReceives: 1})
		})
		running.Go(func() { _ = queues.Consume(ctx, queue.Dead, operations.FileMessages, queue.ConsumeOptions{}) })
		time.Sleep(time.Minute)
		letter := r.letters(deadletter.LetterQuery{Queue: string(queue.Slow)}, 1)[0]
		expect.OK(t, did(operations.Retry(t.Context(), "default", letter, nil, 0)))
		time.Sleep(time.Minute)
		stop()
		running.Wait()
		expect.OK(t, queues.Close())
		expect.List(t, "the owners of the received messages", owners, []string{"alice", "alice"})
	})
}

// An operator fixes the cause of a dead letter of the events queue and sends it back a minute later. The queue still
// remembers the event as a repetition then.
// OPS-04, AWS-05: an event that is sent back within five minutes reaches fanout, once per letter.
func TestDeadEventsAreSentBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		log := slog.New(slog.DiscardHandler)
		queues := expect.Value(queuesqlite.Open(r.db.Engine(), queuesqlite.Options{Log: log}))(t)
		service := &publish.Service{Catalog: r.catalogs, Queue: queues}
		in := publish.Input{URI: "event://ci/build-finished", ID: "evt_1", Data: []byte(`{"ok":true}`)}
		expect.OK(t, expect.ErrOf(service.Accept(t.Context(), r.principal(), []publish.Input{in})))
		source := catalog.NewStatic(expect.Value(catalog.Parse([]byte("events:\n  - name: other\n    uri: event://other\n")))(t))
		fanout := &fanout.Fanout{DB: r.db, Log: r.log, Catalog: source, Queue: queues}
		operations := deadletter.NewOperations(deadletter.Options{DB: r.db, Queue: queues})
		var received atomic.Int64
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for name, h := range map[queue.Name]queue.Handler{
			queue.Dead: operations.FileMessages, queue.Inbox: (&publish.Inbox{Service: service, Log: log}).Handle,
			queue.Events: func(ctx context.Context, batch []queue.Message) ([]string, error) {
				received.Add(int64(len(batch)))
				return fanout.Handle(ctx, batch)
			},
		} {
			running.Go(func() { _ = queues.Consume(ctx, name, h, queue.ConsumeOptions{}) })
		}
		defer func() { stop(); running.Wait(); _ = queues.Close() }()
		for round := 1; round <= 2; round++ { // the event that was sent back becomes the second letter
			time.Sleep(time.Minute)
			l := r.letters(deadletter.LetterQuery{Queue: string(queue.Events)}, 1)[0]
			expect.OK(t, did(operations.Retry(t.Context(), "default", l, nil, 0)))
			time.Sleep(10 * time.Second)
			expect.MustEqual(t, fmt.Sprintf("the events that fanout received in round %d", round), received.Load(), int64(round)+1)
		}
	})
}
