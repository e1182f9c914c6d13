package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/rules"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// withExtensions returns a change of a scripted backend that declares extensions, which are members of a JSON object.
func withExtensions(stateless bool, extensions string) func(*scripted) {
	return func(s *scripted) {
		s.stateless, s.capabilities = stateless, `{"tools":{},"extensions":{`+extensions+`}}`
		s.call = func(t *turn) {
			t.notify("notifications/com.example/found", `{"n":1}`)
			t.notify("notifications/org.other/found", `{"n":2}`)
			t.result(`{"items":["a"],"big":9007199254740993}`)
		}
	}
}

// callMethod calls a method of an extension and returns the messages to the client.
func callMethod(t *testing.T, g *Gateway, c api.Client, method, params string) (messages []string, err error) {
	t.Helper()
	call := api.Call{Client: c, Kind: api.Extensions, Name: method, Method: method, ID: json.RawMessage("1"), Send: func(m json.RawMessage, _ bool) error {
		messages = append(messages, string(m))
		return nil
	}}
	if params != "" {
		call.Params = json.RawMessage(params)
	}
	err = g.Call(t.Context(), call)
	return messages, err
}

// eachClient runs a test with a client of each kind of revisions.
func eachClient(t *testing.T, f func(t *testing.T, c api.Client)) {
	for name, c := range map[string]api.Client{"client of 2025": sessionBased("s"), "client of 2026": statelessClient(ann)} {
		t.Run(name, func(t *testing.T) { f(t, c) })
	}
}

// GWN-24: a method of an extension goes to the only backend that declares the extension, with its params, and the result comes back
// byte for byte. The gateway relays notifications of the extension within the call, and drops notifications of other extensions.
func TestExtensionMethods(t *testing.T) {
	for _, stateless := range []bool{false, true} {
		eachClient(t, func(t *testing.T, c api.Client) {
			s, other := newScripted(t, withExtensions(stateless, `"com.example/catalog":{"suggest":true}`)), newScripted(t, withExtensions(!stateless, ``))
			g := gatewayOver(t, memory(t), at("other", other), at("b", s))
			expect.Equal(t, "the settings", string(g.Capabilities(t.Context(), c).Extensions["com.example/catalog"]), `{"suggest":true}`)
			for _, method := range []string{"com.example/search", "com.example/catalog/search", "catalog/search"} {
				messages, err := callMethod(t, g, c, method, `{"query":"x","limit":9007199254740993}`)
				text := strings.Join(messages, "\n")
				if err != nil || !strings.Contains(text, `"items":["a"],"big":9007199254740993`) ||
					!strings.Contains(text, "com.example/found") || strings.Contains(text, "org.other/found") {
					t.Errorf("%s: got %s, %v", method, text, err)
				}
				got := s.received(method)
				if len(got) != 1 || !strings.Contains(string(got[0].Params), `"query":"x","limit":9007199254740993`) || len(other.received(method)) != 0 {
					t.Errorf("%s: the backend got %v", method, got)
				}
				if want := map[bool]string{true: method}[stateless]; got[0].Header.Get("Mcp-Method") != want || got[0].Header.Get("Mcp-Name") != "" {
					t.Errorf("%s: got the headers %v", method, got[0].Header)
				}
			}
			if _, err := callMethod(t, g, c, "com.example/search", ""); err != nil {
				t.Errorf("a call without params: %v", err)
			}
			for _, method := range []string{"com.example.search", "com.other/search", "com.example/other/search", "other/search", "com.example/", "catalog"} {
				if g.Has(t.Context(), c, api.Extensions, method) {
					t.Errorf("%s counts as a method of the extension", method)
				}
			}
		})
	}
}

// GWN-24: a method of an extension that several backends declare is refused with an error that names them. Rules can make it unambiguous.
func TestAmbiguousExtension(t *testing.T) {
	eachClient(t, func(t *testing.T, c api.Client) {
		one, two := newScripted(t, withExtensions(true, `"com.example/catalog":{"n":1}`)), newScripted(t, withExtensions(false, `"com.example/catalog":{"n":2}`))
		db := memory(t)
		g := gatewayOver(t, db, at("one", one), at("two", two))
		_, err := callMethod(t, g, c, "com.example/search", `{}`)
		if !fault.Is(err, fault.Conflict) || !strings.Contains(fault.Public(err), "one, two") || fmt.Sprint(fault.DataOf(err)) != "map[backends:[one two]]" {
			t.Errorf("got %v with the data %v, want an error that names both backends", err, fault.DataOf(err))
		}
		expect.Equal(t, "calls of an ambiguous method at the backends", len(one.received("com.example/search"))+len(two.received("com.example/search")), 0)
		expect.Equal(t, "the settings of the first backend", string(g.Capabilities(t.Context(), c).Extensions["com.example/catalog"]), `{"n":1}`)
		g = gatewayOver(t, db, at("one", one, func(b *api.Backend) { b.Extensions = rules.Rules{Deny: []string{"com.example/*"}} }), at("two", two))
		if _, err = callMethod(t, g, c, "com.example/search", `{}`); err != nil || len(two.received("com.example/search")) != 1 {
			t.Errorf("with a rule for one of them: got %v", err)
		}
		expect.Equal(t, "the settings of the allowed backend", string(g.Capabilities(t.Context(), c).Extensions["com.example/catalog"]), `{"n":2}`)
	})
}

// GWN-25: the name of a method, which the client chooses, is short in the log.
func TestLongMethodsAreShortInTheLog(t *testing.T) {
	var out bytes.Buffer
	s := newScripted(t, withExtensions(true, `"com.example/catalog":{}`), func(s *scripted) { s.call = func(t *turn) { t.result(`{}`) } })
	g := newGateway(t, Options{Backends: []api.Backend{at("b", s)}, Log: slog.New(slog.NewJSONHandler(&out, nil))})
	_, err := callMethod(t, g, statelessClient(ann), "com.example/"+strings.Repeat("x", 500), `{}`)
	expect.OK(t, err)
	var line struct{ Msg, Method, Outcome string }
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line.Outcome != "ok" || !strings.HasPrefix(line.Method, "com.example/x") || len(line.Method) > 140 {
		t.Errorf("got %s, %v, want a line with a short method", out.String(), err)
	}
}

// GWN-24, GWN-25: a caller can use only the extensions of backends that it may see, and that the rules allow it.
func TestExtensionsForWhom(t *testing.T) {
	s := newScripted(t, withExtensions(true, `"com.example/catalog":{},"com.example.admin/users":{}`))
	g := gatewayOver(t, memory(t), at("b", s, func(b *api.Backend) {
		b.Scopes, b.Extensions = []string{"mcp"}, rules.Rules{Scopes: map[string][]string{"com.example.admin/*": {"write"}}}
	}))
	stranger := auth.Principal{ID: "stranger", Workspace: auth.DefaultWorkspace}
	for _, tc := range []struct {
		who    auth.Principal
		method string
		has    bool
		want   string // in the error
	}{
		{ann, "com.example/search", true, ""},
		{ann, "com.example.admin/delete", true, "this needs the scope write"},
		{bea, "com.example.admin/delete", true, ""},
		{stranger, "com.example/search", false, "there is no extension method"},
	} {
		_, err := callMethod(t, g, statelessClient(tc.who), tc.method, `{}`)
		if has := g.Has(t.Context(), of(tc.who), api.Extensions, tc.method); has != tc.has || (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s by %s: got %v and the error %v, want %v and %q", tc.method, tc.who.ID, has, err, tc.has, tc.want)
		}
	}
	expect.Equal(t, "the number of ann's extensions", len(g.Capabilities(t.Context(), of(ann)).Extensions), 1)
	expect.Equal(t, "the number of the stranger's extensions", len(g.Capabilities(t.Context(), of(stranger)).Extensions), 0)
}

// GWN-24: a client's notification of an extension reaches the backend in the form of its revision. Others are dropped.
func TestNotificationsOfExtensions(t *testing.T) {
	for _, stateless := range []bool{false, true} {
		eachClient(t, func(t *testing.T, c api.Client) {
			s := newScripted(t, withExtensions(stateless, `"com.example/catalog":{}`))
			g := gatewayOver(t, memory(t), at("b", s))
			const method = "notifications/com.example/changed"
			expect.OK(t, g.NotifyExtension(t.Context(), c, "notifications/com.unknown/changed", nil))
			expect.OK(t, g.NotifyExtension(t.Context(), c, "notifications/initialized", nil))
			params := `{"n":1,"_meta":{"x":1}}`
			if c.Version.Stateless() {
				params = `{"n":1,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","x":1}}`
			}
			expect.OK(t, g.NotifyExtension(t.Context(), c, method, json.RawMessage(params)))
			m := s.next(t, method)
			if has := strings.Contains(m.Raw, "protocolVersion"); has != stateless || (m.Session == "") != stateless || !strings.Contains(m.Raw, `"x":1`) || !strings.Contains(m.Raw, `"n":1`) {
				t.Errorf("the backend got %s in session %q", m.Raw, m.Session)
			}
			expect.Equal(t, "notifications at the backend", len(s.received("notifications/com.unknown/changed"))+len(s.received(method)), 1)
		})
	}
}
