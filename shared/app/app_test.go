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

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// AUT-06: a refused host is logged once for all endpoints together.
func TestOneGuardForAllEndpoints(t *testing.T) {
	var out bytes.Buffer
	db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
	defer db.Close()
	log := slog.New(slog.NewTextHandler(&out, nil))
	core := &Core{DB: db, Guard: auth.NewGuard(nil, nil, log), Log: log}
	publishing := NewPublishing(core, PublishingOptions{})
	r := httptest.NewRequest(http.MethodPost, "http://proxy.example/MCP/u/the-key", nil)
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}))
	for name, err := range map[string]error{
		"/mcp": endpointOptions(core).Guard.Check(r), "/events": publishing.Handler.Guard.Check(r),
		"/sources": publishing.Sources.Guard.Check(r), "/consent": NewConsent(core, nil).Guard.Check(r),
	} {
		expect.Fault(t, name, err, fault.Forbidden)
		expect.Contains(t, name, err.Error(), `"proxy.example" is not allowed here; a server behind a proxy allows it with --allowed-hosts`)
	}
	expect.Lacks(t, "RCH-05 the log", out.String(), "the-key")
	expect.Equal(t, "the lines of the log "+out.String(), strings.Count(out.String(), "host refused"), 1)
	guard := endpointOptions(core).Guard
	for i := range 1000 {
		r.Host = fmt.Sprintf("%d.example", i)
		expect.Fault(t, r.Host, guard.Check(r), fault.Forbidden)
	}
	expect.AtMost(t, "AUT-06 the lines that a caller with 1000 made-up hosts causes in the log", strings.Count(out.String(), "host refused"), 25)
}
