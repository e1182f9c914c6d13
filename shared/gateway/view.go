package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
)

// view is a backend as it shows itself to those who have the same credentials: what it
// serves, and its lists. For most backends the gateway asks with the operator's credentials, and
// there is one view for all. A backend that gets its callers' tokens and nothing of the
// operator's shows each caller its own, and no caller sees what another was shown.
type view struct {
	of *backend
	// token is the caller's; empty with the operator's credentials.
	token string
	used  time.Time // guarded by callers

	mu       sync.Mutex
	last     *known          // nil before it was asked
	asking   *flight[*known] // nil while none asks
	lists    map[api.Kind]*fetched
	fetching map[api.Kind]*fetching
	stale    time.Time // what was begun to be fetched before is not used any more
	rests    map[api.Kind]rest
}

func newView(b *backend, token string) *view {
	return &view{of: b, token: token, lists: map[api.Kind]*fetched{}, fetching: map[api.Kind]*fetching{}, rests: map[api.Kind]rest{}}
}

func (v *view) client() *upstream.Client {
	if v.of.perCaller() {
		return v.of.caller(v.token)
	}
	return &v.of.own
}

// maxViews is how many callers' views of a backend are kept. The one that was not used for
// longest makes room.
const maxViews = 256

// callers are a backend's views by caller.
type callers struct {
	mu   sync.Mutex
	kept map[viewer]*view
}

// viewer is whom a view is for: a principal by one token, since another one may allow for
// other things (2026-07-28, Caching, Cache Scope).
type viewer struct {
	workspace, principal string
	token                [sha256.Size]byte
}

// as is the backend as a client sees it.
func (b *backend) as(ctx context.Context, c api.Client) *view {
	if !b.perCaller() {
		return b.view
	}
	v, old := b.callers.of(b, c)
	if old != nil {
		old.leave(ctx)
	}
	return v
}

func (vs *callers) of(b *backend, c api.Client) (v, old *view) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	key := viewer{c.Principal.Workspace, c.Principal.ID, sha256.Sum256([]byte(c.Token))}
	if v = vs.kept[key]; v == nil {
		if len(vs.kept) >= maxViews {
			old = vs.evict()
		}
		if vs.kept == nil {
			vs.kept = map[viewer]*view{}
		}
		v = newView(b, c.Token)
		vs.kept[key] = v
	}
	v.used = time.Now()
	return v, old
}

// evict takes the view out that was not used for longest. The lock is held.
func (vs *callers) evict() *view {
	type entry struct {
		viewer
		*view
	}
	var all []entry
	for key, v := range vs.kept {
		all = append(all, entry{key, v})
	}
	oldest := slices.MinFunc(all, func(x, y entry) int { return cmp.Compare(x.used.UnixNano(), y.used.UnixNano()) })
	delete(vs.kept, oldest.viewer)
	return oldest.view
}

// views are all that there are of a backend.
func (b *backend) views() []*view {
	b.callers.mu.Lock()
	defer b.callers.mu.Unlock()
	return append(slices.Collect(maps.Values(b.callers.kept)), b.view)
}

// leave ends the session that the view was seen in.
func (v *view) leave(ctx context.Context) {
	v.mu.Lock()
	known := v.last
	v.mu.Unlock()
	if known == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	v.of.gateway.sessions.end(ctx, v.of, v.token, known.own())
}
