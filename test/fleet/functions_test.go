//go:build unix

package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/harness"
)

// functions is a stage on which the real Lambda functions serve the clients, on local AWS.
type functions struct {
	*harness.AWS
	t testing.TB
}

const functionsCatalog = fleetCatalog + "  - {name: a.c, uriTemplate: \"event://a/c/{d}\", title: T, description: D, payloadSchema: {type: object}}\n"

// endTime is the part of an invocation that is reserved for ending it. The call gets the rest.
const endTime = 9 * time.Second

// startFunctions starts the functions in front of the backends. A call takes at most bound. With managed, a process
// serves many requests concurrently, otherwise one at a time.
func startFunctions(t testing.TB, backends []api.Backend, bound time.Duration, managed bool) *functions {
	t.Helper()
	text := "backends:\n"
	for _, b := range backends {
		text += fmt.Sprintf("  - {name: %s, url: %q, prefix: %s, protocolVersion: %q}\n", b.Name, b.URL, b.Prefix, b.ProtocolVersion)
	}
	var callers []harness.Caller
	for _, p := range slices.Backward(soakers()) { // StartAWS checks with the first caller that the catalog is in use, so it must not be the stranger
		callers = append(callers, harness.Caller{
			Principal: p.name, Workspace: p.workspace, Scopes: []string{auth.ScopeRead, auth.ScopeSubscribe},
		})
	}
	o := harness.AWSOptions{Callers: callers, Config: text, Catalog: functionsCatalog, StreamTime: bound + endTime}
	if managed {
		o.Managed = runner.Managed{Instances: 2, AtOnce: 200}
	}
	f := &functions{AWS: harness.StartAWS(t, o), t: t}
	f.ApplyCatalog(t, "elsewhere", functionsCatalog)
	harness.Eventually(t, harness.Patience, "the stranger has a catalog", func() bool {
		list, err := f.Stateless("stranger").Try(t.Context(), "resources/list", nil)
		return err == nil && list.Error == nil
	})
	return f
}

func (f *functions) open(testing.TB) *harness.Target { return &f.Target }

func (f *functions) shut() {}

func (f *functions) lastLog(limit int) string { return f.Last(limit) }

func (f *functions) sessionKeys(ctx context.Context, prefix string) ([]store.Key, error) {
	return f.Sessions(ctx, f.t, prefix)
}

func (f *functions) storeRequests() string {
	var counts []string
	for operation, n := range f.Requests()["StreamFunction"]["DynamoDB"] {
		counts = append(counts, fmt.Sprintf("%d %s", n.Requests, operation))
	}
	invocations, failures, throttles, starts := f.Stats()
	if failures+throttles > 0 {
		f.t.Errorf("%d invocations failed and %d were throttled, want 0 of both", failures, throttles)
	}
	return fmt.Sprintf("%d invocations in %d processes; requests: %s", invocations, starts, strings.Join(counts, ", "))
}

// idle reports whether all processes are idle, so that no invocation waits for a client or a backend.
func (f *functions) idle() (status string, ok bool) {
	n := f.AtWork()
	return fmt.Sprintf("%d busy processes", n), n == 0
}
