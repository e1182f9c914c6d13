//go:build unix

package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/backend"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestGateway tests a backend behind the endpoint, for each combination of revisions that it and its clients use.
func TestGateway(t *testing.T) {
	t.Parallel()
	for _, kind := range []backend.Kind{backend.Stateful, backend.Stateless} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			b := harness.StartBackend(t, kind)
			s := harness.StartServer(t, harness.ServerOptions{Config: "backends:\n" + b.Config("b", "b_", "")})
			throughGateway(t, &s.Target, b)
		})
	}
}

const watched = "test://watched-resource"

// notified is a client and its notification stream.
type notified struct {
	*harness.Client
	stream *harness.Stream
}

// received returns the number of messages of a method that have arrived. It ignores updates of resources other than the
// watched one.
func (f notified) received(method string) (n int) {
	for _, m := range f.stream.Messages() {
		if m.Method == method && (method != updateMethod || strings.Contains(string(m.Params), watched)) {
			n++
		}
	}
	return n
}

const (
	updateMethod       = "notifications/resources/updated"
	toolsChangedMethod = "notifications/tools/list_changed"
)

// both returns a session-based client and a stateless one, which are notified of changes of tools and of the watched
// resource.
func both(t *testing.T, s *harness.Target, principal string) map[string]notified {
	t.Helper()
	stateless, sessionBased := s.Stateless(principal), s.SessionBased(t, principal, harness.V20251125)
	stream := sessionBased.Open(t, "")
	sessionBased.Call(t, "resources/subscribe", object{"uri": watched}, nil)
	return map[string]notified{
		"2025": {sessionBased, stream},
		"2026": {stateless, stateless.Listen(t, 1, object{"toolsListChanged": true, "resourceSubscriptions": []string{watched}}, nil)},
	}
}

func throughGateway(t *testing.T, s *harness.Target, b *harness.Backend) {
	clients := both(t, s, "alice")
	const tool = "b_test_tool_with_progress"
	for revision, c := range clients {
		t.Run("GWN-01 list "+revision, func(t *testing.T) {
			names := map[string]bool{}
			for _, x := range c.All(t, "tools/list", "tools") {
				names[x["name"].(string)] = true
			}
			if !names[tool] || names["test_tool_with_progress"] {
				t.Errorf("the tools are %v", names)
			}
			uris := c.All(t, "resources/list", "resources")
			if !slices.ContainsFunc(uris, func(x map[string]any) bool { return x["uri"] == watched }) {
				t.Errorf("the resources are %v", uris)
			}
		})
		t.Run("GWN-09 progress "+revision, func(t *testing.T) {
			st := c.Stream(t, "call", "tools/call", object{
				"name": tool, "arguments": object{}, "_meta": object{"progressToken": "token-" + revision},
			})
			last := -1.0
			for n := 0; ; n++ {
				m := st.Next(t)
				if m.Method == "" {
					if string(m.ID) != `"call"` || m.Result == nil || n < 3 {
						t.Errorf("after %d messages the response is %s", n, m.Raw)
					}
					return
				}
				p := decode[struct {
					ProgressToken string
					Progress      float64
				}](t, m.Params)
				if m.Method != "notifications/progress" || p.ProgressToken != "token-"+revision || p.Progress <= last {
					t.Errorf("message %d is %s", n, m.Raw)
				}
				last = p.Progress
			}
		})
	}
	t.Run("GWN-04 a change of the tools reaches each stream once", func(t *testing.T) {
		before := len(clients["2026"].All(t, "tools/list", "tools"))
		foreign := s.Stateless("foreign").Listen(t, 1, object{"toolsListChanged": true, "resourceSubscriptions": []string{watched}}, nil)
		b.ChangeList(t, "tools")
		for revision, c := range clients {
			harness.Eventually(t, harness.Patience, "the change reaches "+revision, func() bool { return c.received(toolsChangedMethod) > 0 })
			if n := len(c.All(t, "tools/list", "tools")); n == before {
				t.Errorf("%s: after the notification the list still has the old %d tools", revision, n)
			}
		}
		// Later notifications show that the change is not notified again.
		notifyOfUpdate(t, b, clients)
		for revision, c := range clients {
			if n := c.received(toolsChangedMethod); n != 1 {
				t.Errorf("%s: the change was notified %d times", revision, n)
			}
		}
		for _, m := range foreign.Messages() {
			if m.Method == toolsChangedMethod || m.Method == updateMethod {
				t.Errorf("another workspace was notified: %s", m.Raw)
			}
		}
	})
	t.Run("GWN-04 an update reaches each stream once", func(t *testing.T) {
		notifyOfChange(t, b, clients) // so that no earlier update is still in progress
		before := map[string]int{}
		for revision, c := range clients {
			before[revision] = c.received(updateMethod)
		}
		b.UpdateResource(t, watched)
		for revision, c := range clients {
			harness.Eventually(t, harness.Patience, "the update reaches "+revision, func() bool { return c.received(updateMethod) > before[revision] })
		}
		notifyOfChange(t, b, clients)
		for revision, c := range clients {
			if n := c.received(updateMethod) - before[revision]; n != 1 {
				t.Errorf("%s: the update was notified %d times", revision, n)
			}
		}
	})
	t.Run("GWN-07 GWN-08 GWN-14 a backend that was unavailable", func(t *testing.T) {
		b.Kill()
		for _, c := range clients {
			c.Refused(t, 503, "tools/call", object{"name": tool, "arguments": object{}})
		}
		b.Start()
		notifyOfUpdate(t, b, clients)
		for revision, c := range clients {
			var result json.RawMessage
			c.Call(t, "tools/call", object{"name": tool, "arguments": object{}}, &result)
			if len(result) == 0 {
				t.Errorf("%s: no result", revision)
			}
		}
	})
}

// notifyOfUpdate makes the backend send updates until one has reached all clients, because the gateway subscribes at
// the backend slightly later than its client.
func notifyOfUpdate(t *testing.T, b *harness.Backend, clients map[string]notified) {
	t.Helper()
	before := map[string]int{}
	for revision, c := range clients {
		before[revision] = c.received(updateMethod)
	}
	all := func() bool {
		for revision, c := range clients {
			if c.received(updateMethod) == before[revision] {
				return false
			}
		}
		return true
	}
	harness.Eventually(t, harness.Patience, "an update reaches all", func() bool {
		b.UpdateResource(t, watched)
		return harness.Within(t, time.Second, all) // send one at a time, so that none is in progress afterwards
	})
}

// notifyOfChange makes the backend announce a change of its tools, and waits until all clients have been notified.
func notifyOfChange(t *testing.T, b *harness.Backend, clients map[string]notified) {
	t.Helper()
	before := map[string]int{}
	for revision, c := range clients {
		before[revision] = c.received(toolsChangedMethod)
	}
	b.ChangeList(t, "tools")
	for revision, c := range clients {
		harness.Eventually(t, harness.Patience, "the change reaches "+revision, func() bool { return c.received(toolsChangedMethod) > before[revision] })
	}
}
