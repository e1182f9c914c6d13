//go:build unix

package e2e

import (
	"regexp"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestWebhookID tests a webhook-id per message, which the operator can choose, and a stream over the quota: EVX-21, AUT-07.
func TestWebhookID(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{
		"--profile", "final", "--events-retry-schedule", "0s,1s,1s", "--streams", "2",
	}})
	messageIDs(t, &s.Target)
	replacedStreams(t, &s.Target)
}

func replacedStreams(t *testing.T, s *harness.Target) {
	c := s.Stateless("bob")
	params := object{"name": "ci.build_finished", "arguments": object{}}
	oldest, other := c.Stream(t, 1, "events/stream", params), s.Stateless("alice").Stream(t, 1, "events/stream", params)
	oldest.Next(t)
	other.Next(t)
	second := c.Stream(t, 2, "events/stream", params)
	second.Next(t)
	t.Run("AUT-07 a third stream ends the principal's oldest one with a result, and the others continue", func(t *testing.T) {
		third := c.Stream(t, 3, "events/stream", params)
		third.Next(t)
		if m := oldest.Next(t); string(m.ID) != "1" || m.Result == nil {
			t.Errorf("the oldest stream got %s, want its result", m.Raw)
		}
		s.Publish(t, build("build_2", 2))
		for name, st := range map[string]*harness.Stream{"second": second, "third": third, "other principal's": other} {
			expect.Equal(t, "the first message of the "+name+" stream", st.Next(t).Method, "notifications/events/event")
		}
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
				expect.Equal(t, "the eventId", decode[struct{ EventID string }](t, d.Body).EventID, "build_1")
			}
		})
	}
}
