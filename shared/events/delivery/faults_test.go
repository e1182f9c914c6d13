package delivery

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"

	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
)

// inSlowLane publishes events of which each has a message in the slow queue, and returns the dispatcher and the messages. The
// store takes no batch of writes while broken is set.
func (r *rig) inSlowLane(broken *atomic.Bool, ids ...string) (*Dispatcher, *retry.Job, []queue.Message) {
	r.t.Helper()
	fanout, d, retry := r.process()
	d.DB = hooked{DB: d.DB, writeAll: failing(broken)}
	r.script = fails
	r.publish("a", "b", "c") // after three failures its first attempts take the slow lane
	r.hand(queue.Events, fanout.Handle)
	r.hand(queue.Deliveries, d.Pages)
	r.queues[queue.Slow] = nil
	r.script = succeeds
	r.publish(ids...)
	r.hand(queue.Events, fanout.Handle)
	r.hand(queue.Deliveries, d.Pages)
	batch := r.queues[queue.Slow]
	r.queues[queue.Slow] = nil
	if len(batch) != len(ids) {
		r.t.Fatalf("%d messages are in the slow queue, want %d", len(batch), len(ids))
	}
	return d, retry, batch
}

// deliverAgain delivers an event that is stored for its retries again.
func (r *rig) deliverAgain(sub *subscription.Subscription, id string) {
	r.t.Helper()
	if err := r.tryDeliverAgain(sub, id); err != nil {
		r.t.Fatal(err)
	}
}

// tryDeliverAgain does the same and returns the error. It may be called from any goroutine.
func (r *rig) tryDeliverAgain(sub *subscription.Subscription, id string) error {
	e, err := r.operations().Stored(r.t.Context(), "default", "event://ci/build-finished", id)
	if err != nil {
		return err
	}
	return r.operations().Deliver(r.t.Context(), sub, e)
}

// TestAnOutcomeCannotBeWritten: WHK-18. The endpoint has accepted an event, and the store cannot take the outcome.
func TestAnOutcomeCannotBeWritten(t *testing.T) {
	t.Run("WHK-18 when it is written at last, the event can be delivered again", func(t *testing.T) {
		r := newRig(t)
		sub := r.register("event://ci/build-finished")
		var broken atomic.Bool
		d, retry, batch := r.inSlowLane(&broken, "evt_1")
		broken.Store(true)
		if _, err := d.Singles(t.Context(), batch); err == nil {
			t.Fatal("the outcome was written")
		}
		broken.Store(false)
		if failed, err := d.Singles(t.Context(), batch); err != nil || len(failed) > 0 || posted(r)["evt_1"] != 1 {
			t.Fatalf("the message came again: failed %v, %v, %d posts; want the first one only", failed, err, posted(r)["evt_1"])
		}
		if st := r.deliveryState(sub.ID, "evt_1"); st != "none" {
			t.Fatalf("the delivery is %s", st)
		}
		r.now = r.now.Add(time.Hour)
		r.deliverAgain(sub, "evt_1")
		r.drain(d, retry)
		if n := posted(r)["evt_1"]; n < 2 {
			t.Errorf("the event was posted %d times, want once more", n)
		}
	})
	t.Run("WHK-18 when it is written at last, it leaves a delivery alone that began meanwhile", func(t *testing.T) {
		r := newRig(t)
		sub := r.register("event://ci/build-finished")
		var broken atomic.Bool
		d, retry, batch := r.inSlowLane(&broken, "evt_1")
		broken.Store(true)
		if _, err := d.Singles(t.Context(), batch); err == nil {
			t.Fatal("the outcome was written")
		}
		_, other, _ := r.process() // gets the message next
		r.done(other.Singles(t.Context(), batch))
		r.now = r.now.Add(time.Hour)
		r.deliverAgain(sub, "evt_1")
		broken.Store(false)
		before := posted(r)["evt_1"]
		r.drain(d, retry)
		if n := posted(r)["evt_1"] - before; n < 1 {
			t.Error("the delivery that began later was swallowed")
		}
	})
	t.Run("WHK-18 while it cannot be written, no other attempt is made", func(t *testing.T) {
		r := newRig(t)
		r.register("event://ci/build-finished")
		var broken atomic.Bool
		var ids []string
		for i := range 50 {
			ids = append(ids, fmt.Sprint("e", i))
		}
		d, _, batch := r.inSlowLane(&broken, ids...)
		broken.Store(true)
		before := len(r.posts)
		for range 3 {
			for _, m := range batch { // one at a time, as the server does
				if _, err := d.Singles(t.Context(), []queue.Message{m}); err == nil {
					t.Fatal("it was written")
				}
			}
		}
		if n := len(r.posts) - before; n != 1 {
			t.Errorf("%d posts were made while the store took no writes, want the first one only", n)
		}
	})
}

// TestADisabledSubscriptionKeepsItsRetries: WHK-18, WHK-12.
func TestADisabledSubscriptionKeepsItsRetries(t *testing.T) {
	r := newRig(t)
	sub := r.register("event://ci/build-finished")
	r.script = fails
	r.publish("evt_1")
	r.work()
	if ended, err := r.services.Disable(t.Context(), "default", "alice", sub.ID, "all deliveries of five days failed", 0); err != nil || !ended {
		t.Fatal(ended, err)
	}
	r.run() // the next attempt is due
	letters := r.lettersFor(sub.ID)
	if len(letters) != 1 || letters[0].Event != "evt_1" {
		t.Fatalf("the dead letters are %+v, want one of the pending retry", letters)
	}
	t.Run("WHK-18 and after it is resumed they can be delivered", func(t *testing.T) {
		if ok, err := r.services.Enable(t.Context(), "default", "alice", sub.ID); err != nil || !ok {
			t.Fatal(ok, err)
		}
		r.script = succeeds
		before := posted(r)["evt_1"]
		if done, err := r.operations().Retry(t.Context(), "default", letters[0], r.record(sub.ID).Subscription, 0); err != nil || !done {
			t.Fatal(done, err)
		}
		r.run()
		if n := posted(r)["evt_1"] - before; n != 1 {
			t.Errorf("the event was posted %d times, want once", n)
		}
	})
	t.Run("WHK-21 an ended subscription leaves no dead letter", func(t *testing.T) {
		r := newRig(t)
		sub := r.register("event://ci/build-finished")
		r.script = fails
		r.publish("evt_1")
		r.work()
		r.end(sub.ID)
		r.run()
		if letters := r.lettersFor(sub.ID); len(letters) > 0 || r.deliveryState(sub.ID, "evt_1") != "none" {
			t.Errorf("got %d dead letters, and the delivery is %s", len(letters), r.deliveryState(sub.ID, "evt_1"))
		}
	})
}

// TestASubscriptionIsCreatedAgainAfterAnErasure: OPS-07, WHK-18.
func TestASubscriptionIsCreatedAgainAfterAnErasure(t *testing.T) {
	r := newRig(t)
	id := r.subscribe().ID
	r.script = fails
	r.publish("evt_0")
	r.work()
	operations := r.operations()
	r.end(id)
	if err := operations.SweepLater(t.Context(), "default", []string{id}); err != nil {
		t.Fatal(err)
	}
	r.now = r.now.Add(30 * time.Second)
	if again := r.subscribe().ID; again != id {
		t.Fatalf("the new subscription is %s, want the id of the erased one, %s", again, id)
	}
	r.now = r.now.Add(time.Second)
	r.queues[queue.Slow] = nil
	r.script = fails
	r.publish("evt_1")
	r.work()
	r.now = r.now.Add(10 * time.Second)
	if _, err := operations.SweepErased(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := r.deliveryState(id, "evt_1"); st != state.Pending {
		t.Errorf("WHK-18 the delivery of the new subscription is %s after the sweep, want %s", st, state.Pending)
	}
	if st := r.deliveryState(id, "evt_0"); st != "none" {
		t.Errorf("OPS-07 the delivery of the erased subscription is %s after the sweep", st)
	}
}

// TestTwoWorkersAtOneJob: WHK-22, OPS-05. A worker sends messages, and another worker starts the same job before the first
// one has recorded that.
func TestTwoWorkersAtOneJob(t *testing.T) {
	t.Run("OPS-05 each event of a replay is sent once", func(t *testing.T) {
		r := newRig(t)
		sub := r.register("event://ci/build-finished")
		since := r.now.Add(-time.Hour)
		for i := range 50 {
			r.publish(fmt.Sprint("evt_", i))
		}
		r.work()
		r.posts = nil
		r.now = time.UnixMicro(r.db.End())
		second := r.replaysOf(r.operationsOn(r.db, mortal{r.db, r}))
		var once bool
		q := &watched{Sender: mortal{r.db, r}, seen: func(queue.Name) {
			if once {
				return
			}
			once = true
			if _, err := second.Run(t.Context()); err != nil {
				t.Error(err)
			}
		}}
		first := r.replaysOf(r.operationsOn(r.db, q))
		job, err := first.Start(t.Context(), "default", "op", sub, deadletter.ReplaySelect{Events: true, Subscription: sub.ID, Since: since}, 20)
		if err == nil {
			job, err = first.Begin(t.Context(), job)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, d, _ := r.process()
		r.hand(queue.Deliveries, d.Pages)
		for id, n := range posted(r) {
			if n != 1 {
				t.Errorf("%s was sent %d times, want once", id, n)
			}
		}
		if len(posted(r)) != 50 || job.Replayed != 50 {
			t.Errorf("%d events were sent, %d counted, want 50", len(posted(r)), job.Replayed)
		}
	})
	t.Run("OPS-05 a replay continues after its worker died", func(t *testing.T) {
		r := newRig(t)
		sub := r.register("event://ci/build-finished")
		since := r.now.Add(-time.Hour)
		r.publish("evt_1")
		r.work()
		r.posts = nil
		r.now = time.UnixMicro(r.db.End())
		replays := r.replaysOf(r.operationsOn(mortal{r.db, r}, mortal{r.db, r}))
		if _, err := replays.Start(t.Context(), "default", "op", sub, deadletter.ReplaySelect{Events: true, Subscription: sub.ID, Since: since}, 20); err != nil {
			t.Fatal(err)
		}
		r.budget = 3 // after its claim
		if _, err := replays.Run(t.Context()); err == nil {
			t.Fatal("it did not die")
		}
		r.dead, r.budget = false, 0
		r.now = r.now.Add(deadletter.ReplayClaim + time.Second)
		if _, err := replays.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.work()
		if n := posted(r)["evt_1"]; n != 1 {
			t.Errorf("the event was sent %d times, want once", n)
		}
	})
	t.Run("WHK-22 each paused message is requeued once", func(t *testing.T) {
		r := newRig(t)
		r.register("event://ci/build-finished")
		n := switches.Event("ci.build_finished")
		r.pause(n, nil)
		r.publish("evt_1")
		r.handle()
		a, b := r.switches(), r.switches()
		if ok, err := a.Resume(t.Context(), "default", n); err != nil || !ok {
			t.Fatal(ok, err)
		}
		var once bool
		a.Queue = &watched{Sender: mortal{r.db, r}, seen: func(queue.Name) {
			if once {
				return
			}
			once = true
			if _, err := b.RequeueOf(t.Context(), "default", n); err != nil {
				t.Error(err)
			}
		}}
		if _, err := a.RequeueOf(t.Context(), "default", n); err != nil {
			t.Fatal(err)
		}
		r.handle()
		if n := posted(r)["evt_1"]; n != 1 {
			t.Errorf("the event was sent %d times, want once", n)
		}
	})
}

// TestAnItemCannotBeDecoded: AWS-16. It is set aside, and everything next to it continues.
func TestAnItemCannotBeDecoded(t *testing.T) {
	deadLetters := func(t *testing.T, r *rig, want int) {
		t.Helper()
		if n := len(r.queues[queue.Dead]); n != want {
			t.Errorf("%d dead letters were sent, want %d", n, want)
		}
	}
	t.Run("AWS-16 among the messages of a resumed switch", func(t *testing.T) {
		r := newRig(t)
		set := r.switches()
		n := switches.Event("ci.build_finished")
		var ops []store.Op
		for i := range 40 {
			ops = append(ops, store.Put(set.Item("default", n, switches.Message{Queue: queue.Slow, Body: fmt.Appendf(nil, `{"n":%d}`, i)})))
		}
		ops[7].Item.Value = []byte(`{"v":`)
		if err := r.db.WriteAll(t.Context(), ops...); err != nil {
			t.Fatal(err)
		}
		r.pause(n, nil)
		if ok, err := set.Resume(t.Context(), "default", n); err != nil || !ok {
			t.Fatal(ok, err)
		}
		if _, err := set.Requeue(t.Context()); err != nil {
			t.Errorf("got the error %v", err)
		}
		if n := len(r.queues[queue.Slow]); n != 39 {
			t.Errorf("%d messages were requeued, want 39", n)
		}
		deadLetters(t, r, 1)
	})
	t.Run("AWS-16 among the erasures", func(t *testing.T) {
		r := newRig(t)
		o := r.operations()
		broken := store.Item{Key: store.Key{Table: store.Deliveries, Partition: deadletter.ErasedPartition, Sort: "0000000000000001"}, Value: []byte(`{`)}
		if err := r.db.Write(t.Context(), store.Put(broken)); err != nil {
			t.Fatal(err)
		}
		if _, err := o.SweepErased(t.Context()); err != nil {
			t.Errorf("got the error %v", err)
		}
		deadLetters(t, r, 1)
	})
	t.Run("AWS-16 among the suspended deliveries of a subscription", func(t *testing.T) {
		r := newRig(t)
		id := r.subscribe().ID
		r.script = fails
		ids := []string{"evt_0", "evt_1", "evt_2"}
		r.publish(ids...)
		fanout, d, _ := r.process()
		r.hand(queue.Events, fanout.Handle)
		r.hand(queue.Deliveries, d.Pages)
		r.now = time.Now()
		r.suspend(id)
		r.run()
		if err := r.db.Write(t.Context(), store.Put(store.Item{Key: state.Key("default", id, r.keyOf("evt_1")), Value: []byte(`{`), Version: 1})); err != nil {
			t.Fatal(err)
		}
		r.script = succeeds
		before := posted(r)
		r.subscribe()
		_, d, _ = r.process()
		r.hand(queue.Deliveries, d.Pages)
		r.hand(queue.Slow, d.Singles)
		for _, event := range ids {
			if n, want := posted(r)[event]-before[event], event != "evt_1"; (n > 0) != want {
				t.Errorf("%s was sent %d times, want it to be sent: %v", event, n, want)
			}
		}
		deadLetters(t, r, 1)
	})
	t.Run("AWS-16 among the dead letters, and in a replay of them", func(t *testing.T) {
		r := newRig(t)
		sub := r.register("event://ci/build-finished")
		r.script = tooLarge
		r.publish("evt_1", "evt_2", "evt_3")
		r.run()
		page, err := r.db.Query(t.Context(), store.Query{Table: store.Deliveries, Partition: state.LettersOf("default", sub.ID).Partition})
		if err != nil || len(page.Items) != 3 {
			t.Fatal(len(page.Items), err)
		}
		del, at, err := deadletter.DecodeLetter(&page.Items[1])
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range del.LetterKeys(at) {
			if err := r.db.Write(t.Context(), store.Put(store.Item{Key: key, Value: []byte(`{"v":`)})); err != nil {
				t.Fatal(err)
			}
		}
		if list := r.lettersFor(sub.ID); len(list) != 2 {
			t.Errorf("%d dead letters are listed, want the other 2", len(list))
		}
		r.now = r.now.Add(time.Second)
		replays := r.replays()
		job, err := replays.Start(t.Context(), "default", "op", nil, deadletter.ReplaySelect{}, 20)
		if err == nil {
			job, err = replays.Begin(t.Context(), job)
		}
		if err != nil || job.Replayed != 2 {
			t.Errorf("the replay is %+v, %v; want 2 replayed", job, err)
		}
	})
	t.Run("AWS-16 among the events of dead letters that are replayed", func(t *testing.T) {
		r := newRig(t)
		r.register("event://ci/build-finished")
		r.script = tooLarge
		r.publish("evt_1", "evt_2", "evt_3")
		r.run()
		key := event.Event{URI: "event://ci/build-finished", ID: "evt_2"}.Key()
		if err := r.db.Write(t.Context(), store.Put(store.Item{Key: state.BodyKey("default", key), Value: []byte(`{"v":`)})); err != nil {
			t.Fatal(err)
		}
		r.now = r.now.Add(time.Second)
		replays := r.replays()
		job, err := replays.Start(t.Context(), "default", "op", nil, deadletter.ReplaySelect{}, 20)
		if err == nil {
			job, err = replays.Begin(t.Context(), job)
		}
		if err != nil || job.State != deadletter.ReplayDone || job.Replayed != 2 || job.Skipped != 1 {
			t.Errorf("the replay is %+v, %v; want 2 replayed, one skipped", job, err)
		}
	})

	t.Run("WHK-18 where a new delivery of its event begins", func(t *testing.T) {
		r := newRig(t)
		sub := r.register("event://ci/build-finished")
		if err := r.db.Write(t.Context(), store.Put(store.Item{Key: state.Key("default", sub.ID, r.keyOf("evt_1")), Value: []byte(`{`), Version: 3})); err != nil {
			t.Fatal(err)
		}
		r.script = failsFirst(1)
		r.publish("evt_1")
		r.run()
		if n := posted(r)["evt_1"]; n != 2 {
			t.Errorf("the event was sent %d times, want a failure and a success", n)
		}
		deadLetters(t, r, 1)
	})
}
