package delivery

import (
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
)

const operationalType = `
  - name: mcpevents.subscription_disabled
    uri: event://mcpevents/subscription-disabled
    access: {scopes: [events:operate]}
`

// failingRig has a subscription of a kind, which the clock can outlive.
func failingRig(t *testing.T, kind subscription.Origin) (*rig, string) {
	t.Helper()
	r := newRig(t)
	cat, err := catalog.Parse([]byte(testCatalog + operationalType))
	if err != nil {
		t.Fatal(err)
	}
	r.catalogs = catalog.NewStatic(cat)
	r.services = r.service(r.db, r.log)
	r.script, r.plain = fails, []string{"https://hooks.example.com/"} // events are all that it gets
	if kind == subscription.SEP1803 {
		return r, r.register("event://ci/build-finished").ID
	}
	return r, r.subscribe().ID
}

func (r *rig) record(id string) *subscription.Selected {
	r.t.Helper()
	s, err := r.services.Find(r.t.Context(), "default", id)
	if err != nil || s == nil {
		r.t.Fatal(s, err)
	}
	return s
}

func TestAnEndpointThatOnlyFails(t *testing.T) {
	for _, kind := range []subscription.Origin{subscription.SEP1803, subscription.MCPEvents} {
		t.Run("WHK-12 is disabled after five days, a subscription of "+string(kind), func(t *testing.T) {
			r, id := failingRig(t, kind)
			began := r.now
			for _, e := range []string{"evt_1", "evt_2", "evt_3"} {
				r.publish(e)
				r.run()
			}
			if st := r.record(id); st.State != subscription.Active || r.now.Sub(began) > 20*24*time.Hour {
				t.Fatalf("it is %s after %v", st.State, r.now.Sub(began))
			}
			if r.now.Before(began.Add(lifecycle.DisableAfter + time.Minute)) {
				r.now = began.Add(lifecycle.DisableAfter + time.Minute)
			}
			r.publish("evt_4")
			r.work()
			r.work()
			got := r.record(id)
			if got.State != subscription.Disabled || got.Reason != "all deliveries of five days failed" || got.Status.LastError != string(webhook.HTTP5xx) {
				t.Fatalf("got %s (%s), last error %q", got.State, got.Reason, got.Status.LastError)
			}
			t.Run("and brought back by a person, for five more days", func(t *testing.T) {
				if again, err := r.services.Enable(t.Context(), "default", "alice", id); err != nil || !again {
					t.Fatal(again, err)
				}
				r.publish("evt_5")
				r.work()
				r.work()
				if got := r.record(id); got.State != subscription.Active || got.Reason != "" || posted(r)["evt_5"] == 0 {
					t.Errorf("got %s (%s), sent %d times", got.State, got.Reason, posted(r)["evt_5"])
				}
				if again, err := r.services.Enable(t.Context(), "default", "alice", id); err != nil || again {
					t.Errorf("enabled twice: %v, %v", again, err)
				}
			})
		})
	}
	for name, last := range map[string]webhook.Outcome{
		"with an error": fails(1), "with 410": {Status: 410, Category: webhook.HTTP4xx},
	} {
		t.Run("WHK-12 an attempt that began before its owner resumed it, and fails afterwards "+name+", does not disable it", func(t *testing.T) {
			r, id := failingRig(t, subscription.SEP1803)
			for _, e := range []string{"evt_1", "evt_2"} { // ten attempts
				r.publish(e)
				r.run()
			}
			r.now = r.now.Add(lifecycle.DisableAfter)
			r.script = func(int) webhook.Outcome {
				for _, paused := range []bool{true, false} {
					if _, err := r.services.SetPaused(t.Context(), "default", "alice", id, paused); err != nil {
						t.Error(err)
					}
				}
				return last
			}
			r.publish("evt_3")
			r.work()
			if got := r.record(id); got.State != subscription.Active || posted(r)["evt_3"] == 0 {
				t.Errorf("it is %s (%s) after %d attempts, want active after at least one", got.State, got.Reason, posted(r)["evt_3"])
			}
		})
	}
	t.Run("WHK-12 one success in between, and it stays", func(t *testing.T) {
		r, id := failingRig(t, subscription.SEP1803)
		r.publish("evt_1")
		r.run()
		r.script = succeeds
		r.now = r.now.Add(24 * time.Hour)
		r.publish("evt_2")
		r.run()
		r.script = fails
		r.now = r.now.Add(4 * 24 * time.Hour)
		r.publish("evt_3")
		r.work()
		r.work()
		if got := r.record(id); got.State != subscription.Active {
			t.Errorf("it is %s", got.State)
		}
	})
	t.Run("WHK-12 a single failure does not count for days without events", func(t *testing.T) {
		r, id := failingRig(t, subscription.SEP1803)
		r.script = tooLarge
		r.publish("evt_1")
		r.run()
		r.now = r.now.Add(6 * 24 * time.Hour)
		r.publish("evt_2")
		r.run()
		if got := r.record(id); got.State != subscription.Active {
			t.Errorf("it is %s", got.State)
		}
	})
	t.Run("WHK-12 its owner is notified, and an operational event is published, once", func(t *testing.T) {
		r, id := failingRig(t, subscription.SEP1803)
		r.publish("evt_1")
		r.run()
		r.now = r.now.Add(lifecycle.DisableAfter)
		_, d, _ := r.process()
		services := d.Subscriptions.(*subscription.Service)
		services.PrincipalTopic, services.SubscriptionTopic = stream.TopicPrincipal, stream.TopicSubscription
		record := r.record(id)
		sub := record.Subscriber()
		for range 2 {
			if err := d.manager.Disable(t.Context(), "default", &sub, "it only fails", record.Status); err != nil {
				t.Fatal(err)
			}
		}
		if got := r.queues[queue.Inbox]; len(got) != 1 || !strings.Contains(string(got[0].Body), lifecycle.DisabledURI) ||
			!strings.Contains(string(got[0].Body), `"subscription":"subscription://`+id+`","principal":"alice","origin":"https://hooks.example.com"`) {
			t.Errorf("the inbox got %v", got)
		}
		for _, topic := range []string{stream.TopicSubscription(id), stream.TopicPrincipal("alice")} {
			page, err := r.db.Query(t.Context(), store.Query{Table: store.Log, Partition: "n#default#" + topic})
			if err != nil || len(page.Items) != 1 {
				t.Errorf("the topic %s has %d notices (%v), want one", topic, len(page.Items), err)
			}
		}
	})
}
