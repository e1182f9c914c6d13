package gateway

import "testing"

// GWN-17: clients of 2026-07-28 must leave out a tool whose x-mcp-header is invalid. The gateway is such a client of a stateless backend,
// and without the header it could not call the tool for a client with a session. In earlier revisions, the annotation has no meaning.
func TestToolsWithAnInvalidHeaderAreNotListed(t *testing.T) {
	revisions(t, func(t *testing.T, stateless bool) {
		_, g := alone(t, func(s *scripted) {
			s.stateless = stateless
			s.lists = func(method, _ string) string {
				if method != "tools/list" {
					return emptyList(method)
				}
				return `{"tools":[
					{"name":"good","inputSchema":{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"A"}}}},
					{"name":"bad","inputSchema":{"type":"object","properties":{"a":{"type":"number","x-mcp-header":"A"}}}}]}`
			}
		})
		want := []string{"good", "bad"}
		if stateless {
			want = []string{"good"}
		}
		sees(t, g, sessionBased("s"), want...)
		sees(t, g, statelessClient(ann), want...)
	})
}
