package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/test/expect"
)

// A proxy on the same machine passes on the Host that its callers named.
func TestTheHostOfAProxy(t *testing.T) {
	var g Globals
	log := new(expect.Buffer)
	g.LogLevel, g.LogFormat = "info", "json"
	e := serve(t, func(s *standalone.Options) {
		s.Log = g.logger(log)
		s.Limits.AllowedHosts = []string{"mcp.example.com", "other.example.com:8443"}
	})
	post := func(path, host string) (int, string) {
		t.Helper()
		req := expect.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, e.URL+path, strings.NewReader(`{}`)))(t)
		req.Host = host
		req.Header.Set("Content-Type", "application/json")
		resp := expect.Value(http.DefaultClient.Do(req))(t)
		defer resp.Body.Close()
		body := expect.Value(io.ReadAll(resp.Body))(t)
		return resp.StatusCode, string(body)
	}
	for _, path := range []string{"/mcp", "/events", "/consent"} {
		for _, host := range []string{"mcp.example.com", "MCP.example.com:444", "other.example.com:8443"} {
			if status, body := post(path, host); status == http.StatusForbidden {
				t.Errorf("%s of %s: %s", path, host, body)
			}
		}
		for range 2 {
			status, body := post(path, "evil.example.com")
			if status != http.StatusForbidden || !strings.Contains(body, "evil.example.com") || !strings.Contains(body, "--allowed-hosts") {
				t.Errorf("%s: got %d %s", path, status, body)
			}
		}
		if status, _ := post(path, "other.example.com"); status != http.StatusForbidden {
			t.Errorf("%s: got status %d for a port that is not allowed", path, status)
		}
	}
	text := log.String()
	if n := strings.Count(text, `"host":"evil.example.com"`); n < 1 || n > 3 { // each path logs for itself
		t.Errorf("the refused host is logged %d times, want 1 to 3:\n%s", n, text)
	}
}
