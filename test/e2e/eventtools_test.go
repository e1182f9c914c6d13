//go:build unix

package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestEventTools tests events for clients that support only tools. TestOnLocalAWS does the same on AWS.
func TestEventTools(t *testing.T) {
	t.Parallel()
	withTools(t, &harness.StartServer(t, harness.ServerOptions{Args: []string{"--event-tools"}}).Target)
}

// toolResult is the result of a tool.
type toolResult struct {
	IsError           bool
	Content           []struct{ Text string }
	StructuredContent struct {
		Subscription   string
		Events         []struct{ ID, Name string }
		EventTypes     []struct{ Name string }
		TimedOut, More bool
	}
}

func tool(name string, arguments object) object {
	return object{"name": name, "arguments": arguments}
}

func withTools(t *testing.T, s *harness.Target) {
	clients := map[string]*harness.Client{"2026": s.Stateless("alice"), "2025": s.SessionBased(t, "alice", harness.V20251125)}
	for revision, c := range clients {
		call := func(t *testing.T, name string, arguments object) (r toolResult) {
			t.Helper()
			c.Call(t, "tools/call", tool(name, arguments), &r)
			return r
		}
		t.Run("RCH-04 an event ends a running wait, "+revision, func(t *testing.T) {
			service := "tools-" + revision
			sub := call(t, "subscribe", object{"name": "incident.created", "arguments": object{"service": service}}).StructuredContent.Subscription
			wait := tool("wait_for_event", object{"subscription": sub, "seconds": 40})
			wait["_meta"] = object{"progressToken": "waits"}
			st := c.Stream(t, "wait", "tools/call", wait)
			if m := st.Next(t); m.Method != "notifications/progress" || !strings.Contains(string(m.Params), `"waits"`) {
				t.Fatalf("the first message is %s", m.Raw)
			}
			s.Publish(t, incident(revision+"-other", "another"))
			s.Publish(t, incident(revision+"-1", service))
			m := st.Next(t)
			for m.Method == "notifications/progress" {
				m = st.Next(t)
			}
			var r toolResult
			expect.OK(t, json.Unmarshal(m.Result, &r), m.Raw)
			if got := r.StructuredContent; len(got.Events) != 1 || got.Events[0].ID != revision+"-1" || got.Events[0].Name != "incident.created" || got.TimedOut {
				t.Errorf("got %s", m.Raw)
			}
			s.Publish(t, incident(revision+"-2", service))
			var next toolResult
			harness.Eventually(t, harness.Patience, "the next event is recent", func() bool {
				next = call(t, "recent_events", object{"subscription": r.StructuredContent.Subscription})
				return len(next.StructuredContent.Events) > 0
			})
			if got := next.StructuredContent.Events; len(got) != 1 || got[0].ID != revision+"-2" {
				t.Errorf("then %+v", got)
			}
		})
	}
}
