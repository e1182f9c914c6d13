package server

import (
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/fault"
)

// listenAdmin begins to listen for operators, if they have an address of their own.
func (s *Server) listenAdmin(o Options) (net.Listener, error) {
	if o.AdminAddr == "" {
		return nil, nil
	}
	if err := auth.CheckListen(o.AdminAddr, o.Auth); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", o.AdminAddr)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "listen for the admin API")
	}
	s.undo = append(s.undo, func() { _ = listener.Close() })
	s.AdminURL = "http://" + listener.Addr().String()
	return listener, nil
}

// serveAdmin serves the admin API at its own address, or else with the rest, which it returns.
func (s *Server) serveAdmin(r roles, listener net.Listener) http.Handler {
	if listener == nil {
		s.AdminURL = s.URL
		return r.admin.Over(r.mux)
	}
	s.operators = &http.Server{
		Handler: boundBodies(r.admin, bodyTime), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog: slog.NewLogLogger(s.core.Log.Handler(), slog.LevelWarn),
	}
	go func() {
		if err := s.operators.Serve(listener); err != http.ErrServerClosed {
			s.served <- err
		}
	}()
	return r.mux
}
