//go:build unix

package e2e

import (
	"regexp"
	"testing"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestWebhookID tests a webhook-id per message, which the operator can choose, and that a stream over the quota is
// refused: EVX-21, AUT-07.
func TestWebhookID(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{
		"--profile", "final", "--events-retry-schedule", "0s,1s,1s", "--full-streams", "refuse", "--streams", "2",
	}})
	messageIDs(t, &s.Target)
	refusedStreams(t, &s.Target)
}

func refusedStreams(t *testing.T, s *harness.Target) {
	c := s.Stateless("bob")
	params := object{"name": "ci.build_finished", "arguments": object{}}
	first := c.Stream(t, 1, "events/stream", params)
	first.Next(t)
	c.Listen(t, 2, object{"resourcesListChanged": true}, nil).Next(t)
	t.Run("AUT-07 EVX-16 a third stream is ResourceExhausted with its limit, and the open ones continue", func(t *testing.T) {
		e := c.Refused(t, -32025, "events/stream", params)
		if !sameJSON(t, e.Data, []byte(`{"limit":"streams","max":2}`)) {
			t.Errorf("data %s", e.Data)
		}
		s.Publish(t, build("build_2", 2))
		if m := first.Next(t); m.Method != "notifications/events/event" {
			t.Errorf("got %s", m.Raw)
		}
		if s.Stateless("alice").Stream(t, 1, "events/stream", params).Next(t).Method != "notifications/events/active" {
			t.Error("another principal got no stream")
		}
	})
	first.Close()
	t.Run("AUT-07 closing a stream allows another one", func(t *testing.T) {
		harness.Eventually(t, harness.Patience, "room", func() bool {
			st, err := c.TryStream(t.Context(), 3, "events/stream", params)
			if err != nil {
				return false
			}
			st.Close()
			return true
		})
	})
}

func messageIDs(t *testing.T, s *harness.Target) {
	hooks := harness.NewReceiver(t)
	c := s.Stateless("alice")
	ids := map[string]bool{}
	endpoints := []*harness.Endpoint{hooks.Endpoint("one"), hooks.Endpoint("two")}
	for _, e := range endpoints {
		e.Answer(func(n int, _ *harness.Delivery) harness.Reply { return harness.Reply{Status: 503 * (n & 1)} })
		subscribe(t, c, e, "ci.build_finished", nil)
	}
	s.Publish(t, build("build_1", 1))
	for _, e := range endpoints {
		t.Run("EVX-21 an id per message, the same in both attempts, and the eventId in the body: "+e.Name, func(t *testing.T) {
			got := e.WaitAttempts(t, 2)
			if got[0].ID() != got[1].ID() || !regexp.MustCompile(`^msg_[0-9a-f]{16}$`).MatchString(got[0].ID()) || ids[got[0].ID()] {
				t.Errorf("webhook-id %s, then %s", got[0].ID(), got[1].ID())
			}
			ids[got[0].ID()] = true
			for _, d := range got {
				if err := d.Verify(e.Secret()); err != nil {
					t.Error(err)
				}
				if body := decode[struct{ EventID string }](t, d.Body); body.EventID != "build_1" {
					t.Errorf("got %s", d.Body)
				}
			}
		})
	}
}
