package review

import (
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/test/expect"
)

// BenchmarkReview measures the check of a subscriber before a delivery.
func BenchmarkReview(b *testing.B) {
	cat := expect.Value(catalog.Parse([]byte(`events:
  - {name: ci.build_finished, uri: event://ci/build-finished}
  - {name: github.push, uriTemplate: "event://github/{owner}/{repo}/push"}
`)))(b)
	for name, p := range map[string]match.Pattern{
		"fixed":  match.ForEntry(cat.ByName("ci.build_finished"), nil),
		"parent": {Kind: match.Parent, Key: "event://github/acme/**"},
	} {
		b.Run(name, func(b *testing.B) {
			r := &Review{Catalog: catalog.NewStatic(cat)}
			s := subscription.Subscriber{Principal: "alice", Entry: p.Entry, Grant: subscription.Grant{Scopes: auth.Scopes()}}
			if p.Entry != "" {
				s.Contract = cat.ByName(p.Entry).ContractID()
			}
			b.ReportAllocs()
			for b.Loop() {
				expect.OK(b, expect.ErrOf(r.Subscriber(b.Context(), "default", p.Key, &s, false)))
			}
		})
	}
}
