package delivery

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"

	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
)

// TestMessageIDs: EVX-21. A delivery has one webhook-id, whichever process makes which attempt.
func TestMessageIDs(t *testing.T) {
	subscribed := func(r *rig) (a, b string) {
		other := func(s *subscription.SubscribeRequest) { s.URL = "https://hooks.example.com/b" }
		return r.subscribe().ID, r.subscribe(other).ID
	}
	// ids counts the webhooks of an event by subscription and webhook-id.
	ids := func(r *rig, event string) (all map[string]map[string]int) {
		all = map[string]map[string]int{}
		for _, p := range r.posts {
			if strings.Contains(string(p.Body), `"eventId":"`+event+`"`) {
				if all[p.SubscriptionID] == nil {
					all[p.SubscriptionID] = map[string]int{}
				}
				all[p.SubscriptionID][p.ID]++
			}
		}
		return all
	}
	format := regexp.MustCompile(`^msg_[0-9a-f]{16}$`)

	t.Run("EVX-21 each delivery has its own, the same in all attempts, by a new process each, and in a retry by hand", func(t *testing.T) {
		r := newRig(t)
		r.profile = spec.Final
		a, b := subscribed(r)
		r.script = fails
		r.publish("evt_1", "evt_2")
		for range len(retry.EventsSchedule) {
			r.work()
		}
		o := r.operations()
		letters, _, err := o.Letters(t.Context(), "default", deadletter.LetterQuery{Subscription: a}, "", 10)
		if err != nil || len(letters) != 2 {
			t.Fatalf("%d dead letters, %v", len(letters), err)
		}
		found, err := r.services.Find(t.Context(), "default", a)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range letters {
			if ok, err := o.Retry(t.Context(), "default", l, found.Subscription, 0); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		r.work()
		seen := map[string]bool{}
		for _, event := range []string{"evt_1", "evt_2"} {
			got := ids(r, event)
			if len(got[a]) != 1 || len(got[b]) != 1 {
				t.Fatalf("%s has %v", event, got)
			}
			for sub, of := range got {
				for id, n := range of {
					want := len(retry.EventsSchedule)
					if sub == a {
						want++
					}
					if n != want || !format.MatchString(id) || seen[id] {
						t.Errorf("%s of %s in %d attempts, want %d; seen %v", id, event, n, want, seen[id])
					}
					seen[id] = true
				}
			}
		}
	})

	t.Run("EVX-21 a process dies at each step", func(t *testing.T) {
		atEachStep(t, 10, func(point int, late bool) bool {
			r := newRig(t)
			r.profile = spec.Final
			a, _ := subscribed(r)
			r.script = failsFirst(2)
			r.publish("evt_1")
			r.budget, r.late = point, late
			r.run()
			if got := ids(r, "evt_1"); len(got[a]) != 1 {
				t.Fatalf("death at step %d (late %v): %v", point, late, got)
			}
			return r.budget > 0
		})
	})

	t.Run("EVX-21 EVX-25 a subscription keeps its profile whatever the default is, and one without has the default's", func(t *testing.T) {
		for _, fallback := range []spec.Profile{spec.Released, spec.Final} {
			r := newRig(t)
			r.profile = fallback
			of := func(profile spec.Profile) string {
				return r.subscribe(func(s *subscription.SubscribeRequest) {
					s.URL, s.Profile = "https://hooks.example.com/"+string(profile), profile
				}).ID
			}
			want := map[string]spec.Profile{of(spec.Released): spec.Released, of(spec.Final): spec.Final, of(""): fallback}
			r.script = failsFirst(2)
			r.publish("evt_1")
			r.run()
			r.run()
			got := ids(r, "evt_1")
			if len(got) != len(want) {
				t.Errorf("%d subscriptions have got the event, want %d", len(got), len(want))
			}
			for sub, profile := range want {
				for id := range got[sub] {
					if (profile == spec.Final) != format.MatchString(id) || len(got[sub]) != 1 {
						t.Errorf("default %s: a subscription of the profile %q has the webhook-ids %v", fallback, profile, got[sub])
					}
				}
			}
		}
	})

	t.Run("EVX-21 SEP-1803 and control messages keep theirs, and the default is the event's", func(t *testing.T) {
		for _, profile := range []spec.Profile{spec.Final, spec.Released, ""} {
			r := newRig(t)
			r.profile = profile
			standard := r.register("event://ci/build-finished").ID
			r.subscribe()
			r.script = refuse(r, webhook.Outcome{Status: 500, Category: webhook.HTTP5xx})
			r.publish("evt_1")
			for end := r.now.Add(retry.StandardSchedule.Total()); r.now.Before(end); {
				r.run()
			}
			n := map[string]int{}
			for _, p := range r.posts {
				switch {
				case p.SubscriptionID == standard && p.ID == "evt_1":
					n["standard"]++
				case p.SubscriptionID != standard && p.ID == "evt_1":
					n["event"]++
				case strings.HasPrefix(p.ID, "msg_gap_"):
					n["gap"]++
				case format.MatchString(p.ID):
					n["message"]++
				}
			}
			want := map[string]int{"standard": len(retry.StandardSchedule), "gap": 1, "event": len(retry.EventsSchedule)}
			if profile == spec.Final {
				want["message"] = want["event"]
				delete(want, "event")
			}
			if fmt.Sprint(n) != fmt.Sprint(want) {
				t.Errorf("got %v, want %v", n, want)
			}
		}
	})
}
