package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/rules"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// everything returns lists of a backend: four tools and prompts, and files with a template for them.
func everything(method, _ string) string {
	switch method {
	case "tools/list", "prompts/list":
		return entriesOf(method, "name", "get_a", "get_secret", "write_a", "delete_a")
	case "resources/list":
		return entriesOf(method, "uri", "file:///public/a", "file:///secret/a", "file:///team/a")
	}
	return entriesOf(method, "uriTemplate", "file:///{+path}", "db:///{table}")
}

func entriesOf(method, member string, names ...string) string {
	var entries []string
	for _, name := range names {
		entries = append(entries, fmt.Sprintf(`{%q:%q,"inputSchema":{"type":"object"}}`, member, name))
	}
	for _, k := range api.Kinds {
		if k.Method() == method {
			return fmt.Sprintf(`{%q:[%s]}`, k.Member(), strings.Join(entries, ","))
		}
	}
	return `{}`
}

// withRules gives a backend rules for all kinds of its entries.
func withRules(b *api.Backend) {
	names := rules.Rules{Allow: []string{"get_*", "write_*"}, Deny: []string{"*secret*"}, Scopes: map[string][]string{"write_*": {"write"}}}
	b.Prefix, b.Tools, b.Prompts = "b_", names, names
	b.Resources = rules.Rules{
		Allow: []string{"file:///*"}, Deny: []string{"file:///secret/*"}, Scopes: map[string][]string{"file:///team/*": {"team"}},
	}
}

var bea = auth.Principal{ID: "bea", Workspace: auth.DefaultWorkspace, Scopes: []string{"mcp", "write", "team"}}

// GWN-25: lists have the entries that the rules of the backend allow, without those for which the caller lacks a scope.
func TestRulesInLists(t *testing.T) {
	revisions(t, func(t *testing.T, stateless bool) {
		s := newScripted(t, func(s *scripted) { s.stateless, s.lists = stateless, everything })
		g := gatewayOver(t, memory(t), at("b", s, withRules))
		for _, c := range []struct {
			who  auth.Principal
			want map[api.Kind][]string
		}{
			{ann, map[api.Kind][]string{
				api.Tools: {"b_get_a"}, api.Prompts: {"b_get_a"}, api.Resources: {"file:///public/a"}, api.Templates: {"file:///{+path}"},
			}},
			{bea, map[api.Kind][]string{
				api.Tools: {"b_get_a", "b_write_a"}, api.Prompts: {"b_get_a", "b_write_a"},
				api.Resources: {"file:///public/a", "file:///team/a"}, api.Templates: {"file:///{+path}"},
			}},
		} {
			for kind, want := range c.want {
				list := g.List(t.Context(), of(c.who), kind)
				expect.List(t, c.who.ID+"'s "+kind.String()+"s", names(list), want)
				expect.True(t, string(kind)+": the list is not the same for all callers", !list.Shared)
			}
		}
		expect.Equal(t, "the list is fetched once for both callers", len(s.received("tools/list")), 1)
	})
}

// GWN-25: a call cannot name a second thing that only the backend sees, for example because its library ignores the case of names.
func TestRulesHoldForAllNamesInACall(t *testing.T) {
	s := newScripted(t, func(s *scripted) { s.stateless, s.lists = true, everything })
	g := gatewayOver(t, memory(t), at("b", s, withRules))
	for _, tc := range []struct {
		kind                 api.Kind
		method, name, member string
		params               string
		ok                   bool
	}{
		{api.Tools, "tools/call", "b_get_a", "name", `{"name":"b_get_a","Name":"delete_a"}`, false},
		{api.Prompts, "prompts/get", "b_get_a", "name", `{"name":"b_get_a","naMe":"delete_a"}`, false},
		{api.Resources, "resources/read", "file:///public/a", "uri", `{"uri":"file:///public/a","URI":"file:///secret/a"}`, false},
		{api.Prompts, "completion/complete", "b_get_a", "ref", `{"ref":{"type":"ref/resource","name":"b_get_a","uri":"db:///{table}"}}`, false},
		{api.Prompts, "completion/complete", "b_get_a", "ref", `{"ref":{"name":"get_secret","name":"b_get_a"}}`, false},
		{api.Prompts, "completion/complete", "b_get_a", "ref", `{"ref":{"name":"b_get_a"},"Ref":{"name":"get_secret"}}`, false},
		{api.Templates, "completion/complete", "file:///{+path}", "ref", `{"ref":{"uri":"file:///{+path}","Name":"get_secret"}}`, false},
		{api.Templates, "completion/complete", "file:///{+path}", "ref", `{"ref":{"type":"ref/resource","uri":"file:///{+path}"}}`, true},
		{api.Prompts, "completion/complete", "b_get_a", "ref", `{"ref":{"type":"ref/prompt","name":"b_get_a","title":"A"},"argument":{"Name":"x"}}`, true},
	} {
		before := len(s.received(tc.method))
		err := do(t, g, api.Call{Client: statelessClient(bea), Kind: tc.kind, Name: tc.name, Member: tc.member, Method: tc.method, Params: json.RawMessage(tc.params)}).err
		switch reached := len(s.received(tc.method)) - before; {
		case tc.ok && (err != nil || reached != 1):
			t.Errorf("%s: got %v, and %d calls at the backend", tc.params, err, reached)
		case !tc.ok && (!fault.Is(err, fault.Invalid) || reached != 0):
			t.Errorf("%s: got %v, and %d calls at the backend, want an error and none", tc.params, err, reached)
		}
	}
}

// GWN-25: a call that the rules deny gets the same error as one of an unknown name, and does not reach the backend. For a caller
// that lacks a scope, the error names it.
func TestRulesAtTheCall(t *testing.T) {
	revisions(t, func(t *testing.T, stateless bool) {
		s := newScripted(t, func(s *scripted) { s.stateless, s.lists = stateless, everything })
		g := gatewayOver(t, memory(t), at("b", s, withRules))
		for _, client := range []func(auth.Principal) api.Client{statelessClient, func(p auth.Principal) api.Client {
			c := sessionBased("session")
			c.Principal = p
			return c
		}} {
			const none = fault.Internal
			for _, tc := range []struct {
				kind   api.Kind
				method string
				name   string
				who    auth.Principal
				want   fault.Kind // of the error; none for a result
			}{
				{api.Tools, "tools/call", "b_get_a", ann, none},
				{api.Tools, "tools/call", "b_delete_a", bea, fault.Invalid},
				{api.Tools, "tools/call", "b_write_a", ann, fault.Forbidden},
				{api.Tools, "tools/call", "b_write_a", bea, none},
				{api.Prompts, "prompts/get", "b_get_secret", ann, fault.Invalid},
				{api.Prompts, "prompts/get", "b_write_a", ann, fault.Forbidden},
				{api.Prompts, "completion/complete", "b_get_secret", ann, fault.Invalid},
				{api.Resources, "resources/read", "file:///public/other", ann, none},
				{api.Resources, "resources/read", "file:///secret/other", bea, fault.Invalid},
				{api.Resources, "resources/read", "db:///users", bea, fault.Invalid},
				{api.Resources, "resources/read", "file:///team/other", ann, fault.Forbidden},
				{api.Resources, "resources/read", "file:///team/other", bea, none},
				{api.Templates, "completion/complete", "db:///{table}", ann, fault.Invalid},
				{api.Templates, "completion/complete", "file:///{+path}", ann, none},
			} {
				member, params := "name", fmt.Sprintf(`{"name":%q}`, tc.name)
				switch {
				case tc.kind == api.Templates:
					member, params = "ref", fmt.Sprintf(`{"ref":{"uri":%q}}`, tc.name)
				case tc.method == "completion/complete":
					member, params = "ref", fmt.Sprintf(`{"ref":{"name":%q}}`, tc.name)
				case tc.kind == api.Resources:
					member, params = "uri", fmt.Sprintf(`{"uri":%q}`, tc.name)
				}
				before := len(s.received(tc.method))
				err := do(t, g, api.Call{Client: client(tc.who), Kind: tc.kind, Name: tc.name, Member: member, Method: tc.method, Params: json.RawMessage(params)}).err
				reached := len(s.received(tc.method)) - before
				what := fmt.Sprintf("%s %s by %s", tc.method, tc.name, tc.who.ID)
				switch {
				case tc.want == none && (err != nil || reached != 1):
					t.Errorf("%s: got %v, and %d calls at the backend", what, err, reached)
				case tc.want != none && (!fault.Is(err, tc.want) || reached != 0):
					t.Errorf("%s: got %v, and %d calls at the backend, want an error of kind %d and none", what, err, reached, tc.want)
				case tc.want == fault.Invalid:
					expect.Equal(t, what, fault.Public(err), fmt.Sprintf("there is no %s %q", tc.kind, tc.name))
				}
			}
		}
		err := g.Call(t.Context(), api.Call{Client: statelessClient(ann), Kind: api.Tools, Name: "b_write_a", Method: "tools/call"})
		missing, _ := fault.DataOf(err).(auth.MissingScopes)
		expect.List(t, "the missing scopes", missing.Scopes, []string{"write"})
	})
}

// GWN-25: an entry that a caller may not use does not hide another backend's entry of the same name.
func TestDeniedEntriesDoNotConflict(t *testing.T) {
	first, second := newScripted(t, func(s *scripted) { s.lists = oneTool("a", "b", "c") }), newScripted(t, func(s *scripted) { s.lists = oneTool("a", "b") })
	g := gatewayOver(t, memory(t), at("first", first, func(b *api.Backend) {
		b.Tools = rules.Rules{Deny: []string{"a"}, Scopes: map[string][]string{"b": {"write"}}}
	}), at("second", second))
	for _, c := range []struct {
		who  auth.Principal
		want []string
		own  string // the backend of b
	}{{ann, []string{"c", "a", "b"}, "second"}, {bea, []string{"b", "c", "a"}, "first"}} {
		list := g.List(t.Context(), of(c.who), api.Tools)
		expect.List(t, c.who.ID+"'s tools", names(list), c.want)
		e, err := g.Find(t.Context(), of(c.who), api.Tools, "b")
		if err != nil || e.Backend != c.own {
			t.Errorf("%s calls b at %q (%v), want %q", c.who.ID, e.Backend, err, c.own)
		}
	}
}

// GWN-25: clients can subscribe only to resources that they may read, and receive only their updates.
func TestRulesAndSubscriptions(t *testing.T) {
	s := newScripted(t, func(s *scripted) { s.lists = everything })
	g := gatewayOver(t, memory(t), at("b", s, withRules))
	for uri, want := range map[string]bool{"file:///public/a": true, "file:///secret/a": false, "file:///secret/other": false, "db:///users": false} {
		if _, ok, err := g.Subscribable(t.Context(), bea, uri); ok != want || err != nil {
			t.Errorf("subscribe to %s: got %v, %v, want %v", uri, ok, err, want)
		}
		expect.Equal(t, fmt.Sprintf("updates of %s", uri), g.Permits(t.Context(), bea, "b", uri), want)
	}
	if _, ok, err := g.Subscribable(t.Context(), ann, "file:///team/a"); ok || !fault.Is(err, fault.Forbidden) {
		t.Errorf("subscribe without the scope: got %v, %v", ok, err)
	}
	if g.Permits(t.Context(), ann, "b", "file:///team/a") || g.Permits(t.Context(), bea, "other", "file:///team/a") {
		t.Error("updates reach a principal without the scope, or from an unknown backend")
	}
}

// GWN-25: given a rule for a template, then a client that is subscribed to a resource above gets no updates of resources that only this
// template matches, unless it has the scopes.
func TestRulesForTemplatesAndUpdates(t *testing.T) {
	s := newScripted(t, func(s *scripted) {
		s.lists = listing("resources/list", entriesOf("resources/list", "uri", "db://hr", "db://hr/listed"),
			"resources/templates/list", entriesOf("resources/templates/list", "uriTemplate", "db://hr/{table}", "db://pay/{table}", "db://pay/open{n}"))
	})
	g := gatewayOver(t, memory(t), at("b", s, func(b *api.Backend) {
		b.Resources = rules.Rules{Deny: []string{"db://pay/{table}"}, Scopes: map[string][]string{"db://hr/{table}": {"team"}}}
	}))
	for uri, want := range map[string][2]bool{ // for ann and bea, who has the scope
		"db://hr": {true, true}, "db://hr/listed": {true, true}, "db://hr/salaries": {false, true}, "db://hr/a/b": {true, true},
		"db://pay/salaries": {false, false}, "db://pay/open1": {true, true}, "db://other": {true, true},
	} {
		for i, who := range []auth.Principal{ann, bea} {
			expect.Equal(t, who.ID+" gets updates of "+uri, g.Permits(t.Context(), who, "b", uri), want[i])
		}
	}
	expect.Equal(t, "the requests for the templates", len(s.received("resources/templates/list")), 1)
	s.change(func(s *scripted) { s.lists = func(string, string) string { return `broken` } })
	other := gatewayOver(t, memory(t), at("b", s, withRules))
	expect.Equal(t, "updates while the templates are unknown", other.Permits(t.Context(), bea, "b", "file:///public/a"), false)
}

// GWN-25: each call writes one log line with principal, backend, tool, outcome and duration, and without arguments or results.
func TestCallsAreLogged(t *testing.T) {
	const marker = "xylophone-4711"
	revisions(t, func(t *testing.T, stateless bool) {
		s := newScripted(t, func(s *scripted) { s.stateless, s.lists = stateless, everything })
		var out bytes.Buffer
		g := newGateway(t, Options{Backends: []api.Backend{at("b", s, withRules)}, Log: slog.New(slog.NewJSONHandler(&out, nil))})
		answers := map[string]func(*turn){
			"ok":         func(t *turn) { t.result(`{"content":[{"type":"text","text":"` + marker + `"}]}`) },
			"tool_error": func(t *turn) { t.result(`{"content":[{"type":"text","text":"` + marker + `"}],"isError":true}`) },
			"error":      func(t *turn) { t.fail(-32000, `"`+marker+`"`) },
		}
		for _, tc := range []struct{ tool, outcome, backend string }{
			{"b_get_a", "ok", "b"},
			{"b_get_a", "tool_error", "b"},
			{"b_get_a", "error", "b"},
			{"b_get_secret", "denied", "b"},
			{"b_write_a", "missing_scope", "b"},
			{"other", "unknown", ""},
			{"b_" + strings.Repeat("x", 200), "denied", "b"},
		} {
			s.change(func(s *scripted) { s.call = answers[tc.outcome] })
			out.Reset()
			x := start(t, g, statelessClient(ann), tc.tool, "1", fmt.Sprintf(`{"name":%q,"arguments":{"a":%q}}`, tc.tool, marker))
			_ = x.end(t) // the outcome is in the log
			var line struct {
				Msg, Workspace, Principal, Backend, Method, Tool, Outcome string
				TookMS                                                    *float64 `json:"took_ms"`
			}
			text := out.String()
			if err := json.Unmarshal(out.Bytes(), &line); err != nil {
				t.Fatalf("%s: got %q, want one line", tc.outcome, text)
			}
			if line.Msg != "gateway call" || line.Workspace != "default" || line.Principal != ann.LogName() || line.Backend != tc.backend ||
				line.Method != "tools/call" || !strings.HasPrefix(tc.tool, strings.TrimSuffix(line.Tool, "…")) || line.Outcome != tc.outcome || line.TookMS == nil {
				t.Errorf("%s of %s: got %s", tc.outcome, tc.tool, text)
			}
			if strings.Contains(text, marker) || len(line.Tool) > 140 {
				t.Errorf("%s: the line has arguments or results, or a long name: %s", tc.outcome, text)
			}
		}
	})
}

// GWN-25: the gateway logs no URIs, because they may contain data.
func TestCallsOfResourcesAreLoggedWithoutTheURI(t *testing.T) {
	s := newScripted(t, func(s *scripted) { s.lists = everything })
	var out bytes.Buffer
	g := newGateway(t, Options{Backends: []api.Backend{at("b", s)}, Log: slog.New(slog.NewJSONHandler(&out, nil))})
	for _, uri := range []string{"file:///public/a", "file:///customers/ann", "x://unknown"} {
		do(t, g, api.Call{Client: statelessClient(ann), Kind: api.Resources, Name: uri, Member: "uri", Method: "resources/read", Params: json.RawMessage(fmt.Sprintf(`{"uri":%q}`, uri))})
	}
	lines := slices.Collect(strings.Lines(out.String()))
	expect.Equal(t, "the number of lines", len(lines), 3)
	expect.Lacks(t, "the log", out.String(), "://")
}

// GWN-25: the gateway sends the response and accepts the caller's next call before the backend ends its stream and before it writes the log
// line. It logs a call without a response too.
func TestCallIsAnsweredBeforeItIsLogged(t *testing.T) {
	var closed atomic.Bool
	s := newScripted(t, func(s *scripted) {
		s.stateless, s.lists = true, everything
		s.call = func(t *turn) {
			t.result(`{"content":[]}`)
			<-t.r.Context().Done()
			closed.Store(true)
		}
	})
	var out bytes.Buffer
	g := newGateway(t, Options{Backends: []api.Backend{at("b", s)}, Log: slog.New(slog.NewJSONHandler(&out, nil))})
	for name, responds := range map[string]bool{"get_a": true, "unknown": false} {
		out.Reset()
		answered, logged := 0, false
		o := called(t, g, statelessClient(ann), "", func(c *api.Call) {
			c.Name, c.Params = name, json.RawMessage(`{"name":"`+name+`"}`)
			c.Answered = func() {
				answered++
				logged = out.Len() > 0 || closed.Load()
			}
		})
		if (o.response != nil) != responds || (answered == 1) != responds || logged || out.Len() == 0 {
			t.Errorf("%s: got response %s, error %v, answered %d times, logged or closed before: %v, logged after: %v", name, o.response, o.err, answered, logged, out.Len() > 0)
		}
	}
}
