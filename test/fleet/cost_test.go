//go:build unix

package fleet

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/test/backend"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestStoreRequestsOfACall counts the store requests of a proxied call, with and without a question from
// the backend. docs/reference/gateway.md has the numbers.
func TestStoreRequestsOfACall(t *testing.T) {
	var all []api.Backend
	for prefix, kind := range map[string]backend.Kind{"s25_": backend.Stateful, "s26_": backend.Stateless} {
		b := harness.StartBackend(t, kind)
		all = append(all, api.Backend{Name: prefix[:3], URL: b.URL, Prefix: prefix, Workspace: "default", ProtocolVersion: api.AutoVersion})
	}
	p := &pair{fleet: newFleet(t, fleetOptions{instances: 1, backends: all, principals: soakers(), noRelay: true})}
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
				o := expect.Value(c.call(t.Context(), r))(t)
				if o.response == nil || o.response.Error != nil {
					t.Fatal(o.text())
				}
			}
			call(0) // makes the requests that are needed only once
			time.Sleep(50 * time.Millisecond)
			reads, writes := store.reads.Load(), store.writes.Load()
			const calls = 10
			for n := range calls {
				call(n + 1)
			}
			time.Sleep(50 * time.Millisecond) // a call is cleaned up after its response
			perRead, perWrite := store.reads.Load()-reads, store.writes.Load()-writes
			t.Logf("%.1f reads and %.1f writes per call", float64(perRead)/calls, float64(perWrite)/calls)
			if perRead/calls > x.reads || perWrite/calls > x.writes { // integer division forgives background requests, which are fewer than the calls
				t.Errorf("got %d reads and %d writes per call, want at most %d and %d", perRead/calls, perWrite/calls, x.reads, x.writes)
			}
		})
	}
}

// TestBench measures the gateway with `mcpevents bench --gateway` and few calls, and checks that all figures are printed.
func TestBench(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), harness.Binary(t, "./cmd/mcpevents", false), "bench", "--gateway", "--calls", "20", "--sessions", "20").CombinedOutput()
	expect.OK(t, err, out)
	lines := 0
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "  client ") {
			continue
		}
		lines++
		f := strings.Fields(line) // client V, backend V direct50 direct99 over50 over99 added50 added99
		expect.MustEqual(t, "the number of values in "+line, len(f), 10)
		expect.OK(t, expect.ErrOf(time.ParseDuration(f[6])), line)
	}
	for _, figure := range []string{"last stream: median", "events of a backend, one at a time, 20\n", "20 idle sessions of 2025-11-25"} {
		expect.Equal(t, "the lines", lines, 6)
		expect.Contains(t, "the output", string(out), figure)
	}
}
