//go:build unix

package fleet

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/test/backend"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestStoreRequestsOfACall counts what a proxied call asks the store, without and with a question of
// the backend. docs/reference/gateway.md has the numbers.
func TestStoreRequestsOfACall(t *testing.T) {
	var all []api.Backend
	for prefix, kind := range map[string]backend.Kind{"s25_": backend.Stateful, "s26_": backend.Stateless} {
		b := harness.StartBackend(t, kind)
		all = append(all, api.Backend{Name: prefix[:3], URL: b.URL, Prefix: prefix, Workspace: "default", ProtocolVersion: api.AutoVersion})
	}
	p := &pair{fleet: newFleet(t, fleetOptions{instances: 1, backends: all, principals: soakers(), alone: true})}
	p.open(t)
	store := p.instances[0].store
	for _, x := range []struct {
		client, prefix, tool string
		reads, writes        int64
	}{
		{"2025", "s25_", "test_echo", 3, 0},
		{"2026", "s26_", "test_echo", 1, 0},
		{"2026", "s25_", "test_echo", 2, 0},
		{"2025", "s26_", "test_echo", 2, 0},
		// A question is written. Its answer reads the session and the question, claims the question so that a second answer
		// at the same time does not reach the backend, and deletes it. The end of the call deletes it again, because the answer
		// may have come in at another instance.
		{"2025", "s25_", "test_elicitation", 5, 4},
		{"2026", "s26_", "test_elicitation", 2, 0},
		{"2026", "s25_", "test_elicitation", 4, 0},
	} {
		t.Run(fmt.Sprintf("client %s, backend %s, %s", x.client, x.prefix, x.tool), func(t *testing.T) {
			c := newCaller(p.Stateless("p0"), http.DefaultTransport)
			if x.client == "2025" {
				c = p.session(t, "p0")
			}
			call := func(n int) {
				r := request{tool: x.prefix + x.tool, mark: "mk-cost-0-end", id: json.RawMessage(fmt.Sprint(n)), arguments: map[string]any{"message": "m"}}
				o, err := c.call(t.Context(), r)
				must(t, err)
				if o.response == nil || o.response.Error != nil {
					t.Fatal(o.text())
				}
			}
			call(0) // what is only needed once
			time.Sleep(50 * time.Millisecond)
			reads, writes := store.reads.Load(), store.writes.Load()
			const calls = 10
			for n := range calls {
				call(n + 1)
			}
			time.Sleep(50 * time.Millisecond) // what a call leaves behind goes after its response
			perRead, perWrite := store.reads.Load()-reads, store.writes.Load()-writes
			t.Logf("%.1f reads and %.1f writes a call", float64(perRead)/calls, float64(perWrite)/calls)
			if perRead/calls > x.reads || perWrite/calls > x.writes { // what goes on beside the calls is less than one each
				t.Errorf("more than %d reads and %d writes", x.reads, x.writes)
			}
		})
	}
}
