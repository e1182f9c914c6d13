package mcp

import (
	"encoding/json"
	"testing"

	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// GWN-01: as long as there are no backends the endpoint is to clients what it is without a gateway.
func TestGatewayWithoutBackends(t *testing.T) {
	g := newEndpointGateway(t)
	without, with := newFixture(t, nil), newFixture(t, func(o *Options) { o.Gateway = g })
	type request struct{ method, params string }
	stateless := []request{
		{spec.MethodDiscover, ""},
		{spec.MethodToolsList, ""},
		{spec.MethodToolsCall, `"name":"t","arguments":{}`},
		{spec.MethodPromptsList, ""},
		{spec.MethodPromptsGet, `"name":"p"`},
		{spec.MethodResources, ""},
		{spec.MethodTemplates, ""},
		{spec.MethodResources, `"cursor":"Yng"`},
		{spec.MethodRead, `"uri":"file:///x"`},
		{spec.MethodComplete, `"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"a","value":""}`},
	}
	for _, r := range stateless {
		want, got := without.stateless(alice, r.method, r.params), with.stateless(alice, r.method, r.params)
		if got.Status != want.Status || got.Body != want.Body {
			t.Errorf("%s %s: %d %s, without a gateway %d %s", r.method, r.params, got.Status, got.Body, want.Status, want.Body)
		}
	}
	a, b := without.session(alice, spec.V20251125), with.session(alice, spec.V20251125)
	for _, r := range append(stateless[1:], request{spec.MethodSubscribe, `"uri":"file:///x"`}, request{spec.MethodSetLevel, `"level":"debug"`}) {
		want, got := without.sessionBased(alice, a, r.method, r.params), with.sessionBased(alice, b, r.method, r.params)
		if got.Status != want.Status || got.Body != want.Body {
			t.Errorf("in a session %s %s: %d %s, without a gateway %d %s", r.method, r.params, got.Status, got.Body, want.Status, want.Body)
		}
	}
	for _, note := range []string{
		`{"jsonrpc":"2.0","id":"gw_x","result":{}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`,
	} {
		want, got := without.do("POST", alice, note, "Mcp-Session-Id: "+a), with.do("POST", alice, note, "Mcp-Session-Id: "+b)
		if got.Status != want.Status || got.Body != want.Body {
			t.Errorf("%s: %d %s, without a gateway %d %s", note, got.Status, got.Body, want.Status, want.Body)
		}
	}
	one, _ := without.describeBoth()
	two, _ := with.describeBoth()
	if x, y := jsonrpc.Encode(one.Capabilities), jsonrpc.Encode(two.Capabilities); string(x) != string(y) {
		t.Errorf("initialize says %s, without a gateway %s", y, x)
	}
}

func newEndpointGateway(t *testing.T) *gateway.Gateway {
	t.Helper()
	g, err := gateway.New(gateway.Options{Server: json.RawMessage(`{}`), Key: make([]byte, 32)})
	must(t, err)
	return g
}
