//go:build unix

package conformance

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-events/mcpevents/test/backend"
	"github.com/mcp-events/mcpevents/test/backend/tasks"
	"github.com/mcp-events/mcpevents/test/expect"
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

// The targets of the baseline.
const (
	embedded = "embedded"
	localAWS = "local AWS"
	crossed  = "embedded, over the other revision"
	commands = "embedded, over a command"
)

// streamLists is the setting by which all lists are answered on streams. The suite looks at
// such streams only where there are some.
const streamLists = "MCPEVENTS_ANSWER_STREAM_AFTER"

// behind starts the stand-alone server with a backend behind it.
func behind(t *testing.T, kind backend.Kind) *harness.Server {
	t.Helper()
	b := harness.StartBackend(t, kind)
	return harness.StartServer(t, harness.ServerOptions{
		Auth: "none", Config: "backends:\n" + b.Config("fixtures", "", ""), Env: []string{streamLists + "=0s"},
	})
}

// patient runs the scenarios, and runs them once more if the result differs from the baseline, because the suite waits only
// a second or two for notifications, and a busy machine may need longer.
func patient(t *testing.T, target, url, revision string) *report {
	t.Helper()
	r := run(t, target, url, revision)
	if known, err := readBaseline(); err == nil && len(compare(r, known)) > 0 {
		t.Logf("once more, for %q", compare(r, known))
		r = run(t, target, url, revision)
	}
	return r
}

// complete shows the requirement if the baseline has no entry for the target.
func complete(t *testing.T, r *report, set set) {
	t.Helper()
	if len(listed(t, r)) == 0 {
		t.Run("GWN-18 "+r.target+" "+r.revision, func(t *testing.T) { perfect(t, r, set) })
	}
}

// TestGateway runs the suite through the embedded gateway.
func TestGateway(t *testing.T) {
	for _, set := range sets {
		t.Run(set.revision, func(t *testing.T) {
			t.Parallel()
			r := keep(patient(t, embedded, behind(t, set.native).MCP, set.revision))
			hold(t, r)
			complete(t, r, set)
		})
	}
}

// TestGatewayToACommand runs the suite through the embedded gateway, which starts the backend as a command.
func TestGatewayToACommand(t *testing.T) {
	for _, set := range sets {
		t.Run("GWN-26 "+set.revision, func(t *testing.T) {
			t.Parallel()
			command := fmt.Sprintf("[%q, --stdio, --kind, %s]", harness.Binary(t, "./test/backend/mcpbackend", false), set.native)
			s := harness.StartServer(t, harness.ServerOptions{
				Auth: "none", Config: "backends:\n  - {name: fixtures, command: " + command + "}\n", Env: []string{streamLists + "=0s"},
			})
			hold(t, keep(patient(t, commands, s.MCP, set.revision)))
		})
	}
}

// TestCrossedRevisions runs the suite of each revision over a backend of the other.
func TestCrossedRevisions(t *testing.T) {
	for _, set := range sets {
		t.Run(set.revision+" over "+string(set.other), func(t *testing.T) {
			t.Parallel()
			hold(t, keep(patient(t, crossed, behind(t, set.other).MCP, set.revision)))
		})
	}
}

// TestLocalAWS runs the suite through the functions: one deployment, in which each
// of two workspaces has a backend.
func TestLocalAWS(t *testing.T) {
	callers := map[string]string{"default": "alice", "elsewhere": "foreign"}
	doors, config, origins := map[string]*door{}, "backends:\n", []string{}
	var backends []*harness.Backend
	for i, workspace := range slices.Sorted(maps.Keys(callers)) {
		b := harness.StartBackend(t, sets[i].native)
		backends = append(backends, b)
		config += b.Config(string(b.Kind), "", "    workspace: "+workspace+"\n")
		doors[sets[i].revision] = openDoor(t, callers[workspace])
		origins = append(origins, doors[sets[i].revision].url)
	}
	a := harness.StartAWS(t, harness.AWSOptions{
		Config: config,
		// The suite looks whether a page of the server's own origin may call it.
		Env: map[string]string{"MCPEVENTS_ALLOWED_ORIGINS": strings.Join(origins, ","), streamLists: "0s"},
	})
	catalog, err := os.ReadFile(filepath.Join(harness.Root(t), "catalog.yaml"))
	expect.OK(t, err)
	a.ApplyCatalog(t, "elsewhere", string(catalog))
	harness.Eventually(t, harness.Patience, "the functions use the catalog of the other workspace", func() bool {
		list, err := a.Stateless("foreign").Try(t.Context(), "resources/list", nil)
		return err == nil && list.Error == nil
	})
	for _, b := range backends {
		harness.Eventually(t, harness.Patience, "relay listens to the "+string(b.Kind)+" backend", func() bool {
			s := b.State(t)
			return s.Streams+s.Listens > 0
		})
	}
	for _, set := range sets {
		t.Run(set.revision, func(t *testing.T) {
			t.Parallel()
			r := keep(patient(t, localAWS, doors[set.revision].to(t, a.Target), set.revision))
			hold(t, r)
			complete(t, r, set)
		})
	}
}

// door is a proxy that adds a caller's key to requests, because the suite cannot. It passes on everything else unchanged,
// including the Host and Origin that the suite forges.
type door struct {
	url, caller string
	server      *url.URL
	key         string
}

func openDoor(t *testing.T, caller string) *door {
	t.Helper()
	d := &door{caller: caller}
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		FlushInterval: -1, // streams
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = d.server.Scheme, d.server.Host
			r.Out.Header.Set("Authorization", "Bearer "+d.key)
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	})
	t.Cleanup(proxy.Close)
	d.url = proxy.URL
	return d
}

// to says where it leads, and returns the URL that leads there.
func (d *door) to(t *testing.T, target harness.Target) string {
	t.Helper()
	var err error
	d.server, err = url.Parse(target.MCP)
	expect.OK(t, err)
	d.key = target.Keys[d.caller]
	return d.url + d.server.Path
}
