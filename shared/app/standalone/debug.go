package standalone

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
)

const debugConnections = 16

// ServeDebug serves net/http/pprof and [Server.Counters] at a separate address until ctx ends, and returns immediately. The function
// started returns the server, or nil while the server is starting.
//
// The address must be a loopback address, because callers are not authenticated. ServeDebug refuses requests from web pages of other
// sites, and requests whose Host is not a loopback name.
func ServeDebug(ctx context.Context, addr string, started func() *Server) error {
	if host, _, err := net.SplitHostPort(addr); err != nil || !auth.IsLoopback(host) {
		return fault.New(fault.Invalid, "--debug-addr %.100q is not HOST:PORT with a loopback address, such as 127.0.0.1:6060", addr)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "listen for debugging")
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/vars", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		counters := map[string]any{}
		if s := started(); s != nil {
			counters = s.Counters()
		}
		_ = json.NewEncoder(w).Encode(counters)
	})
	guard := auth.NewGuard(nil, nil, nil)
	guarded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := guard.Check(r); err != nil {
			http.Error(w, fault.Public(err), http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
	s := &http.Server{Handler: boundBodies(guarded, bodyTime), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10}
	limited := limitConnections(l, debugConnections)
	limited.attach(s)
	context.AfterFunc(ctx, func() { _ = s.Close() })
	go func() { _ = s.Serve(limited) }()
	return nil
}

// Counters returns internal counters for debugging. They count from the start of the server.
func (s *Server) Counters() map[string]any {
	return map[string]any{
		"database":            s.db.Engine().Stats(),
		metric.BackendDropped: s.backends.DroppedCounts(),
		metric.ContextMissing: s.conversation.FailureCounts(),
	}
}
