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

// TestGateway shows a backend behind the endpoint, whichever revision it and its
// clients speak.
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

// told is a client with its notification stream.
type told struct {
	*harness.Client
	stream *harness.Stream
}

// heard counts the messages of a method so far; of updates those of the watched resource.
func (f told) heard(method string) (n int) {
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

// both are one client of each era, told of changes of tools and of the watched resource.
func both(t *testing.T, s *harness.Target, principal string) map[string]told {
	t.Helper()
	modern, legacy := s.Modern(principal), s.Legacy(t, principal, harness.Legacy)
	stream := legacy.Open(t, "")
	legacy.Call(t, "resources/subscribe", object{"uri": watched}, nil)
	return map[string]told{
		"2025": {legacy, stream},
		"2026": {modern, modern.Listen(t, 1, object{"toolsListChanged": true, "resourceSubscriptions": []string{watched}}, nil)},
	}
}

func throughGateway(t *testing.T, s *harness.Target, b *harness.Backend) {
	clients := both(t, s, "alice")
	const tool = "b_test_tool_with_progress"
	for era, c := range clients {
		t.Run("GWN-01 list "+era, func(t *testing.T) {
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
		t.Run("GWN-09 progress "+era, func(t *testing.T) {
			st := c.Stream(t, "call", "tools/call", object{
				"name": tool, "arguments": object{}, "_meta": object{"progressToken": "token-" + era},
			})
			last := -1.0
			for n := 0; ; n++ {
				m := st.Next(t)
				if m.Method == "" {
					if string(m.ID) != `"call"` || m.Result == nil || n < 3 {
						t.Errorf("behind %d messages the response is %s", n, m.Raw)
					}
					return
				}
				p := decode[struct {
					ProgressToken string
					Progress      float64
				}](t, m.Params)
				if m.Method != "notifications/progress" || p.ProgressToken != "token-"+era || p.Progress <= last {
					t.Errorf("message %d is %s", n, m.Raw)
				}
				last = p.Progress
			}
		})
	}
	t.Run("GWN-04 a change of the tools reaches each stream once", func(t *testing.T) {
		before := len(clients["2026"].All(t, "tools/list", "tools"))
		foreign := s.Modern("foreign").Listen(t, 1, object{"toolsListChanged": true, "resourceSubscriptions": []string{watched}}, nil)
		b.ChangeList(t, "tools")
		for era, c := range clients {
			harness.Eventually(t, harness.Patience, "the change reaches "+era, func() bool { return c.heard(toolsChangedMethod) > 0 })
			if n := len(c.All(t, "tools/list", "tools")); n == before {
				t.Errorf("%s: behind the notification the list is the old one, of %d tools", era, n)
			}
		}
		// What is told of later than the change shows that it does not come again.
		tellOfUpdate(t, b, clients)
		for era, c := range clients {
			if n := c.heard(toolsChangedMethod); n != 1 {
				t.Errorf("%s: the change came %d times", era, n)
			}
		}
		for _, m := range foreign.Messages() {
			if m.Method == toolsChangedMethod || m.Method == updateMethod {
				t.Errorf("another workspace was told %s", m.Raw)
			}
		}
	})
	t.Run("GWN-04 an update reaches each stream once", func(t *testing.T) {
		tellOfChange(t, b, clients) // behind it no earlier update is under way
		before := map[string]int{}
		for era, c := range clients {
			before[era] = c.heard(updateMethod)
		}
		b.UpdateResource(t, watched)
		for era, c := range clients {
			harness.Eventually(t, harness.Patience, "the update reaches "+era, func() bool { return c.heard(updateMethod) > before[era] })
		}
		tellOfChange(t, b, clients)
		for era, c := range clients {
			if n := c.heard(updateMethod) - before[era]; n != 1 {
				t.Errorf("%s: the update came %d times", era, n)
			}
		}
	})
	t.Run("GWN-07 GWN-08 GWN-14 a backend that was away", func(t *testing.T) {
		b.Kill()
		for _, c := range clients {
			c.Refused(t, 503, "tools/call", object{"name": tool, "arguments": object{}})
		}
		b.Start()
		tellOfUpdate(t, b, clients)
		for era, c := range clients {
			var result json.RawMessage
			c.Call(t, "tools/call", object{"name": tool, "arguments": object{}}, &result)
			if len(result) == 0 {
				t.Errorf("%s: no result", era)
			}
		}
	})
}

// tellOfUpdate has the backend tell of updates until one is everywhere: the gateway subscribes there
// a moment after its client did.
func tellOfUpdate(t *testing.T, b *harness.Backend, clients map[string]told) {
	t.Helper()
	before := map[string]int{}
	for era, c := range clients {
		before[era] = c.heard(updateMethod)
	}
	all := func() bool {
		for era, c := range clients {
			if c.heard(updateMethod) == before[era] {
				return false
			}
		}
		return true
	}
	harness.Eventually(t, harness.Patience, "an update reaches all", func() bool {
		b.UpdateResource(t, watched)
		return harness.Within(t, time.Second, all) // one at a time, so that none is under way afterwards
	})
}

// tellOfChange has the backend tell of a change of its tools, and waits until all know of it.
func tellOfChange(t *testing.T, b *harness.Backend, clients map[string]told) {
	t.Helper()
	before := map[string]int{}
	for era, c := range clients {
		before[era] = c.heard(toolsChangedMethod)
	}
	b.ChangeList(t, "tools")
	for era, c := range clients {
		harness.Eventually(t, harness.Patience, "the change reaches "+era, func() bool { return c.heard(toolsChangedMethod) > before[era] })
	}
}
