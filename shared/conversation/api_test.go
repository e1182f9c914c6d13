package conversation

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/test/expect"
)

// tokens maps values of the Authorization header to principals.
type tokens map[string]auth.Principal

func (t tokens) Authenticate(_ context.Context, h http.Header) (auth.Principal, error) {
	if p, ok := t[h.Get("Authorization")]; ok {
		return p, nil
	}
	return auth.Principal{}, auth.ErrNoToken
}

type apiRig struct {
	*rig
	mux *http.ServeMux
}

func newAPI(t *testing.T, change ...func(*Options)) *apiRig {
	t.Helper()
	a := &apiRig{newRig(t, three+"  events: {userMessage: true}\n", change...), http.NewServeMux()}
	h := &Handler{Service: a.Service, MetadataURL: "https://x.example/meta", Log: a.options.Log, Auth: tokens{
		"ann": ann, "bob": {ID: "bob", Workspace: ann.Workspace, Scopes: []string{auth.ScopeRead}},
		"bare":     {ID: "ann", Workspace: ann.Workspace},
		"operator": {ID: "op", Workspace: ann.Workspace, Scopes: []string{auth.ScopeRead, auth.ScopeManage}},
		"foreign":  {ID: "op", Workspace: "other", Scopes: []string{auth.ScopeRead, auth.ScopeManage}},
		"nobody":   {ID: "anonymous", Workspace: ann.Workspace, Scopes: auth.Scopes(), Anonymous: true},
	}}
	a.mux.Handle("/consent", h)
	a.mux.Handle("/consent/{"+PathProvider+"}", h)
	return a
}

func (a *apiRig) do(who, method, path string, header ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, "http://example.com/consent"+path, nil)
	if who != "" {
		req.Header.Set("Authorization", who)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	a.mux.ServeHTTP(w, req)
	return w
}

// CNV-06: a caller sees the providers, gives consent and revokes it. An operator of the workspace can do so for
// others.
func TestAPI(t *testing.T) {
	a := newAPI(t)
	said := func(who, path string) (out string) {
		t.Helper()
		w := a.do(who, "GET", path)
		var list struct {
			Principal string
			Providers []View
		}
		if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || w.Code != 200 {
			t.Fatalf("got %d, %s", w.Code, w.Body)
		}
		out = list.Principal
		for _, v := range list.Providers {
			out += fmt.Sprintf(" %s:%v", v.Name, v.Consented)
			if v.Consent != nil {
				out += fmt.Sprintf("(%v by %s)", v.Consent.Given, v.Consent.By)
			}
		}
		return out
	}
	for i, step := range []struct {
		who, method, path string
		status            int
		then              string // the expected consents of ann
	}{
		{"ann", "PUT", "/fast", 200, "ann fast:true(true by ann) slow:false bad:false events:false"},
		{"ann", "PUT", "/fast", 200, "ann fast:true(true by ann) slow:false bad:false events:false"},
		{"bob", "DELETE", "/fast", 200, "ann fast:true(true by ann) slow:false bad:false events:false"},
		{"bob", "PUT", "/fast?principal=ann", 403, "ann fast:true(true by ann) slow:false bad:false events:false"},
		{"foreign", "DELETE", "/fast?principal=ann", 404, "ann fast:true(true by ann) slow:false bad:false events:false"},
		{"operator", "DELETE", "/fast?principal=ann", 200, "ann fast:false(false by op) slow:false bad:false events:false"},
		{"operator", "PUT", "/events?principal=ann", 200, "ann fast:false(false by op) slow:false bad:false events:true(true by op)"},
		{"bare", "DELETE", "/events", 200, "ann fast:false(false by op) slow:false bad:false events:false(false by ann)"},
		{"bare", "PUT", "/events", 403, "ann fast:false(false by op) slow:false bad:false events:false(false by ann)"},
		{"ann", "PUT", "/fast?principal=ann", 200, "ann fast:true(true by ann) slow:false bad:false events:false(false by ann)"},
	} {
		w := a.do(step.who, step.method, step.path)
		if got := said("ann", ""); w.Code != step.status || got != step.then {
			t.Errorf("step %d: %d %s; then %s, want %d and %s", i, w.Code, w.Body, got, step.status, step.then)
		}
	}
	expect.Equal(t, "the consents that the operator sees", said("operator", "?principal=ann"), said("ann", ""))
	expect.Equal(t, "bob's consents", said("bob", ""), "bob fast:false(false by bob) slow:false bad:false events:false")
	expect.Equal(t, "the consents in another workspace", said("foreign", ""), "op")
}

func TestAPIRefuses(t *testing.T) {
	a := newAPI(t)
	for name, tc := range map[string]struct {
		who, method, path string
		header            []string
		status            int
		want              string
	}{
		"no token":            {"", "GET", "", nil, 401, "authentication is required"},
		"another origin":      {"ann", "PUT", "/fast", []string{"Origin", "https://evil.example"}, 403, "Origin"},
		"no scope":            {"bare", "GET", "", nil, 403, `"missingScopes":["events:read"]`},
		"for another":         {"ann", "GET", "?principal=bob", nil, 403, `"missingScopes":["consent:manage"]`},
		"for an empty name":   {"operator", "GET", "?principal=", nil, 400, "principal"},
		"for a long name":     {"operator", "GET", "?principal=" + strings.Repeat("x", 600), nil, 400, "principal"},
		"another parameter":   {"operator", "PUT", "/fast?pricipal=ann", nil, 400, "unknown query parameter"},
		"a malformed query":   {"operator", "PUT", "/fast?principal=ann%", nil, 400, "malformed"},
		"a semicolon":         {"operator", "PUT", "/fast?principal=ann;", nil, 400, "malformed"},
		"an unknown provider": {"ann", "PUT", "/none", nil, 404, "unknown provider"},
		"POST":                {"ann", "POST", "/fast", nil, 405, "method"},
		"PUT to all":          {"ann", "PUT", "", nil, 405, "method"},
		"without a name":      {"nobody", "PUT", "/fast", nil, 403, "--allow-insecure-targets"},
	} {
		t.Run(name, func(t *testing.T) {
			w := a.do(tc.who, tc.method, tc.path, tc.header...)
			if w.Code != tc.status || !strings.Contains(w.Body.String(), tc.want) || w.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
			challenge := w.Header().Get("WWW-Authenticate")
			if want := tc.status == 401 || strings.Contains(tc.want, "missingScopes"); want != strings.Contains(challenge, `resource_metadata="https://x.example/meta"`) {
				t.Errorf("the challenge is %q", challenge)
			}
			if tc.status == 405 && w.Header().Get("Allow") == "" {
				t.Error("the Allow header is missing")
			}
		})
	}
	expect.Equal(t, "consents that were written", len(a.options.DB.(*memory).items), 0)
}

// CNV-03: a provider at a URL receives the params unchanged, the operator's headers, and its own name for the caller.
// The client does not follow redirects or use a proxy.
func TestProvidersAtURLs(t *testing.T) {
	var redirected atomic.Int32
	var got *http.Request
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { redirected.Add(1) }))
	defer elsewhere.Close()
	t.Setenv("HTTP_PROXY", elsewhere.URL)
	t.Setenv("http_proxy", elsewhere.URL)
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/redirects" {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
			return
		}
		got = r.Clone(context.Background())
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"context":"x"}`))
	}))
	defer provider.Close()
	src := `
conversation:
  userMessages: true
  budget: 5s
  providers:
    - {name: one, url: "` + provider.URL + `/one?k=v", headers: {Authorization: "env:PROVIDER_SECRET", X-Team: blue}}
    - {name: two, url: "` + provider.URL + `/redirects"}
    - {name: three, url: "` + provider.URL + `/three", principal: true}
`
	r := newRig(t, src, func(o *Options) {
		o.HTTP = nil
		o.Secrets = func(_ context.Context, v secret.Value) (string, error) {
			return v.Resolve(func(name string) (string, bool) { return "Bearer s3", name == "PROVIDER_SECRET" })
		}
	})
	r.consent("one")
	expect.MustEqual(t, "the context", r.say().Text, "Context from one:\n> x")
	h := got.Header
	if got.Method != "POST" || got.URL.String() != "/one?k=v" || h.Get("Authorization") != "Bearer s3" || h.Get("X-Team") != "blue" ||
		h.Get("Mcp-Method") != "conversation/userMessage" || h.Get("Content-Type") != "application/json" || len(h.Get(rules.PrincipalHeader)) != 43 {
		t.Errorf("got %s %s %v, want a POST with the operator's headers and a name of 43 characters", got.Method, got.URL, h)
	}
	r.Consent(t.Context(), ann, "one", "ann", false)
	r.consent("two", "three")
	if c := r.say(); c.Text != "Context from three:\n> x" || r.FailureCounts()["default/two"]["refused"] != 1 || redirected.Load() != 0 {
		t.Errorf("got %+v, counted %v, followed %d times, want the context of three and no redirect", c, r.FailureCounts(), redirected.Load())
	}
	expect.Equal(t, "the principal", got.Header.Get(rules.PrincipalHeader), "ann")
	names := map[string]bool{}
	for _, v := range expect.Value(r.current(t.Context()))(t).providers[:2] {
		for _, who := range []string{"ann", "bob"} {
			names[r.nameFor(v, auth.Principal{ID: who, Workspace: ann.Workspace})] = true
		}
	}
	expect.Equal(t, "the names of two callers at two providers", len(names), 4)
}

// CNV-03: a provider that responds slowly, byte by byte, times out too, and its connection is closed.
func TestASlowBody(t *testing.T) {
	gone := make(chan struct{})
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"context":"`))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(gone)
	}))
	defer provider.Close()
	r := newRig(t, "conversation: {userMessages: true, budget: 50ms, providers: [{name: one, url: '"+provider.URL+"'}]}\n",
		func(o *Options) { o.HTTP = nil })
	r.consent("one")
	r.say()
	r.counted("one", "timeout:1")
	expect.Receive(t, "the end of the connection", gone)
}

// CNV-08: only its owner can read a context in the log.
func TestSealing(t *testing.T) {
	r := newRig(t, three)
	sealed := r.Seal(ann, []byte(marker))
	if text, err := r.Open(ann, sealed); string(text) != marker || err != nil || strings.Contains(string(sealed), marker) {
		t.Errorf("got %q, %v", text, err)
	}
	bob := ann
	bob.ID = "bob"
	expect.Error(t, "a state that another principal opens", expect.ErrOf(r.Open(bob, sealed)))
}

func TestParse(t *testing.T) {
	m := expect.Value(Parse(UserMessage, json.RawMessage(`{"messageId":"m","content":"h\u00e9llo","recentHistory":[{"role":"user","content":"a"},{"role":"assistant","content":""}],"x":1,"_meta":{}}`)))(t)
	want := `{"messageId":"m","content":"héllo","recentHistory":[{"role":"user","content":"a"},{"role":"assistant","content":""}]}`
	expect.Equal(t, "the params", string(m.Params(nil)), want)
	expect.Equal(t, "the params with _meta", string(m.Params([]byte(`"k":"v"`))), strings.TrimSuffix(want, "}")+`,"_meta":{"k":"v"}}`)
	for _, params := range []string{`{"messageId":"m","content":""}`, `{"messageId":"m","content":"","recentHistory":null}`, `{"messageId":"m","content":"","recentHistory":[]}`} {
		expect.OK(t, expect.ErrOf(Parse(UserMessage, json.RawMessage(params))), params)
	}
}

// CNV-08: malformed messages and messages over a limit have different errors, and the errors do not quote the
// message.
func TestParseRefuses(t *testing.T) {
	const secret = "marigold"
	long := func(n int) string { return secret + strings.Repeat("x", n) }
	turns := func(n int, content string) string {
		return strings.TrimSuffix(strings.Repeat(`{"role":"user","content":"`+content+`"},`, n), ",")
	}
	message := func(more string) string { return `{"messageId":"m","content":"` + secret + `"` + more + `}` }
	for name, tc := range map[string]struct {
		params string
		kind   fault.Kind
		want   string
	}{
		"no params":                {``, fault.Invalid, "params must be an object"},
		"an array":                 {`["marigold"]`, fault.Invalid, "params must be an object"},
		"no id":                    {`{"content":"marigold"}`, fault.Invalid, "messageId must be a string"},
		"an empty id":              {`{"messageId":"","content":"marigold"}`, fault.Invalid, "messageId must not be empty"},
		"a number as id":           {`{"messageId":7,"content":"marigold"}`, fault.Invalid, "messageId must be a string"},
		"two ids":                  {message(`,"messageId":"marigold"`), fault.Invalid, "messageId appears twice"},
		"no content":               {`{"messageId":"marigold"}`, fault.Invalid, "content must be a string"},
		"content of parts":         {`{"messageId":"m","content":["marigold"]}`, fault.Invalid, "content must be a string"},
		"two contents":             {message(`,"content":"marigold"`), fault.Invalid, "content appears twice"},
		"history is an object":     {message(`,"recentHistory":{"role":"marigold"}`), fault.Invalid, "recentHistory must be an array"},
		"history of texts":         {message(`,"recentHistory":["marigold"]`), fault.Invalid, "recentHistory must hold objects"},
		"another role":             {message(`,"recentHistory":[{"role":"marigold","content":"x"}]`), fault.Invalid, "role must be user or assistant"},
		"a turn without content":   {message(`,"recentHistory":[{"role":"user"}]`), fault.Invalid, "content must be a string"},
		"a long id":                {`{"messageId":"` + long(maxMessageID) + `","content":"x"}`, fault.TooLarge, "messageId of 256"},
		"long content":             {`{"messageId":"m","content":"` + long(MaxContent) + `"}`, fault.TooLarge, "content of 65536"},
		"many turns":               {message(`,"recentHistory":[` + turns(maxTurns+1, secret) + `]`), fault.TooLarge, "recentHistory of 100"},
		"much history":             {message(`,"recentHistory":[` + turns(2, long(maxHistory/2)) + `]`), fault.TooLarge, "recentHistory of 98304"},
		"much once it is in JSON":  {`{"messageId":"m","content":"` + strings.Repeat(`\u0001`, MaxContent-1) + `"}`, fault.TooLarge, "message of 196608"},
		"a long turn of a history": {message(`,"recentHistory":[{"role":"user","content":"` + long(maxHistory) + `"}]`), fault.TooLarge, "of 98304"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(UserMessage, json.RawMessage(tc.params))
			expect.Equal(t, "the kind of the error", fault.KindOf(err), tc.kind)
			expect.Contains(t, "the public error", fault.Public(err), tc.want)
			if _, ok := fault.DataOf(err).(fault.Limit); ok != (tc.kind == fault.TooLarge) {
				t.Errorf("the data is %v", fault.DataOf(err))
			}
			expect.Lacks(t, "CNV-08 the error", fmt.Sprintf("%v %+v", err, fault.DataOf(err)), secret)
		})
	}
}

// FuzzParse: an accepted message is within the limits, and does not change when it is encoded and parsed again.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"messageId":"m","content":"c"}`, `{"messageId":"m","content":"c","recentHistory":[{"role":"user","content":"\ud800"}]}`,
		`{"messageId":"\u0000","content":"\"\\"}`, `[]`, `{"messageId":1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, params []byte) {
		if !json.Valid(params) {
			return
		}
		m, err := Parse(UserMessage, json.RawMessage(strings.TrimSpace(string(params))))
		if err != nil {
			if kind := fault.KindOf(err); kind != fault.Invalid && kind != fault.TooLarge {
				t.Fatalf("%q: %v", params, err)
			}
			return
		}
		one := m.Params(nil)
		again, err := Parse(UserMessage, one)
		if err != nil || !json.Valid(one) || len(one) > maxEncoded || string(again.Params(nil)) != string(one) {
			t.Fatalf("%q became %q, %v", params, one, err)
		}
	})
}
