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

// listenAdmin opens the listener of the admin API. It returns nil if the API has no address of its own.
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

// serveAdmin returns the handler of the main address. If the admin API has an address of its own, serveAdmin starts serving
// it there. Otherwise it is part of the returned handler.
func (s *Server) serveAdmin(r roles, mode auth.Mode, listener net.Listener) http.Handler {
	rest := http.Handler(r.mux)
	if listener != nil {
		rest = http.NotFoundHandler()
	}
	handler := operators.NewHandler(s.core, operators.Options{
		Mode: mode, Subscriptions: r.subscriptions, Operations: r.operations, Replays: r.replays, Switches: r.switches,
		AddStates: s.addStates, SourceSecrets: secret.FromEnvironment, Closing: s.closing.Done(), Rest: rest,
	})
	if listener == nil {
		s.AdminURL = s.URL
		return handler
	}
	s.operators = s.httpServer(boundBodies(handler, bodyTime))
	limited := limitConnections(listener, adminConnections())
	limited.attach(s.operators)
	go func() {
		if err := s.operators.Serve(limited); err != http.ErrServerClosed {
			s.served <- err
		}
	}()
	return r.mux
}

// backendPatience is how long a backend has to respond before it counts as unreachable.
const backendPatience = 3 * time.Second

// addStates asks the backends of a workspace concurrently, and fills in which ones respond.
func (s *Server) addStates(ctx context.Context, workspace string, list []admin.Backend) {
	ctx, cancel := context.WithTimeout(ctx, backendPatience)
	defer cancel()
	s.addCommandStates(ctx, workspace, list)
	states := map[string]*string{} // by backend; looked up while other states are written
	for i := range list {
		states[list[i].Name] = &list[i].State
	}
	var asked sync.WaitGroup
	for _, f := range s.backends.Followed(ctx) {
		state := states[f.Name]
		if state == nil || f.Workspace != workspace {
			continue
		}
		asked.Go(func() {
			*state = "ready"
			if _, _, err := f.Ask(ctx); err != nil {
				*state = "unreachable"
			}
		})
	}
	asked.Wait()
}

// addCommandStates fills in the states of the commands that do not run. Asking them would start them.
func (s *Server) addCommandStates(ctx context.Context, workspace string, list []admin.Backend) {
	all, _ := s.core.Config.Backends(ctx) // the list was made from them, so an error is a rare change in between
	for _, b := range all {
		i := slices.IndexFunc(list, func(l admin.Backend) bool { return l.Name == b.Name })
		if i < 0 || b.Command == nil || b.Workspace != workspace || s.commands.Running(b) {
			continue
		}
		list[i].State = "resting"
		if s.commands.Failing(b) {
			list[i].State = "unreachable"
		}
	}
}
