package auth

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestSecretPath(t *testing.T) {
	const good, bare, old = "5f0c1d9e8b7a", "a7b8e9d1c0f5", "00ffee"
	now := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	keys := expect.Value(Keys([]Key{
		{Principal: "alice", SHA256: hashOf(good), Path: true, Scopes: Scopes()},
		{Principal: "bob", SHA256: hashOf(bare)},
		{Principal: "carol", SHA256: hashOf(old), Path: true, Expires: now.Add(-time.Hour)},
	}, func() time.Time { return now }))(t)
	proxies, bad := ParseProxies([]string{"10.1.0.0/16", "192.0.2.7"})
	if bad != "" || len(proxies) != 2 {
		t.Fatal(bad)
	}
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
				if strings.Contains(r.RequestURI+r.URL.String()+r.Pattern, good) {
					t.Errorf("the endpoint sees the key: %s %s", r.RequestURI, r.URL)
				}
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
			if w.Code != c.status || seen != c.seen {
				t.Errorf("got %d, the endpoint saw %q", w.Code, seen)
			}
			if c.seen == "/mcp" && authorization != "Bearer "+good {
				t.Errorf("the endpoint got %q", authorization)
			}
			if text := w.Body.String() + w.Header().Get("Location"); strings.Contains(text, good) || strings.Contains(text, bare) {
				t.Errorf("the answer has the key: %s", text)
			}
		})
	}
}
