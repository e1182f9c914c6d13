package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// recordOutcome records the first attempt of event number n.
func recordOutcome(r *rig, d *Dispatcher, sub *subscription.Subscriber, n int, out webhook.Outcome) {
	r.t.Helper()
	e := &event.Event{Workspace: "default", ID: fmt.Sprint("e", n), URI: "event://ci/build-finished", Name: "ci.build_finished", Time: r.now, Published: r.now, Data: []byte(`{}`)}
	notes := expect.Value(d.outcomes.Record(r.t.Context(), state.New(sub, e, r.now), sub, e, out))(r.t)
	expect.OK(r.t, d.DB.WriteAll(r.t.Context(), notes...))
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
				r, id := subscriber(t)
				apart := max(c.apart, rateAsk)
				all := make([]*Dispatcher, c.dispatchers)
				for i := range all {
					_, all[i], _ = r.process()
				}
				sub := r.record(id).Subscriber()
				r.now = r.now.Add(2 * time.Minute)
				for i := range c.ok + c.failed {
					if i < c.ok {
						recordOutcome(r, all[i%len(all)], &sub, i, succeeds(i))
						continue
					}
					recordOutcome(r, all[i%len(all)], &sub, i, fails(i))
					r.now = r.now.Add(apart)
				}
				expect.Equal(t, "the subscription", r.state(id), c.want)
			})
		}
	})

	t.Run("EVX-14 an attempt that began before a refresh and fails after it does not suspend the subscription again", func(t *testing.T) {
		r, id := subscriber(t)
		_, d, _ := r.process()
		sub := r.record(id).Subscriber()
		fail := func(n int) {
			recordOutcome(r, d, &sub, n, fails(n))
			r.now = r.now.Add(rateAsk)
		}
		r.now = r.now.Add(2 * time.Minute)
		for n := range 100 {
			fail(n)
		}
		expect.Equal(t, "the subscription", r.state(id), subscription.Suspended)
		r.subscribe()
		fail(100)
		expect.Equal(t, "the subscription", r.state(id), subscription.Active)
	})

	t.Run("EVX-14 410, 413 and our own faults are no failures of the endpoint", func(t *testing.T) {
		r, id := subscriber(t)
		r.script = func(n int) webhook.Outcome {
			if n%2 == 0 {
				return webhook.Outcome{Status: 410, Category: webhook.HTTP4xx}
			}
			return webhook.Outcome{Status: 413, Category: webhook.HTTP4xx}
		}
		for i := range 150 {
			r.work(fmt.Sprint("e", i))
			r.now = r.now.Add(10 * time.Second)
		}
		expect.Equal(t, "the subscription", r.state(id), subscription.Active)
	})

	t.Run("EVX-10 EVX-14 a refresh resumes it: nothing is lost, no retry was used up, and its past counts no more", func(t *testing.T) {
		r, id := subscriber(t)
		r.script = fails
		r.work("before")
		before := len(r.posts)
		r.now = time.Now() // the log has its own clock
		r.suspend(id)
		r.run() // the due retry finds the subscription suspended
		expect.Equal(t, "the posts", len(r.posts), before)
		expect.Equal(t, "the delivery of before", r.deliveryState(id, "before"), state.Suspended)
		r.run("meanwhile")
		expect.Equal(t, "the posts", len(r.posts), before)
		r.script = succeeds
		got := r.subscribe()
		if !got.Refreshed || !got.Resumed || got.Status.LastError != string(webhook.HTTP5xx) || got.Status.FailedSince.IsZero() {
			t.Errorf("the refresh returns %+v, want it resumed, with the last error http_5xx and the time of the first", got)
		}
		if again := r.subscribe(); again.Resumed || again.Truncated {
			t.Errorf("the next refresh returns %+v, want it active and not truncated", again)
		}
		r.run()
		if n := posted(r); n["before"] != before+1 || n["meanwhile"] != 1 {
			t.Errorf("got posts %v, want %d of before and one of meanwhile", n, before+1)
		}
		expect.Equal(t, "the delivery of before", r.deliveryState(id, "before"), "none")
	})

	joinsTheBacklog := func(t *testing.T, r *rig, id string, step time.Duration) {
		t.Helper()
		r.publish("waiting")
		fanout, _, _ := r.process()
		r.hand(queue.Events, fanout.Handle)
		r.now = r.now.Add(step)
		r.suspend(id)
		r.run()
		expect.Equal(t, "the posts", len(r.posts), 0)
		r.subscribe()
		r.run()
		expect.Equal(t, "the posts of waiting", posted(r)["waiting"], 1)
	}
	t.Run("EVX-14 an event that was under way when delivery was suspended joins the backlog", func(t *testing.T) {
		r, id := subscriber(t)
		joinsTheBacklog(t, r, id, time.Minute)
	})

	t.Run("EVX-14 an event that was under way when the clock was set back and delivery was suspended joins the backlog", func(t *testing.T) {
		r, id := subscriber(t)
		r.now = time.Now() // the log has its own clock
		joinsTheBacklog(t, r, id, -time.Minute)
	})

	t.Run("EVX-07 EVX-10 a suspension longer than the log is a gap that the refresh shows", func(t *testing.T) {
		r := newRig(t)
		r.log.Now = func() time.Time { return r.now }
		id := r.subscribe().ID
		r.suspend(id)
		r.now = r.now.Add(48 * time.Hour)
		expect.True(t, "the refresh is truncated", r.subscribe().Truncated)
	})
}

// TestASubscriptionIsDisabledWhileItIsSuspended: WHK-12, EVX-14.
func TestASubscriptionIsDisabledWhileItIsSuspended(t *testing.T) {
	for name, enable := range map[string]func(r *rig, id string){
		"a person enables it": func(r *rig, id string) {
			expect.OK(r.t, did(r.services.Enable(r.t.Context(), "default", "alice", id)))
			expect.OK(r.t, r.operations().Reactivate(r.t.Context(), r.record(id).Subscription))
		},
		"its client subscribes again": func(r *rig, _ string) { r.subscribe() },
	} {
		t.Run("EVX-14 its suspended deliveries are sent when "+name, func(t *testing.T) {
			r, id := subscriber(t)
			r.script = fails
			r.work("evt_1")
			r.now = time.Now() // the log has its own clock
			r.suspend(id)
			r.run()
			expect.Equal(t, "the delivery of evt_1", r.deliveryState(id, "evt_1"), state.Suspended)
			expect.OK(t, did(r.services.Disable(t.Context(), "default", "alice", id, "all deliveries of five days failed", r.resumed(id))))
			r.script = succeeds
			before := posted(r)["evt_1"]
			enable(r, id)
			r.run()
			expect.Equal(t, "further posts of evt_1", posted(r)["evt_1"]-before, 1)
			expect.Equal(t, "the delivery of evt_1", r.deliveryState(id, "evt_1"), "none")
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
		r, _ := subscriber(t)
		r.script = func(int) webhook.Outcome { return webhook.Outcome{Category: category, RetryAfter: time.Minute} }
		r.firstAttempts("evt_1")
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
		r, id := subscriber(t)
		r.script = fails
		r.work("before")
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
			t.Fatalf("death at step %d (late %v): got posts %s, want at least two of before and one of meanwhile", point, late, text)
		}
		expect.MustEqual(t, fmt.Sprintf("death at step %d (late %v): the delivery", point, late), r.deliveryState(id, "before"), "none")
		return survived
	})
}

// TestARefreshBeforeAWorkerDies: EVX-14, a subscription is refreshed before one step of the worker that suspends a delivery, and the worker
// dies at this step or a later one. The event is delivered.
func TestARefreshBeforeAWorkerDies(t *testing.T) {
	const steps = 12 // more than a worker makes
	for _, lane := range []queue.Name{queue.Slow, queue.Deliveries} {
		for _, late := range []bool{false, true} {
			for refreshed := 1; refreshed <= steps; refreshed++ {
				for death := refreshed; death <= steps; death++ {
					r, id := subscriber(t)
					r.script = fails
					if r.publish("evt_1"); lane == queue.Slow {
						r.work()
						expect.OK(t, expect.ErrOf(r.unhurt().Run(t.Context())))
					} else {
						fanout, _, _ := r.process()
						r.hand(queue.Events, fanout.Handle)
					}
					r.suspend(id)
					r.script = succeeds
					_, worker, _ := r.process()
					step := 0
					r.before = func(context.Context) {
						if step++; step == refreshed {
							before, batches := r.before, r.queues
							r.before, r.queues = nil, map[queue.Name][]queue.Message{}
							r.subscribe()
							_, other, _ := r.process()
							r.hand(queue.Deliveries, other.HandlePages)
							r.before, r.queues, r.budget, r.late = before, batches, death-refreshed+1, late
						}
					}
					batch := r.queues[lane]
					r.queues[lane] = nil
					if lane == queue.Slow {
						_, _ = worker.HandleSingles(t.Context(), batch)
					} else {
						_, _ = worker.HandlePages(t.Context(), batch)
					}
					if r.before = nil; step < refreshed {
						break
					}
					if r.dead {
						r.queues[lane] = append(batch, r.queues[lane]...)
					}
					r.dead, r.budget = false, 0
					r.run()
					st := r.deliveryState(id, "evt_1")
					if lane == queue.Slow && st != "none" || posted(r)["evt_1"] == 0 { // a page that is received again sends the event itself
						t.Errorf("%s: refreshed before step %d, death at step %d (late %v): the delivery is left %s, %v", lane, refreshed, death, late, st, posted(r))
					}
				}
			}
		}
	}
}

const operationalType = `
  - name: mcpevents.subscription_disabled
    uri: event://mcpevents/subscription-disabled
    access: {scopes: [events:operate]}
`

// failingRig has a subscription of a kind, which the clock can outlive.
func failingRig(t *testing.T, kind subscription.Origin) (*rig, string) {
	t.Helper()
	r := newRig(t)
	r.catalogs = catalog.NewStatic(expect.Value(catalog.Parse([]byte(testCatalog + operationalType)))(t))
	r.services = r.service(r.db, r.log)
	r.script, r.plain = fails, []string{"https://hooks.example.com/"} // events are all that it gets
	if kind == subscription.SEP1803 {
		return r, r.register("event://ci/build-finished").ID
	}
	return r, r.subscribe().ID
}

func TestAnEndpointThatOnlyFails(t *testing.T) {
	for _, kind := range []subscription.Origin{subscription.SEP1803, subscription.MCPEvents} {
		t.Run("WHK-12 is disabled after five days, a subscription of "+string(kind), func(t *testing.T) {
			r, id := failingRig(t, kind)
			began := r.now
			for _, e := range []string{"evt_1", "evt_2", "evt_3"} {
				r.run(e)
			}
			if st := r.record(id); st.State != subscription.Active || r.now.Sub(began) > 20*24*time.Hour {
				t.Fatalf("it is %s after %v, want it active for at most 20 days", st.State, r.now.Sub(began))
			}
			fiveDays := began.Add(5 * 24 * time.Hour)
			r.now = fiveDays.Add(-time.Minute)
			r.work("evt_4")
			expect.Equal(t, "the state before the five days are over", r.record(id).State, subscription.Active)
			r.now = fiveDays.Add(time.Minute)
			r.work("evt_5")
			r.work()
			got := r.record(id)
			if got.State != subscription.Disabled || got.Reason != "all deliveries of five days failed" || got.Status.LastError != string(webhook.HTTP5xx) {
				t.Fatalf("got %s (%s), last error %q, want it disabled, because all deliveries of five days failed, and http_5xx", got.State, got.Reason, got.Status.LastError)
			}
			t.Run("and brought back by a person, for five more days", func(t *testing.T) {
				expect.OK(t, did(r.services.Enable(t.Context(), "default", "alice", id)))
				r.work("evt_6")
				r.work()
				if got := r.record(id); got.State != subscription.Active || got.Reason != "" || posted(r)["evt_6"] == 0 {
					t.Errorf("got %s (%s), evt_6 sent %d times, want it active without a reason, and evt_6 sent", got.State, got.Reason, posted(r)["evt_6"])
				}
				expect.Equal(t, "it is enabled again", expect.Value(r.services.Enable(t.Context(), "default", "alice", id))(t), false)
			})
		})
	}
	for name, last := range map[string]webhook.Outcome{
		"with an error": fails(1), "with 410": {Status: 410, Category: webhook.HTTP4xx},
	} {
		t.Run("WHK-12 an attempt that began before its owner resumed it, and fails afterwards "+name+", does not disable it", func(t *testing.T) {
			r, id := failingRig(t, subscription.SEP1803)
			for _, e := range []string{"evt_1", "evt_2"} { // ten attempts
				r.run(e)
			}
			r.now = r.now.Add(lifecycle.DisableAfter)
			r.script = func(int) webhook.Outcome {
				for _, paused := range []bool{true, false} {
					expect.OK(t, expect.ErrOf(r.services.SetPaused(t.Context(), "default", "alice", id, paused)))
				}
				return last
			}
			r.work("evt_3")
			if got := r.record(id); got.State != subscription.Active || posted(r)["evt_3"] == 0 {
				t.Errorf("it is %s (%s) after %d attempts, want active after at least one", got.State, got.Reason, posted(r)["evt_3"])
			}
		})
	}
	t.Run("WHK-12 one success in between, and it stays", func(t *testing.T) {
		r, id := failingRig(t, subscription.SEP1803)
		r.run("evt_1")
		r.script = succeeds
		r.now = r.now.Add(24 * time.Hour)
		r.run("evt_2")
		r.script = fails
		r.now = r.now.Add(4 * 24 * time.Hour)
		r.work("evt_3")
		r.work()
		expect.Equal(t, "the subscription", r.record(id).State, subscription.Active)
	})
	t.Run("WHK-12 a single failure does not count for days without events", func(t *testing.T) {
		r, id := failingRig(t, subscription.SEP1803)
		r.script = tooLarge
		r.run("evt_1")
		r.now = r.now.Add(6 * 24 * time.Hour)
		r.run("evt_2")
		expect.Equal(t, "the subscription", r.record(id).State, subscription.Active)
	})
	t.Run("WHK-12 its owner is notified, an operational event is published, and a metric counts it, once", func(t *testing.T) {
		r, id := failingRig(t, subscription.SEP1803)
		var out bytes.Buffer
		emf := metric.NewEMF(slog.New(slog.NewJSONHandler(&out, nil)), "stack", nil)
		r.metrics = expect.Value(metric.NewSet(emf.Provider()))(t)
		r.run("evt_1")
		r.now = r.now.Add(lifecycle.DisableAfter)
		_, d, _ := r.process()
		services := d.Subscriptions.(*subscription.Service)
		services.PrincipalTopic, services.SubscriptionTopic = stream.TopicPrincipal, stream.TopicSubscription
		record := r.record(id)
		sub := record.Subscriber()
		for range 2 {
			expect.OK(t, d.manager.Disable(t.Context(), "default", &sub, "it only fails", record.Status))
		}
		if got := r.queues[queue.Inbox]; len(got) != 1 || !strings.Contains(string(got[0].Body), lifecycle.DisabledURI) ||
			!strings.Contains(string(got[0].Body), `"subscription":"subscription://`+id+`","principal":"alice","origin":"https://hooks.example.com"`) {
			t.Errorf("the inbox got %v, want one event %s about %s", got, lifecycle.DisabledURI, id)
		}
		emf.Close(t.Context())
		expect.Contains(t, "the metrics", out.String(), `"`+metric.Disabled+`":[1]`)
		for _, topic := range []string{stream.TopicSubscription(id), stream.TopicPrincipal("alice")} {
			page := expect.Value(r.db.Query(t.Context(), store.Query{Table: store.Log, Partition: "n#default#" + topic}))(t)
			expect.Len(t, "the notices of the topic "+topic, page.Items, 1)
		}
	})
}

// owed creates a failed delivery whose message was lost, so that only its due entry can bring it back.
func owed(r *rig) {
	r.t.Helper()
	sub := r.register("event://ci/build-finished")
	r.script = fails
	_, d, _ := r.process()
	r.done(d.HandlePages(r.t.Context(), []queue.Message{pageMessage("1", pageOf(sub.Patterns[0].Key, someEvents(1, 60)...))}))
	r.queues[queue.Slow] = nil
}

func (r *rig) round() {
	r.t.Helper()
	_, _, retry := r.process()
	expect.OK(r.t, expect.ErrOf(retry.Run(r.t.Context())))
}

// back checks the number of retries in the slow queue.
func (r *rig) back(t *testing.T, want int) {
	t.Helper()
	expect.MustLen(t, "the retries that came back", r.queues[queue.Slow], want)
}

// A retry comes when it is due by the clock as it is now, and not before.
func TestRetriesSurviveTheClock(t *testing.T) {
	for name, c := range map[string]struct {
		before []time.Duration // the steps of the clock, each before a round of the job
		step   time.Duration   // before the delivery fails
		after  []time.Duration
		save   time.Duration // a stand-alone server saves the job's position only once per hour
	}{
		"days without a server":          {before: []time.Duration{0}, after: []time.Duration{5 * 24 * time.Hour}},
		"set back before the delivery":   {before: []time.Duration{6 * time.Hour}, step: -6 * time.Hour, after: []time.Duration{0, 10 * time.Minute}},
		"set back by less than it saves": {before: []time.Duration{0, 30 * time.Minute}, after: []time.Duration{-20 * time.Minute}, save: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			_, _, retry := r.process()
			retry.SaveEvery = c.save
			rounds := func(steps []time.Duration) {
				for _, step := range steps {
					if c.save == 0 {
						_, _, retry = r.process()
					}
					r.back(t, 0)
					r.now = r.now.Add(step)
					expect.OK(t, expect.ErrOf(retry.Run(t.Context())))
				}
			}
			rounds(c.before)
			r.now = r.now.Add(c.step)
			owed(r)
			rounds(c.after)
			r.back(t, 1)
		})
	}
}

// undecodable puts an item into the due table that no version of the program wrote.
func (r *rig) undecodable(at time.Time) store.Key {
	r.t.Helper()
	key := state.DueKey("default", "sub_broken", "evt_broken", at)
	expect.OK(r.t, r.db.Write(r.t.Context(), store.Put(store.Item{Key: key, Value: []byte("{broken")})))
	return key
}

// TestAnUndecodableDueEntryHoldsNothingUp: AWS-16, AWS-07.
func TestAnUndecodableDueEntryHoldsNothingUp(t *testing.T) {
	r := newRig(t)
	r.round()
	var keys []store.Key
	for minute := range 8 { // wherever it lies, before or behind the others of its round
		keys = append(keys, r.undecodable(r.now.Add(time.Duration(minute)*time.Minute)))
	}
	owed(r)
	r.now = r.now.Add(10 * time.Minute)
	_, _, retry := r.process()
	expect.Equal(t, "AWS-16: retries that came back", expect.Value(retry.Run(t.Context()))(t), 1)
	items := expect.Value(r.db.Get(t.Context(), keys...))(t)
	expect.True(t, "no entry is in the way any more", !slices.ContainsFunc(items, func(it *store.Item) bool { return it != nil }))
	expect.MustEqual(t, "the dead letters", len(r.queues[queue.Dead]), len(keys))
	l, err := queue.ParseDeadLetter(r.queues[queue.Dead][0].Body)
	if err != nil || l.Queue != "table:deliveries" || l.Body != "{broken" || l.Reason == "" || !strings.HasPrefix(l.Message, "due#") {
		t.Errorf("AWS-07: got %+v, %v", l, err)
	}
}

// A clock that is set back leaves retries in minutes that will not come for as long as it was
// set back by.
func TestRetriesThatWereScheduledBeforeTheClockWasSetBack(t *testing.T) {
	for name, back := range map[string]time.Duration{
		"an hour": time.Hour,
		"a day":   24 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.round()
			owed(r)
			r.now = r.now.Add(-back)
			r.round()
			r.back(t, 1)
			r.queues[queue.Slow] = nil
			began := r.now
			r.round()
			if items, err := r.db.Get(t.Context(), store.Key{Table: store.Deliveries, Partition: "due#ahead", Sort: "-"}); err != nil || items[0] != nil || len(r.queues[queue.Slow]) > 0 {
				t.Errorf("the search continues after its end: %v, %v", items, err)
			}
			r.now = began.Add(10 * time.Minute)
			r.round()
			r.back(t, 0)
		})
	}
}

func TestASearchThatIsCutOffGoesOn(t *testing.T) {
	r := newRig(t)
	r.round()
	owed(r)
	r.now = r.now.Add(-24 * time.Hour)
	for rounds := 1; len(r.queues[queue.Slow]) == 0; rounds++ {
		if rounds > 40 {
			t.Fatal("the retry does not come")
		}
		ctx, cancel := context.WithCancel(t.Context())
		_, _, retry := r.process()
		left := 700 // queries of this round
		retry.DB = storetest.Hooked{DB: r.db, OnQuery: func() error {
			if left--; left == 0 {
				cancel()
			}
			return ctx.Err()
		}}
		_, _ = retry.Run(ctx) // fails when the context ends
		cancel()
		r.now = r.now.Add(time.Minute)
		if len(r.queues[queue.Slow]) > 0 && rounds < 3 {
			t.Errorf("the retry came in round %d, want 3 or later, because the search is cut off", rounds)
		}
	}
}
