package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// inSlowLane publishes events of which each has a message in the slow queue, and returns the dispatcher and the messages. The
// store takes no batch of writes while broken is set.
func (r *rig) inSlowLane(broken *atomic.Bool, ids ...string) (*Dispatcher, *retry.Job, []queue.Message) {
	r.t.Helper()
	fanout, d, retry := r.process()
	d.DB = storetest.Hooked{DB: d.DB, OnWriteAll: failing(broken)}
	r.script = fails
	r.publish("a", "b", "c") // after three failures its first attempts take the slow lane
	r.hand(queue.Events, fanout.Handle)
	r.hand(queue.Deliveries, d.HandlePages)
	r.queues[queue.Slow] = nil
	r.script = succeeds
	r.publish(ids...)
	r.hand(queue.Events, fanout.Handle)
	r.hand(queue.Deliveries, d.HandlePages)
	batch := r.queues[queue.Slow]
	r.queues[queue.Slow] = nil
	if len(batch) != len(ids) {
		r.t.Fatalf("%d messages are in the slow queue, want %d", len(batch), len(ids))
	}
	return d, retry, batch
}

// TestAnOutcomeCannotBeWritten: WHK-18. The endpoint has accepted an event, and the store cannot take the outcome.
func TestAnOutcomeCannotBeWritten(t *testing.T) {
	refused := func(t *testing.T) (*rig, *subscription.Subscription, *Dispatcher, *retry.Job, []queue.Message, *atomic.Bool) {
		r, sub := registered(t)
		broken := new(atomic.Bool)
		d, retry, batch := r.inSlowLane(broken, "evt_1")
		broken.Store(true)
		if failed, err := d.HandleSingles(t.Context(), batch); err == nil && len(failed) == 0 {
			t.Fatal("the outcome was written")
		}
		return r, sub, d, retry, batch, broken
	}
	t.Run("WHK-18 when it is written at last, the event can be delivered again", func(t *testing.T) {
		r, sub, d, retry, batch, broken := refused(t)
		broken.Store(false)
		r.done(d.HandleSingles(t.Context(), batch))
		expect.MustEqual(t, "the posts of evt_1", posted(r)["evt_1"], 1)
		expect.Equal(t, "the delivery of evt_1", r.deliveryState(sub.ID, "evt_1"), "none")
		r.now = r.now.Add(time.Hour)
		r.deliverAgain(sub, "evt_1")
		r.drain(d, retry)
		expect.AtLeast(t, "the posts of evt_1, with one of the second delivery", posted(r)["evt_1"], 2)
	})
	t.Run("WHK-18 when it is written at last, it leaves a delivery alone that began meanwhile", func(t *testing.T) {
		r, sub, d, retry, batch, broken := refused(t)
		_, other, _ := r.process() // gets the message next
		r.done(other.HandleSingles(t.Context(), batch))
		r.now = r.now.Add(time.Hour)
		r.deliverAgain(sub, "evt_1")
		broken.Store(false)
		before := posted(r)["evt_1"]
		r.drain(d, retry)
		expect.AtLeast(t, "the posts of the delivery that began later", posted(r)["evt_1"]-before, 1)
	})
	t.Run("WHK-18 while it cannot be written, no other attempt is made", func(t *testing.T) {
		r, _ := registered(t)
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
				if failed, err := d.HandleSingles(t.Context(), []queue.Message{m}); err == nil && len(failed) == 0 {
					t.Fatal("it was written")
				}
			}
		}
		expect.Equal(t, "the further posts", len(r.posts)-before, 1)
	})
}

func TestAMessageThatIsSettledIsNotHandledAgainBecauseAnOutcomeCannotBeWritten(t *testing.T) {
	r, _ := registered(t)
	var broken atomic.Bool
	d, _, batch := r.inSlowLane(&broken, "evt_1")
	attempted := batch[0].ID
	batch = append(batch, queue.Message{ID: "garbage", Outgoing: queue.Outgoing{Body: []byte("garbage")}})
	broken.Store(true)
	failed := expect.Value(d.HandleSingles(t.Context(), batch))(t)
	expect.List(t, "the failed messages", failed, []string{attempted})
	broken.Store(false)
	again := slices.DeleteFunc(batch, func(m queue.Message) bool { return !slices.Contains(failed, m.ID) })
	r.done(d.HandleSingles(t.Context(), again))
	expect.Equal(t, "the dead letters of the garbage", len(r.queues[queue.Dead]), 1)
	expect.Equal(t, "the posts of evt_1", posted(r)["evt_1"], 1)
}

// TestADisabledSubscriptionKeepsItsRetries: WHK-18, WHK-12.
func TestADisabledSubscriptionKeepsItsRetries(t *testing.T) {
	r, sub := registered(t)
	r.script = fails
	r.work("evt_1")
	expect.OK(t, did(r.services.Disable(t.Context(), "default", "alice", sub.ID, "all deliveries of five days failed", 0)))
	r.run() // the next attempt is due
	letter := r.letterOf(sub)
	expect.MustEqual(t, "the event of the dead letter", letter.Event, "evt_1")
	t.Run("WHK-18 and after it is resumed they can be delivered", func(t *testing.T) {
		expect.OK(t, did(r.services.Enable(t.Context(), "default", "alice", sub.ID)))
		r.script = succeeds
		before := posted(r)["evt_1"]
		expect.OK(t, did(r.operations().Retry(t.Context(), "default", letter, r.record(sub.ID).Subscription, 0)))
		r.run()
		expect.Equal(t, "further posts of evt_1", posted(r)["evt_1"]-before, 1)
	})
	t.Run("WHK-21 an ended subscription leaves no dead letter", func(t *testing.T) {
		r, sub := registered(t)
		r.script = fails
		r.work("evt_1")
		r.end(sub.ID)
		r.run()
		r.letters(deadletter.LetterQuery{Subscription: sub.ID}, 0)
		expect.Equal(t, "the delivery of evt_1", r.deliveryState(sub.ID, "evt_1"), "none")
	})
}

// TestASubscriptionIsCreatedAgainAfterAnErasure: OPS-07, WHK-18.
func TestASubscriptionIsCreatedAgainAfterAnErasure(t *testing.T) {
	r, id := subscriber(t)
	r.script = fails
	r.work("evt_0")
	operations := r.operations()
	r.end(id)
	expect.OK(t, operations.SweepLater(t.Context(), "default", []string{id}))
	r.now = r.now.Add(30 * time.Second)
	expect.MustEqual(t, "the id of the new subscription", r.subscribe().ID, id)
	r.now = r.now.Add(time.Second)
	r.queues[queue.Slow] = nil
	r.script = fails
	r.work("evt_1")
	r.now = r.now.Add(10 * time.Second)
	expect.OK(t, expect.ErrOf(operations.SweepErased(t.Context())))
	expect.Equal(t, "the delivery of evt_1", r.deliveryState(id, "evt_1"), state.Pending)
	expect.Equal(t, "the delivery of evt_0", r.deliveryState(id, "evt_0"), "none")
}

// TestTwoWorkersAtOneJob: WHK-22, OPS-05. A worker sends messages, and another worker starts the same job before the first
// one has recorded that.
func TestTwoWorkersAtOneJob(t *testing.T) {
	t.Run("OPS-05 each event of a replay is sent once", func(t *testing.T) {
		r, sub := registered(t)
		since := r.now.Add(-time.Hour)
		for i := range 50 {
			r.publish(fmt.Sprint("evt_", i))
		}
		r.work()
		r.posts = nil
		r.now = time.UnixMicro(r.db.End())
		second := r.replaysOf(r.operationsOn(r.db, mortal{r.db, r}))
		var once sync.Once
		q := &watched{Sender: mortal{r.db, r}, seen: func(queue.Name) {
			once.Do(func() { expect.OK(t, expect.ErrOf(second.Run(t.Context()))) })
		}}
		first := r.replaysOf(r.operationsOn(r.db, q))
		job := r.replay(first, sub, deadletter.ReplaySelect{Events: true, Subscription: sub.ID, Since: since})
		_, d, _ := r.process()
		r.hand(queue.Deliveries, d.HandlePages)
		for id, n := range posted(r) {
			expect.Equal(t, fmt.Sprintf("how often %s was sent", id), n, 1)
		}
		if len(posted(r)) != 50 || job.Replayed != 50 {
			t.Errorf("%d events were sent, %d counted, want 50", len(posted(r)), job.Replayed)
		}
	})
	t.Run("WHK-22 each paused message is requeued once", func(t *testing.T) {
		r, _ := registered(t)
		n := switches.EventSwitch("ci.build_finished")
		r.pause(n, nil)
		r.handle("evt_1")
		a, b := r.switches(), r.switches()
		expect.OK(t, did(a.Resume(t.Context(), "default", n)))
		var once sync.Once
		a.Queue = &watched{Sender: mortal{r.db, r}, seen: func(queue.Name) {
			once.Do(func() { expect.OK(t, expect.ErrOf(b.RequeueOf(t.Context(), "default", n))) })
		}}
		expect.OK(t, expect.ErrOf(a.RequeueOf(t.Context(), "default", n)))
		r.handle()
		expect.Equal(t, "the posts of evt_1", posted(r)["evt_1"], 1)
	})
}

// TestAnItemCannotBeDecoded: AWS-16. It is set aside, and everything next to it continues.
func TestAnItemCannotBeDecoded(t *testing.T) {
	deadLetters := func(t *testing.T, r *rig, want int) {
		t.Helper()
		expect.Equal(t, "the messages of the queue Dead", len(r.queues[queue.Dead]), want)
	}
	t.Run("AWS-16 among the messages of a resumed switch", func(t *testing.T) {
		r := newRig(t)
		set := r.switches()
		n := switches.EventSwitch("ci.build_finished")
		var ops []store.Op
		for i := range 40 {
			ops = append(ops, store.Put(set.Item("default", n, switches.Message{Queue: queue.Slow, Body: fmt.Appendf(nil, `{"n":%d}`, i)})))
		}
		ops[7].Item.Value = []byte(`{"v":`)
		expect.OK(t, r.db.WriteAll(t.Context(), ops...))
		r.pause(n, nil)
		expect.OK(t, did(set.Resume(t.Context(), "default", n)))
		expect.OK(t, expect.ErrOf(set.Requeue(t.Context())))
		expect.Equal(t, "the messages of the queue Slow", len(r.queues[queue.Slow]), 39)
		deadLetters(t, r, 1)
	})
	t.Run("AWS-16 among the erasures", func(t *testing.T) {
		r := newRig(t)
		o := r.operations()
		broken := store.Item{Key: store.Key{Table: store.Deliveries, Partition: deadletter.ErasedPartition, Sort: "0000000000000001"}, Value: []byte(`{`)}
		expect.OK(t, r.db.Write(t.Context(), store.Put(broken)))
		expect.OK(t, expect.ErrOf(o.SweepErased(t.Context())))
		deadLetters(t, r, 1)
	})
	t.Run("AWS-16 among the suspended deliveries of a subscription", func(t *testing.T) {
		r, id := subscriber(t)
		r.script = fails
		ids := []string{"evt_0", "evt_1", "evt_2"}
		r.firstAttempts(ids...)
		r.now = time.Now()
		r.suspend(id)
		r.run()
		expect.OK(t, r.db.Write(t.Context(), store.Put(store.Item{Key: state.Key("default", id, r.keyOf("evt_1")), Value: []byte(`{`), Version: 1})))
		r.script = succeeds
		before := posted(r)
		r.subscribe()
		_, d, _ := r.process()
		r.hand(queue.Deliveries, d.HandlePages)
		r.hand(queue.Slow, d.HandleSingles)
		for _, event := range ids {
			expect.Equal(t, event+" was sent", posted(r)[event] > before[event], event != "evt_1")
		}
		deadLetters(t, r, 1)
	})
	t.Run("AWS-16 among the dead letters, and in a replay of them", func(t *testing.T) {
		r, sub := registered(t)
		r.script = tooLarge
		r.run("evt_1", "evt_2", "evt_3")
		items := r.items(state.LettersOf("default", sub.ID).Partition)
		expect.MustLen(t, "the letters", items, 3)
		del, at, err := deadletter.DecodeLetter(&items[1])
		expect.OK(t, err)
		for _, key := range del.LetterKeys(at) {
			expect.OK(t, r.db.Write(t.Context(), store.Put(store.Item{Key: key, Value: []byte(`{"v":`)})))
		}
		r.letters(deadletter.LetterQuery{Subscription: sub.ID}, 2)
		r.now = r.now.Add(time.Second)
		expect.Equal(t, "the replayed letters", r.replay(r.replays(), nil, deadletter.ReplaySelect{}).Replayed, 2)
	})
	t.Run("AWS-16 among the events of dead letters that are replayed", func(t *testing.T) {
		r, _ := registered(t)
		r.script = tooLarge
		r.run("evt_1", "evt_2", "evt_3")
		key := event.Event{URI: "event://ci/build-finished", ID: "evt_2"}.Key()
		expect.OK(t, r.db.Write(t.Context(), store.Put(store.Item{Key: state.BodyKey("default", key), Value: []byte(`{"v":`)})))
		r.now = r.now.Add(time.Second)
		if job := r.replay(r.replays(), nil, deadletter.ReplaySelect{}); job.State != deadletter.ReplayDone || job.Replayed != 2 || job.Skipped != 1 {
			t.Errorf("the replay is %+v, want 2 replayed, one skipped", job)
		}
	})

	t.Run("WHK-18 where a new delivery of its event begins", func(t *testing.T) {
		r, sub := registered(t)
		expect.OK(t, r.db.Write(t.Context(), store.Put(store.Item{Key: state.Key("default", sub.ID, r.keyOf("evt_1")), Value: []byte(`{`), Version: 3})))
		r.script = failsFirst(1)
		r.run("evt_1")
		expect.Equal(t, "the posts of evt_1", posted(r)["evt_1"], 2)
		deadLetters(t, r, 1)
	})
}

func TestASubscriptionIsErasedWhileAnAttemptIsInFlight(t *testing.T) {
	r := newRig(t)
	operations := r.operations()
	id := r.register("event://ci/build-finished").ID
	r.script = func(int) webhook.Outcome {
		r.end(id)
		expect.OK(t, operations.SweepLater(t.Context(), "default", []string{id}))
		return fails(1)
	}
	r.work("evt_1")
	stored := func() (n int) {
		err := operations.VisitStoredData(t.Context(), "default", id, func(b deadletter.StoredData) error {
			items, err := r.db.Get(t.Context(), b.Keys...)
			for _, it := range items {
				if it != nil {
					n++
				}
			}
			return err
		})
		expect.OK(t, err)
		return n
	}
	expect.MustEqual(t, "something was recorded after the erasure", stored() > 0, true)
	waits := func() int { return len(r.items(deadletter.ErasedPartition)) }
	t.Run("OPS-07 WHK-21 what was in flight is deleted by the next round", func(t *testing.T) {
		if n, err := operations.SweepErased(t.Context()); err != nil || n == 0 || stored() != 0 || waits() != 1 {
			t.Errorf("got %d items swept, %v, %d left and %d erasures that wait, want more than 0, no error, 0 and 1", n, err, stored(), waits())
		}
	})
	t.Run("OPS-07 a retry of it that still comes does nothing, and then it is forgotten", func(t *testing.T) {
		r.run()
		expect.Equal(t, "the items that are left", stored(), 0)
		expect.Equal(t, "the attempts", len(r.posts), 1)
		expect.OK(t, expect.ErrOf(operations.SweepErased(t.Context())))
		expect.Equal(t, "the erasures that wait", waits(), 0)
	})
}

// OPS-07: an erasure of any number of subscriptions remembers all of them.
func TestAnErasureOfManySubscriptions(t *testing.T) {
	const many = 10_001
	r := newRig(t)
	ids := make([]string, many)
	for i := range ids {
		ids[i] = fmt.Sprintf("sub_%032x", i)
	}
	expect.OK(t, r.operations().SweepLater(t.Context(), "default", ids))
	found := 0
	for _, it := range r.items(deadletter.ErasedPartition) {
		var erased struct{ IDs []byte }
		expect.OK(t, json.Unmarshal(it.Value, &erased))
		found += len(erased.IDs) / 16
	}
	expect.Equal(t, "subscriptions to sweep", found, many)
}

// TestAnErasedEventIsStoredAgain: OPS-07, WHK-21. Erasing the only subscriber of an event deletes the stored
// event. If a delivery to another subscriber fails later, the event is stored again for the retries.
func TestAnErasedEventIsStoredAgain(t *testing.T) {
	r := newRig(t)
	asked := map[string]int{}
	db := storetest.Hooked{DB: r.db, OnWrite: func(_ context.Context, ops []store.Op) error {
		for _, op := range ops {
			asked[op.Item.Partition]++
		}
		return nil
	}}
	d := NewDispatcher(Config{DB: db, Now: func() time.Time { return r.now }})
	e := &event.Event{Workspace: "default", ID: "evt_1", URI: "event://ci/build-finished", Data: []byte(`{}`)}
	body := state.BodyKey("default", e.Key())
	kept := func() *store.Item {
		t.Helper()
		expect.OK(t, d.deliveries.StoreBody(t.Context(), state.New(&subscription.Subscriber{}, e, r.now), e, state.RetriedFor))
		return expect.Value(r.db.Get(t.Context(), body))(t)[0]
	}
	for range 3 {
		expect.MustEqual(t, "it is stored", kept() != nil, true)
	}
	expect.Equal(t, "OPS-07: how often it was stored within a moment", asked[body.Partition], 1)
	expect.OK(t, r.db.Write(t.Context(), store.Delete(body)))
	r.now = r.now.Add(state.RememberStored)
	expect.True(t, "OPS-07: its later subscribers have the event", kept() != nil)
}

// statement is a job of one statement.
type statement string

func (s statement) Apply(tx *engine.Tx) error { return tx.Exec(string(s)) }
func (statement) Done(error)                  {}

// pageCount asks for the size of the file.
type pageCount struct{ pages int64 }

func (p *pageCount) Apply(tx *engine.Tx) error {
	s := tx.Stmt("PRAGMA page_count")
	defer s.Reset()
	if _, err := s.Step(); err != nil {
		return err
	}
	p.pages = s.ColumnInt(0)
	return nil
}
func (*pageCount) Done(error) {}

// limit limits the file to its current size and some more pages.
func (w *world) limit(more int64) {
	w.t.Helper()
	var p pageCount
	w.do(&p)
	w.do(statement(fmt.Sprintf("PRAGMA max_page_count=%d", p.pages+more)))
}

// do does a job, again if it was committed together with something for which there was no room.
func (w *world) do(job engine.Job) {
	w.t.Helper()
	for tries := 1; ; tries++ {
		err := w.db.Engine().Do(context.Background(), job)
		if err == nil {
			return
		}
		if tries == 100 {
			w.t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// WHK-19: healthy endpoints get each event a few times at most while the disk is full for ten minutes, and all when there is
// room.
func TestAFullDisk(t *testing.T) {
	inWorld(t, embedded(), func(w *world) {
		urls := oneOrigin(6)
		w.to(urls...)
		var down atomic.Bool
		down.Store(true)
		w.answer = func(r webhook.Request) webhook.Outcome {
			if r.URL == urls[0] && down.Load() { // its deliveries need space
				return webhook.Outcome{Status: 500, Category: webhook.HTTP5xx, Took: 10 * time.Millisecond}
			}
			return takes(10 * time.Millisecond)
		}
		w.full.Store(true)
		w.limit(20)
		at := map[string]time.Time{}
		refused := 0
		for i := range 100 {
			id := fmt.Sprintf("e%d", i)
			if w.enqueue(id, fmt.Sprintf(`{"ok":"%04000d"}`, i)) != nil {
				refused++ // its publisher knows
			} else {
				at[id] = time.Now()
			}
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(10 * time.Minute)
		// mostOften returns how often a healthy endpoint was sent one event at most.
		mostOften := func() (most int) {
			for _, url := range urls[1:] {
				for id := range at {
					most = max(most, w.count(id, url))
				}
			}
			return most
		}
		expect.AtLeast(t, "the refused events", refused, 1)
		expect.AtLeast(t, "the accepted events", len(at), 1)
		expect.AtMost(t, "how often a healthy endpoint was sent one event while the disk was full", mostOften(), 3)
		w.limit(100_000)
		w.full.Store(false)
		down.Store(false)
		time.Sleep(time.Hour)
		for _, url := range urls {
			w.arrive(url, at, 0)
		}
		expect.AtMost(t, "how often a healthy endpoint was sent one event", mostOften(), 3)
		fresh := w.send("fresh", 5, 5*time.Second)
		time.Sleep(time.Minute)
		for _, url := range urls {
			w.arrive(url, fresh, 0)
		}
	})
}

// On AWS a function may run for hardly longer than the longest timeout that an operator can set.
func TestAnAttemptEndsBeforeItsInvocation(t *testing.T) {
	for name, tt := range map[string]struct{ timeout, invocation, want time.Duration }{
		"a timeout that is hardly longer": {time.Minute, 58 * time.Second, 57 * time.Second},
		"a shorter timeout":               {20 * time.Second, 58 * time.Second, 20 * time.Second},
		"an attempt that began late":      {20 * time.Second, 3 * time.Second, 20 * time.Second},
	} {
		t.Run("WHK-16 "+name, func(t *testing.T) {
			r, _ := registered(t)
			r.script = fails
			d, _ := r.firstAttempts("evt_1")
			d.Options.Timeout = tt.timeout
			ctx, cancel := context.WithTimeout(t.Context(), tt.invocation)
			defer cancel()
			expect.OK(t, expect.ErrOf(d.HandleSingles(ctx, r.queues[queue.Slow])))
			expect.MustLen(t, "the attempts", r.posts, 2)
			if got := r.posts[1].Timeout; got > tt.want || got < tt.want-5*time.Second {
				t.Errorf("the attempt may take %v, want about %v", got, tt.want)
			}
		})
	}
}
