package delivery

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"

	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
)

// drain lets one dispatcher work, which remembers the health of its endpoints, until all deliveries have ended.
func (r *rig) drain(d *Dispatcher, retry *retry.Job) {
	r.t.Helper()
	for idle := 0; idle < 200; idle++ {
		worked := false
		for name, handle := range map[queue.Name]queue.Handler{queue.Deliveries: d.Pages, queue.Slow: d.Singles} {
			batch := r.queues[name]
			r.queues[name] = nil
			if len(batch) == 0 {
				continue
			}
			failed, err := handle(r.t.Context(), batch)
			for _, m := range batch {
				if err != nil || slices.Contains(failed, m.ID) {
					m.Received++
					r.queues[name] = append(r.queues[name], m)
					continue
				}
				worked = true
			}
		}
		if worked {
			idle = -1
			continue
		}
		r.now = r.now.Add(40 * time.Minute)
		if _, err := retry.Run(r.t.Context()); err != nil {
			r.t.Fatal(err)
		}
	}
}

// overloaded returns an answer after which the dispatcher pauses the endpoint.
func overloaded(int) webhook.Outcome { return webhook.Outcome{Status: 503, Category: webhook.HTTP5xx} }

func (r *rig) lettersFor(id string) []deadletter.Letter {
	r.t.Helper()
	letters, _, err := r.operations().Letters(r.t.Context(), "default", deadletter.LetterQuery{Subscription: id}, "", 100)
	if err != nil {
		r.t.Fatal(err)
	}
	return letters
}

// TestADeadEventIsReplayed: WHK-18, OPS-05. An event with a dead letter is delivered again, and its first new attempt does
// not succeed: the event is retried all the same.
func TestADeadEventIsReplayed(t *testing.T) {
	for name, first := range map[string]struct {
		paused  bool // the endpoint, by the dispatcher
		answers []func(int) webhook.Outcome
		posts   int
	}{
		"to an endpoint that the dispatcher paused": {paused: true, posts: 1},
		"to an endpoint that fails once more":       {answers: []func(int) webhook.Outcome{fails}, posts: 2},
		"to an endpoint that succeeds":              {posts: 1},
	} {
		t.Run("WHK-18 "+name, func(t *testing.T) {
			r := newRig(t)
			sub := r.register("event://ci/build-finished")
			since := r.now.Add(-time.Hour)
			r.script = tooLarge
			r.publish("evt_1")
			r.run()
			if st := r.deliveryState(sub.ID, "evt_1"); st != state.Dead {
				t.Fatalf("the delivery is %q, want a dead letter", st)
			}
			fanout, d, retry := r.process()
			if first.paused {
				r.script = overloaded
				r.publish("evt_2", "evt_3", "evt_4")
				r.hand(queue.Events, fanout.Handle)
				r.hand(queue.Deliveries, d.Pages)
			}
			before, answers := posted(r)["evt_1"], first.answers
			r.script = func(n int) webhook.Outcome {
				if len(answers) == 0 {
					return succeeds(n)
				}
				answer := answers[0]
				answers = answers[1:]
				return answer(n)
			}
			replays := r.replays()
			job, err := replays.Start(t.Context(), "default", "op", sub, deadletter.ReplaySelect{Events: true, Subscription: sub.ID, Since: since}, 20)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := replays.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.drain(d, retry)
			if job, err = replays.Find(t.Context(), "default", job.ID); err != nil || job.Replayed == 0 {
				t.Fatalf("the replay is %+v, %v", job, err)
			}
			if n := posted(r)["evt_1"] - before; n < first.posts {
				t.Errorf("the event was posted %d times after the replay, want at least %d", n, first.posts)
			}
		})
	}
	t.Run("WHK-18 EVX-11 to a subscription that was created again with an older cursor", func(t *testing.T) {
		r := newRig(t)
		got := r.subscribe()
		r.script = fails
		r.publish("evt_1", "evt_2")
		r.run()
		fanout, d, retry := r.process()
		r.script = overloaded
		r.publish("evt_3")
		r.hand(queue.Events, fanout.Handle)
		r.hand(queue.Deliveries, d.Pages)
		r.end(got.ID)
		r.script = succeeds
		r.now = r.now.Add(time.Second)
		before := posted(r)
		r.subscribeFrom(got.Cursor)
		r.drain(d, retry)
		for _, id := range []string{"evt_1", "evt_2", "evt_3"} {
			if posted(r)[id] == before[id] {
				t.Errorf("%s was not delivered after the cursor", id)
			}
		}
	})
	t.Run("EVX-13 to a subscription that was created again, and the event is lost again: the gap is announced", func(t *testing.T) {
		r := newRig(t)
		got := r.subscribe()
		r.script = refuse(r, fails(0))
		r.publish("evt_1")
		r.run()
		r.end(got.ID)
		r.now = r.now.Add(time.Second)
		r.posts = nil
		r.subscribeFrom(got.Cursor)
		r.run()
		if n := posted(r)["evt_1"]; n != len(retry.EventsSchedule) {
			t.Errorf("the event was attempted %d times, want %d", n, len(retry.EventsSchedule))
		}
		if ids, _ := r.gaps(t); len(ids) != 1 {
			t.Errorf("%d gaps were announced, want 1", len(ids))
		}
	})
	t.Run("WHK-12 to an endpoint that is gone: its answer 410 counts, and one new dead letter is kept", func(t *testing.T) {
		r := newRig(t)
		sub := r.register("event://ci/build-finished")
		since := r.now.Add(-time.Hour)
		r.script = tooLarge
		r.publish("evt_1")
		r.run()
		r.now = r.now.Add(time.Minute)
		r.script = func(int) webhook.Outcome { return webhook.Outcome{Status: 410, Category: webhook.HTTP4xx} }
		replays := r.replays()
		if _, err := replays.Start(t.Context(), "default", "op", sub, deadletter.ReplaySelect{Events: true, Subscription: sub.ID, Since: since}, 20); err != nil {
			t.Fatal(err)
		}
		if _, err := replays.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, d, retry := r.process()
		r.drain(d, retry)
		if got := r.record(sub.ID).State; got != subscription.Disabled {
			t.Errorf("the subscription is %s, want %s", got, subscription.Disabled)
		}
		letters := r.lettersFor(sub.ID)
		if len(letters) == 0 || len(letters[0].Attempts) != 2 {
			t.Errorf("got the letters %+v, want the last one to have both attempts", letters)
		}
	})
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
			if !strings.Contains(got, `{"ok":2}`) {
				t.Errorf("the second event was not delivered, only %q", got)
			}
			if pending := was == state.Pending && reached != "was delivered by a retry"; pending != strings.Contains(got, `{"ok":1}`) {
				t.Errorf("the first event was %s, and the retries brought %q", was, got)
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

func TestARetriedDeadLetterKeepsItsEvent(t *testing.T) {
	t.Run("WHK-22 retrying a dead letter does not shorten the time for which a paused delivery can wait", func(t *testing.T) {
		r := newRig(t)
		sub := r.register("event://ci/build-finished")
		r.script = tooLarge
		r.publish("evt_1")
		r.run()
		e := event.Event{Workspace: "default", ID: "evt_1", URI: "event://ci/build-finished"}
		key := state.BodyKey("default", e.Key())
		items, err := r.db.Get(t.Context(), key)
		if err != nil || items[0] == nil {
			t.Fatal(items, err)
		}
		long := *items[0]
		long.Expires = r.now.Add(40 * 24 * time.Hour)
		if err := r.db.Write(t.Context(), store.Put(long)); err != nil {
			t.Fatal(err)
		}
		letters := r.lettersFor(sub.ID)
		if done, err := r.operations().Retry(t.Context(), "default", letters[0], sub, 0); err != nil || !done {
			t.Fatal(done, err)
		}
		if items, err = r.db.Get(t.Context(), key); err != nil || items[0].Expires.Before(long.Expires.Add(-time.Second)) {
			t.Errorf("the event expires at %v (%v), want %v", items[0].Expires, err, long.Expires)
		}
	})
}
