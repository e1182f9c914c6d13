//go:build unix

package conformance

import (
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
	"testing"

	"github.com/mcp-events/mcpevents/test/backend"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

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
