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

// view is a backend as it shows itself to those who have the same credentials: what it
// serves, and its lists. For most backends the gateway asks with the operator's credentials, and
// there is one view for all. A backend that gets its callers' tokens and nothing of the
// operator's shows each caller its own, and no caller sees what another was shown.
type view struct {
	of *backend
	// token is the caller's; empty with the operator's credentials.
	token string
	used  time.Time // guarded by callers

	answer *refresh.Value[*known]

	mu       sync.Mutex
	lists    map[api.Kind]*fetched
	fetching map[api.Kind]*fetching
	stale    time.Time // what was begun to be fetched before is not used any more
	rests    map[api.Kind]rest
}

func newView(b *backend, token string) *view {
	v := &view{of: b, token: token, lists: map[api.Kind]*fetched{}, fetching: map[api.Kind]*fetching{}, rests: map[api.Kind]rest{}}
	v.answer = refresh.New(refresh.Options{Name: "backend " + b.Name, Timeout: maxAsks * b.options.AskTimeout}, v.refreshKnown)
	return v
}

func (v *view) client() *upstream.Client {
	if v.of.perCaller() {
		return v.of.caller(v.token)
	}
	return &v.of.own
}

// known is what a backend said of itself.
type known struct {
	api.Capabilities
	version spec.Version
	session string // of the gateway's own session with it, in the session-based revisions
	at      time.Time

	// seen are the list versions that were current since it was asked, guarded by the view.
	seen map[api.Kind]string
}

// own is the gateway's own session.
func (k *known) own() backendSession { return backendSession{Version: k.version, ID: k.session} }

// The knowledge of a backend stays fresh as follows.
//
//   - A list is used while its list version in the store is the one that it was fetched under, and for as long as the backend or the
//     gateway's own limit says. The relay writes a new list version before it announces a change.
//   - Its revision and capabilities are used for askAgain, and only while the list versions are the same as when they were learned:
//     a backend whose list changes may have been restarted as another version of itself. A backend whose lists change all the time
//     is asked once per askLeast. An error that says that the revision is another one ends it, too.
//   - Knowledge that is not fresh is still used while the backend cannot be reached.
const (
	askAgain = 5 * time.Minute
	askLeast = 2 * time.Second
)

// learned reports whether what is known was learned under the list version of that kind.
func (v *view) learned(k *known, kind api.Kind, listVersion string) bool {
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

// known returns the revision and the capabilities of the backend. If it cannot be asked, the result has both the error and the
// last known ones, or nil.
func (v *view) known(ctx context.Context) (*known, error) {
	now, err := v.answer.Within(ctx, askAgain)
	if err != nil {
		now, _ = v.answer.Peek()
	}
	return now, err
}

// refreshKnown asks the backend and ends the session in which it was asked before. Callers that still use that session learn
// from the backend that it is gone, and call known again.
func (v *view) refreshKnown(ctx context.Context, have *known) (*known, error) {
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

// forget makes the next caller ask the backend again, unless it has been asked since.
func (v *view) forget(was *known) { v.answer.Expire(func(k *known) bool { return k == was }) }

// ask finds out the revision and what is served: by server/discover, which only
// 2026-07-28 has, and else by initialize.
func (v *view) ask(ctx context.Context) (*known, error) {
	c, pinned := v.client(), v.of.ProtocolVersion
	auto := pinned == api.AutoVersion
	if stateless := !auto && spec.Version(pinned).Stateless(); auto || stateless {
		got, err := c.Discover(ctx)
		if err == nil {
			return newKnown(got), nil
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
	return newKnown(got), nil
}

func newKnown(k upstream.Known) *known {
	return &known{Capabilities: capabilitiesOf(k.Capabilities), version: k.Version, session: k.Session}
}

// caller speaks to the backend for a caller. One that gets callers' tokens does not get the
// operator's for a caller who has none.
func (b *backend) caller(token string) *upstream.Client {
	c := b.own
	c.Credentials = credentials{b, token, b.ForwardToken && token == ""}.add
	return &c
}

// perCaller reports whether what the backend shows is asked for with the callers' tokens.
func (b *backend) perCaller() bool {
	_, fixed := b.Headers["Authorization"]
	return b.ForwardToken && !fixed && b.OAuth == nil
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
	var oldest viewer
	for key, v := range vs.kept {
		if found := vs.kept[oldest]; found == nil || v.used.Before(found.used) {
			oldest = key
		}
	}
	v := vs.kept[oldest]
	delete(vs.kept, oldest)
	return v
}

// views are all that there are of a backend.
func (b *backend) views() []*view {
	b.callers.mu.Lock()
	defer b.callers.mu.Unlock()
	return append(slices.Collect(maps.Values(b.callers.kept)), b.view)
}

// leave ends the session that the view was seen in.
func (v *view) leave(ctx context.Context) {
	known, _ := v.answer.Peek()
	if known == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	v.of.end(ctx, v.token, known.own())
}

// flight is something under way that several callers want: one of them does it, and
// the others wait for what comes of it.
type flight[T any] struct {
	began time.Time
	done  chan struct{}

	// Set when done is closed.
	value T
	err   error
	// left is true when the one who did it was called off, which says nothing to the others.
	left bool
}

func newFlight[T any]() *flight[T] {
	return &flight[T]{began: time.Now(), done: make(chan struct{}), left: true}
}

// fly does it. No caller waits after that, even if do panics.
func (f *flight[T]) fly(ctx context.Context, do func() (T, error)) (T, error) {
	defer close(f.done)
	f.value, f.err = do()
	f.left = f.err != nil && ctx.Err() != nil
	return f.value, f.err
}

// wait waits for the other who does it. Without ok nothing came of it, and it has to be tried
// again.
func (f *flight[T]) wait(ctx context.Context) (value T, err error, ok bool) {
	select {
	case <-f.done:
		return f.value, f.err, !f.left
	case <-ctx.Done():
		return value, ctx.Err(), true
	}
}
