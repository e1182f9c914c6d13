package subscription

import (
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/match"
)

// BenchmarkReview is what looking at a subscription costs before a delivery.
func BenchmarkReview(b *testing.B) {
	cat := parse(b, patternCatalog)
	for name, p := range map[string]match.Pattern{
		"fixed":  match.ForEntry(cat.ByName("ci.build_finished"), nil),
		"parent": {Kind: match.Parent, Key: "event://github/acme/**"},
	} {
		b.Run(name, func(b *testing.B) {
			r := &Review{Catalog: catalog.NewStatic(cat)}
			s := Subscriber{Principal: "alice", Entry: p.Entry, Grant: Grant{Scopes: auth.Scopes()}}
			if p.Entry != "" {
				s.Contract = cat.ByName(p.Entry).ContractID()
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Subscriber(b.Context(), "default", p.Key, &s, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
