package conversation

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
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
