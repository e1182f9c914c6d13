package config

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/settings/settingstest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// GWN-20: given changed scopes of a backend, then they apply to its event types within [settings.MaxAge], although no relay runs that could
// store the types again. A decision that cannot be undone uses them immediately.
func TestScopesOfBackendsApplyToTheirEventTypes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := settingstest.New()
		own := api.Backend{Name: "own", Workspace: "default"}
		catalogs := catalog.NewStored(db, nil, nil, NewStored(db, nil, nil, own).EventTypes)
		_, err := catalog.ReplaceBackends(t.Context(), db, "default", func(all map[string]catalog.BackendTypes) {
			all["shop"] = catalog.BackendTypes{Types: []catalog.BackendType{{Name: "shipped"}}}
			all["own"] = catalog.BackendTypes{Types: []catalog.BackendType{{Name: "built"}}}
		})
		expect.OK(t, err)
		shop := func(more string) string {
			return "backends:\n  - {name: shop, url: https://shop.example/mcp" + more + "}\n"
		}
		for _, tc := range []struct {
			what, config, name string
			scopes             []string
		}{
			{"without scopes", shop(""), "shipped", nil},
			{"with a scope", shop(", scopes: [team]"), "shipped", []string{"team"}},
			{"with a prefix", shop(", scopes: [team], prefix: s_"), "s_shipped", []string{"team"}},
			{"that acts for callers", shop(", forwardToken: true"), "", nil},
			{"removed", "", "", nil},
		} {
			replace(t, db, tc.config)
			check := func(when string, c *catalog.Catalog, err error) {
				t.Helper()
				expect.OK(t, err)
				want := 1 // built
				if tc.name != "" {
					want++
				}
				expect.Equal(t, tc.what+", "+when+": the event types", len(c.Entries()), want)
				if e := c.ByName(tc.name); tc.name != "" {
					if e == nil {
						t.Fatalf("%s, %s: there is no %s", tc.what, when, tc.name)
					}
					var scopes []string
					if e.Access != nil {
						scopes = e.Access.Scopes
					}
					expect.List(t, tc.what+", "+when+": the scopes", scopes, tc.scopes)
				}
			}
			now, err := catalogs.Latest(t.Context(), "default")
			check("immediately", now, err)
			time.Sleep(settings.MaxAge)
			now, err = catalogs.Catalog(t.Context(), "default")
			check("later", now, err)
		}
	})
}
