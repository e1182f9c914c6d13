package server

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/admin"
	"github.com/mcp-events/mcpevents/shared/app/webhooks"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/console"
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

// serveAdmin serves the admin API and the console at their own address, or else with the rest, which it returns.
func (s *Server) serveAdmin(r roles, mode auth.Mode, listener net.Listener) http.Handler {
	r.admin.Live = s.closing.Done()
	page, rest := webhooks.Console(&s.core, mode), http.Handler(r.mux)
	if listener != nil {
		rest = http.NotFoundHandler()
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch at := req.URL.Path; {
		case strings.HasPrefix(at, admin.Prefix): // before the mux, which would redirect from what is an origin
			r.admin.ServeHTTP(w, req)
		case strings.HasPrefix(at, console.Prefix):
			page.ServeHTTP(w, req)
		case at+"/" == console.Prefix:
			http.Redirect(w, req, console.Prefix, http.StatusPermanentRedirect)
		default:
			rest.ServeHTTP(w, req)
		}
	})
	if listener == nil {
		s.AdminURL = s.URL
		return handler
	}
	s.operators = &http.Server{
		Handler: boundBodies(handler, bodyTime), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog: slog.NewLogLogger(s.core.Log.Handler(), slog.LevelWarn),
	}
	go func() {
		if err := s.operators.Serve(listener); err != http.ErrServerClosed {
			s.served <- err
		}
	}()
	return r.mux
}

// listBackends are those of a workspace that the configuration has now, each asked whether it answers.
func (s *Server) listBackends(ctx context.Context, workspace string) (list []admin.Backend, err error) {
	c, err := s.core.Config.Config(ctx)
	if err != nil || c == nil {
		return nil, err
	}
	for _, b := range c.Backends {
		if b.Workspace == workspace {
			list = append(list, admin.Backend{Name: b.Name, URL: b.URL, Prefix: b.Prefix})
		}
	}
	ctx, cancel := context.WithTimeout(ctx, backendPatience)
	defer cancel()
	var asked sync.WaitGroup
	for _, f := range s.backends.Followed(ctx) {
		i := slices.IndexFunc(list, func(b admin.Backend) bool { return b.Name == f.Name })
		if i < 0 || f.Workspace != workspace {
			continue
		}
		asked.Go(func() {
			list[i].State = "ready"
			if _, _, err := f.Ask(ctx); err != nil {
				list[i].State = "unreachable"
			}
		})
	}
	asked.Wait()
	return list, nil
}

// backendPatience is how long a backend has to say what it is.
const backendPatience = 3 * time.Second
