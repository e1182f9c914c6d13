//go:build unix

package conformance

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/mcp-events/mcpevents/test/backend"
	"github.com/mcp-events/mcpevents/test/backend/tasks"
	"github.com/mcp-events/mcpevents/test/harness"
)

func TestMain(m *testing.M) {
	code := harness.Main(m)
	for _, r := range reports.all {
		r.print(os.Stdout)
	}
	fmt.Println()
	for _, r := range reports.all {
		fmt.Println(r.score())
	}
	if *record {
		if err := writeBaseline(reports.all); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// reports are printed when all tests have ended.
var reports struct {
	sync.Mutex
	all []*report
}

// keep keeps a report for the end.
func keep(r *report) *report {
	reports.Lock()
	defer reports.Unlock()
	reports.all = append(reports.all, r)
	return r
}

// set is a revision, the backend that speaks it and the one that does not, and
// what the suite asks of a server that has everything.
type set struct {
	revision          string
	native, other     backend.Kind
	scenarios, checks int
}

var sets = []set{
	{harness.V20251125, backend.Stateful, backend.Stateless, 30, 70},
	{harness.V20260728, backend.Stateless, backend.Stateful, 37, 121},
}

// TestBackends shows that the backends pass the suite without the gateway, so that a failure behind the gateway is the
// gateway's fault.
func TestBackends(t *testing.T) {
	for _, set := range sets {
		t.Run(set.revision, func(t *testing.T) {
			t.Parallel()
			b := harness.StartBackend(t, set.native)
			perfect(t, keep(patient(t, "the backend alone", b.URL, set.revision)), set)
		})
	}
}

// perfect wants every scenario and every check that the suite makes.
func perfect(t *testing.T, r *report, set set) {
	t.Helper()
	if passed, all := r.scenarios(); passed != set.scenarios || all != set.scenarios {
		t.Errorf("%d of %d scenarios passed, want %d", passed, all, set.scenarios)
	}
	if passed, all := r.checks(); passed != all || all != set.checks {
		t.Errorf("%d of %d checks passed, want %d", passed, all, set.checks)
	}
}

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
