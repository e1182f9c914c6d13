package auth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/test/expect"
)

func hashOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

func header(values ...string) http.Header {
	h := http.Header{}
	for _, v := range values {
		h.Add("Authorization", v)
	}
	return h
}

func TestNone(t *testing.T) {
	p, err := AcceptAll().Authenticate(t.Context(), header("Bearer whatever"))
	if err != nil || !p.Anonymous || p.ID != anonymousID || p.Workspace != DefaultWorkspace || !p.Has(Scopes()...) {
		t.Errorf("got %+v, %v", p, err)
	}
}

func TestKeys(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	a := expect.Value(NewStaticKeys([]Key{
		{Principal: "alice", Scopes: []string{ScopeRead, ScopeSubscribe}, SHA256: hashOf("key-a"), Claims: map[string]string{"org": "acme"}},
		{Principal: "bob", Workspace: "other", Scopes: []string{ScopePublish}, SHA256: strings.ToUpper(hashOf("key-b")), Expires: now},
		{Principal: "carol", SHA256: hashOf("key-c"), Expires: now.Add(time.Second)},
	}, func() time.Time { return now }))(t)
	for name, tc := range map[string]struct {
		header http.Header
		want   string // principal@workspace, or empty
	}{
		"AUT-02 a key gives principal, workspace, scopes, claims": {header("Bearer key-a"), "alice@default"},
		"AUT-02 the scheme's case does not matter":                {header("bearer key-a"), "alice@default"},
		"AUT-02 a key that is not yet expired":                    {header("Bearer key-c"), "carol@default"},
		"AUT-02 an expired key, to the second":                    {header("Bearer key-b"), ""},
		"AUT-02 an unknown key":                                   {header("Bearer key-d"), ""},
		"AUT-02 the hash is not the key":                          {header("Bearer " + hashOf("key-a")), ""},
		"AUT-02 another scheme":                                   {header("Basic key-a"), ""},
		"AUT-02 no token":                                         {header("Bearer"), ""},
		"AUT-02 an empty token":                                   {header("Bearer  "), ""},
		"AUT-02 two tokens":                                       {header("Bearer key-a key-b"), ""},
		"AUT-02 two headers":                                      {header("Bearer key-a", "Bearer key-a"), ""},
		"AUT-02 no header":                                        {header(), ""},
		"AUT-02 a huge token":                                     {header("Bearer " + strings.Repeat("a", 20<<10)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := a.Authenticate(context.Background(), tc.header)
			if tc.want == "" {
				expect.Fault(t, "the error", err, fault.Unauthenticated)
				expect.Equal(t, "the ID", p.ID, "")
				return
			}
			if got := p.ID + "@" + p.Workspace; err != nil || got != tc.want || p.Anonymous {
				t.Errorf("got %+v, %v, want %s", p, err, tc.want)
			}
		})
	}
	p, _ := a.Authenticate(t.Context(), header("Bearer key-a"))
	if !p.Has(ScopeRead, ScopeSubscribe) || p.Has(ScopePublish) || !slices.Equal(p.Claims["org"], []string{"acme"}) {
		t.Errorf("got %+v", p)
	}
}

func TestKeysAreChecked(t *testing.T) {
	good := hashOf("x")
	for name, tc := range map[string]struct {
		keys []Key
		want string
	}{
		"short hash":      {[]Key{{Principal: "a", SHA256: good[:62]}}, "key 1: sha256"},
		"long hash":       {[]Key{{Principal: "a", SHA256: good + "00"}}, "key 1: sha256"},
		"no hexadecimal":  {[]Key{{Principal: "a", SHA256: strings.Repeat("z", 64)}}, "key 1: sha256"},
		"no principal":    {[]Key{{SHA256: good}}, "key 1: principal"},
		"bad principal":   {[]Key{{Principal: "a b", SHA256: good}}, "key 1: principal"},
		"taken principal": {[]Key{{Principal: "anonymous", SHA256: good}}, "reserved for --auth none"},
		"bad workspace":   {[]Key{{Principal: "a", Workspace: "a/b", SHA256: good}}, "key 1: workspace"},
	} {
		t.Run("AUT-02 "+name, func(t *testing.T) {
			expect.Fault(t, "the keys", expect.ErrOf(NewStaticKeys(tc.keys, nil)), fault.Invalid, tc.want)
		})
	}
}

func TestCheckListen(t *testing.T) {
	for addr, ok := range map[string]bool{
		"127.0.0.1:8080": true, "127.8.9.1:0": true, "[::1]:8080": true, "localhost:80": true, "LocalHost:80": true,
		":8080": false, "0.0.0.0:8080": false, "[::]:8080": false, "192.168.1.2:80": false, "10.0.0.1:1": false,
		"example.com:80": false, "localhost.example.com:80": false, "127.0.0.1": false, "": false, "[fe80::1%lo]:80": false,
	} {
		t.Run("AUT-08 none on "+addr, func(t *testing.T) {
			if err := CheckListen(addr, ModeNone); (err == nil) != ok || err != nil && !fault.Is(err, fault.Invalid) {
				t.Errorf("got %v, want allowed = %v", err, ok)
			}
			expect.OK(t, CheckListen(addr, ModeKeys), "keys")
		})
	}
}

func TestRequireNamesAllMissingScopes(t *testing.T) {
	p := Principal{Scopes: []string{ScopeRead}}
	expect.OK(t, p.Require(ScopeRead))
	err := p.Require(ScopeRead, ScopePublish, "github", "github")
	if got, ok := fault.DataOf(err).(MissingScopes); !ok || !slices.Equal(got.Scopes, []string{ScopePublish, "github"}) {
		t.Errorf("got %v, %+v", err, got)
	}
	expect.True(t, "the zero principal has no scope", !(Principal{}).Has(ScopeRead))
}

func TestChallenge(t *testing.T) {
	lacking := Principal{}.Require(ScopePublish)
	meta := "https://x.example/.well-known/oauth-protected-resource"
	for name, tc := range map[string]struct {
		err    error
		meta   string
		scopes []string
		want   string
	}{
		"no credentials":        {ErrNoToken, "", nil, `Bearer`},
		"no credentials, OAuth": {ErrNoToken, meta, []string{ScopeRead}, `Bearer scope="events:read", resource_metadata="` + meta + `"`},
		"a wrong token":         {ErrInvalidToken, "", nil, `Bearer error="invalid_token"`},
		"wrapped":               {fault.Wrap(fault.Internal, ErrInvalidToken, "x"), "", nil, `Bearer error="invalid_token"`},
		"missing scopes":        {lacking, meta, []string{ScopePublish, ScopeRead}, `Bearer error="insufficient_scope", scope="events:publish events:read", resource_metadata="` + meta + `"`},
		"another refusal":       {fault.New(fault.Forbidden, "no"), meta, nil, ``},
		"another fault":         {fault.New(fault.Invalid, "no"), meta, nil, ``},
		"quotes":                {ErrNoToken, `a"b\c`, nil, `Bearer resource_metadata="a\"b\\c"`},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, "the challenge", Challenge(tc.err, tc.meta, tc.scopes...), tc.want)
		})
	}
}

func TestGuard(t *testing.T) {
	local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8080}
	public := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 443}
	guard := Guard{Origins: []string{"https://console.example.com"}, Hosts: []string{"dev.example.com", "other.example.com:8443"}}
	for name, tc := range map[string]struct {
		addr         net.Addr
		host, origin string
		want         bool
		site         string
	}{
		"no browser":                   {local, "127.0.0.1:8080", "", true, ""},
		"a page of this machine":       {local, "localhost:8080", "http://localhost:3000", true, ""},
		"another site":                 {local, "localhost:8080", "https://evil.example", false, ""},
		"a rebound name":               {local, "evil.example:8080", "", false, ""},
		"a name that is configured":    {local, "dev.example.com", "", true, ""},
		"its case and its port":        {local, "DEV.example.com:444", "", true, ""},
		"a name with a port":           {local, "other.example.com:8443", "", true, ""},
		"a name with another port":     {local, "other.example.com", "", false, ""},
		"an opaque origin":             {local, "localhost:8080", "null", false, ""},
		"IPv6":                         {local, "[::1]:8080", "http://[::1]:3000", true, ""},
		"a name like localhost":        {local, "localhost.evil.example", "", false, ""},
		"a configured origin":          {public, "events.example.com", "https://console.example.com", true, ""},
		"its own origin is not listed": {public, "events.example.com", "https://events.example.com", false, ""},
		"a local page, public server":  {public, "events.example.com", "http://localhost:3000", false, ""},
		"an image on another site":     {local, "localhost:8080", "", false, "cross-site"},
		"a script of this host":        {local, "localhost:8080", "", true, "same-origin"},
		"an address that was typed":    {local, "localhost:8080", "", true, "none"},
		"a configured origin by CORS":  {public, "events.example.com", "https://console.example.com", true, "cross-site"},
		"an allowed origin and another": {
			public, "events.example.com", "https://console.example.com then https://evil.example", false, "",
		},
		"on Lambda": {nil, "x.lambda-url.us-east-1.on.aws", "", true, ""},
	} {
		t.Run("AUT-06 "+name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, "/", nil)
			r.Host = tc.host
			r.Header.Set("Sec-Fetch-Site", tc.site)
			if tc.origin != "" {
				r.Header["Origin"] = strings.Split(tc.origin, " then ")
			}
			if tc.addr != nil {
				r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, tc.addr))
			}
			if err := guard.Check(r); (err == nil) != tc.want || err != nil && !fault.Is(err, fault.Forbidden) {
				t.Errorf("got %v, want allowed = %v", err, tc.want)
			}
		})
	}
}

// TestDirectory: AUT-04, AUT-02. What is known of a principal who is not calling.
func TestDirectory(t *testing.T) {
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	list := []Key{
		{Principal: "alice", SHA256: strings.Repeat("a", 64), Scopes: []string{"one"}},
		{Principal: "alice", SHA256: strings.Repeat("b", 64), Scopes: []string{"two"}, Expires: now.Add(time.Hour)},
		{Principal: "alice", Workspace: "other", SHA256: strings.Repeat("c", 64)},
	}
	keys := expect.Value(NewStaticKeys(list, func() time.Time { return now }))(t)
	scopes := func(workspace, id string) (all []string) {
		found := expect.Value(keys.Principals(t.Context(), workspace, id, refresh.Latest))(t)
		for _, p := range found {
			all = append(all, strings.Join(p.Scopes, " "))
		}
		return all
	}
	expect.List(t, "the scopes of alice", scopes("default", "alice"), []string{"one", "two"})
	expect.Equal(t, "the scopes of bob", len(scopes("other", "bob")), 0)
	now = now.Add(time.Hour)
	expect.List(t, "the scopes of alice after a key expired", scopes("default", "alice"), []string{"one"})
}

func TestSecretPath(t *testing.T) {
	const good, bare, old = "5f0c1d9e8b7a", "a7b8e9d1c0f5", "00ffee"
	now := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	keys := expect.Value(NewStaticKeys([]Key{
		{Principal: "alice", SHA256: hashOf(good), Path: true, Scopes: Scopes()},
		{Principal: "bob", SHA256: hashOf(bare)},
		{Principal: "carol", SHA256: hashOf(old), Path: true, Expires: now.Add(-time.Hour)},
	}, func() time.Time { return now }))(t)
	proxies, bad := ParseProxies([]string{"10.1.0.0/16", "192.0.2.7"})
	expect.MustEqual(t, "the problem", bad, "")
	expect.MustEqual(t, "the number of proxies", len(proxies), 2)
	const loopback, outside = "127.0.0.1:8080", "203.0.113.1:8080"
	for name, c := range map[string]struct {
		path, local, remote, proto, header string
		lambda                             bool
		status                             int
		seen                               string // path that the endpoint sees; empty if the request must not reach it
	}{
		"RCH-05 a key that is allowed there":            {path: "/mcp/u/" + good, local: loopback, status: 200, seen: "/mcp"},
		"RCH-05 on AWS":                                 {path: "/mcp/u/" + good, lambda: true, proto: "https", status: 200, seen: "/mcp"},
		"RCH-05 a proxy that is trusted":                {path: "/mcp/u/" + good, local: outside, remote: "10.1.2.3:999", proto: "https", status: 200, seen: "/mcp"},
		"RCH-05 another one":                            {path: "/mcp/u/" + good, local: outside, remote: "192.0.2.7:1", proto: "https", status: 200, seen: "/mcp"},
		"RCH-05 a key without leave":                    {path: "/mcp/u/" + bare, local: loopback, status: 404},
		"RCH-05 an unknown key":                         {path: "/mcp/u/nothing", local: loopback, status: 404},
		"RCH-05 a key that has expired":                 {path: "/mcp/u/" + old, local: loopback, status: 404},
		"RCH-05 over http":                              {path: "/mcp/u/" + good, local: outside, remote: "198.51.100.1:1", status: 403},
		"RCH-05 over http, of a stranger who says else": {path: "/mcp/u/" + good, local: outside, remote: "198.51.100.1:1", proto: "https", status: 403},
		"RCH-05 a proxy here that was called by http":   {path: "/mcp/u/" + good, local: loopback, proto: "http", status: 403},
		"RCH-05 a trusted proxy called by http":         {path: "/mcp/u/" + good, local: outside, remote: "10.1.2.3:999", proto: "http", status: 403},
		"RCH-05 a trusted proxy that does not say":      {path: "/mcp/u/" + good, local: outside, remote: "10.1.2.3:999", status: 403},
		"RCH-05 on AWS by http":                         {path: "/mcp/u/" + good, lambda: true, proto: "http", status: 403},
		"RCH-05 with a header as well":                  {path: "/mcp/u/" + good, local: loopback, header: "Bearer " + bare, status: 404},
		"RCH-05 below the key":                          {path: "/mcp/u/" + good + "/x", local: loopback, status: 404},
		"RCH-05 a path that a mux would redirect":       {path: "/mcp//u/" + good, local: loopback, status: 404},
		"RCH-05 a path with dots":                       {path: "/mcp/x/../u/" + good, local: loopback, status: 404},
		"the workspace u":                               {path: "/mcp/u", local: loopback, status: 200, seen: "/mcp/u"},
		"another path":                                  {path: "/events", local: outside, status: 200, seen: "/events"},
	} {
		t.Run(name, func(t *testing.T) {
			seen, authorization := "", ""
			h := SecretPath{Auth: keys, Proxies: proxies, HTTPS: c.lambda}.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				seen, authorization = r.URL.Path, r.Header.Get("Authorization")
				expect.Lacks(t, "the URL at the endpoint", r.RequestURI+r.URL.String()+r.Pattern, good)
			}))
			r := httptest.NewRequest("POST", "http://host"+c.path, strings.NewReader("{}"))
			r.RemoteAddr = c.remote
			if c.local != "" {
				addr := expect.Value(net.ResolveTCPAddr("tcp", c.local))(t)
				r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(addr)))
			}
			if c.proto != "" {
				r.Header.Set("X-Forwarded-Proto", c.proto)
			}
			if c.header != "" {
				r.Header.Set("Authorization", c.header)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			expect.Equal(t, "the status", w.Code, c.status)
			expect.Equal(t, "the request at the endpoint", seen, c.seen)
			if c.seen == "/mcp" && authorization != "Bearer "+good {
				t.Errorf("the endpoint got %q", authorization)
			}
			if text := w.Body.String() + w.Header().Get("Location"); strings.Contains(text, good) || strings.Contains(text, bare) {
				t.Errorf("the answer has the key: %s", text)
			}
		})
	}
}
