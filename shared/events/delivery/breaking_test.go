package delivery

import (
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
)

// EVX-17: operators see which subscriptions a catalog would end before they use it, and that check ends none.
func TestWhatACatalogWouldEnd(t *testing.T) {
	for name, c := range map[string]struct {
		change []string
		revoke bool
		used   bool // already
		before bool // none is in use: the database is of a version before
		want   string
	}{
		"a member that is required":        {change: []string{payload, required}, want: "would end 2 live webhook subscriptions: 2 in workspace default because ci.build_finished changed incompatibly (the payload schema changes at /required (ok));"},
		"the same, which is in use":        {change: []string{payload, required}, used: true},
		"the same, after a version before": {change: []string{payload, required}, before: true, want: "would end 2 live webhook subscriptions"},
		"an event type that is gone":       {change: []string{"ci.build_finished", "ci.renamed"}, want: "2 in workspace default because the event type ci.build_finished was removed"},
		"no webhooks":                      {change: []string{buildType, pushOnly}, want: "because ci.build_finished is not delivered by webhook"},
		"a rule that is not met":           {change: []string{buildType, restricted}, want: "because access was revoked"},
		"an addition":                      {change: []string{payload, optional}},
		"nothing":                          {},
		"a key that is gone":               {change: []string{payload, optional}, before: true, revoke: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			keys := &roster{[]auth.Principal{r.principal()}}
			r.directory = keys
			plain, events := r.register("event://ci/build-finished"), r.subscribe()
			if c.revoke {
				keys.keys = nil
			}
			cat, err := catalog.Parse([]byte(strings.NewReplacer(c.change...).Replace(testCatalog)))
			if err != nil {
				t.Fatal(err)
			}
			if c.used {
				r.change(c.change...)
			}
			if c.before {
				r.catalogs = catalog.Workspaces{}
			}
			endings, err := r.terminator(mortal{r.db, r}, r.services).Endings(t.Context(), catalog.NewStatic(cat))
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if err := lifecycle.Breaking(endings); err != nil {
				got = err.Error()
			}
			if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if !r.served(plain.ID) || !r.served(events.ID) {
				t.Error("asking has ended a subscription")
			}
		})
	}
}
