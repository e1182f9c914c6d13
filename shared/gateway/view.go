package gateway

import (
	"context"
	"crypto/sha256"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// view is a backend as seen with certain credentials: its capabilities and its lists. Most backends have a single view, for which the
// gateway uses the operator's credentials. A backend that receives its callers' tokens, and has no credentials of the operator,
// has one view per caller, so that a caller cannot see the lists of another one.
type view struct {
	of *backend
	// token is the caller's token, or empty for the operator's credentials.
	token string
	used  time.Time // guarded by callers

	answer *refresh.Value[*serverInfo]

	mu       sync.Mutex
	lists    map[api.Kind]*fetched
	fetching map[api.Kind]*fetching
	stale    time.Time // the gateway does not reuse lists fetched before this time
	backoffs map[api.Kind]backoff
}

func newView(b *backend, token string) *view {
	v := &view{of: b, token: token, lists: map[api.Kind]*fetched{}, fetching: map[api.Kind]*fetching{}, backoffs: map[api.Kind]backoff{}}
	v.answer = refresh.New(refresh.Options{Name: "backend " + b.Name, Timeout: maxAsks * b.options.AskTimeout}, v.refreshInfo)
	return v
}

func (v *view) client() *upstream.Client {
	if v.of.perCaller() {
		return v.of.clientFor(v.token)
	}
	return &v.of.own
}

// serverInfo is a backend's description of itself.
type serverInfo struct {
	api.Capabilities
	version spec.Version
	session string // the gateway's own session with it, in session-based revisions
	at      time.Time

	// seen has the list versions that were current when the backend was asked. It is guarded by the view.
	seen map[api.Kind]string
}

// own returns the gateway's own session.
func (k *serverInfo) own() backendSession { return backendSession{Version: k.version, ID: k.session} }

// The gateway's knowledge of a backend stays fresh as follows.
//
//   - A list is used while its list version in the store is the one from before the fetch, and while it is younger than the limits of
//     the backend and the gateway. The relay writes a new list version before it announces a change.
//   - The revision and capabilities are used for askAgain, and only while the list versions stay the same, because a backend
//     whose list changes may have been restarted as another version. A backend whose lists change all the time
//     is asked once per askLeast. An error that hints at another revision also makes the gateway ask again.
//   - While the backend does not respond, the gateway uses stale knowledge.
const (
	askAgain = 5 * time.Minute
	askLeast = 2 * time.Second
)

// confirmVersion reports whether info was read under the given list version. It records the version if it is the first of its kind.
func (v *view) confirmVersion(k *serverInfo, kind api.Kind, listVersion string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	was, seen := k.seen[kind]
	switch {
	case seen && was != listVersion && time.Since(k.at) > askLeast:
		return false
	case !seen:
		if k.seen == nil {
			k.seen = map[api.Kind]string{}
		}
		k.seen[kind] = listVersion
	}
	return true
}

// loadInfo returns the backend's revision and capabilities. If the backend does not respond, it returns an error together with the last
// known ones, or nil.
func (v *view) loadInfo(ctx context.Context) (*serverInfo, error) {
	now, err := v.answer.Within(ctx, askAgain)
	if err != nil {
		now, _ = v.answer.Peek()
	}
	return now, err
}

// refreshInfo asks the backend and ends the session of the previous answer. Callers that still use that session get an error from the
// backend, and call loadInfo again.
func (v *view) refreshInfo(ctx context.Context, have *serverInfo) (*serverInfo, error) {
	now, err := v.ask(ctx)
	if err != nil {
		return nil, err
	}
	now.at = time.Now()
	if have != nil {
		ctx, cancel := context.WithTimeout(ctx, endTime)
		defer cancel()
		v.of.end(ctx, v.token, have.own())
	}
	return now, nil
}

// forget makes the next caller ask the backend again, unless that has already happened since info was read.
func (v *view) forget(was *serverInfo) { v.answer.Expire(func(k *serverInfo) bool { return k == was }) }

// ask asks for the revision and the capabilities. It tries server/discover, which only 2026-07-28 has, and then initialize.
func (v *view) ask(ctx context.Context) (*serverInfo, error) {
	c, pinned := v.client(), v.of.ProtocolVersion
	auto := pinned == api.AutoVersion
	if stateless := !auto && spec.Version(pinned).Stateless(); auto || stateless {
		got, err := c.Discover(ctx)
		if err == nil {
			return newServerInfo(got), nil
		}
		if stateless || fault.Is(err, fault.Unavailable) && !upstream.Refused(err) {
			return nil, err
		}
	}
	version := spec.LatestSessionBased
	if !auto {
		version = spec.Version(pinned)
	}
	got, err := c.Initialize(ctx, upstream.Declared{Version: version})
	if err != nil {
		return nil, err
	}
	return newServerInfo(got), nil
}

func newServerInfo(k upstream.Known) *serverInfo {
	return &serverInfo{Capabilities: capabilitiesOf(k.Capabilities), version: k.Version, session: k.Session}
}

// clientFor returns a client that acts for a caller. If the backend expects callers' tokens and the caller has none, requests carry
// no token, because the caller must not use the operator's.
func (b *backend) clientFor(token string) *upstream.Client {
	c := b.own
	c.Credentials = credentials{b, token, b.ForwardToken && token == ""}.add
	return &c
}

// perCaller reports whether the gateway reads the backend's lists with the callers' tokens.
func (b *backend) perCaller() bool {
	_, fixed := b.Headers["Authorization"]
	return b.ForwardToken && !fixed && b.OAuth == nil
}

// maxViews limits how many callers' views of a backend are kept. A new view replaces the one that has been unused for longest.
const maxViews = 256

// callers has a backend's views by caller.
type callers struct {
	mu   sync.Mutex
	kept map[viewer]*view
}

// viewer identifies the caller of a view: the principal and its token, because another token of the same principal may have other
// permissions (2026-07-28, Caching, Cache Scope).
type viewer struct {
	workspace, principal string
	token                [sha256.Size]byte
}

// viewFor returns the client's view of the backend.
func (b *backend) viewFor(ctx context.Context, c api.Client) *view {
	if !b.perCaller() {
		return b.view
	}
	v, old := b.callers.of(b, c)
	if old != nil {
		old.leave(ctx)
	}
	return v
}

func (cs *callers) of(b *backend, c api.Client) (v, old *view) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	key := viewer{c.Principal.Workspace, c.Principal.ID, sha256.Sum256([]byte(c.Token))}
	if v = cs.kept[key]; v == nil {
		if len(cs.kept) >= maxViews {
			old = cs.evict()
		}
		if cs.kept == nil {
			cs.kept = map[viewer]*view{}
		}
		v = newView(b, c.Token)
		cs.kept[key] = v
	}
	v.used = time.Now()
	return v, old
}

// evict removes the view that has been unused for longest. The caller holds the lock.
func (cs *callers) evict() *view {
	var oldest viewer
	for key, v := range cs.kept {
		if found := cs.kept[oldest]; found == nil || v.used.Before(found.used) {
			oldest = key
		}
	}
	v := cs.kept[oldest]
	delete(cs.kept, oldest)
	return v
}

// views returns all views of the backend.
func (b *backend) views() []*view {
	b.callers.mu.Lock()
	defer b.callers.mu.Unlock()
	return append(slices.Collect(maps.Values(b.callers.kept)), b.view)
}

// leave ends the gateway's session that the view uses.
func (v *view) leave(ctx context.Context) {
	info, _ := v.answer.Peek()
	if info == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	v.of.end(ctx, v.token, info.own())
}

// flight is an operation whose result several callers need. One caller runs it, and the others wait for the result.
type flight[T any] struct {
	began time.Time
	done  chan struct{}

	// Set when done is closed.
	value T
	err   error
	// left is set if the caller that ran the operation was cancelled. Its error then means nothing to the other callers.
	left bool
}

func newFlight[T any]() *flight[T] {
	return &flight[T]{began: time.Now(), done: make(chan struct{}), left: true}
}

// fly runs the operation and then releases the waiting callers, even if do panics.
func (f *flight[T]) fly(ctx context.Context, do func() (T, error)) (T, error) {
	defer close(f.done)
	f.value, f.err = do()
	f.left = f.err != nil && ctx.Err() != nil
	return f.value, f.err
}

// wait waits for the caller that runs the operation. It returns ok = false if that caller was cancelled, so that the operation must be
// tried again.
func (f *flight[T]) wait(ctx context.Context) (value T, err error, ok bool) {
	select {
	case <-f.done:
		return f.value, f.err, !f.left
	case <-ctx.Done():
		return value, ctx.Err(), true
	}
}
