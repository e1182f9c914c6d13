//go:build unix

package interop

import (
	"slices"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestAISDK shows the AI SDK's MCP events client: it subscribes, is verified,
// receives, refreshes and unsubscribes, session-based and stateless.
//
// Its release 2.0.99 has webhooks only. It lacks events/poll and events/stream.
func TestAISDK(t *testing.T) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--events-retry-schedule", "0s,1s,1s,1s"}})
		receiving(t, &s.Target)
	})
	t.Run("local AWS", func(t *testing.T) {
		t.Parallel()
		receiving(t, &harness.StartAWS(t, harness.AWSOptions{Env: harness.Quick}).Target)
	})
}

func receiving(t *testing.T, s *harness.Target) {
	js := harness.Node(t)
	for handshake, version := range map[string]string{"discover": harness.V20260728, "initialize": harness.V20251125} {
		t.Run("EVX-20 by "+handshake, func(t *testing.T) {
			t.Parallel()
			client := start(t, js.Command(t.Context(), "ai-sdk.js", s.MCP, s.Keys["alice"], handshake))
			expect.MustEqual(t, "the revision", client.next(t, "connected").Version, version)
			var events []struct {
				Name     string
				Delivery []string
			}
			client.do(t, object{"do": "list"}, &events)
			i := slices.IndexFunc(events, func(e struct {
				Name     string
				Delivery []string
			},
			) bool {
				return e.Name == "incident.created"
			})
			if i < 0 || !slices.Contains(events[i].Delivery, "webhook") {
				t.Fatalf("listed: %v", events)
			}

			var sub struct {
				ID            string
				RefreshBefore *time.Time
				Truncated     bool
			}
			service := "ai-" + handshake
			args := object{"service": service, "severity": "critical"}
			client.do(t, object{"do": "subscribe", "name": "incident.created", "args": args, "ttlMs": 3_600_000}, &sub)
			if sub.ID == "" || sub.RefreshBefore == nil || time.Until(*sub.RefreshBefore) > time.Hour || sub.Truncated {
				t.Fatalf("subscribed: %+v", sub)
			}

			incident := func(id, severity string) {
				t.Helper()
				s.Publish(t, harness.Event{ID: id, URI: "event://incidents/" + service + "/created", Data: object{
					"id": id, "title": "It is down", "severity": severity,
				}})
			}
			incident(handshake+"-1", "critical")
			got := client.next(t, "event")
			if got.Subscription != sub.ID || got.Event.EventID != handshake+"-1" || got.Event.Name != "incident.created" || got.Event.Data["severity"] != "critical" {
				t.Errorf("received %+v", got)
			}
			for _, status := range []int{200, 204} { // to its verification, and to the event
				expect.Equal(t, "the status of its handler", client.next(t, "request").Status, status)
			}

			var again struct{ ID string }
			client.do(t, object{"do": "refresh", "id": sub.ID}, &again)
			expect.Equal(t, "the id after the refresh", again.ID, sub.ID)
			incident(handshake+"-2", "info") // filtered out
			incident(handshake+"-3", "critical")
			expect.Equal(t, "the event after the refresh", client.next(t, "event").Event.EventID, handshake+"-3")

			client.do(t, object{"do": "unsubscribe", "id": sub.ID}, nil)
			incident(handshake+"-4", "critical")
			other := object{"do": "subscribe", "name": "incident.created", "args": object{"service": service}}
			client.do(t, other, &sub)
			incident(handshake+"-5", "info")
			got = client.next(t, "event")
			if got.Event.EventID == handshake+"-4" && got.Subscription == sub.ID {
				got = client.next(t, "event") // on AWS, fanout may store the event only after the second subscription has begun
			}
			if got.Event.EventID != handshake+"-5" || got.Subscription != sub.ID {
				t.Errorf("after unsubscribing, the client received %s for %s, want %s-5 for %s", got.Event.EventID, got.Subscription, handshake, sub.ID)
			}
			client.do(t, object{"do": "unsubscribe", "id": sub.ID}, nil)

			var uris []string
			client.do(t, object{"do": "resources"}, &uris)
			expect.Has(t, "the resources", uris, "event://ci/build-finished")
		})
	}
}
