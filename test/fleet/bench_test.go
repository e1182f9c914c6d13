//go:build unix

package fleet

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestBench measures the gateway with `mcpevents bench --gateway` and few calls, and checks that all figures are printed.
// It checks only one of the times: the median delay of progress messages is at most 50 ms (GWN-09). Because the machine may be
// busy, one of three runs is enough.
func TestBench(t *testing.T) {
	slow := ""
	for range 3 {
		if slow = runBench(t); slow == "" {
			return
		}
	}
	t.Errorf("progress is slow: %s", slow)
}

// runBench checks that the command prints all figures, and returns the lines of progress messages that are too slow.
func runBench(t *testing.T) (slow string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, harness.Binary(t, "./cmd/mcpevents", false), "bench", "--gateway", "--calls", "20").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	progress := false
	lines := 0
	for line := range strings.Lines(string(out)) {
		progress = progress || strings.HasPrefix(line, "progress message")
		if !strings.HasPrefix(line, "  client ") {
			continue
		}
		lines++
		f := strings.Fields(line) // client V, backend V direct50 direct99 over50 over99 added50 added99
		if len(f) != 10 {
			t.Fatalf("%q", line)
		}
		took, err := time.ParseDuration(f[6])
		if err != nil {
			t.Errorf("%v: %s", err, line)
		}
		if progress && took > 50*time.Millisecond {
			slow += line
		}
	}
	if lines != 6 || !strings.Contains(string(out), "last stream: median") {
		t.Errorf("it tells %s", out)
	}
	return slow
}
