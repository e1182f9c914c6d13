//go:build unix

package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"

	"github.com/mcp-events/mcpevents/test/backend"
	"github.com/mcp-events/mcpevents/test/expect"
)

// Backend is an MCP server as a process, to stand behind the gateway.
type Backend struct {
	// URL is its MCP endpoint. It stays the same over restarts.
	URL  string
	Kind backend.Kind

	tb   testing.TB
	base string
	addr string
	p    *process
	out  *expect.Buffer
}

// StartBackend starts a backend of package backend, and ends it with the test.
func StartBackend(tb testing.TB, kind backend.Kind) *Backend {
	tb.Helper()
	b := &Backend{Kind: kind, tb: tb, addr: FreeAddr(tb), out: new(expect.Buffer)}
	b.base = "http://" + b.addr
	b.URL = b.base + "/mcp"
	b.Start()
	tb.Cleanup(func() {
		if err := b.p.stop(); err != nil {
			tb.Errorf("end the %s backend: %v", kind, err)
		}
		keepOutput(tb, "the "+string(kind)+" backend", b.out)
	})
	return b
}

// Start starts it, again if it was killed: without the sessions it had.
func (b *Backend) Start() {
	b.tb.Helper()
	p, err := begin(b.tb.TempDir(), nil, b.out, Binary(b.tb, "./test/backend/mcpbackend", false), "--kind", string(b.Kind), "--addr", b.addr)
	expect.OK(b.tb, err)
	b.p = p
	Eventually(b.tb, Patience, "the "+string(b.Kind)+" backend answers", func() bool {
		select {
		case <-p.ended:
			b.tb.Fatalf("the %s backend ended: %v\n%s", b.Kind, p.err, b.out.Tail(4<<10))
		default:
		}
		resp, err := plain.Get(b.base + "/healthz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// Kill ends it with SIGKILL.
func (b *Backend) Kill() { b.p.kill() }

// State returns the requests that the backend has seen since it started.
func (b *Backend) State(tb testing.TB) (s backend.State) {
	tb.Helper()
	resp, err := plain.Get(b.base + "/state")
	expect.OK(tb, err)
	defer resp.Body.Close()
	expect.OK(tb, json.NewDecoder(resp.Body).Decode(&s))
	return s
}

// ChangeList lets it announce a change of its "tools", "prompts" or "resources".
func (b *Backend) ChangeList(tb testing.TB, list string) {
	tb.Helper()
	b.change(tb, "list", list)
}

// AddTool lets it have one more tool.
func (b *Backend) AddTool(tb testing.TB, name string) {
	tb.Helper()
	b.change(tb, "tool", name)
}

// UpdateResource lets it announce a change of a resource.
func (b *Backend) UpdateResource(tb testing.TB, uri string) {
	tb.Helper()
	b.change(tb, "uri", uri)
}

func (b *Backend) change(tb testing.TB, name, value string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.base+"/changed?"+url.Values{name: {value}}.Encode(), nil)
	expect.OK(tb, err)
	resp, err := plain.Do(req)
	expect.OK(tb, err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		tb.Fatalf("change %s %s: status %d: %s", name, value, resp.StatusCode, why)
	}
}

// Config returns the backend's entry below "backends:" in config.yaml. The prefix may be empty. more holds further lines
// with their indentation.
func (b *Backend) Config(name, prefix, more string) string {
	return fmt.Sprintf("  - name: %s\n    url: %s\n    prefix: %q\n%s", name, b.URL, prefix, more)
}
