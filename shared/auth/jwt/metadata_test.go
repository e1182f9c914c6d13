package jwt_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth/jwt"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestMetadata shows where the protected resource metadata is (AUT-01, RFC 9728).
func TestMetadata(t *testing.T) {
	const known = "/.well-known/oauth-protected-resource"
	for resource, want := range map[string]struct {
		url   string
		paths []string
	}{
		"https://events.example.com/mcp":      {"https://events.example.com" + known + "/mcp", []string{known, known + "/mcp"}},
		"https://events.example.com":          {"https://events.example.com" + known, []string{known, known + "/mcp"}},
		"https://events.example.com/":         {"https://events.example.com" + known, []string{known, known + "/mcp"}},
		"https://example.com:8443/public/mcp": {"https://example.com:8443" + known + "/public/mcp", []string{known, known + "/mcp", known + "/public/mcp"}},
	} {
		t.Run("AUT-01 "+resource, func(t *testing.T) {
			w := start(t, func(o *jwt.Options) { o.Audience = []string{resource, "api://events"} })
			expect.Equal(t, "the URL", w.MetadataURL(), want.url)
			mux := http.NewServeMux()
			w.Mount(mux)
			for _, path := range want.paths {
				rec := httptest.NewRecorder()
				mux.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
				var doc struct {
					Resource string
					Servers  []string `json:"authorization_servers"`
					Scopes   []string `json:"scopes_supported"`
					Methods  []string `json:"bearer_methods_supported"`
				}
				if err := json.Unmarshal(rec.Body.Bytes(), &doc); err != nil || rec.Code != http.StatusOK {
					t.Fatalf("%s: %d %s %v", path, rec.Code, rec.Body, err)
				}
				if doc.Resource != resource || !slices.Equal(doc.Servers, []string{w.provider.Issuer}) ||
					!slices.Equal(doc.Methods, []string{"header"}) || !slices.Contains(doc.Scopes, "events:subscribe") {
					t.Errorf("%s: got %+v", path, doc)
				}
				if rec.Header().Get("Content-Type") != "application/json" || rec.Header().Get("Access-Control-Allow-Origin") != "*" {
					t.Errorf("%s: got %v", path, rec.Header())
				}
			}
			rec := httptest.NewRecorder()
			mux.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, known+"/other", nil))
			expect.Equal(t, "the status for another resource", rec.Code, http.StatusNotFound)
		})
	}
}
