package server

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/admin"
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
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if strings.HasPrefix(req.URL.Path, admin.Prefix) { // before the mux, which would redirect from what is an origin
				r.admin.ServeHTTP(w, req)
				return
			}
			r.mux.ServeHTTP(w, req)
		})
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

// listBackends are those of a workspace that the configuration has now.
func (s *Server) listBackends(ctx context.Context, workspace string) (list []admin.Backend, err error) {
	c, err := s.core.Config.Config(ctx)
	if err != nil || c == nil {
		return nil, err
	}
	for _, b := range c.Backends {
		if b.Workspace != workspace {
			continue
		}
		list = append(list, admin.Backend{Name: b.Name, URL: b.URL, Prefix: b.Prefix})
	}
	return list, nil
}
