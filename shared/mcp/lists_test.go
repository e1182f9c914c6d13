package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestListResources(t *testing.T) {
	f := newFixture(t, nil)
	var resources, templates, events struct{ Resources, ResourceTemplates, Events []map[string]any }
	f.stateless(alice, spec.MethodResources, "").result(t, &resources)
	f.stateless(alice, spec.MethodTemplates, "").result(t, &templates)
	f.stateless(alice, spec.MethodEvents, "").result(t, &events)
	for name, tc := range map[string]struct {
		got  any
		want string
	}{
		"EVS-02 a fixed event type is a resource with its schema": {
			resources.Resources[0], `{"uri":"event://ci/build-finished","name":"ci.build","title":"Build finished","description":"A build came to its end.",
			"mimeType":"application/json","_meta":{"webhookType":"ci.build",
			"eventSchema":{"type":"object","required":["status"],"properties":{"status":{"type":"string"}}}}}`,
		},
		"EVS-03 one with variables is a template with both schemas": {
			templates.ResourceTemplates[0], `{"uriTemplate":"event://github/{owner}/{repo}/pull_request","name":"github.pull_request","title":"Pull request changed",
			"description":"A pull request changed.","mimeType":"application/json","_meta":{"webhookType":"github.pr","eventSchema":{"type":"object"},
			"paramsSchema":{"type":"object","properties":{"owner":{"type":"string","pattern":"^[a-z]+$"},"repo":{"type":"string"}},"required":["owner","repo"]}}}`,
		},
		"EVS-03 one without a schema of its variables has one all the same": {
			templates.ResourceTemplates[1]["_meta"], `{"webhookType":"github.push","eventSchema":{"type":"object"},
			"paramsSchema":{"type":"object","properties":{"owner":{"type":"string"},"repo":{"type":"string"}},"required":["owner","repo"]}}`,
		},
		"EVX-02 events/list has its modes": {events.Events[0]["delivery"], `["push","poll","webhook"]`},
		"EVX-02 and its payload's schema":  {events.Events[0]["payloadSchema"], `{"type":"object","required":["status"],"properties":{"status":{"type":"string"}}}`},
	} {
		t.Run(name, func(t *testing.T) { sameJSON(t, jsonrpc.Encode(tc.got), tc.want) })
	}
	t.Run("EVX-02 and its name, description and filters", func(t *testing.T) {
		if e := events.Events[0]; e["name"] != "ci.build" || e["description"] == "" || !strings.Contains(fmt.Sprint(e["inputSchema"]), "status") {
			t.Errorf("got %v, want ci.build with a description and the filter status", e)
		}
	})
	t.Run("EVS-02_the_same_in_every_revision", func(t *testing.T) {
		s := f.session(alice, spec.V20250618)
		var old backendPage
		r := f.sessionBased(alice, s, spec.MethodResources, "")
		r.result(t, &old)
		expect.List(t, "the names", old.names(), f.wholeList(t, spec.MethodResources, "", nil).names)
		expect.Lacks(t, "the list", r.Body, "resultType", "ttlMs")
	})
	t.Run("EVS-02_a_foreign_cursor_is_refused", func(t *testing.T) {
		for _, cursor := range []string{`"x"`, `"!"`, `""`, `7`, `"Y25vLnN1Y2g"`} {
			f.stateless(alice, spec.MethodResources, `"cursor":`+cursor).is(t, cursor, 400, -32602)
		}
	})
}

// GWN-01, EVS-02, EVS-03, EVX-02: a cursor is only valid for the list that returned it.
func TestCursorsOfOtherLists(t *testing.T) {
	f := behindGateway(t, func(o *Options) { o.PageSize = 1 }, startLister(t, "b", true, "a", "b", "c"))
	lists, of := append(slices.Clone(listMethods), spec.MethodEvents), map[string]string{}
	for _, list := range lists {
		var p backendPage
		if f.stateless(alice, list, "").result(t, &p); p.NextCursor == nil {
			t.Fatalf("%s has one page, want several", list)
		}
		of[list] = `"cursor":"` + *p.NextCursor + `"`
	}
	for from, cursor := range of {
		for _, list := range lists {
			if r, what := f.stateless(alice, list, cursor), list+" with a cursor of "+from; list == from {
				r.is(t, what, 200, 0)
			} else {
				r.is(t, what, 400, -32602, "the cursor is not from this list")
			}
		}
	}
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
		{"EVX-02", spec.MethodEvents, reader, "ci.build ci.deploy github.pull_request github.push chat.typing"}, // Webhooks need a scope that reader lacks.
	} {
		t.Run(tc.number+" "+tc.method+" of "+tc.key, func(t *testing.T) {
			expect.Equal(t, "the names", strings.Join(f.wholeListOf(t, tc.key, tc.method, "", nil).names, " "), tc.want)
		})
	}
}

func TestDeliveryModes(t *testing.T) {
	for name, tc := range map[string]struct {
		key     string
		change  func(*Options)
		version spec.Version // the revision of the session; "" for 2026-07-28
		want    map[string]string
	}{
		"all":               {alice, nil, "", map[string]string{"ci.build": "push poll webhook", "audit.entry": "webhook", "chat.typing": "push"}},
		"without the scope": {reader, nil, "", map[string]string{"ci.build": "push poll", "audit.entry": "", "chat.typing": "push"}},
		"no webhooks here":  {alice, func(o *Options) { o.Registrar = nil }, "", map[string]string{"ci.build": "push poll", "audit.entry": ""}},
		"a session":         {alice, nil, spec.V20251125, map[string]string{"ci.build": "poll webhook", "chat.typing": ""}},
		"nobody known":      {"", func(o *Options) { o.Auth = auth.AcceptAll() }, "", map[string]string{"ci.build": "push poll"}},
		"nobody known, who may have webhooks": {
			"", func(o *Options) { o.Auth, o.AnonymousWebhooks = auth.AcceptAll(), true }, "", map[string]string{"ci.build": "push poll webhook"},
		},
	} {
		run(t, "EVX-02 the modes as really available: "+name, tc.change, func(t *testing.T, f *fixture) {
			session := ""
			if tc.version != "" {
				session = f.session(tc.key, tc.version)
			}
			got := f.delivery(tc.key, session)
			for name, modes := range tc.want {
				expect.Deep(t, name, got[name], modes)
			}
		})
	}
}

// delivery returns the delivery modes of each event type that the caller sees, by its name.
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

// counted lists n subscriptions for a single caller.
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
	cat := mustParse(t, src.String())
	for _, size := range []int{1, 4, 8, 17, 25, 100} {
		for _, subs := range []int{0, 1, 8, 20} {
			t.Run(fmt.Sprintf("EVS-02_pages_of_%d_with_%d_subscriptions", size, subs), func(t *testing.T) {
				f := newFixture(t, func(o *Options) {
					o.PageSize, o.Catalogs, o.Subscriptions = size, catalog.NewStatic(cat), counted{subs, "alice"}
				})
				mine := f.wholeList(t, spec.MethodResources, "", nil)
				expect.AtMost(t, "EVS-12 the number of resources", slices.Max(mine.sizes), size)
				expect.List(t, "EVS-12 the cache scopes", mine.scopes, slices.Repeat([]string{method.Private}, mine.pages))
				wanted := slices.Clone(want)
				for i := range subs {
					wanted = append(wanted, fmt.Sprintf("sub_%032x", i))
				}
				expect.List(t, "the resources", mine.names, wanted)
				expect.List(t, "EVX-02 the events", f.wholeList(t, spec.MethodEvents, "", nil).names, want)
				expect.List(t, "bob's resources", f.wholeListOf(t, bob, spec.MethodResources, "", nil).names, want)
			})
		}
	}
}

func TestCacheScope(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Options)
		want   string // the scope for templates; resources are always private because they include subscriptions
	}{
		"without callers": {func(o *Options) { o.Auth = auth.AcceptAll() }, method.Public},
		"with callers":    {nil, method.Private},
	} {
		run(t, "SUB-10_"+name, tc.change, func(t *testing.T, f *fixture) {
			f.catalogs.Replace(mustParse(t, noEvents))
			for list, want := range map[string]string{spec.MethodTemplates: tc.want, spec.MethodResources: method.Private} {
				f.stateless(alice, list, "").is(t, list, 200, 0, `"cacheScope":"`+want+`"`)
			}
		})
	}
}

func (f *fixture) readText(key, uri string, into any) {
	f.t.Helper()
	var c struct {
		Contents []struct{ URI, MIMEType, Text string }
	}
	f.stateless(key, spec.MethodRead, `"uri":"`+uri+`"`).result(f.t, &c)
	if len(c.Contents) != 1 || c.Contents[0].URI != uri || c.Contents[0].MIMEType != "application/json" {
		f.t.Fatalf("got %+v, want one JSON item of %s", c, uri)
	}
	expect.OK(f.t, json.Unmarshal([]byte(c.Contents[0].Text), into))
}

// latest reads an event URI and returns its latest events.
func (f *fixture) latest(key, uri string) []readEvent {
	f.t.Helper()
	var got struct{ Events []readEvent }
	f.readText(key, uri, &got)
	return got.Events
}

type readEvent struct {
	EventID, Name, URI, Timestamp string
	Data                          json.RawMessage
}

// crowded is a catalog whose event types have different access rules and the same parent.
const crowded = `
events:
  - {name: hub.push, uriTemplate: "event://hub/{repo}/push", payloadSchema: {type: object}}
  - {name: hub.invoice, uriTemplate: "event://hub/{repo}/invoice", payloadSchema: {type: object}, access: {scopes: [billing]}}
`

func TestRead(t *testing.T) {
	f := newFixture(t, nil)
	t.Run("EVS-04_no_events_yet", func(t *testing.T) {
		var got map[string]json.RawMessage
		for _, uri := range []string{"event://ci/deploy", "event://ci", "event://github/acme/*/push"} {
			f.readText(alice, uri, &got)
			expect.Deep(t, uri, string(got["events"]), "[]")
		}
	})
	t.Run("EVS-04_the_latest_events_newest_first", func(t *testing.T) {
		for i := range 20 + 5 {
			f.publish("event://ci/build-finished", fmt.Sprintf(`{"status":"%d"}`, i))
		}
		last := f.publish("event://ci/deploy", `{"big":9007199254740993}`)
		got := f.latest(alice, "event://ci/build-finished")
		if len(got) != 20 || string(got[0].Data) != `{"status":"24"}` || got[0].Name != "ci.build" {
			t.Errorf("got %d events, the first is %+v, want 20 and number 24 of ci.build", len(got), got[0])
		}
		expect.OK(t, expect.ErrOf(time.Parse(time.RFC3339Nano, got[0].Timestamp)))
		if got = f.latest(alice, "event://ci"); len(got) != 20 || got[0].EventID != last.ID || string(got[0].Data) != `{"big":9007199254740993}` {
			t.Errorf("a parent: got %d events, the first is %+v, want 20 and %+v", len(got), got[0], last)
		}
	})
	t.Run("EVS-04_a_pattern", func(t *testing.T) {
		f.publish("event://github/acme/web/push", `{}`)
		f.publish("event://github/acme/web/pull_request", `{}`)
		if got := f.latest(alice, "event://github/acme/*/push"); len(got) != 1 || got[0].URI != "event://github/acme/web/push" {
			t.Errorf("got %+v, want the push alone", got)
		}
	})
	run(t, "EVS-04_others_do_not_take_the_room", nil, func(t *testing.T, f *fixture) {
		f.catalogs.Replace(mustParse(t, crowded))
		f.publish("event://hub/web/push", `{"n":"mine"}`)
		for i := range 20 + 5 {
			f.publish("event://hub/web/invoice", fmt.Sprintf(`{"n":%d}`, i))
		}
		for _, tc := range []struct {
			key, uri string
			n        int
		}{
			{alice, "event://hub", 1},
			{alice, "event://hub/web", 1},
			{billing, "event://hub", 20},
			{billing, "event://hub/*/push", 1},
		} {
			if got := f.latest(tc.key, tc.uri); len(got) != tc.n || tc.n == 1 && string(got[0].Data) != `{"n":"mine"}` {
				t.Errorf("%s of %s: got %+v, want %d, and if one, mine", tc.uri, tc.key, got, tc.n)
			}
		}
	})
	run(t, "EVS-04_the_latest_of_very_many_sub-resources", nil, func(t *testing.T, f *fixture) {
		f.catalogs.Replace(mustParse(t, crowded))
		f.log.Now = func() time.Time { return time.Now().Add(-12 * time.Hour) }
		for i := range 60 {
			f.publish(fmt.Sprintf("event://hub/a%d/push", i), `{}`)
		}
		f.log.Now = nil
		last := f.publish("event://hub/z/push", `{}`)
		for _, uri := range []string{"event://hub", "event://hub/*/push"} {
			if got := f.latest(alice, uri); len(got) != 20 || got[0].EventID != last.ID {
				t.Errorf("%s: got %d events, the first is %+v, want 20 and %s", uri, len(got), got[0], last.ID)
			}
		}
	})
	s := f.session(alice, spec.V20251125)
	for _, uri := range []string{
		"event://nothing", "event://ci/build-finished/x", "event://github/ACME/web/push2", "event://github/UPPER/x/pull_request",
		"file:///etc/passwd", "event://", "x", "subscription://sub_00000000000000000000000000000000", "subscription://x",
		"event://" + strings.Repeat("a", 3000),
	} {
		t.Run("EVS-04_unknown_"+uri[:min(len(uri), 40)], func(t *testing.T) {
			f.stateless(alice, spec.MethodRead, `"uri":"`+uri+`"`).is(t, uri, 400, -32602, `"message":"resource not found"`, `"uri":"`+method.Clip(uri)+`"`)
			f.sessionBased(alice, s, spec.MethodRead, `"uri":"`+uri+`"`).is(t, uri, 200, -32002, `"message":"resource not found"`, `"uri":"`+method.Clip(uri)+`"`)
		})
	}
	t.Run("EVS-04_without_a_uri", func(t *testing.T) {
		for _, params := range []string{``, `"uri":7`, `"uri":null`, `"URI":"event://ci/deploy"`} {
			f.sessionBased(alice, s, spec.MethodRead, params).is(t, params, 200, -32602)
		}
	})
	t.Run("AUT-04_access", func(t *testing.T) {
		f.publish("event://tenant/acme/alarm", `{}`)
		f.publish("event://tenant/other/alarm", `{}`)
		expect.Deep(t, "events that acme reads", len(f.latest(acme, "event://tenant/acme/alarm")), 1)
		for key, uri := range map[string]string{alice: "event://tenant/acme/alarm", acme: "event://tenant/other/alarm", billing: "event://tenant"} {
			f.stateless(key, spec.MethodRead, `"uri":"`+uri+`"`).is(t, key+" reads "+uri, 200, method.CodeForbidden)
		}
	})
	t.Run("AUT-05_another_workspace", func(t *testing.T) {
		expect.Deep(t, "events of another workspace", len(f.latest(foreign, "event://ci/build-finished")), 0)
	})
	t.Run("EVS-12_a_subscription", func(t *testing.T) {
		uri := f.registerOne(alice, deploy, "https://a.example/hook")
		var got struct {
			URI, TargetURI, State string
			EventURIs             []string
			DeliveryStatus        struct {
				Active    bool
				LastError *string
			}
		}
		f.readText(alice, uri, &got)
		if got.URI != uri || got.TargetURI != "https://a.example/hook" || got.EventURIs[0] != deploy || got.State != string(subscription.Active) ||
			!got.DeliveryStatus.Active || got.DeliveryStatus.LastError != nil {
			t.Errorf("got %+v, want the active subscription %s of %s without an error", got, uri, deploy)
		}
		for _, key := range []string{bob, foreign} {
			f.stateless(key, spec.MethodRead, `"uri":"`+uri+`"`).is(t, key, 400, -32602, "resource not found")
		}
	})
}

const completable = `
events:
  - name: deploy.finished
    uriTemplate: event://deploy/{stage}/{service}/finished
    paramsSchema: {type: object, properties: {stage: {enum: [staging, production, preproduction]}}}
  - name: tenant.alarm
    uriTemplate: event://tenant/{org}/{kind}
    access: {claims: {org: org}}
  - name: billing.paid
    uriTemplate: event://billing/{plan}
    access: {scopes: [billing]}
`

const deployTemplate = "event://deploy/{stage}/{service}/finished"

func ref(uri, name, value string) string {
	return fmt.Sprintf(`"ref":{"type":"ref/resource","uri":%q},"argument":{"name":%q,"value":%q}`, uri, name, value)
}

func TestComplete(t *testing.T) {
	f := newFixture(t, nil)
	f.catalogs.Replace(mustParse(t, completable))
	for _, uri := range []string{
		"event://deploy/staging/web/finished", "event://deploy/production/web/finished", "event://deploy/production/worker/finished",
		"event://deploy/production/a%20b/finished", "event://tenant/acme/fire", "event://tenant/other/flood", "event://billing/gold",
	} {
		f.publish(uri, `{}`)
	}
	f.publishIn("elsewhere", "event://deploy/staging/secret/finished", `{}`)
	for name, tc := range map[string]struct {
		key, params string
		want        []string
	}{
		"all that the schema lists":              {alice, ref(deployTemplate, "stage", ""), []string{"staging", "production", "preproduction"}},
		"what begins with it before the rest":    {alice, ref(deployTemplate, "stage", "PRO"), []string{"production", "preproduction"}},
		"nothing fits":                           {alice, ref(deployTemplate, "stage", "x"), []string{}},
		"what events had, for the known context": {alice, ref(deployTemplate, "service", "w") + `,"context":{"arguments":{"stage":"production"}}`, []string{"web", "worker"}},
		"without context":                        {alice, ref(deployTemplate, "service", ""), []string{"a b", "web", "worker"}},
		"a context that is not known":            {alice, ref(deployTemplate, "service", "") + `,"context":{"arguments":{"stage":"../x"}}`, []string{}},
		"only what the caller's claim allows":    {acme, ref("event://tenant/{org}/{kind}", "org", ""), []string{"acme"}},
		"and what of it happened":                {acme, ref("event://tenant/{org}/{kind}", "kind", ""), []string{"fire"}},
	} {
		t.Run("SES-05_"+strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			session := f.session(tc.key, spec.V20251125)
			for _, in := range []string{"", session} {
				got := f.complete(tc.key, in, tc.params)
				if !slices.Equal(got.Values, tc.want) || got.Total != len(tc.want) || got.HasMore || got.Values == nil {
					t.Errorf("got %+v, want all of %q", got, tc.want)
				}
			}
		})
	}
	for name, tc := range map[string]struct{ key, params string }{
		"no ref":                            {alice, `"argument":{"name":"stage","value":""}`},
		"a template that is not there":      {alice, ref("event://no/{such}", "such", "")},
		"a template that is not the caller": {alice, ref("event://billing/{plan}", "plan", "")},
		"a URI that is filled in":           {alice, ref("event://deploy/staging/web/finished", "stage", "")},
		"another variable":                  {alice, ref(deployTemplate, "no", "")},
		"a value that is no text":           {alice, `"ref":{"type":"ref/resource","uri":"` + deployTemplate + `"},"argument":{"name":"stage","value":7}`},
	} {
		t.Run("SES-05_refuses_"+strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			f.stateless(tc.key, spec.MethodComplete, tc.params).is(t, tc.params, 400, -32602)
		})
	}
	t.Run("SES-05_at_most_100_values", func(t *testing.T) {
		for i := range 120 {
			f.publish(fmt.Sprintf("event://deploy/staging/s%03d/finished", i), `{}`)
		}
		if c := f.complete(alice, "", ref(deployTemplate, "service", "s")); len(c.Values) != 100 || c.Total != 120 || !c.HasMore {
			t.Errorf("got %d values of %d, more: %v, want 100 of 120 and more", len(c.Values), c.Total, c.HasMore)
		}
	})
}

func TestSetLevel(t *testing.T) {
	setLevel := func(f *fixture, s, level string) {
		t.Helper()
		expect.Deep(t, level, f.sessionBased(alice, s, spec.MethodSetLevel, `"level":"`+level+`"`).Body, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	}
	// tells removes event://ci/build-finished from the catalog, announces the change twice, and returns the log messages that
	// the stream sends.
	tells := func(t *testing.T, f *fixture, g *open) (warnings []json.RawMessage) {
		t.Helper()
		f.catalogs.Replace(mustParse(t, "events:\n  - {name: ci.deploy, uri: event://ci/deploy}\n"))
		for range 2 {
			f.announceCatalog()
			f.publish(deploy, `{}`)
			for updated, changed := false, false; !updated || !changed; { // The order of the two notifications may vary.
				switch m := g.next(); m.Method {
				case spec.NoteUpdated:
					updated = true
				case spec.NoteResourcesChange:
					changed = true
				case spec.NoteMessage:
					var raw struct{ Params json.RawMessage }
					expect.OK(t, json.Unmarshal(m.sse.Data, &raw))
					warnings = append(warnings, raw.Params)
				}
			}
		}
		return warnings
	}
	for level, want := range map[string]int{"": 0, "debug": 1, "warning": 1, "error": 0} {
		run(t, "SES-05_what_is_told_at_level_"+level, nil, func(t *testing.T, f *fixture) {
			s := f.session(alice, spec.V20251125)
			f.subscribe(alice, s, "event://ci/build-finished", deploy)
			if level != "" {
				setLevel(f.instance(), s, "alert")
				setLevel(f.instance(), s, level)
			}
			g := f.stream(alice, s, "")
			g.event()
			got := tells(t, f, g)
			expect.MustLen(t, "the messages", got, want)
			for _, m := range got {
				sameJSON(t, m, `{"level":"warning","logger":"mcp-events","data":{"uri":"event://ci/build-finished","message":"the catalog no longer has this URI for you, so it brings no further events"}}`)
			}
		})
	}
	run(t, "SES-05_an_open_stream_follows_the_level", nil, func(t *testing.T, f *fixture) {
		s := f.session(alice, spec.V20250326)
		f.subscribe(alice, s, "event://ci/build-finished", deploy)
		g := f.stream(alice, s, "")
		setLevel(f, s, "info")
		f.subscribe(alice, s, "event://chat/typing") // The stream applies this change after the new level.
		f.waitTargets(3)
		expect.Deep(t, "messages", len(tells(t, f, g)), 2)
	})
	run(t, "SES-05_levels_that_there_are_not", nil, func(t *testing.T, f *fixture) {
		s := f.session(alice, spec.V20250618)
		for _, params := range []string{``, `"level":"loud"`, `"level":"INFO"`, `"level":3`} {
			f.sessionBased(alice, s, spec.MethodSetLevel, params).is(t, params, 200, -32602)
		}
		for level, want := range map[string][2]int{`"info"`: {200, 0}, `"loud"`: {400, -32602}, `7`: {400, -32602}} {
			body := strings.Replace(statelessBody("1", spec.MethodDiscover, ""), `"_meta":{`, `"_meta":{"`+spec.MetaLogLevel+`":`+level+`,`, 1)
			f.do("POST", alice, body, statelessHeaders(spec.MethodDiscover, "")...).is(t, "2026-07-28, "+level, want[0], want[1])
		}
	})
}

// completion is the result of completion/complete.
type completion struct {
	Values  []string
	Total   int
	HasMore bool
}

func (f *fixture) complete(key, session, params string) completion {
	f.t.Helper()
	var got struct{ Completion completion }
	f.in(key, session, spec.MethodComplete, params).result(f.t, &got)
	return got.Completion
}
