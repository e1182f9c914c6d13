package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

type listPage struct {
	Resources         []map[string]any
	ResourceTemplates []map[string]any
	Events            []map[string]any
	NextCursor        string
	CacheScope        string
}

func (p listPage) entries() []map[string]any {
	return append(append(p.Resources, p.ResourceTemplates...), p.Events...)
}

// all follows a list to its end.
func (f *fixture) all(key, method string) (names []string, pages []listPage) {
	f.t.Helper()
	params := ""
	for {
		var p listPage
		f.stateless(key, method, params).result(f.t, &p)
		pages = append(pages, p)
		for _, x := range p.entries() {
			names = append(names, x["name"].(string))
		}
		if p.NextCursor == "" {
			return names, pages
		}
		if len(pages) > 50 {
			f.t.Fatal("the list does not end")
		}
		params = `"cursor":"` + p.NextCursor + `"`
	}
}

func TestListResources(t *testing.T) {
	f := newFixture(t, nil)
	t.Run("EVS-02_fixed_event_types_with_their_schema", func(t *testing.T) {
		var p listPage
		f.stateless(alice, spec.MethodResources, "").result(t, &p)
		want := `{"uri":"event://ci/build-finished","name":"ci.build","title":"Build finished","description":"A build came to its end.",
			"mimeType":"application/json","_meta":{"webhookType":"ci.build",
			"eventSchema":{"type":"object","required":["status"],"properties":{"status":{"type":"string"}}}}}`
		got, _ := json.Marshal(p.Resources[0])
		sameJSON(t, got, want)
	})
	t.Run("EVS-02_the_same_in_every_revision", func(t *testing.T) {
		s := f.session(alice, spec.V20250618)
		var old listPage
		r := f.sessionBased(alice, s, spec.MethodResources, "")
		r.result(t, &old)
		var names []string
		for _, x := range old.Resources {
			names = append(names, x["name"].(string))
		}
		stateless, _ := f.all(alice, spec.MethodResources)
		if !slices.Equal(names, stateless) || strings.Contains(r.Body, "resultType") || strings.Contains(r.Body, "ttlMs") {
			t.Errorf("%v, %v: %s", names, stateless, r.Body)
		}
	})
	t.Run("EVS-02_a_foreign_cursor_is_refused", func(t *testing.T) {
		for _, cursor := range []string{`"x"`, `"!"`, `""`, `7`, `"Y25vLnN1Y2g"`} {
			if r := f.stateless(alice, spec.MethodResources, `"cursor":`+cursor); r.Status != 400 || r.code(t) != -32602 {
				t.Errorf("%s: %d %s", cursor, r.Status, r.Body)
			}
		}
	})
}

// GWN-01, EVS-02, EVS-03, EVX-02: a cursor is for the list that it came with.
func TestCursorsOfOtherLists(t *testing.T) {
	f := behindGateway(t, func(o *Options) { o.PageSize = 1 }, startLister(t, "b", true, "a", "b", "c"))
	lists, of := append(slices.Clone(listMethods), spec.MethodEvents), map[string]string{}
	for _, list := range lists {
		var p listPage
		if f.stateless(alice, list, "").result(t, &p); p.NextCursor == "" {
			t.Fatalf("%s has one page", list)
		}
		of[list] = `"cursor":"` + p.NextCursor + `"`
	}
	for from, cursor := range of {
		for _, list := range lists {
			r := f.stateless(alice, list, cursor)
			if list == from {
				r.result(t, &listPage{})
			} else if r.Status != 400 || r.code(t) != -32602 || !strings.Contains(r.Body, "the cursor is not from this list") {
				t.Errorf("%s with a cursor of %s: %d %s", list, from, r.Status, r.Body)
			}
		}
	}
}

func TestListTemplates(t *testing.T) {
	f := newFixture(t, nil)
	t.Run("EVS-03_templates_with_their_schemas", func(t *testing.T) {
		var p listPage
		f.stateless(alice, spec.MethodTemplates, "").result(t, &p)
		got, _ := json.Marshal(p.ResourceTemplates[0])
		sameJSON(t, got, `{"uriTemplate":"event://github/{owner}/{repo}/pull_request","name":"github.pull_request","title":"Pull request changed",
			"description":"A pull request changed.","mimeType":"application/json","_meta":{"webhookType":"github.pr","eventSchema":{"type":"object"},
			"paramsSchema":{"type":"object","properties":{"owner":{"type":"string","pattern":"^[a-z]+$"},"repo":{"type":"string"}},"required":["owner","repo"]}}}`)
		got, _ = json.Marshal(p.ResourceTemplates[1]["_meta"])
		sameJSON(t, got, `{"webhookType":"github.push","eventSchema":{"type":"object"},
			"paramsSchema":{"type":"object","properties":{"owner":{"type":"string"},"repo":{"type":"string"}},"required":["owner","repo"]}}`)
	})
}

func TestListsHoldWhatTheCallerMaySee(t *testing.T) {
	f := newFixture(t, nil)
	for _, tc := range []struct{ number, method, key, want string }{
		{"AUT-04", spec.MethodResources, alice, "ci.build ci.deploy audit.entry chat.typing"},
		{"AUT-04", spec.MethodResources, billing, "ci.build ci.deploy billing.invoice audit.entry chat.typing"},
		{"AUT-04", spec.MethodTemplates, alice, "github.pull_request github.push"},
		{"AUT-04", spec.MethodTemplates, acme, "github.pull_request github.push tenant.alarm"},
		{"EVX-02", spec.MethodEvents, alice, "ci.build ci.deploy github.pull_request github.push audit.entry chat.typing"},
		{"EVX-02", spec.MethodEvents, billing, "ci.build ci.deploy github.pull_request github.push billing.invoice audit.entry chat.typing"},
		{"EVX-02", spec.MethodEvents, acme, "ci.build ci.deploy github.pull_request github.push tenant.alarm audit.entry chat.typing"},
		{"EVX-02", spec.MethodEvents, reader, "ci.build ci.deploy github.pull_request github.push chat.typing"}, // webhooks need a scope
	} {
		t.Run(tc.number+" "+tc.method+" of "+tc.key, func(t *testing.T) {
			if names, _ := f.all(tc.key, tc.method); strings.Join(names, " ") != tc.want {
				t.Errorf("got %v", names)
			}
		})
	}
}

func TestListEvents(t *testing.T) {
	f := newFixture(t, nil)
	t.Run("EVX-02_event_types_with_their_schemas", func(t *testing.T) {
		var p listPage
		f.stateless(alice, spec.MethodEvents, "").result(t, &p)
		got, _ := json.Marshal(p.Events[0])
		var entry struct {
			Name, Description          string
			Delivery                   []string
			InputSchema, PayloadSchema json.RawMessage
		}
		must(t, json.Unmarshal(got, &entry))
		if entry.Name != "ci.build" || entry.Description == "" || !slices.Equal(entry.Delivery, []string{"push", "poll", "webhook"}) {
			t.Errorf("%s", got)
		}
		if !strings.Contains(string(entry.InputSchema), `"status"`) {
			t.Errorf("the filter is missing: %s", entry.InputSchema)
		}
		sameJSON(t, entry.PayloadSchema, `{"type":"object","required":["status"],"properties":{"status":{"type":"string"}}}`)
	})
	t.Run("EVX-02_nobody_unknown_gets_webhooks", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Auth = auth.None() })
		if got := f.delivery("", "")["ci.build"]; got != "push poll" {
			t.Errorf("anonymous gets %s", got)
		}
		f = newFixture(t, func(o *Options) { o.Auth, o.AnonymousWebhooks = auth.None(), true })
		if got := f.delivery("", "")["ci.build"]; got != "push poll webhook" {
			t.Errorf("anonymous gets %s although it may more", got)
		}
	})
	t.Run("EVX-02_modes_as_really_available", func(t *testing.T) {
		for _, tc := range []struct {
			name, key string
			change    func(*Options)
			session   bool
			want      map[string]string
		}{
			{name: "all", key: alice, want: map[string]string{"ci.build": "push poll webhook", "audit.entry": "webhook", "chat.typing": "push"}},
			{name: "without the scope", key: reader, want: map[string]string{"ci.build": "push poll", "audit.entry": "", "chat.typing": "push"}},
			{name: "no webhooks here", key: alice, change: func(o *Options) { o.Registrar = nil }, want: map[string]string{"ci.build": "push poll", "audit.entry": ""}},
			{name: "a session", key: alice, session: true, want: map[string]string{"ci.build": "poll webhook", "chat.typing": ""}},
		} {
			f := newFixture(t, tc.change)
			session := ""
			if tc.session {
				session = f.session(tc.key, spec.V20251125)
			}
			got := f.delivery(tc.key, session)
			for name, modes := range tc.want {
				if got[name] != modes {
					t.Errorf("%s: %s has %q, want %q", tc.name, name, got[name], modes)
				}
			}
		}
	})
}

// delivery lists the modes of the event types that a caller sees, by their names.
func (f *fixture) delivery(key, session string) map[string]string {
	f.t.Helper()
	var p struct {
		Events []struct {
			Name     string
			Delivery []string
		}
	}
	f.in(key, session, spec.MethodEvents, "").result(f.t, &p)
	modes := map[string]string{}
	for _, e := range p.Events {
		modes[e.Name] = strings.Join(e.Delivery, " ")
	}
	return modes
}

// counted is a set of subscriptions of one caller.
type counted struct {
	n    int
	only string
}

func (c counted) List(_ context.Context, p auth.Principal, after string, limit int) (views []subscription.View, next string, err error) {
	if p.ID != c.only {
		return nil, "", nil
	}
	for i := range c.n {
		id := fmt.Sprintf("sub_%032x", i)
		if id <= after {
			continue
		}
		if len(views) == limit {
			return views, views[limit-1].ID, nil
		}
		views = append(views, subscription.View{ID: id, State: subscription.Active})
	}
	return views, "", nil
}

func (c counted) Read(context.Context, auth.Principal, string) (*subscription.View, error) {
	return nil, method.NotFound("")
}

func TestPagination(t *testing.T) {
	var src strings.Builder
	src.WriteString("events:\n")
	var want []string
	for i := range 25 {
		access := ""
		if i%3 == 1 {
			access = ", access: {scopes: [billing]}"
		} else {
			want = append(want, fmt.Sprintf("e%02d", i))
		}
		fmt.Fprintf(&src, "  - {name: e%02d, uri: \"event://e/%02d\", payloadSchema: {type: object}%s}\n", i, i, access)
	}
	cat, err := catalog.Parse([]byte(src.String()))
	must(t, err)
	for _, size := range []int{1, 4, 8, 17, 25, 100} {
		for _, subs := range []int{0, 1, 8, 20} {
			t.Run(fmt.Sprintf("EVS-02_pages_of_%d_with_%d_subscriptions", size, subs), func(t *testing.T) {
				f := newFixture(t, func(o *Options) {
					o.PageSize, o.Catalogs, o.Subscriptions = size, catalog.NewStatic(cat), counted{subs, "alice"}
				})
				names, pages := f.all(alice, spec.MethodResources)
				for _, p := range pages {
					if len(p.Resources) > size {
						t.Errorf("a page of %d", len(p.Resources))
					}
					if p.CacheScope != method.Private {
						t.Errorf("EVS-12: a page is %s", p.CacheScope)
					}
				}
				wanted := slices.Clone(want)
				for i := range subs {
					wanted = append(wanted, fmt.Sprintf("sub_%032x", i))
				}
				if !slices.Equal(names, wanted) {
					t.Errorf("got %v", names)
				}
				events, _ := f.all(alice, spec.MethodEvents)
				if !slices.Equal(events, want) {
					t.Errorf("EVX-02: got %v", events)
				}
				if got, _ := f.all(bob, spec.MethodResources); !slices.Equal(got, want) {
					t.Errorf("bob sees %v", got)
				}
			})
		}
	}
}

func TestCacheScope(t *testing.T) {
	const everybody = "events:\n  - {name: a, uri: \"event://a\", payloadSchema: {type: object}}\n"
	cat, err := catalog.Parse([]byte(everybody))
	must(t, err)
	for _, tc := range []struct {
		name   string
		change func(*Options)
		want   string
	}{
		{"without callers", func(o *Options) { o.Auth = auth.None() }, method.Public},
		{"with callers", func(o *Options) {}, method.Private},
	} {
		t.Run("SUB-10_"+tc.name, func(t *testing.T) {
			f := newFixture(t, func(o *Options) {
				o.Catalogs = catalog.NewStatic(cat)
				tc.change(o)
			})
			var p listPage
			f.stateless(alice, spec.MethodTemplates, "").result(t, &p)
			if p.CacheScope != tc.want {
				t.Errorf("templates are %s", p.CacheScope)
			}
			f.stateless(alice, spec.MethodResources, "").result(t, &p)
			if p.CacheScope != method.Private {
				t.Errorf("resources, which hold the caller's subscriptions, are %s", p.CacheScope)
			}
		})
	}
}
