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

// TestBench has the command measure the gateway, with few calls: all that it prints is there. How
// long things take is not looked at, but for GWN-09: half of the progress messages are no more than 50 ms
// under way, if the machine is not too busy three times in a row.
func TestBench(t *testing.T) {
	slow := ""
	for range 3 {
		if slow = benched(t); slow == "" {
			return
		}
	}
	t.Errorf("progress is slow: %s", slow)
}

// benched checks that the command prints all that it is to print, and returns the lines of progress that are too slow.
func benched(t *testing.T) (slow string) {
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
