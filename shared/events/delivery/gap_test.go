package delivery

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
)

// dwell and progressKey repeat unexported values of package lifecycle: the time for which a page may stay queued although
// dispatch makes progress, and the key of that progress.
const dwell = 30 * time.Minute

var progressKey = store.Key{Table: store.Deliveries, Partition: "w#pace", Sort: "-"}

// rateAsk is how often a dispatcher adds up the attempts of a subscription in package retry.
const rateAsk = 5 * time.Second

// gaps returns the number of attempts of each gap notice by its id, and the last attempt.
func (r *rig) gaps(t *testing.T) (ids map[string]int, last webhook.Request) {
	t.Helper()
	ids = map[string]int{}
	for _, p := range r.posts {
		if strings.HasPrefix(p.ID, "msg_gap_") {
			ids[p.ID]++
			last = p
		}
	}
	return ids, last
}

// gapAt returns the position of the cursor in a gap notice.
func (r *rig) gapAt(t *testing.T, p webhook.Request) int64 {
	t.Helper()
	var body map[string]string
	if err := json.Unmarshal(p.Body, &body); err != nil || len(body) != 2 || body["type"] != "gap" {
		t.Fatalf("the notice is %s, %v", p.Body, err)
	}
	c, err := r.sealer.Open("default", body["cursor"])
	if err != nil {
		t.Fatal(err)
	}
	return c.At
}

// TestGaps: EVX-13. What is lost between two refreshes is announced, with a cursor that covers it.
func TestGaps(t *testing.T) {
	failed := webhook.Outcome{Status: 500, Category: webhook.HTTP5xx}

	t.Run("EVX-13 one signed notice for all that an outage abandons, and its cursor lies before all of it", func(t *testing.T) {
		r := newRig(t)
		id := r.subscribe().ID
		r.publish("well")
		r.work()
		r.work()
		r.subscribe()
		r.script = refuse(r, failed)
		first := r.now
		r.publish("one", "two", "three")
		r.run()
		ids, p := r.gaps(t)
		if len(ids) != 1 || ids[p.ID] != 1 {
			t.Fatalf("notices %v, want one", ids)
		}
		if p.SubscriptionID != id || p.URL != "https://hooks.example.com/a" || len(p.Keys) != 1 || string(p.Keys[0]) != "whsec_a" {
			t.Errorf("sent to %s for %s with %d keys", p.URL, p.SubscriptionID, len(p.Keys))
		}
		if at := r.gapAt(t, p); at >= first.UnixMicro() || at < first.Add(-2*dwell-time.Minute).UnixMicro() {
			t.Errorf("the cursor lies %v after the first event that was lost", time.UnixMicro(at).Sub(first))
		}
		r.now = r.now.Add(time.Hour)
		second := r.now
		r.publish("four")
		r.run()
		if ids, p = r.gaps(t); len(ids) != 2 || r.gapAt(t, p) >= second.UnixMicro() {
			t.Errorf("notices %v after another outage, want two", ids)
		}
	})

	t.Run("EVX-13 an event that waited in its queue while a gap was announced gets a notice of its own", func(t *testing.T) {
		r := newRig(t)
		id := r.subscribe().ID
		refuses, announced := refuse(r, failed), time.Time{}
		r.script = func(n int) webhook.Outcome {
			out := refuses(n)
			if out.Status == 200 && announced.IsZero() {
				announced = r.now
			}
			return out
		}
		r.publish("first")
		r.run()
		if ids, _ := r.gaps(t); len(ids) != 1 {
			t.Fatalf("the first lost event was announced by %d notices, want 1", len(ids))
		}
		// Fanout receives this event only now, after the client has read the log to its end.
		accepted := announced.Add(-30 * time.Second)
		r.queues[queue.Events] = append(r.queues[queue.Events], queue.Message{
			ID: "late", Outgoing: r.message("event://ci/build-finished", "ci.build_finished", "late", `{"ok":true}`, accepted), Sent: accepted,
		})
		r.run()
		if state := r.deliveryState(id, "late"); state != "dead" {
			t.Fatalf("the delivery is %s, want dead", state)
		}
		ids, p := r.gaps(t)
		if len(ids) != 2 || r.gapAt(t, p) >= accepted.UnixMicro() {
			t.Errorf("both lost events were announced by %d notices, the last with a cursor at %d, want 2 and before %d", len(ids), r.gapAt(t, p), accepted.UnixMicro())
		}
	})

	t.Run("EVX-13 what was settled before is not asked for again", func(t *testing.T) {
		r := newRig(t)
		r.subscribe()
		r.publish("well")
		r.work()
		r.work()
		r.now = r.now.Add(6 * time.Hour)
		_, d, _ := r.process()
		if err := d.DB.Write(t.Context(), store.Raise(progressKey, "at", r.now.UnixMicro())); err != nil {
			t.Fatal(err)
		}
		r.script = refuse(r, failed)
		lost := r.now
		r.publish("lost")
		r.run()
		_, p := r.gaps(t)
		if at := time.UnixMicro(r.gapAt(t, p)); lost.Sub(at) > dwell+time.Minute {
			t.Errorf("the cursor lies %v before the event that was lost", lost.Sub(at))
		}
	})

	t.Run("EVX-13 an endpoint that stays away for longer than its schedule is notified of it when it is back", func(t *testing.T) {
		r := newRig(t)
		r.subscribe()
		back := r.now.Add(20 * time.Hour)
		r.script = func(int) webhook.Outcome {
			if r.now.Before(back) {
				return failed
			}
			return webhook.Outcome{Status: 200}
		}
		r.publish("lost")
		r.run()
		ids, p := r.gaps(t)
		if len(ids) != 1 || ids[p.ID] <= len(retry.EventsSchedule) || r.now.Before(back) {
			t.Errorf("notices %v by %v", ids, r.now.Sub(back))
		}
	})

	for name, c := range map[string]struct {
		out   webhook.Outcome
		plain bool
		url   string
		std   bool
	}{
		"EVX-13 the client takes no control messages":     {out: failed, plain: true},
		"EVX-13 the operator lists its target":            {out: failed, url: "https://hooks.example.com/"},
		"EVX-13 the subscription is one of SEP-1803":      {out: failed, std: true},
		"EVX-13 the endpoint turned the event away (410)": {out: webhook.Outcome{Status: 410, Category: webhook.HTTP4xx}},
		"EVX-13 the endpoint turned the event away (413)": {out: webhook.Outcome{Status: 413, Category: webhook.HTTP4xx}},
	} {
		t.Run(name+": no notice", func(t *testing.T) {
			r := newRig(t)
			if c.std {
				r.register("event://ci/build-finished")
			} else {
				r.subscribe(func(s *subscription.SubscribeRequest) { s.Plain = c.plain })
			}
			if c.url != "" {
				r.plain = []string{c.url}
			}
			r.script = refuse(r, c.out)
			r.publish("lost")
			r.run()
			if ids, _ := r.gaps(t); len(ids) != 0 || posted(r)["lost"] == 0 {
				t.Errorf("notices %v, posts %v", ids, posted(r))
			}
		})
	}

	t.Run("EVX-13 a suspension longer than the log is announced with a fresh cursor, once", func(t *testing.T) {
		r := newRig(t)
		r.log.Now = func() time.Time { return r.now }
		id := r.subscribe().ID
		r.suspendByFailures(t, id)
		suspended := r.now
		for r.now.Sub(suspended) < 26*time.Hour {
			r.now = r.now.Add(30 * time.Minute)
			r.run()
		}
		ids, p := r.gaps(t)
		if len(ids) != 1 || ids[p.ID] != 1 {
			t.Fatalf("notices %v, want one", ids)
		}
		if at := time.UnixMicro(r.gapAt(t, p)); at.After(suspended.Add(3*time.Hour)) || at.Before(suspended.Add(-time.Hour)) {
			t.Errorf("the cursor lies %v after the suspension", at.Sub(suspended))
		}
	})

	t.Run("EVX-13 a suspension that a refresh ended in time is not", func(t *testing.T) {
		r := newRig(t)
		r.log.Now = func() time.Time { return r.now }
		id := r.subscribe().ID
		r.suspendByFailures(t, id)
		r.script = succeeds
		r.subscribe()
		for range 60 {
			r.now = r.now.Add(30 * time.Minute)
			r.run()
		}
		if ids, _ := r.gaps(t); len(ids) != 0 {
			t.Errorf("notices %v", ids)
		}
	})
}

// suspendByFailures has an endpoint fail until its subscription is suspended.
func (r *rig) suspendByFailures(t *testing.T, id string) {
	t.Helper()
	r.script = refuse(r, fails(0))
	for i := 0; r.state(id) != subscription.Suspended; i++ {
		if i > 200 {
			t.Fatal("it is not suspended")
		}
		r.publish("lost_" + time.Duration(i).String())
		r.work()
		r.now = r.now.Add(rateAsk)
	}
	for range 3 { // the notices for what was abandoned until then
		r.work()
	}
	r.posts = nil
}

// refuse fails events and accepts control messages.
func refuse(r *rig, out webhook.Outcome) func(int) webhook.Outcome {
	return func(n int) webhook.Outcome {
		if strings.HasPrefix(r.posts[n-1].ID, "msg_gap_") {
			return webhook.Outcome{Status: 200}
		}
		return out
	}
}

// TestGapsSurviveCrashes: EVX-13. A process dies at each step of an abandonment: the gap is announced.
func TestGapsSurviveCrashes(t *testing.T) {
	atEachStep(t, 15, func(point int, late bool) bool {
		r := newRig(t)
		r.subscribe()
		r.script = refuse(r, fails(0))
		r.publish("lost")
		r.budget, r.late = point, late
		r.run()
		survived := r.budget > 0
		if ids, _ := r.gaps(t); len(ids) != 1 {
			t.Fatalf("death at step %d (late %v): notices %v", point, late, ids)
		}
		return survived
	})
}
