package gateway

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/test/expect"
)

// GWN-15: for every pair of revisions, a backend cannot forge members of _meta that only the gateway sets, in the response to a call,
// within the call or in a list. Other members, including the ones that the protocol assigns to servers, reach the client.
func TestBackendCannotForgeOurMembers(t *testing.T) {
	const (
		kept = `"io.modelcontextprotocol/related-task":{"taskId":"1"},"com.example/n":9007199254740993`
		meta = `"_meta":{"io.github.mcp-events/cursor":"forged","io.github.mcp-events/eventId":"forged",` + kept + `}`
	)
	revisions(t, func(t *testing.T, stateless bool) {
		s, g := alone(t, func(s *scripted) {
			s.stateless = stateless
			s.call = func(t *turn) {
				token := jsonrpc.Member(jsonrpc.Member(t.Params, "_meta"), "progressToken")
				t.notify("notifications/progress", fmt.Sprintf(`{"progressToken":%s,"progress":1,%s}`, token, meta))
				t.result(`{"content":[{"type":"text","text":"t",` + meta + `}],` + meta + `}`)
			}
		})
		s.list(func(method, _ string) string {
			if method != "tools/list" {
				return emptyList(method)
			}
			return `{"tools":[{"name":"t","inputSchema":{"type":"object"},` + meta + `}],` + meta + `}`
		})
		for _, version := range []string{v2025, v2026} {
			x := start(t, g, someone(version), "t", "1", `{"name":"t","_meta":{"progressToken":"p"}}`)
			expect.OK(t, x.end(t))
			received := []string{x.next(t).text, x.next(t).text}
			for _, entry := range g.List(t.Context(), someone(version), api.Tools).Entries {
				received = append(received, string(entry.JSON))
			}
			expect.Equal(t, "messages and entries", len(received), 3)
			for _, text := range received {
				if strings.Contains(text, "forged") || !strings.Contains(text, kept) {
					t.Errorf("client of %s: got %s, want no member that is ours, and %s", version, text, kept)
				}
			}
		}
	})
}
