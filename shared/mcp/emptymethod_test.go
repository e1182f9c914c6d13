package mcp

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// A request with an empty method gets an error immediately, in each revision. The gateway does not forward it.
func TestEmptyMethod(t *testing.T) {
	const empty = `{"jsonrpc":"2.0","id":1,"method":"","params":{}}`
	for _, revision := range []string{"without a backend", "a stateless backend", "a session-based backend"} {
		t.Run(revision, func(t *testing.T) {
			var b *lister
			f := newFixture(t, nil)
			if revision != "without a backend" {
				b = startLister(t, "plain", revision == "a stateless backend", "tool")
				f = behindGateway(t, nil, b)
				f.wholeList(t, spec.MethodToolsList, "", nil)
			}
			dialect := f.request("POST", alice, empty, "Accept:", "Accept: application/json")
			dialect.URL.Path = dialectPath
			for name, r := range map[string]*http.Request{
				"2025-11-25":                     f.request("POST", alice, empty, "Mcp-Session-Id: "+f.session(alice, spec.V20251125)),
				"2025-03-26, in a batch":         f.request("POST", alice, "["+empty+"]", "Mcp-Session-Id: "+f.session(alice, spec.V20250326)),
				"2026-07-28":                     f.request("POST", alice, statelessBody("1", "", ""), statelessHeaders("", "")...),
				"2026-07-28, without the header": f.request("POST", alice, statelessBody("1", "", ""), "Mcp-Protocol-Version: 2026-07-28"),
				"the dialect":                    dialect,
			} {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				got := f.answer(r.WithContext(ctx))
				cancel()
				got.Body = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(got.Body), "["), "]")
				got.fails(t, name, jsonrpc.InvalidRequest, "")
				expect.Equal(t, "the id of the error", string(got.rpc(t).ID), "1")
			}
			if b == nil {
				return
			}
			b.set(func() {
				if len(b.methods) == 0 || slices.Contains(b.methods, "") {
					t.Errorf("the backend received %q, want no empty method", b.methods)
				}
			})
		})
	}
}
