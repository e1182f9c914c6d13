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

// backends are the set of those that there are, as the configuration has them now.
type backends struct {
	options *Options // of the gateway
	drops   *metric.Tally

	mu   sync.Mutex
	from []api.Backend // what set was made of
	set  []*backend    // not changed, but replaced
}

// Check looks whether all secrets of backends are there; that they are not is of kind fault.Invalid.
func (g *Gateway) Check(ctx context.Context, backends []api.Backend) error {
	for _, c := range backends {
		if err := newBackend(g.options, g.drops, c).resolve(ctx); err != nil {
			return err
		}
	}
	return nil
}

// replace makes these the backends. Those that are as they were keep what is known of them; calls under way at others run to
// their end. It ends the gateway's own sessions with those that go. Sessions of clients are left to
// the server: calls may be under way in them, at any instance, and later on the operator's secrets may
// be another server's.
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

// now are the backends that there are now. While the source does not answer they stay.
func (bs *backends) now(ctx context.Context) []*backend {
	bs.mu.Lock()
	from, set := bs.from, bs.set
	bs.mu.Unlock()
	if bs.options.Source == nil {
		return set
	}
	now, err := bs.options.Source(ctx)
	if err != nil {
		bs.options.Log.WarnContext(ctx, "backends not read, the last ones stay in use", "error", err)
		return set
	}
	if len(now) == len(from) && (len(now) == 0 || &now[0] == &from[0]) {
		return set
	}
	return bs.replace(ctx, now)
}

// visible are the backends that a principal may use.
func (bs *backends) visible(ctx context.Context, p auth.Principal) []*backend {
	var out []*backend
	for _, b := range bs.now(ctx) {
		if b.Workspace == p.Workspace && !slices.ContainsFunc(b.Scopes, func(s string) bool { return !p.Has(s) }) {
			out = append(out, b)
		}
	}
	return out
}

// server returns the backend with that [backend.server] which a principal may use, or nil.
func (bs *backends) server(ctx context.Context, p auth.Principal, name string) *backend {
	for _, b := range bs.visible(ctx, p) {
		if b.server() == name {
			return b
		}
	}
	return nil
}

// shown are the views that a client has of them. A backend that is asked with callers'
// tokens shows nothing to who has none.
func (bs *backends) shown(ctx context.Context, c api.Client) []*view {
	var out []*view
	for _, b := range bs.visible(ctx, c.Principal) {
		if !b.perCaller() {
			out = append(out, b.view)
		} else if c.Token != "" {
			out = append(out, b.as(ctx, c))
		}
	}
	return out
}

// Any reports whether there is any backend, whoever may use it.
func (g *Gateway) Any(ctx context.Context) bool { return len(g.backends.now(ctx)) > 0 }

// Backends names the backends that a principal may use.
func (g *Gateway) Backends(ctx context.Context, p auth.Principal) (names []string) {
	for _, b := range g.backends.visible(ctx, p) {
		names = append(names, b.Name)
	}
	return names
}
