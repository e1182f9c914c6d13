package gateway

import (
	"context"
	"reflect"
	"slices"
	"sync"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
)

// backends is the set of backends in the current configuration.
type backends struct {
	options *Options // of the gateway
	drops   *metric.Tally

	mu   sync.Mutex
	from []api.Backend // the configuration from which set was made
	set  []*backend    // replaced as a whole, never modified
}

// Check resolves all secrets of the backends. It returns an error of kind fault.Invalid if one is missing.
func (g *Gateway) Check(ctx context.Context, backends []api.Backend) error {
	for _, c := range backends {
		if err := newBackend(g.options, g.drops, c).checkSecrets(ctx); err != nil {
			return err
		}
	}
	return nil
}

// replace makes the given backends the current ones. Unchanged backends keep their cached data, and running calls to
// removed ones continue to their end. replace ends the gateway's own sessions with removed backends. It leaves clients'
// sessions to expire there, because calls may be running in them at any instance, and because the operator's
// secrets may by now belong to another server.
func (bs *backends) replace(ctx context.Context, backends []api.Backend) []*backend {
	set, gone := bs.swap(backends)
	var wg sync.WaitGroup
	for _, b := range gone {
		for _, v := range b.views() {
			wg.Go(func() { v.leave(ctx) })
		}
	}
	wg.Wait()
	return set
}

func (bs *backends) swap(backends []api.Backend) (set, gone []*backend) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	had := map[api.Place]*backend{}
	for _, b := range bs.set {
		had[b.Place()] = b
	}
	set = make([]*backend, len(backends))
	for i, c := range backends {
		if set[i] = had[api.Place{Workspace: c.Workspace, Backend: c.Name}]; set[i] == nil || !reflect.DeepEqual(set[i].Backend, c) {
			set[i] = newBackend(bs.options, bs.drops, c)
		}
	}
	for _, b := range bs.set {
		if !slices.Contains(set, b) {
			gone = append(gone, b)
		}
	}
	bs.from, bs.set = backends, set
	return set, gone
}

// current returns the current backends. If the source fails, it keeps the previous ones.
func (bs *backends) current(ctx context.Context) []*backend {
	bs.mu.Lock()
	from, set := bs.from, bs.set
	bs.mu.Unlock()
	if bs.options.Source == nil {
		return set
	}
	now, err := bs.options.Source(ctx)
	if err != nil {
		bs.options.Log.WarnContext(ctx, "backends not read", "error", err)
		return set
	}
	if len(now) == len(from) && (len(now) == 0 || &now[0] == &from[0]) {
		return set
	}
	return bs.replace(ctx, now)
}

// visibleTo returns the backends that the principal may use.
func (bs *backends) visibleTo(ctx context.Context, p auth.Principal) []*backend {
	var out []*backend
	for _, b := range bs.current(ctx) {
		if b.Workspace == p.Workspace && !slices.ContainsFunc(b.Scopes, func(s string) bool { return !p.Has(s) }) {
			out = append(out, b)
		}
	}
	return out
}

// findByServer returns the backend with the given [backend.serverID] if the principal may use it, otherwise nil.
func (bs *backends) findByServer(ctx context.Context, p auth.Principal, name string) *backend {
	for _, b := range bs.visibleTo(ctx, p) {
		if b.serverID() == name {
			return b
		}
	}
	return nil
}

// viewsFor returns the client's view of each backend. Backends that forward the caller's token are skipped if the
// client sent none.
func (bs *backends) viewsFor(ctx context.Context, c api.Client) []*view {
	var out []*view
	for _, b := range bs.visibleTo(ctx, c.Principal) {
		if !b.perCaller() {
			out = append(out, b.view)
		} else if c.Token != "" {
			out = append(out, b.viewFor(ctx, c))
		}
	}
	return out
}

// Any reports whether there are any backends, including those that only some principals may use.
func (g *Gateway) Any(ctx context.Context) bool { return len(g.backends.current(ctx)) > 0 }

// Backends returns the names of the backends that the principal may use.
func (g *Gateway) Backends(ctx context.Context, p auth.Principal) (names []string) {
	for _, b := range g.backends.visibleTo(ctx, p) {
		names = append(names, b.Name)
	}
	return names
}
