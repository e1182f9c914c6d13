package backends

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/rules"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// GWN-24: the gateway does not pass on its own extensions, extensions about the connection, and malformed or large declarations.
func TestDeclaredExtensions(t *testing.T) {
	var many []string
	for i := range 2 * maxExtensions {
		many = append(many, fmt.Sprintf(`"com.example/e%d":{}`, i))
	}
	for declared, want := range map[string]int{
		`{"com.example/catalog":{},"io.modelcontextprotocol/ui":{"mimeTypes":["text/html"]}}`:   2,
		`{"io.modelcontextprotocol/events":{},"io.modelcontextprotocol/tasks":{}}`:              0,
		`{"io.modelcontextprotocol/Events":{},"IO.ModelContextProtocol/tasks":{}}`:              0,
		`{"io.github.mcp-events/subscriptions":{},"IO.GitHub.MCP-Events/x":{}}`:                 0,
		`{"io.modelcontextprotocol/oauth-client-credentials":{}}`:                               0,
		`{"catalog":{},"/x":{},"com.example/":{},"com.example/a/b":{},"a b/c":{},"a/\n":{}}`:    0,
		`{"com.example/a":true,"com.example/b":null,"com.example/c":[]}`:                        0,
		`{"com.example/a":{"x":"` + strings.Repeat("x", maxSettings) + `"}}`:                    0,
		`{"com.example/a":` + strings.Repeat(`{"x":`, 20) + `1` + strings.Repeat(`}`, 20) + `}`: 0,
		`{` + strings.Join(many, ",") + `}`:                                                     maxExtensions,
		`5`:                                                                                     0,
	} {
		expect.Equal(t, fmt.Sprintf("the extensions of %.80s", declared), len(parseExtensions(json.RawMessage(declared))), want)
	}
}

// GWN-24: a method that may belong to several extensions needs all of them to be allowed, with their scopes.
func TestMethodOfSeveralExtensions(t *testing.T) {
	ann := auth.Principal{ID: "ann", Scopes: []string{"orders"}}
	info := &ServerInfo{}
	info.Extensions = parseExtensions(json.RawMessage(`{"com.example/catalog":{},"com.example/orders":{}}`))
	for _, tc := range []struct {
		rules  rules.Rules
		method string
		ok     bool
		lacks  bool
	}{
		{rules.Rules{}, "com.example/search", true, false},
		{rules.Rules{Deny: []string{"com.example/orders"}}, "com.example/search", false, false},
		{rules.Rules{Deny: []string{"com.example/orders"}}, "com.example/orders/cancel", false, false},
		{rules.Rules{Deny: []string{"com.example/orders"}}, "com.example/catalog/search", true, false},
		{rules.Rules{Deny: []string{"com.example/orders"}}, "catalog/search", true, false},
		{rules.Rules{Scopes: map[string][]string{"com.example/orders": {"orders"}}}, "com.example/search", true, false},
		{rules.Rules{Scopes: map[string][]string{"com.example/orders": {"admin"}}}, "com.example/search", false, true},
		{rules.Rules{Scopes: map[string][]string{"com.example/orders": {"admin"}}}, "catalog/search", true, false},
		{rules.Rules{}, "com.other/search", false, false},
	} {
		b := newBackend(&Options{}, api.Backend{Name: "b", Extensions: tc.rules})
		for range 20 { // the order of the extensions does not matter
			ok, err := b.view.Extends(ann, info, tc.method)
			if ok != tc.ok || auth.LacksScope(err) != tc.lacks {
				t.Fatalf("%v: %s: got %t, %v", tc.rules, tc.method, ok, err)
			}
		}
	}
}

// GWN-24: no extension can take over a method of MCP or of the gateway's own extensions, whatever a backend declares.
func FuzzExtensions(f *testing.F) {
	f.Add(`{"com.example/tools":{},"com.example/events":{}}`, "tools/call")
	f.Add(`{"tools/x":{},"notifications/tools":{}}`, "notifications/tools/list_changed")
	f.Add(`{"a/b":{"x":[1,2]}}`, "a/b/c")
	f.Fuzz(func(t *testing.T, declared, method string) {
		if _, _, bad := jsonrpc.Split([]byte(`{"jsonrpc":"2.0","method":"x","params":` + declared + `}`)); bad != nil {
			return // the client of the backend refuses it
		}
		for id, settings := range parseExtensions(json.RawMessage(declared)) {
			if !json.Valid(settings) || spec.IsOwn(id) || strings.Count(id, "/") != 1 {
				t.Fatalf("got the extension %q with %q", id, settings)
			}
			for _, own := range []string{
				"tools/call", "tools/list", "prompts/get", "resources/read", "resources/subscribe", "resources/subscriptions/register", "events/subscribe",
				"tasks/get", "completion/complete", "logging/setLevel", "initialize", "server/discover", "subscriptions/listen", "conversation/userMessage",
				"notifications/cancelled", "notifications/tools/list_changed", "notifications/tasks/status", "sampling/createMessage",
			} {
				if hasMethod(id, own) {
					t.Fatalf("%s belongs to the extension %q", own, id)
				}
			}
			if name := strings.TrimPrefix(method, "notifications/"); hasMethod(id, method) && !strings.HasPrefix(name, strings.Split(id, "/")[0]+"/") && !strings.HasPrefix(name, strings.Split(id, "/")[1]+"/") {
				t.Fatalf("%q belongs to the extension %q", method, id)
			}
		}
	})
}
