package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// CNV-06: callers list, give and revoke consent on the command line, for themselves or for another principal.
func TestConsentCommands(t *testing.T) {
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("Authorization"))
		view := `{"name":"memory","title":"Memory","description":"Remembers.","receives":["userMessage"],"consented":true,"consent":{"given":true,"at":"2026-11-22T01:02:03Z","by":"ann"}}`
		switch {
		case strings.HasSuffix(r.URL.Path, "/none"):
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"error":{"kind":"not found","message":"unknown provider"}}`))
		case r.Method == http.MethodGet:
			_, _ = w.Write([]byte(`{"providers":[` + view + `,{"name":"events","receives":["userMessage"],"consent":null}]}`))
		default:
			_, _ = w.Write([]byte(view))
		}
	}))
	defer s.Close()
	for _, tc := range []struct {
		args, request, out string
		code               int
	}{
		{"list --server " + s.URL, "GET /consent Bearer k", "memory  userMessage  consent, 2026-11-22T01:02:03Z by ann  Memory: Remembers.\nevents  userMessage  no consent", 0},
		{"give memory --server " + s.URL + "/mcp", "PUT /consent/memory Bearer k", "memory  userMessage  consent", 0},
		{"revoke memory --principal bob --server " + s.URL + "/base/mcp", "DELETE /base/consent/memory?principal=bob Bearer k", "memory", 0},
		{"revoke ../admin/v1/principals/ann --server " + s.URL, "DELETE /consent/..%2Fadmin%2Fv1%2Fprincipals%2Fann Bearer k", "", 0},
		{"give none --server " + s.URL, "PUT /consent/none Bearer k", "unknown provider", 3},
	} {
		asked = nil
		var out bytes.Buffer
		code := run(append([]string{"consent"}, append(strings.Fields(tc.args), "--key", "k")...), nil, &out, &out)
		if code != tc.code || len(asked) != 1 || asked[0] != tc.request || !strings.Contains(out.String(), tc.out) {
			t.Errorf("%s: exit code %d, asked %q, printed %q", tc.args, code, asked, out.String())
		}
	}
}
