package app

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
)

// AUT-06: a host that is refused is logged once for all endpoints, not once for each.
func TestOneGuardForAllEndpoints(t *testing.T) {
	var out bytes.Buffer
	db, err := sqlite.Open(":memory:", sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	core := &Core{DB: db, Log: slog.New(slog.NewTextHandler(&out, nil))}
	_, publishing, _ := core.Publish()
	r := httptest.NewRequest(http.MethodPost, "http://proxy.example/MCP/u/the-key", nil)
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}))
	for name, err := range map[string]error{
		"/mcp": core.Endpoint().Guard.Check(r), "/events": publishing.Guard.Check(r), "/consent": core.Consent(nil).Guard.Check(r),
	} {
		if !fault.Is(err, fault.Forbidden) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if strings.Contains(out.String(), "the-key") {
		t.Errorf("RCH-05 a path that may hold a key is logged: %s", out.String())
	}
	if n := strings.Count(out.String(), "host refused"); n != 1 {
		t.Errorf("logged %d times: %s", n, out.String())
	}
	guard := core.Endpoint().Guard
	for i := range 1000 {
		r.Host = fmt.Sprintf("%d.example", i)
		if err := guard.Check(r); !fault.Is(err, fault.Forbidden) {
			t.Errorf("%s: got %v", r.Host, err)
		}
	}
	if n := strings.Count(out.String(), "host refused"); n > 25 {
		t.Errorf("AUT-06 a caller that makes up 1000 hosts causes %d lines in the log", n)
	}
}
