package mcp

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

func TestDialectWorkspaces(t *testing.T) {
	f := newFixture(t, nil)
	own := mustParse(t, "events:\n  - {name: other.thing, uri: event://other/thing}\n")
	f.catalogs.Replace(mustParse(t, testCatalog))
	known := catalog.Workspaces{Own: map[string]catalog.Source{
		"default": f.catalogs, "elsewhere": catalog.NewStatic(own),
	}}
	f = newFixture(t, func(o *Options) { o.Catalogs = known })
	t.Run("SSE-06_unknown_and_hidden_workspaces_are_the_same_404", func(t *testing.T) {
		var all []reply
		for _, workspace := range []string{"elsewhere", "nowhere", "%20", "a%2Fb", "DEFAULT", strings.Repeat("x", 2000)} {
			for _, method := range []string{"GET", "POST"} {
				for _, body := range []string{rpcText("1", spec.MethodResources, ""), "{"} {
					if method == "GET" {
						body = ""
					}
					r := f.dialectIn(workspace, method, alice, body)
					r.Header.Del("Date")
					all = append(all, r)
				}
			}
		}
		for _, r := range all {
			if r.Status != 404 || r.Body != all[0].Body || fmt.Sprint(r.Header) != fmt.Sprint(all[0].Header) {
				t.Errorf("got %+v, want as %+v", r, all[0])
			}
		}
		if r := f.dialectIn("elsewhere", "POST", "", rpcText("1", spec.MethodResources, "")); r.Status != 401 {
			t.Errorf("nobody: %+v", r)
		}
	})
	t.Run("SSE-06_a_workspace_without_a_catalog_is_unknown_to_its_own", func(t *testing.T) {
		f := newFixture(t, func(o *Options) {
			o.Catalogs = catalog.Workspaces{Own: map[string]catalog.Source{"default": f.catalogs}}
		})
		a := f.dialectIn("elsewhere", "POST", foreign, rpcText("1", spec.MethodResources, ""))
		b := f.dialectIn("nowhere", "POST", foreign, rpcText("1", spec.MethodResources, ""))
		if a.Status != 404 || a.Body != b.Body {
			t.Errorf("%+v, %+v", a, b)
		}
	})
	t.Run("SSE-06_each_has_its_catalog_and_its_events", func(t *testing.T) {
		names := func(workspace, key string) string {
			return f.dialectIn(workspace, "POST", key, rpcText("1", spec.MethodResources, ""), jsonOnly).Body
		}
		if a, b := names("default", alice), names("elsewhere", foreign); !strings.Contains(a, "ci.build") || strings.Contains(a, "other.thing") ||
			!strings.Contains(b, "other.thing") || strings.Contains(b, "ci.build") {
			t.Errorf("default lists %s, elsewhere %s", a, b)
		}
	})
	t.Run("SSE-06_without_authentication_there_is_default", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Auth = auth.None() })
		if r := f.dialectIn(auth.DefaultWorkspace, "POST", "", rpcText("1", "ping", ""), jsonOnly); r.Status != 200 {
			t.Errorf("%+v", r)
		}
		if r := f.dialectIn("elsewhere", "POST", "", rpcText("1", "ping", ""), jsonOnly); r.Status != 404 {
			t.Errorf("%+v", r)
		}
	})
}
