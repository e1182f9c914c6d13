//go:build unix

package e2e

import (
	"slices"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestSessions tests a session of the revisions up to 2025-11-25 whose server is killed and started again. shared/mcp
// tests sessions in detail, and test/interop tests them with the official clients.
func TestSessions(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{})
	c := s.SessionBased(t, "alice", harness.V20251125)
	older := c.Open(t, "")
	c.Call(t, "resources/subscribe", object{"uri": "event://github/acme"}, nil)
	stream := c.Open(t, "")
	t.Run("SES-04 the newest stream of a session takes over", func(t *testing.T) { <-older.Ended() })
	s.Publish(t, pullRequest("u1", "acme", "api", 1))
	last := stream.Wait(t, 1)[0].SSE
	s.Publish(t, pullRequest("u2", "acme", "api", 2))
	stream.Wait(t, 2)
	s.Kill()
	s.Start()
	s.Publish(t, pullRequest("u3", "acme", "website", 3))
	t.Run("SES-01 SES-02 SES-03 a session and its subscriptions survive, and its stream resumes without a loss", func(t *testing.T) {
		c.Call(t, "ping", nil, nil)
		got := idsOf(c.Open(t, last).Wait(t, 2))
		slices.Sort(got) // the events have different URIs
		expect.List(t, "the events of the resumed stream", got, []string{"u2", "u3"})
	})
}
