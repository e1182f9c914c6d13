package standalone

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/operators"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/operate/admin"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
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
	r.admin.Live, r.admin.SourceSecrets = s.closing.Done(), secret.FromEnvironment
	configured := r.admin.Backends
	r.admin.Backends = func(ctx context.Context, workspace string) ([]admin.Backend, error) {
		list, err := configured(ctx, workspace)
		return s.asked(ctx, workspace, list), err
	}
	rest := http.Handler(r.mux)
	if listener != nil {
		rest = http.NotFoundHandler()
	}
	handler := operators.Handler(&s.core, mode, admin.New(r.admin), rest)
	if listener == nil {
		s.AdminURL = s.URL
		return handler
	}
	s.operators = s.httpServer(boundBodies(handler, bodyTime))
	limited := limitConnections(listener, adminConnections())
	limited.serveBy(s.operators)
	go func() {
		if err := s.operators.Serve(limited); err != http.ErrServerClosed {
			s.served <- err
		}
	}()
	return r.mux
}

// asked are the backends of a workspace with what each answers.
func (s *Server) asked(ctx context.Context, workspace string, list []admin.Backend) []admin.Backend {
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
	return list
}

// backendPatience is how long a backend has to say what it is.
const backendPatience = 3 * time.Second
