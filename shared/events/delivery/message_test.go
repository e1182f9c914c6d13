package delivery

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestBodies(t *testing.T) {
	at := time.Date(2026, 11, 22, 1, 2, 3, 4000, time.FixedZone("", 5400))
	e := event.Event{ID: "evt_1", URI: "event://ü/\u2028\"&", Name: "a.b", Time: at, Data: json.RawMessage(`{"n":12345678901234567890,"s":"\u003c"}`)}
	empty := event.Event{ID: "evt_2", Time: at.UTC()}
	types := expect.Value(catalog.Parse([]byte(`
events:
  - {name: order.shipped, uriTemplate: "event://orders/{order}/{leg}/shipped", description: A., payloadSchema: {type: object}}
  - {name: sale.began, uri: "event://sale/began", description: A., payloadSchema: {type: object}}
`)))(t)
	shipped, sale := types.ByName("order.shipped"), types.ByName("sale.began")
	about := func(uri string) *event.Event { return &event.Event{ID: "evt_3", Time: at.UTC(), URI: uri} }
	occurrence := func(meta string) string {
		return `{"eventId":"evt_3","name":"","timestamp":"2026-11-21T23:32:03.000004Z","data":null,"cursor":null,"_meta":{` + meta + `}}`
	}
	for _, tc := range []struct {
		name string
		got  []byte
		want string
	}{
		{"a webhook", standardBody(&e, `t"`, "sub_1"), `{"type":"t\"","timestamp":"2026-11-22T01:02:03.000004+01:30","uri":"event://ü/\u2028\"&","subscription":"subscription://sub_1","data":{"n":12345678901234567890,"s":"\u003c"}}`},
		{"a webhook without data", standardBody(&empty, "t", "sub_1"), `{"type":"t","timestamp":"2026-11-21T23:32:03.000004Z","uri":"","subscription":"subscription://sub_1","data":null}`},
		{"an occurrence", eventsBody(&e, nil, `c"`), `{"eventId":"evt_1","name":"a.b","timestamp":"2026-11-22T01:02:03.000004+01:30","data":{"n":12345678901234567890,"s":"\u003c"},"cursor":"c\"","_meta":{"io.github.mcp-events/uri":"event://ü/\u2028\"&"}}`},
		{"an occurrence without cursor", eventsBody(&empty, nil, ""), `{"eventId":"evt_2","name":"","timestamp":"2026-11-21T23:32:03.000004Z","data":null,"cursor":null,"_meta":{"io.github.mcp-events/uri":""}}`},
		{
			"an occurrence of a URI with variables", eventsBody(about("event://orders/7%2F%22/home/shipped"), shipped, ""),
			occurrence(`"io.github.mcp-events/uri":"event://orders/7%2F%22/home/shipped","io.github.mcp-events/arguments":{"order":"7/\"","leg":"home"}`),
		},
		{
			"an occurrence of a URI without variables", eventsBody(about("event://sale/began"), sale, ""),
			occurrence(`"io.github.mcp-events/uri":"event://sale/began","io.github.mcp-events/arguments":{}`),
		},
		{
			"an occurrence from before the template changed", eventsBody(about("event://order/7/shipped"), shipped, ""),
			occurrence(`"io.github.mcp-events/uri":"event://order/7/shipped"`),
		},
		{
			"an occurrence from before the URI changed", eventsBody(about("event://sale/started"), sale, ""),
			occurrence(`"io.github.mcp-events/uri":"event://sale/started"`),
		},
	} {
		var got, want map[string]json.RawMessage
		expect.OK(t, json.Unmarshal(tc.got, &got), tc.name, tc.got)
		_ = json.Unmarshal([]byte(tc.want), &want)
		var a, b any
		_, _ = json.Unmarshal(tc.got, &a), json.Unmarshal([]byte(tc.want), &b)
		if !reflect.DeepEqual(a, b) || string(got["data"]) != string(want["data"]) {
			t.Errorf("%s: got  %s\nwant %s", tc.name, tc.got, tc.want)
		}
	}
}

// TestEventsOfOneIDAreRetriedEachByItself publishes two events of different URIs
// under one id, as independent publishers may.
func TestEventsOfOneIDAreRetriedEachByItself(t *testing.T) {
	const build, push = "event://ci/build-finished", "event://github/acme/site/push"
	r := newRig(t)
	r.register(build)
	r.register(push)
	r.register(build, push)
	failed := map[string]bool{}
	r.script = func(int) webhook.Outcome {
		p := r.posts[len(r.posts)-1]
		if key := p.SubscriptionID + bodyURI(t, p); !failed[key] {
			failed[key] = true
			return fails(0)
		}
		return succeeds(0)
	}
	r.publish("1")
	r.publishTo(push, "github.push", "1", `{"ok":true}`)
	r.run()

	got := map[string]map[string]int{}
	for _, p := range r.posts {
		if got[p.SubscriptionID] == nil {
			got[p.SubscriptionID] = map[string]int{}
		}
		got[p.SubscriptionID][bodyURI(t, p)]++
	}
	uris := 0
	for id, posts := range got {
		uris += len(posts)
		for uri, n := range posts {
			expect.Equal(t, fmt.Sprintf("WHK-02 EVS-06: how often subscription %s got %s, a failure and a success", id, uri), n, 2)
		}
	}
	if len(got) != 3 || uris != 4 {
		t.Errorf("EVS-06: got the deliveries %v by subscription and URI, want 3 subscriptions with 4 URIs", got)
	}
}

func bodyURI(t *testing.T, p webhook.Request) string {
	t.Helper()
	var body struct{ URI string }
	expect.OK(t, json.Unmarshal(p.Body, &body))
	return body.URI
}

// TestARotatedSecretSignsForADay: WHK-06. The old secret signs next to the new one for the default
// overlap of 24 hours, and no longer.
func TestARotatedSecretSignsForADay(t *testing.T) {
	r := newRig(t)
	for _, secret := range []string{"whsec_old", "whsec_new"} {
		r.subscribe(func(s *subscription.SubscribeRequest) { s.Secret = secret })
	}
	rotated := r.now
	for i, step := range []struct {
		after time.Duration
		want  []string
	}{
		{0, []string{"whsec_new", "whsec_old"}},
		{24*time.Hour - time.Second, []string{"whsec_new", "whsec_old"}},
		{24*time.Hour + time.Second, []string{"whsec_new"}},
	} {
		r.now = rotated.Add(step.after)
		r.work(fmt.Sprint("e", i))
		var keys []string
		for _, k := range r.posts[len(r.posts)-1].Keys {
			keys = append(keys, string(k))
		}
		if len(r.posts) != i+1 || !slices.Equal(keys, step.want) {
			t.Errorf("%v after the rotation: %d posts, signed by %v, want %v", step.after, len(r.posts), keys, step.want)
		}
	}
}

// TestRegistrationsSignAsTheOperatorChose: EVS-09. Deliveries to a subscription with a raw secret also have GitHub's signature, and
// those to one without a secret have no signature.
func TestRegistrationsSignAsTheOperatorChose(t *testing.T) {
	for kind, want := range map[subscription.SecretType][2]string{
		"": {"secret", ""}, subscription.Standard: {"secret", ""}, subscription.Raw: {"secret", "secret"}, subscription.None: {"", ""},
	} {
		t.Run(fmt.Sprintf("EVS-09 secret type %q", kind), func(t *testing.T) {
			r := newRig(t)
			r.services.Registrar.Options.Secret = kind
			r.register("event://ci/build-finished")
			r.run("evt_1")
			expect.MustLen(t, "the posts", r.posts, 1)
			p := r.posts[0]
			expect.Equal(t, "the keys of the Standard Webhooks signature, and of GitHub's", [2]string{string(bytes.Join(p.Keys, []byte(" "))), string(p.RawSecret)}, want)
		})
	}
}

// TestAttemptsHaveTheTimeLimitOfTheirKind: WHK-11.
func TestAttemptsHaveTheTimeLimitOfTheirKind(t *testing.T) {
	r := newRig(t)
	want := map[string]time.Duration{r.register("event://ci/build-finished").ID: 20 * time.Second, r.subscribe().ID: 10 * time.Second}
	r.run("evt_1")
	got := map[string]time.Duration{}
	for _, p := range r.posts {
		got[p.SubscriptionID] = p.Timeout
	}
	expect.Map(t, "WHK-11 the time limits of both subscriptions", got, want)
}

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
		for _, l := range r.letters(deadletter.LetterQuery{Subscription: a}, 2) {
			expect.OK(t, did(r.operations().Retry(t.Context(), "default", l, r.record(a).Subscription, 0)))
		}
		r.work()
		seen := map[string]bool{}
		for _, event := range []string{"evt_1", "evt_2"} {
			got := ids(r, event)
			if len(got[a]) != 1 || len(got[b]) != 1 {
				t.Fatalf("%s has the ids %v, want one for each of %s and %s", event, got, a, b)
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
			r.run("evt_1")
			r.run()
			got := ids(r, "evt_1")
			expect.Equal(t, "subscriptions that have got the event", len(got), len(want))
			for sub, profile := range want {
				for id := range got[sub] {
					if (profile == spec.Final) != format.MatchString(id) || len(got[sub]) != 1 {
						t.Errorf("default %s: a subscription of the profile %q has the webhook-ids %v, want one, and a hash only in the final profile", fallback, profile, got[sub])
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
			r.script = refuse(r, fails(0))
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
			expect.Map(t, "the webhooks of each kind", n, want)
		}
	})
}

// SQS would move a message to the dead queue after 1,000 receives, and delete it after 14 days.
func TestAMessageOfANewerVersionDoesNotReachTheLimitOfReceives(t *testing.T) {
	for name, c := range map[string]struct {
		received int
		broken   bool // the queue takes nothing
		left     bool
		copies   int
	}{
		"AWS-06 given a newer message, when it was received seldom, then it stays":                               {task.RenewAfter - 1, false, true, 0},
		"AWS-06 given a newer message, when it was received often, then a copy takes its place":                  {task.RenewAfter, false, false, 1},
		"AWS-06 given a newer message that was received often, when the copy cannot be sent, then it stays":      {task.RenewAfter, true, true, 0},
		"AWS-06 given a newer message of which sending a copy failed before, then the next receive sends a copy": {task.RenewAfter + 1, false, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			_, d, _ := r.process()
			var log bytes.Buffer
			d.Queue, d.Log = &watched{Sender: d.Queue, broken: c.broken}, slog.New(slog.NewTextHandler(&log, nil))
			for q, handle := range map[queue.Name]queue.Handler{queue.Deliveries: d.HandlePages, queue.Slow: d.HandleSingles} {
				m := message("newer", `{"v":99}`)
				m.Group, m.Owner, m.Received = "endpoint", "principal", c.received
				failed, err := handle(t.Context(), []queue.Message{m})
				if err != nil || slices.Contains(failed, "newer") != c.left {
					t.Errorf("%s: got failed %v and error %v, want it left: %v", q, failed, err, c.left)
				}
				copies := r.queues[q]
				expect.MustLen(t, fmt.Sprintf("the copies in %s", q), copies, c.copies)
				for _, got := range copies {
					if string(got.Body) != `{"v":99}` || got.Group != "endpoint" || got.Owner != "principal" {
						t.Errorf("%s: got a copy %s of group %q and owner %q, want the same ones", q, got.Body, got.Group, got.Owner)
					}
				}
			}
			expect.Equal(t, "the messages of the queue Dead", len(r.queues[queue.Dead]), 0)
			expect.Equal(t, "the log has a line about the copy", strings.Contains(log.String(), "newer message not renewed"), c.broken)
		})
	}
}

// During a deployment, a process of the old version may come across a delivery that a newer process stored.
func TestADeliveryOfANewerVersionIsLeftAlone(t *testing.T) {
	for name, use := range map[string]func(r *rig, d *Dispatcher, message queue.Message){
		"when its message arrives": func(r *rig, d *Dispatcher, message queue.Message) {
			for _, message.Received = range []int{1, laterReceives} {
				failed, err := d.HandleSingles(r.t.Context(), []queue.Message{message})
				if err != nil || len(failed) != 1 {
					r.t.Errorf("received %d times: got failed %v and error %v, want its message to stay", message.Received, failed, err)
				}
			}
		},
		"when its event is sent again": func(r *rig, d *Dispatcher, _ queue.Message) {
			r.publish("evt_1")
			fanout, _, _ := r.process()
			r.hand(queue.Events, fanout.Handle)
			r.hand(queue.Deliveries, d.HandlePages)
		},
		"when its subscription is reactivated": func(r *rig, d *Dispatcher, message queue.Message) {
			single, err := task.Decode(message.Body, func(s task.Single) int { return s.V })
			expect.OK(r.t, err)
			err = d.manager.ReactivateAll(r.t.Context(), "default", task.Reactivation{Principal: "alice", Subscription: single.Subscription})
			expect.Is(r.t, "the error", err, state.ErrNewer)
		},
	} {
		t.Run("AWS-06 "+name, func(t *testing.T) {
			r := newRig(t)
			sub, _ := r.subscribed()
			d, _ := r.storeFailed()
			message := r.queues[queue.Slow][0]
			key := state.Key("default", sub.ID, r.keyOf("evt_1"))
			newer := store.Item{Key: key, Version: 9, Value: fmt.Appendf(nil, `{"v":%d,"a":"of another type"}`, task.Version+1)}
			expect.OK(t, r.db.Write(t.Context(), store.Put(newer)))
			use(r, d, message)
			items, err := r.db.Get(t.Context(), key)
			if err != nil || items[0] == nil || items[0].Version != newer.Version || string(items[0].Value) != string(newer.Value) {
				t.Errorf("got the item %+v (%v), want %+v", items[0], err, newer)
			}
			expect.Equal(t, "the messages of the queue Dead", len(r.queues[queue.Dead]), 0)
		})
	}
}
