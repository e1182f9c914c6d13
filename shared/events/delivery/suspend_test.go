package delivery

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/queue"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
)

// subscribe makes, or refreshes, a subscription of the MCP Events extension.
func (r *rig) subscribe(change ...func(*subscription.SubscribeRequest)) *subscription.SubscribeResult {
	r.t.Helper()
	services := r.service(mortal{r.db, r}, r.log)
	services.Replay = &deadletter.Replayer{Log: r.log, Queue: mortal{r.db, r}}
	services.Watermark = &lifecycle.Watermark{DB: mortal{r.db, r}}
	ask := subscription.SubscribeRequest{
		Name: "ci.build_finished", URL: "https://hooks.example.com/a", Secret: "whsec_a",
		TTL: subscription.TTL{Asked: true, For: 7 * 24 * time.Hour},
	}
	for _, f := range change {
		f(&ask)
	}
	got, err := services.Subscribe(r.t.Context(), r.principal(), ask)
	if err != nil && !r.dead {
		r.t.Fatal(err)
	}
	return got
}

func (r *rig) suspend(id string) {
	r.t.Helper()
	if err := r.services.Suspend(r.t.Context(), "default", "alice", id, r.resumed(id)); err != nil {
		r.t.Fatal(err)
	}
}

// resumed returns when a subscription was last resumed, or 0 if it has ended.
func (r *rig) resumed(id string) int64 {
	r.t.Helper()
	record, err := r.services.Lookup(r.t.Context(), "default", "alice", id)
	if err != nil {
		r.t.Fatal(err)
	}
	if record == nil {
		return 0
	}
	return record.Resumed
}

func (r *rig) state(id string) subscription.State {
	r.t.Helper()
	sub, err := r.services.Lookup(r.t.Context(), "default", "alice", id)
	if err != nil || sub == nil {
		r.t.Fatal(sub, err)
	}
	return sub.State
}

// atEachStep has a process die before and after each of its steps. Try reports whether it survived, because the point lies
// beyond its last step.
func atEachStep(t *testing.T, least int, try func(point int, late bool) (survived bool)) {
	t.Helper()
	for _, late := range []bool{false, true} {
		point := 1
		for !try(point, late) {
			point += everyPoint
		}
		if point < least {
			t.Fatalf("only %d steps were tried", point)
		}
	}
}

// work handles the messages of each queue once. It does not run the retry job, so deliveries that are due later stay there.
func (r *rig) work() {
	r.t.Helper()
	fanout, dispatch, _ := r.process()
	r.hand(queue.Events, fanout.Handle)
	r.hand(queue.Deliveries, dispatch.Pages)
	r.hand(queue.Slow, dispatch.Singles)
}

// hand gives all messages of a queue to a handler.
func (r *rig) hand(q queue.Name, handle queue.Handler) {
	r.t.Helper()
	batch := r.queues[q]
	r.queues[q] = nil
	if len(batch) > 0 {
		r.done(handle(r.t.Context(), batch))
	}
}

// done fails the test if a part of a batch failed.
func (r *rig) done(failed []string, err error) {
	r.t.Helper()
	if err != nil || len(failed) > 0 {
		r.t.Fatalf("failed %v, %v", failed, err)
	}
}

func posted(r *rig) map[string]int {
	n := map[string]int{}
	for _, p := range r.posts {
		n[p.ID]++
	}
	return n
}

func succeeds(int) webhook.Outcome { return webhook.Outcome{Status: 200} }
func fails(int) webhook.Outcome    { return webhook.Outcome{Status: 500, Category: webhook.HTTP5xx} }

func tooLarge(int) webhook.Outcome { return webhook.Outcome{Status: 413, Category: webhook.HTTP4xx} }

// failsFirst fails the first n attempts.
func failsFirst(n int) func(int) webhook.Outcome {
	return func(post int) webhook.Outcome {
		if post <= n {
			return fails(post)
		}
		return webhook.Outcome{Status: 200}
	}
}

func TestSuspension(t *testing.T) {
	t.Run("EVX-14 by rate, over 95 % of at least 100 attempts in an hour, counted by all dispatchers", func(t *testing.T) {
		for _, c := range []struct {
			name        string
			ok, failed  int
			apart       time.Duration
			want        subscription.State
			dispatchers int
		}{
			{name: "99 failures", failed: 99, want: subscription.Active, dispatchers: 1},
			{name: "100 failures", failed: 100, want: subscription.Suspended, dispatchers: 1},
			{name: "100 failures seen by seven dispatchers", failed: 100, want: subscription.Suspended, dispatchers: 7},
			{name: "10 of 200 succeed", ok: 10, failed: 190, want: subscription.Active, dispatchers: 3},
			{name: "8 of 200 succeed", ok: 8, failed: 192, want: subscription.Suspended, dispatchers: 3},
			{name: "100 failures within two hours", failed: 100, apart: 72 * time.Second, want: subscription.Active, dispatchers: 2},
			{name: "100 failures within 50 minutes", failed: 100, apart: 30 * time.Second, want: subscription.Suspended, dispatchers: 2},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := newRig(t)
				id := r.subscribe().ID
				apart := max(c.apart, rateAsk)
				all := make([]*Dispatcher, c.dispatchers)
				for i := range all {
					_, all[i], _ = r.process()
				}
				record, err := r.services.Lookup(t.Context(), "default", "alice", id)
				if err != nil {
					t.Fatal(err)
				}
				sub := record.Subscriber()
				r.now = r.now.Add(2 * time.Minute)
				for i := range c.ok + c.failed {
					out := webhook.Outcome{Status: 200}
					if i >= c.ok {
						out = fails(i)
					}
					d := all[i%len(all)]
					e := &event.Event{Workspace: "default", ID: fmt.Sprint("e", i), URI: "event://ci/build-finished", Name: "ci.build_finished", Time: r.now, Published: r.now, Data: []byte(`{}`)}
					notes, err := d.outcomes.Record(t.Context(), state.New(&sub, e, r.now), &sub, e, out)
					if err != nil {
						t.Fatal(err)
					}
					if err := d.DB.WriteAll(t.Context(), notes...); err != nil {
						t.Fatal(err)
					}
					if out.Category != "" {
						r.now = r.now.Add(apart)
					}
				}
				if got := r.state(id); got != c.want {
					t.Errorf("%s, want %s", got, c.want)
				}
			})
		}
	})

	t.Run("EVX-14 an attempt that began before a refresh and fails after it does not suspend the subscription again", func(t *testing.T) {
		r := newRig(t)
		id := r.subscribe().ID
		_, d, _ := r.process()
		record, err := r.services.Lookup(t.Context(), "default", "alice", id)
		if err != nil {
			t.Fatal(err)
		}
		sub := record.Subscriber()
		fail := func(n int) {
			t.Helper()
			e := &event.Event{Workspace: "default", ID: fmt.Sprint("e", n), URI: "event://ci/build-finished", Name: "ci.build_finished", Time: r.now, Published: r.now, Data: []byte(`{}`)}
			notes, err := d.outcomes.Record(t.Context(), state.New(&sub, e, r.now), &sub, e, fails(n))
			if err != nil {
				t.Fatal(err)
			}
			if err := d.DB.WriteAll(t.Context(), notes...); err != nil {
				t.Fatal(err)
			}
			r.now = r.now.Add(rateAsk)
		}
		r.now = r.now.Add(2 * time.Minute)
		for n := range 100 {
			fail(n)
		}
		if got := r.state(id); got != subscription.Suspended {
			t.Fatalf("after 100 failures it is %s, want suspended", got)
		}
		r.subscribe()
		fail(100)
		if got := r.state(id); got != subscription.Active {
			t.Errorf("after the refresh and the end of an old attempt it is %s, want active", got)
		}
	})

	t.Run("EVX-14 410, 413 and our own faults are no failures of the endpoint", func(t *testing.T) {
		r := newRig(t)
		id := r.subscribe().ID
		r.script = func(n int) webhook.Outcome {
			if n%2 == 0 {
				return webhook.Outcome{Status: 410, Category: webhook.HTTP4xx}
			}
			return webhook.Outcome{Status: 413, Category: webhook.HTTP4xx}
		}
		for i := range 150 {
			r.publish(fmt.Sprint("e", i))
			r.work()
			r.now = r.now.Add(10 * time.Second)
		}
		if got := r.state(id); got != subscription.Active {
			t.Errorf("%s", got)
		}
	})

	t.Run("EVX-10 EVX-14 a refresh resumes it: nothing is lost, no retry was used up, and its past counts no more", func(t *testing.T) {
		r := newRig(t)
		id := r.subscribe().ID
		r.script = fails
		r.publish("before")
		r.work()
		before := len(r.posts)
		r.now = time.Now() // the log has its own clock
		r.suspend(id)
		r.run() // the due retry finds the subscription suspended
		if n := len(r.posts); n != before {
			t.Fatalf("%d posts, want the %d before the suspension", n, before)
		}
		if st := r.deliveryState(id, "before"); st != state.Suspended {
			t.Fatalf("the delivery is %s, not suspended", st)
		}
		r.publish("meanwhile")
		r.run()
		if n := len(r.posts); n != before {
			t.Fatalf("%d posts although it is suspended", n)
		}
		r.script = succeeds
		got := r.subscribe()
		if !got.Refreshed || !got.Suspended || got.Status.LastError != string(webhook.HTTP5xx) || got.Status.FailedSince.IsZero() {
			t.Errorf("the refresh tells %+v", got)
		}
		if again := r.subscribe(); again.Suspended || again.Truncated {
			t.Errorf("the next refresh tells %+v", again)
		}
		r.run()
		if n := posted(r); n["before"] != before+1 || n["meanwhile"] != 1 {
			t.Errorf("posts: %v", n)
		}
		if st := r.deliveryState(id, "before"); st != "none" {
			t.Errorf("a delivery is left %s", st)
		}
	})

	t.Run("EVX-14 an event that was under way when delivery was suspended joins the backlog", func(t *testing.T) {
		r := newRig(t)
		id := r.subscribe().ID
		r.publish("waiting")
		fanout, _, _ := r.process()
		r.hand(queue.Events, fanout.Handle)
		r.now = r.now.Add(time.Minute)
		r.suspend(id)
		r.run()
		if n := len(r.posts); n != 0 {
			t.Fatalf("%d posts", n)
		}
		r.subscribe()
		r.run()
		if n := posted(r); n["waiting"] != 1 {
			t.Errorf("posts: %v", n)
		}
	})

	t.Run("EVX-07 EVX-10 a suspension longer than the log is a gap that the refresh shows", func(t *testing.T) {
		r := newRig(t)
		r.log.Now = func() time.Time { return r.now }
		id := r.subscribe().ID
		r.suspend(id)
		r.now = r.now.Add(48 * time.Hour)
		if got := r.subscribe(); !got.Truncated {
			t.Errorf("%+v", got)
		}
	})
}

// TestASubscriptionIsDisabledWhileItIsSuspended: WHK-12, EVX-14.
func TestASubscriptionIsDisabledWhileItIsSuspended(t *testing.T) {
	for name, enable := range map[string]func(r *rig, id string){
		"a person enables it": func(r *rig, id string) {
			if enabled, err := r.services.Enable(r.t.Context(), "default", "alice", id); err != nil || !enabled {
				r.t.Fatal(enabled, err)
			}
			if err := r.operations().Reactivate(r.t.Context(), r.record(id).Subscription); err != nil {
				r.t.Fatal(err)
			}
		},
		"its client subscribes again": func(r *rig, _ string) { r.subscribe() },
	} {
		t.Run("EVX-14 its suspended deliveries are sent when "+name, func(t *testing.T) {
			r := newRig(t)
			id := r.subscribe().ID
			r.script = fails
			r.publish("evt_1")
			r.work()
			r.now = time.Now() // the log has its own clock
			r.suspend(id)
			r.run()
			if st := r.deliveryState(id, "evt_1"); st != state.Suspended {
				t.Fatalf("the delivery is %s, want %s", st, state.Suspended)
			}
			if ended, err := r.services.Disable(t.Context(), "default", "alice", id, "all deliveries of five days failed", r.resumed(id)); err != nil || !ended {
				t.Fatal(ended, err)
			}
			r.script = succeeds
			before := posted(r)["evt_1"]
			enable(r, id)
			r.run()
			if n := posted(r)["evt_1"] - before; n != 1 {
				t.Errorf("the event was posted %d times, want 1", n)
			}
			if st := r.deliveryState(id, "evt_1"); st != "none" {
				t.Errorf("the delivery is %s, want none", st)
			}
		})
	}
}

// TestARefreshTellsOneOfThePublishedCategories: EVX-10. lastError of a subscription of MCP Events is one of six.
func TestARefreshTellsOneOfThePublishedCategories(t *testing.T) {
	for category, want := range map[webhook.Category]webhook.Category{
		webhook.DNSError: webhook.ConnectionRefused, webhook.Blocked: webhook.ConnectionRefused,
		webhook.ConnectionRefused: webhook.ConnectionRefused, webhook.Timeout: webhook.Timeout, webhook.TLSError: webhook.TLSError,
		webhook.HTTP4xx: webhook.HTTP4xx, webhook.HTTP5xx: webhook.HTTP5xx,
	} {
		r := newRig(t)
		r.subscribe()
		r.script = func(int) webhook.Outcome { return webhook.Outcome{Category: category, RetryAfter: time.Minute} }
		r.publish("evt_1")
		fanout, dispatch, _ := r.process()
		r.hand(queue.Events, fanout.Handle)
		r.hand(queue.Deliveries, dispatch.Pages)
		st := r.subscribe().Status
		if st.LastError != string(want) || st.FailedSince.IsZero() || !st.ThrottledUntil.Equal(r.now.Add(time.Minute).UTC()) {
			t.Errorf("%s: %+v, want %s", category, st, want)
		}
	}
}

// TestSuspensionSurvivesCrashes kills a process at every step of suspending and
// resuming: EVX-14 EVX-10, no event is lost.
func TestSuspensionSurvivesCrashes(t *testing.T) {
	atEachStep(t, 15, func(point int, late bool) bool {
		r := newRig(t)
		id := r.subscribe().ID
		r.script = fails
		r.publish("before")
		r.work()
		r.suspend(id)
		r.publish("meanwhile")
		r.script = succeeds
		r.budget, r.late = point, late
		r.run()
		r.subscribe()
		for r.dead { // the client tries again because it had no answer
			r.dead, r.budget = false, 0
			r.subscribe()
		}
		r.run()
		survived := r.budget > 0
		r.dead, r.budget = false, 0
		if n := posted(r); n["before"] < 2 || n["meanwhile"] < 1 {
			text, _ := json.Marshal(n)
			t.Fatalf("death at step %d (late %v): posts %s", point, late, text)
		}
		if st := r.deliveryState(id, "before"); st != "none" {
			t.Fatalf("death at step %d (late %v): a delivery is left %s", point, late, st)
		}
		return survived
	})
}
