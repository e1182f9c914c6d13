package admin_test

import (
	"log/slog"
	"net/http/httptest"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/operate/admin"
)

// TestOriginOfTheConsole: OPS-11. Behind TLS the console's own origin needs no setting; others do.
func TestOriginOfTheConsole(t *testing.T) {
	h := admin.New(admin.Options{Auth: auth.None(), Log: slog.New(slog.DiscardHandler)})
	for origin, want := range map[string]int{
		"": 200, "https://events.example.com": 200, "http://events.example.com": 403, "https://other.example.com": 403, "null": 403,
	} {
		r := httptest.NewRequest("GET", "https://events.example.com/admin/v1/openapi.json", nil)
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("OPS-11 origin %q: got %d, want %d", origin, w.Code, want)
		}
	}
}
