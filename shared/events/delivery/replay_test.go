package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestReplayOfEvents (OPS-05) delivers the events since a given time again, although the processes die.
func TestReplayOfEvents(t *testing.T) {
	r := newRig(t)
	got := r.subscribe(func(s *subscription.SubscribeRequest) {
		s.Name, s.Arguments = "github.push", []byte(`{"owner":"acme","branch":"main"}`)
	})
	sub := r.record(got.ID).Subscription
	published := func(id, owner, branch string) {
		r.publishTo("event://github/"+owner+"/"+id+"/push", "github.push", id, `{"branch":"`+branch+`"}`)
	}
	const wanted, rate = 25, 2
	published("early", "acme", "main")
	r.work()
	since := time.UnixMicro(r.db.End() + 1) // the store stamps
	for i := range wanted {
		published(fmt.Sprint("evt_", i), "acme", "main")
		published(fmt.Sprint("filtered_", i), "acme", "topic")
		published(fmt.Sprint("elsewhere_", i), "globex", "main")
	}
	r.work()
	expect.MustEqual(t, "the posted events", len(posted(r)), wanted+1)
	r.posts = nil
	r.now = time.UnixMicro(r.db.End())
	replays := func() *deadletter.Replays { // of a new process
		return r.replaysOf(r.operationsOn(mortal{r.db, r}, mortal{r.db, r}))
	}
	ask := deadletter.ReplaySelect{Events: true, Subscription: sub.ID, Since: since}
	if n, more, err := replays().CountSelected(t.Context(), "default", sub, ask); n != wanted || more || err != nil {
		t.Fatalf("it counts %d, %v, %v", n, more, err)
	}
	job := expect.Value(replays().Start(t.Context(), "default", "chief", sub, ask, rate))(t)
	expect.MustEqual(t, "the events to replay", job.Total, wanted)
	published("after it was asked for", "acme", "main")

	t.Run("OPS-05 it has its rate, and goes on where it was when a process dies at any step", func(t *testing.T) {
		steps := 0
		for ; job.State == deadletter.ReplayRunning; steps++ {
			r.budget, r.late = 1+steps%40, steps%2 == 0
			_, err := replays().Run(t.Context())
			if err != nil && !r.dead {
				t.Fatal(err)
			}
			if r.dead {
				r.now = r.now.Add(deadletter.ReplayClaim + time.Second) // until the claim of the dead process has ended
			}
			r.dead, r.budget = false, 0
			expect.MustEqual(t, fmt.Sprintf("the replay ends within 1,000 steps: %+v", job), steps <= 1000, true)
			job = expect.Value(replays().Find(t.Context(), "default", job.ID))(t)
		}
		second := map[time.Time]map[string]bool{}
		for _, m := range r.queues[queue.Deliveries] {
			for _, e := range expect.Value(task.DecodePage(m))(t).Events {
				at := m.Sent.Add(m.Delay)
				if second[at] == nil {
					second[at] = map[string]bool{}
				}
				second[at][e.ID] = true
			}
		}
		expect.AtLeast(t, "the seconds in which all were sent", len(second), wanted/rate)
		for at, ids := range second {
			expect.AtMost(t, "the events at "+at.String(), len(ids), 2*rate) // the last of a partition and the first of the next one share one
		}
		if job.Replayed != wanted || steps < 2 {
			t.Errorf("got %+v after %d processes, want %d events after at least 2", job, steps, wanted)
		}
		tasks := r.queues[queue.Events]
		r.queues[queue.Events] = nil
		r.work()
		r.queues[queue.Events] = tasks
		got := posted(r)
		for i := range wanted {
			expect.AtLeast(t, fmt.Sprintf("the posts of evt_%d", i), got[fmt.Sprint("evt_", i)], 1)
		}
		expect.Equal(t, "posts", len(got), wanted)
	})
	t.Run("OPS-05 asked twice it runs once, later it is another, which can be canceled", func(t *testing.T) {
		r.now = job.Created
		again, err := replays().Start(t.Context(), "default", "chief", sub, ask, rate)
		if err != nil || again.State != deadletter.ReplayDone || !again.Created.Equal(job.Created) {
			t.Errorf("got %+v, %v", again, err)
		}
		r.now = r.now.Add(deadletter.SameReplay)
		again = expect.Value(replays().Start(t.Context(), "default", "chief", sub, ask, rate))(t)
		expect.MustEqual(t, "the state later", again.State, deadletter.ReplayRunning)
		again = expect.Value(replays().Cancel(t.Context(), "default", again.ID))(t)
		expect.MustEqual(t, "the state after it was canceled", again.State, deadletter.ReplayCanceled)
		expect.Equal(t, "the events that it sent", expect.Value(replays().Run(t.Context()))(t), 0)
	})
}

// slowPages is a store that takes a second for a page of five log items, as DynamoDB may with large events.
type slowPages struct{ store.DB }

func (s slowPages) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if q.Table == store.Log {
		q.Limit = min(q.Limit, 5)
		if err := periodic.Sleep(ctx, time.Second); err != nil {
			return store.Page{}, err
		}
	}
	return s.DB.Query(ctx, q)
}

// The subscription's filter rejects so many events that a step cannot read all of them while a function runs.
func TestAReplayOfRareEventsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		got := r.subscribe(func(s *subscription.SubscribeRequest) {
			s.Name, s.Arguments = "github.push", []byte(`{"owner":"acme","repo":"app","branch":"main"}`)
		})
		sub := r.record(got.ID).Subscription
		const uri, others = "event://github/acme/app/push", 500
		since := time.Now()
		time.Sleep(time.Second)
		publish := func(id, branch string) {
			e := event.Event{Workspace: "default", ID: id, URI: uri, Name: "github.push", Published: time.Now(), Data: []byte(`{"branch":"` + branch + `"}`)}
			expect.OK(t, expect.ErrOf(r.log.Append(t.Context(), "default", uri, []event.Event{e}, nil)))
		}
		publish("first", "main")
		for i := range others {
			publish(fmt.Sprint("other_", i), "topic")
		}
		publish("last", "main")
		time.Sleep(time.Second)
		replays := &deadletter.Replays{
			Operations:    deadletter.NewOperations(deadletter.Options{DB: r.db, Queue: mortal{r.db, r}}),
			Subscriptions: r.services, EventLog: &eventlog.Log{DB: slowPages{r.db}},
		}
		began := time.Now()
		ask := deadletter.ReplaySelect{Events: true, Subscription: sub.ID, Since: since}
		job := expect.Value(replays.Start(t.Context(), "default", "chief", sub, ask, 20))(t)
		// The client of a function does not wait longer.
		expect.AtMost(t, "OPS-05: the time in which the events were counted", time.Since(began), 15*time.Second)
		for range 10 {
			round, cancel := context.WithTimeout(t.Context(), 52*time.Second)
			expect.OK(t, expect.ErrOf(replays.Run(round)), "OPS-05:")
			cancel()
			time.Sleep(time.Minute)
		}
		job = expect.Value(replays.Find(t.Context(), "default", job.ID))(t)
		sent := map[string]int{}
		for _, m := range r.queues[queue.Deliveries] {
			for _, e := range expect.Value(task.DecodePage(m))(t).Events {
				sent[e.ID]++
			}
		}
		if job.State != deadletter.ReplayDone || sent["first"] != 1 || sent["last"] != 1 || len(sent) != 2 {
			t.Errorf("OPS-05: after ten minutes the replay is %s and has sent %v, want done, and the first and the last event once", job.State, sent)
		}
	})
}

// A client was away for so long that the function register cannot enqueue all events for it before its time is over.
func TestASubscriptionFromFarBackIsTruncated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		const uri, missed = "event://ci/build-finished", 300
		for i := range missed {
			e := event.Event{Workspace: "default", ID: fmt.Sprint("evt_", i), URI: uri, Name: "ci.build_finished", Published: time.Now(), Data: []byte(`{}`)}
			expect.OK(t, expect.ErrOf(r.log.Append(t.Context(), "default", uri, []event.Event{e}, nil)))
		}
		sub := &subscription.Subscription{
			Workspace: "default", ID: strings.Repeat("a", 43), Patterns: []match.Pattern{{Kind: match.Concrete, Key: uri}},
		}
		invocation, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		truncated, err := (&deadletter.Replayer{Log: &eventlog.Log{DB: slowPages{r.db}}, Queue: mortal{r.db, r}}).Replay(invocation, sub, 0)
		if err != nil || !truncated || invocation.Err() != nil {
			t.Errorf("EVX-07: the replay is truncated: %v, %v; want true before the time is over", truncated, err)
		}
		expect.AtLeast(t, "EVX-07: the pages of replayed events", len(r.queues[queue.Deliveries]), 1)
	})
}

// After a rollback the log has an item of a later release. Clients can still subscribe from a cursor before it, and operators can
// replay a span that includes it.
func TestReplaysPassAnItemOfALaterRelease(t *testing.T) {
	const uri = "event://ci/build-finished"
	given := func(t *testing.T) (*rig, *subscription.SubscribeResult, int64) {
		r := newRig(t)
		sub := r.subscribe()
		before := r.db.End()
		r.now = r.now.Add(time.Second)
		r.work("evt_1")
		later := store.Item{Key: store.Key{Table: store.Log, Partition: eventlog.OwnPartition("default", uri).Name(), Sort: store.AtCommit}, Value: []byte(`{"v":2}`)}
		expect.OK(t, r.db.Write(t.Context(), store.Put(later)))
		r.work("evt_2")
		r.posts = nil
		return r, sub, before
	}
	check := func(t *testing.T, r *rig) {
		t.Helper()
		r.work()
		if got := posted(r); got["evt_1"] != 1 || got["evt_2"] != 1 || len(got) != 2 {
			t.Errorf("EVX-26: the replay posted %v, want evt_1 and evt_2 once", got)
		}
	}
	t.Run("EVX-07 EVX-26 a client subscribes from a cursor", func(t *testing.T) {
		r, sub, before := given(t)
		r.end(sub.ID)
		got := r.subscribe(func(ask *subscription.SubscribeRequest) {
			ask.Cursor = r.sealer.Seal("default", eventlog.Cursor{At: before})
		})
		expect.True(t, "the subscription is truncated, because the client misses the events of the later release", got.Truncated)
		check(t, r)
	})
	t.Run("OPS-05 an operator replays events", func(t *testing.T) {
		r, got, before := given(t)
		r.now = time.UnixMicro(r.db.End())
		r.replay(r.replays(), r.record(got.ID).Subscription, deadletter.ReplaySelect{Events: true, Subscription: got.ID, Since: time.UnixMicro(before + 1)})
		check(t, r)
	})
}

// A client subscribes with a cursor, and the log has an item after it that cannot be decoded. The client gets the other events,
// learns of the gap, and operators find the item among the dead letters.
func TestASubscriptionFromBeforeALogItemThatCannotBeDecoded(t *testing.T) {
	r := newRig(t)
	const uri = "event://github/acme/app/push"
	before := r.db.End()
	r.publishTo(uri, "github.push", "evt_1", `{"branch":"main"}`)
	r.work()
	broken := store.Item{Key: store.Key{Table: store.Log, Partition: eventlog.OwnPartition("default", uri).Name(), Sort: store.AtCommit}, Value: []byte(`{"v":1,"e":7}`)}
	expect.OK(t, r.db.Write(t.Context(), store.Put(broken)))
	r.publishTo(uri, "github.push", "evt_2", `{"branch":"main"}`)
	r.work()
	sub := &subscription.Subscription{
		Workspace: "default", ID: strings.Repeat("a", 43), Patterns: []match.Pattern{{Kind: match.Concrete, Key: uri}},
	}
	truncated := expect.Value((&deadletter.Replayer{Log: r.log, Queue: mortal{r.db, r}}).Replay(t.Context(), sub, before))(t)
	expect.True(t, "EVX-07: the replay is truncated", truncated)
	replayed := 0
	for _, m := range r.queues[queue.Deliveries] {
		replayed += len(expect.Value(task.DecodePage(m))(t).Events)
	}
	expect.Equal(t, "EVX-26: replayed events", replayed, 2)
	retry := &retry.Job{DB: r.db, Queue: mortal{r.db, r}, EventLog: r.log, Now: func() time.Time { return r.now }}
	for range 2 {
		expect.OK(t, expect.ErrOf(retry.DeadLetterLogItems(t.Context())))
	}
	letters := r.queues[queue.Dead]
	expect.MustLen(t, "the dead letters", letters, 1)
	l, err := queue.ParseDeadLetter(letters[0].Body)
	if err != nil || l.Queue != "table:log" || l.Body != string(broken.Value) {
		t.Errorf("the dead letter is %+v, %v; want the item of the table", l, err)
	}
}

// slow is a store of subscriptions that takes a second for each.
type slow struct {
	deadletter.Finder
	clock *atomic.Int64
}

func (s slow) Lookup(ctx context.Context, workspace, principal, id string) (*subscription.Subscription, error) {
	s.clock.Add(int64(time.Second))
	return s.Finder.Lookup(ctx, workspace, principal, id)
}

// TestAReplayBeginsAtOnce: OPS-04. The request that begins a replay schedules the letters that are due before the periodic
// job continues it, so that the operator does not wait for the job.
func TestAReplayBeginsAtOnce(t *testing.T) {
	const letters, rate = 150, 2
	begin := func(t *testing.T, finder func(deadletter.Finder, *atomic.Int64) deadletter.Finder) (*deadletter.Replay, *deadletter.Replays, *rig, *atomic.Int64) {
		r, _ := registered(t)
		r.script = tooLarge
		for i := range letters {
			r.publish(fmt.Sprintf("evt_%d", i))
		}
		r.run()
		clock := new(atomic.Int64)
		clock.Store(r.now.UnixNano())
		ops := deadletter.NewOperations(deadletter.Options{DB: r.db, Queue: mortal{r.db, r}, Now: func() time.Time { return time.Unix(0, clock.Load()) }})
		replays := &deadletter.Replays{Operations: ops, Subscriptions: finder(r.services, clock)}
		job := expect.Value(replays.Start(t.Context(), "default", "chief", nil, deadletter.ReplaySelect{}, rate))(t)
		expect.MustEqual(t, "the letters to replay", job.Total, letters)
		job = expect.Value(replays.Begin(t.Context(), job))(t)
		return job, replays, r, clock
	}
	t.Run("OPS-04 it has what is due within the minute, each letter at its time", func(t *testing.T) {
		job, replays, r, clock := begin(t, func(f deadletter.Finder, _ *atomic.Int64) deadletter.Finder { return f })
		ahead := job.Next.Sub(time.Unix(0, clock.Load()))
		if job.State != deadletter.ReplayRunning || ahead <= deadletter.ReplayAhead || ahead > deadletter.ReplayAhead+deadletter.ReplayStep || job.Replayed != int(ahead/time.Second)*rate {
			t.Errorf("the replay is %v ahead: got %+v, want it running, between %v and %v ahead, with %d events per second", ahead, job, deadletter.ReplayAhead, deadletter.ReplayAhead+deadletter.ReplayStep, rate)
		}
		delays := map[time.Duration]int{}
		for _, m := range r.queues[queue.Slow] {
			delays[m.Delay]++
		}
		for second := range int(ahead / time.Second) {
			if n := delays[time.Duration(second)*time.Second]; n < 1 || n > 2*rate {
				t.Errorf("got %d events in second %d, want 1 to %d", n, second, 2*rate)
			}
		}
		clock.Add(int64(time.Minute))
		for range 2 {
			expect.OK(t, expect.ErrOf(replays.Run(t.Context())))
		}
		if job, err := replays.Find(t.Context(), "default", job.ID); err != nil || job.State != deadletter.ReplayDone || job.Replayed != letters {
			t.Errorf("a minute later it is %+v, %v", job, err)
		}
	})
	t.Run("OPS-04 it takes no longer than a moment", func(t *testing.T) {
		job, _, _, _ := begin(t, func(f deadletter.Finder, clock *atomic.Int64) deadletter.Finder { return slow{f, clock} })
		if step := rate * int(deadletter.ReplayStep/time.Second); job.State != deadletter.ReplayRunning || job.Replayed != step {
			t.Errorf("it is %+v, want %d replayed", job, step)
		}
	})
}

// OPS-05: while a worker runs a replay, another process cancels it before one call of the store, and deletes it or starts it again before
// a later one. A deleted replay stays deleted, and one that was started again ends.
func TestAReplayThatChangesWhileItRuns(t *testing.T) {
	for _, again := range []bool{false, true} {
		calls := 1
		for cancelAt := 0; cancelAt <= calls; cancelAt++ { // 0 cancels it never
			for at := max(1, cancelAt); at <= calls; at++ {
				r, _ := registered(t)
				r.script = tooLarge
				r.publish("evt_1")
				r.publish("evt_2")
				r.run()
				when := fmt.Sprintf("again %v, canceled before call %d, changed before call %d", again, cancelAt, at)
				start := func(at time.Time) *deadletter.Replay {
					of := deadletter.NewOperations(deadletter.Options{DB: r.db, Queue: mortal{r.db, r}, Now: func() time.Time { return at }})
					return expect.Value(r.replaysOf(of).Start(t.Context(), "default", "chief", nil, deadletter.ReplaySelect{}, 1))(t)
				}
				job, soon := start(r.now), r.now.Add(time.Second)
				second := &storetest.Faulty{DB: r.db, At: at, Meanwhile: func() {
					if again {
						start(soon)
						return
					}
					expect.OK(t, r.replays().Each(t.Context(), "default", func(_ *deadletter.Replay, keys []store.Key) error {
						var ops []store.Op
						for _, k := range keys {
							ops = append(ops, store.Delete(k))
						}
						return r.db.WriteAll(t.Context(), ops...)
					}))
				}}
				first := &storetest.Faulty{DB: second, At: cancelAt, Meanwhile: func() {
					expect.OK(t, expect.ErrOf(r.replays().Cancel(t.Context(), "default", job.ID)))
				}}
				expect.OK(t, expect.ErrOf(r.replaysOf(r.operationsOn(first, mortal{r.db, r})).Run(t.Context())))
				calls = max(calls, first.Calls)
				have := expect.Value(r.replays().Find(t.Context(), "default", job.ID))(t)
				if !again {
					expect.True(t, when+": the replay is deleted", have == nil || first.Calls < at)
					continue
				}
				for range 10 {
					r.now = r.now.Add(time.Minute)
					expect.OK(t, expect.ErrOf(r.replays().Run(t.Context())))
				}
				have = expect.Value(r.replays().Find(t.Context(), "default", job.ID))(t)
				expect.True(t, fmt.Sprintf("%s: the replay is over, got %+v", when, have), have.State != deadletter.ReplayRunning)
			}
		}
	}
}

// OPS-04: a replay counts the letters that it has retried, although it could not retry another one yet.
func TestAReplayCountsLettersDespiteAnError(t *testing.T) {
	r, _ := registered(t)
	r.script = tooLarge
	r.publish("evt_1", "evt_2", "evt_3")
	r.run()
	var retried atomic.Int64
	db := storetest.Hooked{DB: r.db, OnWrite: func(_ context.Context, ops []store.Op) error {
		if strings.HasPrefix(ops[0].Item.Partition, "due#") {
			if retried.Add(1) > 2 {
				return errors.New("no answer")
			}
		}
		return nil
	}}
	job := expect.Value(r.replays().Start(t.Context(), "default", "chief", nil, deadletter.ReplaySelect{}, 20))(t)
	expect.True(t, "an error of the replay", expect.ErrOf(r.replaysOf(r.operationsOn(db, mortal{r.db, r})).Run(t.Context())) != nil)
	r.now = r.now.Add(deadletter.ReplayClaim + time.Second)
	expect.OK(t, expect.ErrOf(r.replays().Run(t.Context())))
	job = expect.Value(r.replays().Find(t.Context(), "default", job.ID))(t)
	expect.Equal(t, "the state", job.State, deadletter.ReplayDone)
	expect.Equal(t, "the retried letters", job.Replayed, 3)
}

// OPS-14: an event that is replayed, or that waited for a person or a subscriber, was not delayed by the server. Otherwise a client
// that subscribes from an old cursor would raise the alarm for late webhooks.
func TestLagOfTheFirstAttempt(t *testing.T) {
	const late = "evt_late"
	// hold has the event wait for two hours because of the given pause.
	hold := func(r *rig, n switches.Name, sub *subscription.Subscription) {
		r.pause(n, sub)
		r.handle(late)
		r.now = r.now.Add(2 * time.Hour)
		r.resume(n, sub)
		r.handle()
	}
	// miss has the subscription end before the event, and begin again two hours later.
	miss := func(r *rig, sub *subscription.Subscription) {
		cursor := r.sealer.Seal("default", eventlog.Cursor{At: r.log.Position()})
		r.end(sub.ID)
		r.handle(late)
		r.now = r.now.Add(2 * time.Hour)
		r.subscribeFrom(cursor)
	}
	for name, deliver := range map[string]func(r *rig, sub *subscription.Subscription){
		"a client subscribes from an old cursor": func(r *rig, sub *subscription.Subscription) {
			miss(r, sub)
		},
		"a client subscribes from an old cursor with an endpoint that fails": func(r *rig, sub *subscription.Subscription) {
			r.slow = true
			miss(r, sub)
		},
		"an operator replays events": func(r *rig, sub *subscription.Subscription) {
			r.handle(late)
			since := time.UnixMicro(1)
			r.now = r.now.Add(2 * time.Hour)
			r.replay(r.replays(), sub, deadletter.ReplaySelect{Events: true, Subscription: sub.ID, Since: since})
		},
		"an operator delivers an event again": func(r *rig, sub *subscription.Subscription) {
			e := event.Event{Workspace: "default", ID: late, URI: "event://ci/build-finished", Name: "ci.build_finished", Published: r.now.Add(-2 * time.Hour), Data: []byte(`{}`)}
			expect.OK(t, r.operations().Deliver(t.Context(), sub, &e))
		},
		"all deliveries are paused": func(r *rig, _ *subscription.Subscription) { hold(r, switches.All, nil) },
		"the subscription is paused": func(r *rig, sub *subscription.Subscription) {
			hold(r, switches.SubscriptionSwitch(sub.ID), sub)
		},
		"the subscription is suspended": func(r *rig, sub *subscription.Subscription) {
			r.suspend(sub.ID)
			r.handle(late)
			r.now = r.now.Add(2 * time.Hour)
			r.subscribe()
		},
		"": func(r *rig, _ *subscription.Subscription) { // the server is late
			r.publish(late)
			r.now = r.now.Add(2 * time.Hour)
		},
	} {
		t.Run("OPS-14 "+name, func(t *testing.T) {
			r := newRig(t)
			r.log.Now = func() time.Time { return r.now }
			var out bytes.Buffer
			emf := metric.NewEMF(slog.New(slog.NewJSONHandler(&out, nil)), "stack", nil)
			r.metrics = expect.Value(metric.NewSet(emf.Provider()))(t)
			deliver(r, r.record(r.subscribe().ID).Subscription)
			r.handle()
			r.now = r.now.Add(time.Minute) // for the delay of messages
			r.handle()
			expect.AtLeast(t, "the posts of the event", posted(r)[late], 1)
			emf.Close(t.Context())
			var lag struct {
				Values []float64 `json:"mcpevents_first_attempt_lag"`
			}
			for line := range bytes.Lines(out.Bytes()) {
				expect.OK(t, json.Unmarshal(line, &lag))
			}
			if slow := slices.ContainsFunc(lag.Values, func(seconds float64) bool { return seconds > 600 }); slow != (name == "") {
				t.Errorf("got the lags %v s, of which one is over ten minutes: %t, want %t", lag.Values, slow, name == "")
			}
		})
	}
}

// TestAnIDIsPublishedAgain: EVX-11, WHK-18. An id that is published again more than five minutes later is another event.
func TestAnIDIsPublishedAgain(t *testing.T) {
	const uri, name, id = "event://ci/build-finished", "ci.build_finished", "deploy-7"
	arrived := func(r *rig, from int) (bodies string) {
		for _, p := range r.posts[from:] {
			bodies += string(p.Body)
		}
		return bodies
	}
	for reached, first := range map[string]func(r *rig){
		"is still retried":         func(r *rig) { r.script = fails; r.work() },
		"was delivered by a retry": func(r *rig) { r.script = failsFirst(1); r.run() },
		"is a dead letter":         func(r *rig) { r.script = tooLarge; r.work() },
	} {
		t.Run("EVX-11 while the first event "+reached, func(t *testing.T) {
			r := newRig(t)
			sub := r.register(uri)
			r.publishTo(uri, name, id, `{"ok":1}`)
			first(r)
			r.now = r.now.Add(time.Hour)
			r.script = fails
			r.publishTo(uri, name, id, `{"ok":2}`)
			r.work()
			before, was := len(r.posts), r.deliveryState(sub.ID, id)
			r.script = succeeds
			r.run()
			got := arrived(r, before)
			expect.Contains(t, "the bodies", got, `{"ok":2}`)
			if pending := was == state.Pending && reached != "was delivered by a retry"; pending != strings.Contains(got, `{"ok":1}`) {
				t.Errorf("the first event was %s: got %q from the retries, want it in there: %v", was, got, pending)
			}
		})
	}
	t.Run("WHK-22 while the first event waits for a switch", func(t *testing.T) {
		r := newRig(t)
		sub := r.register(uri)
		r.publishTo(uri, name, id, `{"ok":1}`)
		r.script = fails
		r.work()
		r.script = succeeds
		r.pause("origin/https://hooks.example.com", sub)
		r.handle()
		r.now = r.now.Add(10 * time.Minute)
		r.publishTo(uri, name, id, `{"ok":2}`)
		r.handle()
		before := len(r.posts)
		r.now = r.now.Add(time.Minute)
		r.resume("origin/https://hooks.example.com", sub)
		r.handle()
		if got := arrived(r, before); !strings.Contains(got, `{"ok":1}`) || !strings.Contains(got, `{"ok":2}`) {
			t.Errorf("after the resume %q was delivered, want both events", got)
		}
	})
}

// WHK-22: retrying a dead letter does not shorten the time for which a paused delivery can wait.
func TestARetriedDeadLetterKeepsItsEvent(t *testing.T) {
	r, sub := registered(t)
	r.script = tooLarge
	r.run("evt_1")
	e := event.Event{Workspace: "default", ID: "evt_1", URI: "event://ci/build-finished"}
	key := state.BodyKey("default", e.Key())
	get := func() store.Item { return *expect.Value(r.db.Get(t.Context(), key))(t)[0] }
	long := get()
	long.Expires = r.now.Add(40 * 24 * time.Hour)
	expect.OK(t, r.db.Write(t.Context(), store.Put(long)))
	expect.OK(t, did(r.operations().Retry(t.Context(), "default", r.letterOf(sub), sub, 0)))
	expect.Equal(t, "the expiry of the event", get().Expires.Round(time.Minute).UTC(), long.Expires.Round(time.Minute).UTC())
}
