package gateway

import (
	"context"
	"reflect"
	"slices"
	"sync"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
)

// Place names it.
func (b *backend) Place() api.Place { return api.Place{Workspace: b.Workspace, Backend: b.Name} }

// Check looks whether all secrets of backends are there; that they are not is of kind fault.Invalid.
func (g *Gateway) Check(ctx context.Context, backends []config.Backend) error {
	for _, c := range backends {
		if err := g.newBackend(c).resolve(ctx); err != nil {
			return err
		}
	}
	return nil
}

// replace makes these the backends. Those that are as they were keep what is known of them; calls under way at others run to
// their end. It ends the gateway's own sessions with those that go. Sessions of clients are left to
// the server: calls may be under way in them, at any instance, and later on the operator's secrets may
// be another server's.
func (g *Gateway) replace(ctx context.Context, backends []config.Backend) []*backend {
	set, gone := g.swap(backends)
	var wg sync.WaitGroup
	for _, b := range gone {
		for _, v := range b.views() {
			wg.Go(func() { v.leave(ctx) })
		}
	}
	wg.Wait()
	return set
}

func (g *Gateway) swap(backends []config.Backend) (set, gone []*backend) {
	g.mu.Lock()
	defer g.mu.Unlock()
	had := map[api.Place]*backend{}
	for _, b := range g.set {
		had[b.Place()] = b
	}
	set = make([]*backend, len(backends))
	for i, c := range backends {
		if set[i] = had[api.Place{Workspace: c.Workspace, Backend: c.Name}]; set[i] == nil || !reflect.DeepEqual(set[i].Backend, c) {
			set[i] = g.newBackend(c)
		}
	}
	for _, b := range g.set {
		if !slices.Contains(set, b) {
			gone = append(gone, b)
		}
	}
	g.from, g.set = backends, set
	return set, gone
}

// backends are those that there are now. While the source does not answer they stay.
func (g *Gateway) backends(ctx context.Context) []*backend {
	g.mu.Lock()
	from, set := g.from, g.set
	g.mu.Unlock()
	if g.options.Source == nil {
		return set
	}
	now, err := g.options.Source(ctx)
	if err != nil {
		g.options.Log.WarnContext(ctx, "backends not read, the last ones stay in use", "error", err)
		return set
	}
	if len(now) == len(from) && (len(now) == 0 || &now[0] == &from[0]) {
		return set
	}
	return g.replace(ctx, now)
}

// Any reports whether there is any backend, whoever may use it.
func (g *Gateway) Any(ctx context.Context) bool { return len(g.backends(ctx)) > 0 }

// Backends names the backends that a principal may use.
func (g *Gateway) Backends(ctx context.Context, p auth.Principal) (names []string) {
	for _, b := range g.visible(ctx, p) {
		names = append(names, b.Name)
	}
	return names
}
