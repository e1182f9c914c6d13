package relay

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// A backend may notify of more than clients can use, by mistake or to harm: each notice is
// written to the store, kept there for the retention of the log, and sent to every stream that asked. So there
// are bounds, that no well-behaved backend reaches: changes of a list that come too fast are coalesced into
// one, updates of resources are read no faster, and those that no client subscribed to are dropped.
const (
	changeRate, changeBurst   = 1, 50     // of each kind of list; in a second, and at once
	updateRate, updateBurst   = 200, 1000 // a KiB of an update counts as one more
	unaskedRate, unaskedBurst = 0.1, 1000 // so that nothing is lost where a subscription is on its way
	updateUnit                = 1024
)

// throttle holds the notifications of a backend back, for all its connections.
type throttle struct {
	changes          map[string]*rate.Limiter // by method; not changed
	updates, unasked *rate.Limiter

	mu   sync.Mutex
	held map[string]bool // methods of changes that are still to be announced
}

func newThrottle() *throttle {
	p := &throttle{
		changes: map[string]*rate.Limiter{}, held: map[string]bool{},
		updates: rate.NewLimiter(updateRate, updateBurst), unasked: rate.NewLimiter(unaskedRate, unaskedBurst),
	}
	for _, kind := range api.Kinds {
		p.changes[kind.Changed()] = rate.NewLimiter(changeRate, changeBurst)
	}
	p.changes[spec.NoteRootsChange] = rate.NewLimiter(changeRate, changeBurst)
	return p
}

// change reports whether a change of a list is to be announced now; if not, it is held.
func (t *throttle) change(method string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held[method] = !t.changes[method].Allow()
	return !t.held[method]
}

// due are the changes that were held and are to be announced now; at the end all that were held.
func (t *throttle) due(end bool) (methods []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for method, held := range t.held {
		if held && (end || t.changes[method].Allow()) {
			methods = append(methods, method)
			t.held[method] = false
		}
	}
	return methods
}

// hold has a change announced later.
func (t *throttle) hold(method string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held[method] = true
}

// update waits until an update of that size may be announced. It reports false for one to be dropped.
func (t *throttle) update(ctx context.Context, size int, asked bool) (announce bool, err error) {
	n := 1 + size/updateUnit
	if asked {
		return true, t.updates.WaitN(ctx, n)
	}
	return t.unasked.AllowN(time.Now(), n), nil
}

// catchUp announces the changes that were held.
func (f *following) catchUp(ctx context.Context, end bool) {
	for _, method := range f.throttle.due(end) {
		if err := f.announceChange(ctx, method); err != nil {
			f.throttle.hold(method)
			f.relay.log(f).WarnContext(ctx, "list change not announced", "error", err)
		}
	}
}
