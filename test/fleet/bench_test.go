//go:build unix

package fleet

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestBench measures the gateway with `mcpevents bench --gateway` and few calls, and checks that all figures are printed.
func TestBench(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), harness.Binary(t, "./cmd/mcpevents", false), "bench", "--gateway", "--calls", "20", "--sessions", "20").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lines := 0
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "  client ") {
			continue
		}
		lines++
		f := strings.Fields(line) // client V, backend V direct50 direct99 over50 over99 added50 added99
		if len(f) != 10 {
			t.Fatalf("%q", line)
		}
		if _, err := time.ParseDuration(f[6]); err != nil {
			t.Errorf("%v: %s", err, line)
		}
	}
	for _, figure := range []string{"last stream: median", "events of a backend, one at a time, 20\n", "20 idle sessions of 2025-11-25"} {
		if lines != 6 || !strings.Contains(string(out), figure) {
			t.Errorf("it printed %s, want %q and six lines of clients", out, figure)
		}
	}
}
