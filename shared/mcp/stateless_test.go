package mcp

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

const meta2026 = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`

// TestTheOrderOfChecks walks through the checks of a POST in the order of docs/reference/protocol.md. Many rows also violate a
// later check, so they fail if the order changes.
func TestTheOrderOfChecks(t *testing.T) {
	f := newFixture(t, nil)
	version := "Mcp-Protocol-Version: 2026-07-28"
	for _, tc := range []struct {
		name    string
		key     string
		body    string
		headers []string
		status  int
		code    int
		id      string // of the response; "" for none
	}{
		{"SUB-09_origin_before_caller", "wrong", `{`, []string{"Origin: https://evil.example"}, 403, method.CodeForbidden, ""},
		{"SUB-09_caller_before_body", "wrong", `{`, nil, 401, method.CodeUnauthenticated, ""},
		{"EVX-16_no_caller_by_the_method_header", "wrong", `{`, []string{"Mcp-Method: events/subscribe"}, 401, -32012, ""},
		{"SUB-09_size_before_parse", alice, `{` + strings.Repeat("x", 1<<20), nil, 413, method.CodeTooLarge, ""},
		{"SUB-09_parse", alice, `{"jsonrpc":"2.0","id":1,`, []string{version}, 400, -32700, ""},
		{"SUB-09_shape", alice, `{"jsonrpc":"2.0","id":1,"method":7}`, []string{version}, 400, -32600, "1"},
		{"SUB-09_shape_without_a_readable_id", alice, `{"jsonrpc":"2.0","id":null,"method":"server/discover"}`, []string{version}, 400, -32600, ""},
		{"SUB-09_no_batches", alice, `[` + rpcText("1", spec.MethodDiscover, meta2026) + `]`, []string{version}, 400, -32600, ""},
		{"SUB-09_no_responses", alice, `{"jsonrpc":"2.0","id":1,"result":{}}`, []string{version}, 400, -32600, ""},
		{"SUB-09_version_header_missing", alice, rpcText("1", spec.MethodDiscover, meta2026), []string{"Mcp-Method: server/discover"}, 400, -32020, "1"},
		{"SUB-09_version_header_differs", alice, rpcText("1", spec.MethodDiscover, meta2026), []string{"Mcp-Protocol-Version: 2025-11-25"}, 400, -32020, "1"},
		{"SUB-09_version_header_twice", alice, rpcText("1", spec.MethodDiscover, meta2026), []string{version, version}, 400, -32020, "1"},
		{"SUB-09_mismatch_before_unknown_version", alice, rpcText("1", spec.MethodDiscover, strings.ReplaceAll(meta2026, "2026-07-28", "2030-01-01")), []string{version}, 400, -32020, "1"},
		{"SUB-09_no_params", alice, `{"jsonrpc":"2.0","id":1,"method":"server/discover"}`, []string{version}, 400, -32602, "1"},
		{"SUB-09_no_meta", alice, rpcText("1", spec.MethodDiscover, ``), []string{version}, 400, -32602, "1"},
		{"SUB-09_no_version_in_meta", alice, rpcText("1", spec.MethodDiscover, `"_meta":{"io.modelcontextprotocol/clientCapabilities":{}}`), []string{version}, 400, -32602, "1"},
		{"SUB-09_version_in_meta_is_no_text", alice, rpcText("1", spec.MethodDiscover, `"_meta":{"io.modelcontextprotocol/protocolVersion":20260728}`), []string{version}, 400, -32602, "1"},
		{"SUB-09_no_clientCapabilities", alice, rpcText("1", spec.MethodDiscover, `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`), []string{version}, 400, -32602, "1"},
		{"SUB-09_unknown_version", alice, rpcText("1", spec.MethodDiscover, strings.ReplaceAll(meta2026, "2026-07-28", "2030-01-01")), []string{"Mcp-Protocol-Version: 2030-01-01"}, 400, -32022, "1"},
		{"SUB-09_unknown_old_version", alice, rpcText(`"x"`, spec.MethodDiscover, strings.ReplaceAll(meta2026, "2026-07-28", "1900-01-01")), []string{"Mcp-Protocol-Version: 1900-01-01"}, 400, -32022, `"x"`},
		{"SUB-10_method_header_missing", alice, rpcText("1", "no/such", meta2026), []string{version}, 400, -32020, "1"},
		{"SUB-10_method_header_differs", alice, rpcText("1", spec.MethodDiscover, meta2026), []string{version, "Mcp-Method: resources/list"}, 400, -32020, "1"},
		{"SUB-10_method_header_is_case-sensitive", alice, rpcText("1", spec.MethodDiscover, meta2026), []string{version, "Mcp-Method: SERVER/DISCOVER"}, 400, -32020, "1"},
		{"SUB-10_method_header_is_not_in_Base64", alice, rpcText("1", spec.MethodDiscover, meta2026), []string{version, "Mcp-Method: =?base64?c2VydmVyL2Rpc2NvdmVy?="}, 400, -32020, "1"},
		{"SUB-10_name_header_missing", alice, rpcText("1", spec.MethodRead, `"uri":"event://ci/deploy",`+meta2026), []string{version, "Mcp-Method: resources/read"}, 400, -32020, "1"},
		{"SUB-10_name_header_differs", alice, rpcText("1", spec.MethodRead, `"uri":"event://ci/deploy",`+meta2026), []string{version, "Mcp-Method: resources/read", "Mcp-Name: event://ci"}, 400, -32020, "1"},
		{"SUB-10_name_header_malformed", alice, rpcText("1", spec.MethodRead, `"uri":"event://ci/deploy",`+meta2026), []string{version, "Mcp-Method: resources/read", "Mcp-Name: =?base64?!?="}, 400, -32020, "1"},
		{"SUB-10_name_header_of_a_method_that_is_not_served", alice, rpcText("1", spec.MethodToolsCall, `"name":"x",`+meta2026), []string{version, "Mcp-Method: tools/call"}, 400, -32020, "1"},
		{"SUB-10_name_header_of_a_prompt_missing", alice, rpcText("1", "prompts/get", `"name":"x",`+meta2026), []string{version, "Mcp-Method: prompts/get"}, 400, -32020, "1"},
		{"SUB-09_unknown_method", alice, rpcText("1", "no/such", meta2026), []string{version, "Mcp-Method: no/such"}, 404, -32601, "1"},
		{"SUB-09_params", alice, rpcText("1", spec.MethodListen, meta2026), []string{version, "Mcp-Method: subscriptions/listen"}, 400, -32602, "1"},
		{"SUB-10_name_header_in_Base64", alice, rpcText("1", spec.MethodRead, `"uri":"event://ci/deploy",`+meta2026), []string{version, "Mcp-Method: resources/read", "Mcp-Name: =?base64?ZXZlbnQ6Ly9jaS9kZXBsb3k=?="}, 200, 0, "1"},
		{"SUB-10_own_methods_need_no_name_header", alice, rpcText("1", spec.MethodDeregister, `"uri":"subscription://x",`+meta2026), []string{version, "Mcp-Method: resources/subscriptions/deregister"}, 400, -32602, "1"},
		{"SUB-09_clientInfo_is_optional", alice, rpcText("9007199254740993", spec.MethodDiscover, meta2026), []string{version, "Mcp-Method: server/discover"}, 200, 0, "9007199254740993"},
		{"SUB-10_header_names_have_no_case", alice, rpcText("1", spec.MethodDiscover, meta2026), []string{"MCP-PROTOCOL-VERSION: 2026-07-28", "mcp-method: server/discover"}, 200, 0, "1"},
		{"SUB-10_session_and_last_event_are_ignored", alice, rpcText("1", spec.MethodDiscover, meta2026), []string{version, "Mcp-Method: server/discover", "Mcp-Session-Id: nonsense", "Last-Event-ID: nonsense"}, 200, 0, "1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := f.do("POST", tc.key, tc.body, tc.headers...)
			r.is(t, tc.body, tc.status, tc.code)
			if id, session := string(r.rpc(t).ID), r.Header.Get(spec.HeaderSession); id != tc.id || session != "" || len(r.Body) > 2000 {
				t.Errorf("got the id %s, the session %q and %d bytes, want the id %s, no session and at most 2000", id, session, len(r.Body), tc.id)
			}
		})
	}
}

func TestUnsupportedVersion(t *testing.T) {
	run(t, "SUB-09_names_the_versions_that_discover_names", nil, func(t *testing.T, f *fixture) {
		var d described
		f.stateless(alice, spec.MethodDiscover, "").result(t, &d)
		body := strings.ReplaceAll(statelessBody("1", spec.MethodDiscover, ""), "2026-07-28", "2031-01-01")
		f.do("POST", alice, body, "Mcp-Protocol-Version: 2031-01-01").
			fails(t, "2031-01-01", -32022, fmt.Sprintf(`{"supported":["%s"],"requested":"2031-01-01"}`, strings.Join(d.SupportedVersions, `","`)))
	})
}

func TestWhatTheStatelessRevisionHas(t *testing.T) {
	f := newFixture(t, nil)
	for _, m := range []string{spec.MethodInitialize, spec.MethodPing, "logging/setLevel", spec.MethodSubscribe, spec.MethodUnsubscribe, "notifications/initialized"} {
		t.Run("SUB-09_"+strings.ReplaceAll(m, "/", "_")+"_is_unknown", func(t *testing.T) {
			f.stateless(alice, m, `"uri":"event://ci/deploy"`).is(t, m, http.StatusNotFound, -32601)
		})
	}
	for _, method := range []string{"GET", "DELETE"} {
		t.Run("SUB-09_"+method+"_is_not_allowed", func(t *testing.T) {
			if r := f.do(method, alice, "", "Mcp-Protocol-Version: 2026-07-28"); r.Status != http.StatusMethodNotAllowed || r.Header.Get("Allow") != "POST" {
				t.Errorf("got status %d, %v, want 405 and only POST allowed", r.Status, r.Header)
			}
		})
	}
	t.Run("SUB-10_notifications", func(t *testing.T) {
		for _, tc := range []struct {
			headers []string
			meta    string
			status  int
		}{
			{[]string{"Mcp-Protocol-Version: 2026-07-28"}, "", 202},
			{[]string{"Mcp-Protocol-Version: 2026-07-28", "Mcp-Method: notifications/cancelled"}, "," + meta2026, 202},
			{[]string{"Mcp-Protocol-Version: 2026-07-28", "Mcp-Method: other"}, "", 400},
			{[]string{"Mcp-Protocol-Version: 2031-01-01"}, "", 400},
			{[]string{"Mcp-Protocol-Version: 2031-01-01"}, "," + meta2026, 400},
		} {
			body := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1` + tc.meta + `}}`
			f.do("POST", alice, body, tc.headers...).isPlain(t, fmt.Sprint(tc.headers), tc.status)
		}
	})
	t.Run("SUB-10_EVX-18_results_have_their_type_and_caching_hints", func(t *testing.T) {
		for _, tc := range []struct {
			method, params string
			cacheable      bool
		}{
			{spec.MethodDiscover, "", true},
			{spec.MethodResources, "", true},
			{spec.MethodTemplates, "", true},
			{spec.MethodRead, readDeploys, true},
			{spec.MethodEvents, "", false},
			{spec.MethodComplete, ref("event://github/{owner}/{repo}/push", "repo", ""), false},
		} {
			var d described
			f.stateless(alice, tc.method, tc.params).result(t, &d)
			if d.ResultType != "complete" || (d.TTLMs != nil) != tc.cacheable || (d.CacheScope != "") != tc.cacheable || d.Meta[spec.MetaServer] == nil {
				t.Errorf("%s: got %+v, want complete, the server, and caching hints: %v", tc.method, d, tc.cacheable)
			}
		}
	})
}
