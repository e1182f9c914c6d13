package backends

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

// client returns the client with which the view sends requests to its backend. If only callers have credentials for the backend, each
// caller has its own view, and the requests carry the caller's token.
func (v *View) client() *upstream.Client {
	if v.backend.OnlyForCallers() {
		return v.backend.ClientFor(v.token)
	}
	return &v.backend.own
}

// ClientFor returns a client for requests on behalf of a caller. If the backend expects callers' tokens and this caller sent no token, the
// requests carry no Authorization header, because the caller must not use the operator's credentials.
func (b *Backend) ClientFor(token string) *upstream.Client {
	if !b.ActsForCallers() {
		return &b.own
	}
	c := b.own
	c.Credentials = credentials{Backend: b, token: token, bare: token == ""}.add
	return &c
}

// OnlyForCallers reports whether only callers have credentials for the backend, because the operator has configured none. The gateway
// then reads even the backend's lists with callers' tokens.
func (b *Backend) OnlyForCallers() bool {
	_, fixed := b.Headers["Authorization"]
	return b.ActsForCallers() && !fixed && b.OAuth == nil
}

// maxViews limits the number of views in memory for a backend of which each caller has its own view. Beyond the limit, a new view
// replaces another one.
const maxViews = 256

type callers struct {
	mu   sync.Mutex
	kept map[viewer]*View
}

// viewer identifies a caller that has its own view of a backend. It contains the token, because another token of the same principal may
// have other permissions (2026-07-28, Caching, Cache Scope).
type viewer struct {
	workspace, principal string
	token                [sha256.Size]byte
}

func (b *Backend) viewFor(ctx context.Context, c api.Client) *View {
	if !b.OnlyForCallers() {
		return b.view
	}
	v, old := b.callers.getOrCreate(b, c)
	if old != nil {
		old.endSession(ctx)
	}
	return v
}

// getOrCreate returns the client's view of the backend. If it has to create one and there are already maxViews, it removes another view
// and returns that as old.
func (cs *callers) getOrCreate(b *Backend, c api.Client) (v, old *View) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	key := viewer{c.Principal.Workspace, c.Principal.ID, sha256.Sum256([]byte(c.Token))}
	if v = cs.kept[key]; v == nil {
		if len(cs.kept) >= maxViews {
			old = cs.evict()
		}
		if cs.kept == nil {
			cs.kept = map[viewer]*View{}
		}
		v = newView(b, c.Token)
		cs.kept[key] = v
	}
	v.used = time.Now()
	return v, old
}

// evict removes and returns the least recently used view of the principal that has the most views. So a principal that uses many tokens
// does not remove the views of others. The caller holds the lock.
func (cs *callers) evict() *View {
	views := map[viewer]int{} // the number of views of each principal
	holder := func(k viewer) viewer { return viewer{workspace: k.workspace, principal: k.principal} }
	for k := range cs.kept {
		views[holder(k)]++
	}
	oldest := slices.MinFunc(slices.Collect(maps.Keys(cs.kept)), func(a, b viewer) int {
		return cmp.Or(views[holder(b)]-views[holder(a)], cs.kept[a].used.Compare(cs.kept[b].used))
	})
	v := cs.kept[oldest]
	delete(cs.kept, oldest)
	return v
}

func (b *Backend) views() []*View {
	b.callers.mu.Lock()
	defer b.callers.mu.Unlock()
	return append(slices.Collect(maps.Values(b.callers.kept)), b.view)
}

func (v *View) endSession(ctx context.Context) {
	info, _ := v.info.Peek()
	if info == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	v.backend.EndSession(ctx, v.token, info.Version, info.session)
}
