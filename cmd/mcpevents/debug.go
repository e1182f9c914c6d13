package main

import (
	"context"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"mcpevents/shared/auth"
	"mcpevents/shared/fault"
)

// serveDebug serves net/http/pprof at an address of its own, on loopback only:
// profiles tell what a server does, and nobody authenticates there. It ends with ctx.
func serveDebug(ctx context.Context, addr string) error {
	if err := auth.CheckListen(addr, auth.ModeNone); err != nil {
		return fault.Wrap(fault.Invalid, err, "--debug-addr")
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
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = s.Close() })
	go func() { _ = s.Serve(l) }()
	return nil
}
