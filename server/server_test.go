package server

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/config"
)

// patience bounds every wait.
const patience = 30 * time.Second

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// serve starts an embedded server with the sample catalog, and ends it with the test.
func serve(t *testing.T, change func(*Options)) *Server {
	t.Helper()
	src, err := os.ReadFile("../catalog.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s := Options{
		Addr: "127.0.0.1:0", Data: t.TempDir(), Catalog: src, CatalogName: "catalog.yaml", Auth: auth.ModeNone,
		Limits: config.DefaultLimits(), Log: quiet(),
	}
	s.Limits.AllowInsecureTargets = true
	if change != nil {
		change(&s)
	}
	e, err := New(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, e) })
	return e
}

var ends sync.Map // servers that were ended

func end(t *testing.T, e *Server) {
	t.Helper()
	if _, done := ends.LoadOrStore(e, true); done {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := e.Shutdown(ctx); err != nil {
		t.Errorf("end the server: %v", err)
	}
}
