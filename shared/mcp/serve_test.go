package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambdaurl"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestCallers(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.ResourceMetadata = "https://mcp.example/.well-known/oauth-protected-resource" })
	challenged := func(t *testing.T, r reply, status int, parts ...string) {
		t.Helper()
		got := r.Header.Get("WWW-Authenticate")
		for _, want := range parts {
			if r.Status != status || !strings.HasPrefix(got, "Bearer ") || !strings.Contains(got, want) {
				t.Errorf("got status %d and the challenge %q, want %d and %s", r.Status, got, status, want)
			}
		}
	}
	t.Run("AUT-01_401_names_the_metadata_and_the_scope", func(t *testing.T) {
		for _, method := range []string{"POST", "GET", "DELETE"} {
			challenged(t, f.do(method, "", `{}`), 401, "resource_metadata=", `scope="events:read"`)
		}
	})
	t.Run("AUT-01_403_names_the_missing_scopes", func(t *testing.T) {
		r := f.stateless(reader, spec.MethodRegister, `"uris":["event://ci/deploy"],"targetUri":"https://a.example/"`)
		challenged(t, r, 403, `error="insufficient_scope"`, `scope="events:subscribe"`)
		r.is(t, "register", 403, method.CodeForbidden)
		challenged(t, f.stateless(alice, spec.MethodRead, `"uri":"event://billing/invoice"`), 403, `scope="billing events:read"`)
	})
}

// TestOrigins checks that the endpoint applies its guard. The tests of [auth.Guard] show which origins and hosts it allows.
func TestOrigins(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Guard = auth.Guard{Origins: []string{"https://app.example"}} })
	discover := statelessBody("1", spec.MethodDiscover, "")
	t.Run("AUT-06_the_answer_names_the_origin_that_asked", func(t *testing.T) {
		for origin, status := range map[string]int{"": 200, "https://app.example": 200, "https://evil.example": 403} {
			r := f.do("POST", alice, discover, append(statelessHeaders(spec.MethodDiscover, ""), "Origin: "+origin)...)
			if got := r.Header.Get("Access-Control-Allow-Origin"); r.Status != status || status == 200 && got != origin {
				t.Errorf("%s: got status %d for the origin %q, want %d", origin, r.Status, got, status)
			}
			if status == 200 && origin != "" {
				expect.Contains(t, "the headers that a page may read", r.Header.Get("Access-Control-Expose-Headers"), "Mcp-Session-Id", "Retry-After")
			}
		}
	})
	t.Run("AUT-06_another_host", func(t *testing.T) {
		req := f.statelessRequest(alice, spec.MethodDiscover, "")
		req.Host = "evil.example"
		f.answer(req).isPlain(t, req.Host, 403)
	})
	t.Run("AUT-06_preflight", func(t *testing.T) {
		r := f.do("OPTIONS", "", "", "Origin: https://app.example", "Access-Control-Request-Headers: content-type,mcp-param-region,x-other")
		r.isPlain(t, "preflight", 204)
		allowed := strings.Join(r.Header.Values("Access-Control-Allow-Headers"), ", ")
		expect.Contains(t, "the allowed headers", allowed, "Mcp-Session-Id", "mcp-param-region", "Traceparent")
		expect.Lacks(t, "the allowed headers", allowed, "x-other")
		f.do("OPTIONS", "", "", "Origin: https://evil.example").isPlain(t, "evil.example", 403)
	})
}

func TestMediaTypes(t *testing.T) {
	f := newFixture(t, nil)
	for _, tc := range []struct {
		name, method string
		header       []string
		status       int
	}{
		{"charset", spec.MethodDiscover, []string{"Content-Type:", "Content-Type: application/json; charset=utf-8"}, 200},
		{"text", spec.MethodDiscover, []string{"Content-Type:", "Content-Type: text/plain"}, 415},
		{"no compression", spec.MethodDiscover, []string{"Content-Encoding: identity"}, 200},
		{"gzip", spec.MethodDiscover, []string{"Content-Encoding: gzip"}, 415},
		{"several lines of codings", spec.MethodDiscover, []string{"Content-Encoding: identity", "Content-Encoding: zstd"}, 415},
		{"accept nothing said", spec.MethodDiscover, []string{"Accept:"}, 200},
		{"accept JSON only", spec.MethodDiscover, []string{"Accept:", "Accept: application/json;q=0.9"}, 200},
		{"accept HTML", spec.MethodDiscover, []string{"Accept:", "Accept: text/html, image/*"}, 406},
		{"accept streams only", spec.MethodDiscover, []string{"Accept:", "Accept: text/event-stream"}, 406},
		{"listen needs a stream", spec.MethodListen, []string{"Accept:", "Accept: application/json"}, 406},
	} {
		t.Run("SES-04_"+tc.name, func(t *testing.T) {
			f.do("POST", alice, statelessBody("1", tc.method, `"notifications":{}`), append(statelessHeaders(tc.method, ""), tc.header...)...).isPlain(t, tc.method, tc.status)
		})
	}
	t.Run("SES-04_the error names the coding", func(t *testing.T) {
		r := f.do("POST", alice, statelessBody("1", spec.MethodDiscover, ""), append(statelessHeaders(spec.MethodDiscover, ""), "Content-Encoding: GZIP")...)
		r.is(t, "a body with a coding", 415, jsonrpc.InvalidRequest, `the Content-Encoding \"GZIP\" is not supported (send the body without a Content-Encoding)`)
	})
	t.Run("SES-04_other methods", func(t *testing.T) {
		if r := f.do("PUT", alice, "{}"); r.Status != 405 || r.Header.Get("Allow") != "GET, POST, DELETE" {
			t.Errorf("got status %d, %v, want 405 and the allowed methods", r.Status, r.Header)
		}
	})
}

// broken is a source that returns its error, or panics if the error is nil.
type broken struct{ err error }

func (b broken) Catalog(context.Context, string) (*catalog.Catalog, error) {
	if b.err == nil {
		panic("secret detail")
	}
	return nil, b.err
}

func (b broken) Authenticate(context.Context, http.Header) (auth.Principal, error) {
	return auth.Principal{}, b.err
}

func TestFailures(t *testing.T) {
	for _, tc := range []struct {
		name         string
		err          error
		status, code int
	}{
		{"a panic", nil, 500, -32603},
		{"a failure of ours", errors.New("secret detail"), 200, method.CodeUnavailable},
		{"an internal fault", fault.New(fault.Internal, "secret detail"), 200, method.CodeUnavailable},
	} {
		run(t, tc.name, func(o *Options) { o.Catalogs = broken{tc.err} }, func(t *testing.T, f *fixture) {
			r := f.stateless(alice, spec.MethodResources, "")
			r.is(t, tc.name, tc.status, tc.code)
			expect.Lacks(t, "the body", r.Body, "secret")
		})
	}
	run(t, "the caller is not known now", func(o *Options) { o.Auth = broken{fault.New(fault.Unavailable, "secret detail")} }, func(t *testing.T, f *fixture) {
		if r := f.stateless(alice, spec.MethodPing, ""); r.Status != 503 || r.Header.Get("Retry-After") == "" || strings.Contains(r.Body, "secret") {
			t.Errorf("got status %d, %v: %s, want 503, Retry-After and no detail", r.Status, r.Header, r.Body)
		}
	})
	t.Run("an endpoint without callers or catalog is not made", func(t *testing.T) {
		expect.Error(t, "New without options", expect.ErrOf(New(Options{})))
	})
}

func TestBodyOfUnknownLength(t *testing.T) {
	f := newEndpoint(t, nil)
	defer f.close()
	for body, status := range map[string]int{
		statelessBody("1", spec.MethodDiscover, ""):            200,
		`{"jsonrpc":"2.0",` + strings.Repeat(" ", 1<<20) + `}`: 413,
		"": 400,
	} {
		req := f.request("POST", alice, body, statelessHeaders(spec.MethodDiscover, "")...)
		req.ContentLength = -1
		rec := httptest.NewRecorder()
		f.endpoint.ServeHTTP(rec, req)
		expect.Deep(t, fmt.Sprintf("the status of %d bytes", len(body)), rec.Code, status)
	}
}

// AUT-06: while the store is unavailable, the answers do not reveal the server's internals.
func TestWhileTheStoreIsGone(t *testing.T) {
	f := newFixture(t, nil)
	expect.OK(t, f.db.(io.Closer).Close())
	for name, r := range map[string]reply{
		"read":       f.stateless(alice, spec.MethodRead, `"uri":"event://ci/deploy"`),
		"poll":       f.stateless(alice, spec.MethodEventsPoll, `"name":"github.push","arguments":{"owner":"acme"}`),
		"listen":     f.stateless(alice, spec.MethodListen, `"notifications":{"resourceSubscriptions":["event://ci"]}`),
		"initialize": f.initialize(alice, spec.V20251125, `{}`),
		"register":   f.stateless(alice, spec.MethodRegister, `"uris":["event://ci/deploy"],"targetUri":"https://a.example/"`),
		"subscribe":  f.stateless(alice, spec.MethodEventsSub, `"name":"ci.build",`+callback),
		"a session":  f.sessionBased(alice, "some", spec.MethodPing, ""),
	} {
		r.fails(t, name, method.CodeUnavailable, "")
		if want := "this cannot be done now; try again"; r.rpc(t).Error.Message != want || strings.Contains(r.Body, "data") {
			t.Errorf("%s: got %s, want only the message %q", name, r.Body, want)
		}
	}
}

// shaky is a catalog source. Its next reads fail, and fails holds their remaining number.
type shaky struct {
	catalog.Source
	fails atomic.Int64
}

func (s *shaky) Catalog(ctx context.Context, workspace string) (*catalog.Catalog, error) {
	if s.fails.Add(-1) >= 0 {
		return nil, fault.New(fault.Unavailable, "the catalog cannot be read")
	}
	return s.Source.Catalog(ctx, workspace)
}

// TestDisconnect checks whether a request is canceled when its client disconnects.
func TestDisconnect(t *testing.T) {
	for name, tc := range map[string]struct {
		path      string
		cancelled bool
	}{
		"SES-05_is_no_cancellation_in_a_session":   {"/mcp", false},
		"SES-05_nor_in_the_dialect":                {"/mcp/default", false},
		"SUB-05_is_the_cancellation_in_2026-07-28": {"/mcp", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, nil)
			arrived, gone, outcome := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			f.endpoint.methods["slow"] = method.Row{SessionBased: true, Stateless: true, Handler: method.Answering{Replies: f.endpoint.replies, Timing: f.endpoint.streams.Timing, Answer: func(ctx context.Context, c *method.Call) (method.Result, error) {
				close(arrived)
				<-gone
				wait := 200 * time.Millisecond // longer than the server needs to notice the disconnect
				if tc.cancelled {
					wait = patience // The request must be canceled.
				}
				select {
				case <-ctx.Done():
				case <-time.After(wait):
				}
				outcome <- ctx.Err()
				return method.Result{}, nil
			}}}
			headers := []string{"Mcp-Session-Id: " + f.session(alice, spec.V20251125)}
			body := rpcText("1", "slow", "")
			if tc.cancelled {
				headers, body = statelessHeaders("slow", ""), statelessBody("1", "slow", "")
			}
			if tc.path != "/mcp" {
				headers = nil
			}
			ctx, cancel := context.WithCancel(t.Context())
			req := f.request("POST", alice, body, headers...).WithContext(ctx)
			req.URL.Path = tc.path
			failed := make(chan error, 1)
			go func() {
				res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
				if err == nil {
					res.Body.Close()
				}
				failed <- err
			}()
			<-arrived
			cancel()
			<-failed
			close(gone)
			expect.Deep(t, "the request is cancelled", errors.Is(<-outcome, context.Canceled), tc.cancelled)
		})
	}
}

// GWN-01: as long as there are no backends, clients get the same answers as from an endpoint without a gateway.
func TestGatewayWithoutBackends(t *testing.T) {
	g := expect.Value(gateway.New(gateway.Options{Server: json.RawMessage(`{}`), Key: make([]byte, 32)}))(t)
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
	same := func(what string, want, got reply) {
		t.Helper()
		expect.Equal(t, what+": the status", got.Status, want.Status)
		expect.Equal(t, what+": the body", got.Body, want.Body)
	}
	for _, r := range stateless {
		same(r.method, without.stateless(alice, r.method, r.params), with.stateless(alice, r.method, r.params))
	}
	a, b := without.session(alice, spec.V20251125), with.session(alice, spec.V20251125)
	for _, r := range append(stateless[1:], request{spec.MethodSubscribe, `"uri":"file:///x"`}, request{spec.MethodSetLevel, `"level":"debug"`}) {
		same("in a session "+r.method, without.sessionBased(alice, a, r.method, r.params), with.sessionBased(alice, b, r.method, r.params))
	}
	for _, note := range []string{
		`{"jsonrpc":"2.0","id":"gw_x","result":{}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`,
	} {
		same(note, without.do("POST", alice, note, "Mcp-Session-Id: "+a), with.do("POST", alice, note, "Mcp-Session-Id: "+b))
	}
	one, _ := without.describeBoth()
	two, _ := with.describeBoth()
	expect.Deep(t, "the capabilities", string(jsonrpc.Encode(two.Capabilities)), string(jsonrpc.Encode(one.Capabilities)))
}

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
		id      string // the id of the response; "" if it has no id
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
		{"SUB-09_no_clientCapabilities", alice, rpcText("1", spec.MethodDiscover, `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`), []string{version}, 400, -32602, "1"},
		{"SUB-09_unknown_version", alice, rpcText("1", spec.MethodDiscover, strings.ReplaceAll(meta2026, "2026-07-28", "2030-01-01")), []string{"Mcp-Protocol-Version: 2030-01-01"}, 400, -32022, "1"},
		{"SUB-10_method_header_missing", alice, rpcText("1", "no/such", meta2026), []string{version}, 400, -32020, "1"},
		{"SUB-10_method_header_differs", alice, rpcText("1", spec.MethodDiscover, meta2026), []string{version, "Mcp-Method: resources/list"}, 400, -32020, "1"},
		{"SUB-10_method_header_is_case-sensitive", alice, rpcText("1", spec.MethodDiscover, meta2026), []string{version, "Mcp-Method: SERVER/DISCOVER"}, 400, -32020, "1"},
		{"SUB-10_method_header_is_not_in_Base64", alice, rpcText("1", spec.MethodDiscover, meta2026), []string{version, "Mcp-Method: =?base64?c2VydmVyL2Rpc2NvdmVy?="}, 400, -32020, "1"},
		{"SUB-10_name_header_missing", alice, rpcText("1", spec.MethodRead, `"uri":"event://ci/deploy",`+meta2026), []string{version, "Mcp-Method: resources/read"}, 400, -32020, "1"},
		{"SUB-10_name_header_differs", alice, rpcText("1", spec.MethodRead, `"uri":"event://ci/deploy",`+meta2026), []string{version, "Mcp-Method: resources/read", "Mcp-Name: event://ci"}, 400, -32020, "1"},
		{"SUB-10_name_header_malformed", alice, rpcText("1", spec.MethodRead, `"uri":"event://ci/deploy",`+meta2026), []string{version, "Mcp-Method: resources/read", "Mcp-Name: =?base64?!?="}, 400, -32020, "1"},
		{"SUB-10_name_header_of_a_method_that_is_not_served", alice, rpcText("1", spec.MethodToolsCall, `"name":"x",`+meta2026), []string{version, "Mcp-Method: tools/call"}, 400, -32020, "1"},
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

// A request with an empty method gets an error immediately, in each revision. The gateway does not forward it.
func TestEmptyMethod(t *testing.T) {
	const empty = `{"jsonrpc":"2.0","id":1,"method":"","params":{}}`
	for _, revision := range []string{"without a backend", "a stateless backend", "a session-based backend"} {
		t.Run(revision, func(t *testing.T) {
			var b *lister
			f := newFixture(t, nil)
			if revision != "without a backend" {
				b = startLister(t, "plain", revision == "a stateless backend", "tool")
				f = behindGateway(t, nil, b)
				f.wholeList(t, spec.MethodToolsList, "", nil)
			}
			dialect := f.request("POST", alice, empty, "Accept:", "Accept: application/json")
			dialect.URL.Path = dialectPath
			for name, r := range map[string]*http.Request{
				"2025-11-25":                     f.request("POST", alice, empty, "Mcp-Session-Id: "+f.session(alice, spec.V20251125)),
				"2025-03-26, in a batch":         f.request("POST", alice, "["+empty+"]", "Mcp-Session-Id: "+f.session(alice, spec.V20250326)),
				"2026-07-28":                     f.request("POST", alice, statelessBody("1", "", ""), statelessHeaders("", "")...),
				"2026-07-28, without the header": f.request("POST", alice, statelessBody("1", "", ""), "Mcp-Protocol-Version: 2026-07-28"),
				"the dialect":                    dialect,
			} {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				got := f.answer(r.WithContext(ctx))
				cancel()
				got.Body = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(got.Body), "["), "]")
				got.fails(t, name, jsonrpc.InvalidRequest, "")
				expect.Equal(t, "the id of the error", string(got.rpc(t).ID), "1")
			}
			if b == nil {
				return
			}
			b.set(func() {
				if len(b.methods) == 0 || slices.Contains(b.methods, "") {
					t.Errorf("the backend received %q, want no empty method", b.methods)
				}
			})
		})
	}
}

// functionURL converts a request to the event that AWS sends for a Function URL.
func functionURL(r *http.Request) *events.LambdaFunctionURLRequest {
	headers := map[string]string{}
	for name, values := range r.Header {
		headers[strings.ToLower(name)] = strings.Join(values, ",")
	}
	body, _ := io.ReadAll(r.Body)
	return &events.LambdaFunctionURLRequest{
		RawPath: "/mcp", Headers: headers, Body: string(body),
		RequestContext: events.LambdaFunctionURLRequestContext{
			DomainName: "abc.lambda-url.eu-west-1.on.aws",
			HTTP:       events.LambdaFunctionURLRequestContextHTTPDescription{Method: r.Method, SourceIP: "192.0.2.1"},
		},
	}
}

// TestLambda serves requests through lambdaurl. Its responses cannot flush, so every write must be sent immediately.
func TestLambda(t *testing.T) {
	f := newEndpoint(t, nil)
	defer f.close()
	invoke := lambdaurl.Wrap(f.endpoint)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	t.Run("SUB-09_an_answer", func(t *testing.T) {
		res := expect.Value(invoke(ctx, functionURL(f.statelessRequest(alice, spec.MethodDiscover, ""))))(t)
		body := expect.Value(io.ReadAll(res.Body))(t)
		if res.StatusCode != 200 || res.Headers["Content-Type"] != "application/json" || !json.Valid(body) {
			t.Errorf("got status %d, %v: %s, want 200 and JSON", res.StatusCode, res.Headers, body)
		}
	})
	t.Run("SUB-01_a_listen", func(t *testing.T) {
		req := f.statelessRequest(alice, spec.MethodListen, `"notifications":{"resourceSubscriptions":["event://ci/deploy"]}`)
		res := expect.Value(invoke(ctx, functionURL(req)))(t)
		if res.StatusCode != 200 || res.Headers["Content-Type"] != sse.ContentType || res.Headers["X-Accel-Buffering"] != "no" {
			t.Fatalf("got status %d, %v, want a stream", res.StatusCode, res.Headers)
		}
		r := sse.NewReader(res.Body, 1<<20)
		brings := func(want string) {
			t.Helper()
			expect.Deep(t, "the next message", decodeFrame(t, expect.Value(r.Next())(t)).says(), want)
		}
		brings(spec.NoteAcknowledged)
		f.publish(deploy, `{"n":1}`)
		brings(deploy + ` {"n":1}`)
		closed := make(chan error, 1)
		go func() { closed <- f.endpoint.Close(ctx) }()
		brings("complete") // SUB-06
		expect.Equal(t, "the end of the stream", expect.ErrOf(r.Next()), io.EOF)
		expect.OK(t, <-closed)
	})
	for _, stateless := range []bool{true, false} {
		b := startLister(t, "b", stateless, "tool")
		b.set(func() {
			b.handle = func(_ http.ResponseWriter, r *http.Request, m received) bool {
				if m.Method == spec.MethodToolsCall {
					<-r.Context().Done()
				}
				return m.Method == spec.MethodToolsCall
			}
		})
		f := behindGateway(t, nil, b)
		params := `"name":"b_tool","arguments":{}`
		for client, req := range map[string]*http.Request{
			"2026-07-28": f.statelessRequest(alice, "tools/call", params),
			"a_session":  f.request("POST", alice, rpcText("1", spec.MethodToolsCall, params), "Mcp-Session-Id: "+f.session(alice, spec.V20251125)),
		} {
			t.Run(fmt.Sprintf("GWN-14_a_hanging_backend_and_the_function's_deadline_%s_stateless_%v", client, stateless), func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), method.CallReserve+300*time.Millisecond)
				defer cancel()
				body, err := io.ReadAll(expect.Value(lambdaurl.Wrap(f.endpoint)(ctx, functionURL(req)))(t).Body)
				if err != nil || !strings.Contains(string(body), `"code":503`) || ctx.Err() != nil {
					t.Errorf("got %s (%v, %v), want the error 503 before the deadline", body, err, ctx.Err())
				}
			})
		}
	}
}
