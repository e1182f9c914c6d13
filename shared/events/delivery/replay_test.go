package delivery

import (
	"fmt"
	"strings"
	"testing"
	"time"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"

	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
)

// TestReplayOfEvents (OPS-05) delivers the events since a given time again, although the processes die.
func TestReplayOfEvents(t *testing.T) {
	r := newRig(t)
	got := r.subscribe(func(s *subscription.SubscribeRequest) {
		s.Name, s.Arguments = "github.push", []byte(`{"owner":"acme","branch":"main"}`)
	})
	found, err := r.services.Find(t.Context(), "default", got.ID)
	if err != nil {
		t.Fatal(err)
	}
	sub := found.Subscription
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
	if n := len(posted(r)); n != wanted+1 {
		t.Fatalf("got %d", n)
	}
	r.posts = nil
	r.now = time.UnixMicro(r.db.End())
	replays := func() *deadletter.Replays { // of a new process
		return r.replaysOf(r.operationsOn(mortal{r.db, r}, mortal{r.db, r}))
	}
	ask := deadletter.ReplaySelect{Events: true, Subscription: sub.ID, Since: since}
	if n, more, err := replays().Count(t.Context(), "default", sub, ask); n != wanted || more || err != nil {
		t.Fatalf("it counts %d, %v, %v", n, more, err)
	}
	job, err := replays().Start(t.Context(), "default", "chief", sub, ask, rate)
	if err != nil || job.Total != wanted {
		t.Fatal(job, err)
	}
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
			if steps > 1000 {
				t.Fatalf("no end: %+v", job)
			}
			if job, err = replays().Find(t.Context(), "default", job.ID); err != nil {
				t.Fatal(err)
			}
		}
		second := map[time.Time]map[string]bool{}
		for _, m := range r.queues[queue.Deliveries] {
			task, err := task.Decode(m.Body, func(t task.Page) int { return t.V })
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range task.Events {
				at := m.Sent.Add(m.Delay)
				if second[at] == nil {
					second[at] = map[string]bool{}
				}
				second[at][e.ID] = true
			}
		}
		if len(second) < wanted/rate {
			t.Errorf("all within %d seconds", len(second))
		}
		for at, ids := range second {
			if len(ids) > 2*rate { // the last of a partition and the first of the next one share one
				t.Errorf("at %v there are %d", at, len(ids))
			}
		}
		if job.Replayed != wanted || steps < 2 {
			t.Errorf("got %+v after %d processes", job, steps)
		}
		tasks := r.queues[queue.Events]
		r.queues[queue.Events] = nil
		r.work()
		r.queues[queue.Events] = tasks
		got := posted(r)
		for i := range wanted {
			if got[fmt.Sprint("evt_", i)] == 0 {
				t.Errorf("evt_%d did not come", i)
			}
		}
		if len(got) != wanted {
			t.Errorf("got %v", got)
		}
	})
	t.Run("OPS-05 asked twice it runs once, later it is another, which can be canceled", func(t *testing.T) {
		r.now = job.Created
		again, err := replays().Start(t.Context(), "default", "chief", sub, ask, rate)
		if err != nil || again.State != deadletter.ReplayDone || !again.Created.Equal(job.Created) {
			t.Errorf("got %+v, %v", again, err)
		}
		r.now = r.now.Add(deadletter.SameReplay)
		if again, err = replays().Start(t.Context(), "default", "chief", sub, ask, rate); err != nil || again.State != deadletter.ReplayRunning {
			t.Fatal(again, err)
		}
		if again, err = replays().Cancel(t.Context(), "default", again.ID); err != nil || again.State != deadletter.ReplayCanceled {
			t.Fatal(again, err)
		}
		if n, err := replays().Run(t.Context()); n != 0 || err != nil {
			t.Errorf("it sent %d, %v", n, err)
		}
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
		r.publish("evt_1")
		r.work()
		later := store.Item{Key: store.Key{Table: store.Log, Partition: eventlog.Own("default", uri).Name(), Sort: store.AtCommit}, Value: []byte(`{"v":2}`)}
		if err := r.db.Write(t.Context(), store.Put(later)); err != nil {
			t.Fatal(err)
		}
		r.publish("evt_2")
		r.work()
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
		if !got.Truncated {
			t.Error("the subscription is not truncated, although the client misses the events of the later release")
		}
		check(t, r)
	})
	t.Run("OPS-05 an operator replays events", func(t *testing.T) {
		r, got, before := given(t)
		found, err := r.services.Find(t.Context(), "default", got.ID)
		if err != nil {
			t.Fatal(err)
		}
		r.now = time.UnixMicro(r.db.End())
		replays := r.replaysOf(r.operationsOn(r.db, mortal{r.db, r}))
		ask := deadletter.ReplaySelect{Events: true, Subscription: got.ID, Since: time.UnixMicro(before + 1)}
		job, err := replays.Start(t.Context(), "default", "chief", found.Subscription, ask, 10)
		if err == nil {
			_, err = replays.Begin(t.Context(), job)
		}
		if err != nil {
			t.Fatalf("the replay failed: %v", err)
		}
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
	broken := store.Item{Key: store.Key{Table: store.Log, Partition: eventlog.Own("default", uri).Name(), Sort: store.AtCommit}, Value: []byte(`{"v":1,"e":7}`)}
	if err := r.db.Write(t.Context(), store.Put(broken)); err != nil {
		t.Fatal(err)
	}
	r.publishTo(uri, "github.push", "evt_2", `{"branch":"main"}`)
	r.work()
	sub := &subscription.Subscription{
		Workspace: "default", ID: strings.Repeat("a", 43), Patterns: []match.Pattern{{Kind: match.Concrete, Key: uri}},
	}
	truncated, err := (&deadletter.Replayer{Log: r.log, Queue: mortal{r.db, r}}).Replay(t.Context(), sub, before)
	if err != nil || !truncated {
		t.Errorf("EVX-07: the replay is truncated: %v, %v; want true", truncated, err)
	}
	replayed := 0
	for _, m := range r.queues[queue.Deliveries] {
		if task, err := task.Decode(m.Body, func(t task.Page) int { return t.V }); err == nil {
			replayed += len(task.Events)
		}
	}
	if replayed != 2 {
		t.Errorf("EVX-26: %d events were replayed, want 2", replayed)
	}
	retry := &retry.Job{DB: r.db, Queue: mortal{r.db, r}, EventLog: r.log, Now: func() time.Time { return r.now }}
	for range 2 {
		if _, err := retry.LogItems(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	letters := r.queues[queue.Dead]
	if len(letters) != 1 {
		t.Fatalf("%d dead letters were sent, want 1", len(letters))
	}
	l, err := queue.ParseDeadLetter(letters[0].Body)
	if err != nil || l.Queue != "table:log" || l.Body != string(broken.Value) {
		t.Errorf("the dead letter is %+v, %v; want the item of the table", l, err)
	}
}
