//go:build unix

package conformance

import (
	"context"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/mcp-events/mcpevents/test/backend/tasks"
	"github.com/mcp-events/mcpevents/test/harness"
)

// taskScenarios are the suite's scenarios for the tasks extension, which no revision requires. The suite skips its scenario about
// notifications, see e2e.TestTasks for them.
var taskScenarios = []string{
	"tasks-lifecycle", "tasks-capability-negotiation", "tasks-wire-fields", "tasks-request-state-removal", "tasks-mrtr-input",
	"tasks-request-headers", "tasks-dispatch-and-envelope", "tasks-required-task-error", "tasks-mrtr-composition",
}

// TestTasks runs the suite's scenarios for the tasks extension through the gateway.
func TestTasks(t *testing.T) {
	t.Parallel()
	b := httptest.NewServer(tasks.New())
	t.Cleanup(func() {
		b.CloseClientConnections()
		b.Close()
	})
	s := harness.StartServer(t, harness.ServerOptions{Auth: "none", Config: fmt.Sprintf("backends:\n  - {name: tasks, url: %q}\n", b.URL)})
	js := harness.NodeIn(t, filepath.Join("test", "conformance", "js"))
	for _, scenario := range taskScenarios {
		t.Run("GWN-23 "+scenario, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			out, err := js.Command(ctx, suite+"/dist/index.js", "server", "--url", s.MCP, "--scenario", scenario, "--spec-version", "2026-07-28", "--force", "--timeout", "30000", "-o", dir).CombinedOutput()
			r, ok := results(t, dir)[scenario]
			if !ok || !r.ok() {
				t.Errorf("%d checks passed, %d failed, %d warned: %v, %v\n%s", r.passed, r.failed, r.warned, r.flaws, err, tail(out))
			}
			t.Logf("%d checks passed", r.passed)
		})
	}
}
