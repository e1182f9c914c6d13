package delivery

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/webhook"
)

// endpoints is what this process knows of the endpoints that it posts to: which lane an
// attempt takes, how many may run at once, and when an endpoint that hangs is tried
// again. All of it is kept per endpoint, which is a URL without its query: the callbacks
// of one client share an origin, and a bad one must not harm its neighbours. An origin as
// a whole counts as failing only if it cannot be connected to, or if endpoint after
// endpoint of it fails with no success in between.
//
//	   ┌────────── answers in time ───────────┐
//	   ▼                                      │
//	healthy ──▶ slow: first attempts take the slow lane ──▶ open: no attempt
//	 no answer      three failures in a row,       timeout, 429,     until a time,
//	 in time        a late success                 502, 503, 504     then one probe
//
// It belongs to a process: an instance learns by its own few failures, which costs less
// than to share every outcome.
type endpoints struct {
	// atOnce bounds the first attempts under way to one endpoint, maxWaiting those that wait
	// for a slot of any: each takes one of the process's slots meanwhile.
	atOnce, maxWaiting int

	mu      sync.Mutex
	byID    map[string]*endpointState
	origins map[string]*originState
	waiting int
}

// endpointState is the state of one.
type endpointState struct {
	origin *originState

	fast    int             // attempts under way in the fast lane
	waiting []chan struct{} // for a slot there, the oldest first
	slow    int             // attempts under way in the slow lane
	queued  []chan struct{} // for a slot there, the oldest first
	took    time.Duration   // the last attempt
	unknown int             // of these, the ones that began before the origin was known
	hanging int             // attempts that outlived the patience of the fast lane

	failures  int       // in a row
	pauses    int       // in a row
	slowUntil time.Time // first attempts take the slow lane
	openUntil time.Time // no attempt before; afterwards one, until it succeeds
	limit     int       // of attempts in the slow lane: up by one with a success, down to one by a timeout
}

// originState is what the endpoints of an origin have in common.
type originState struct {
	failed    map[string]struct{} // endpoints that failed since the last success of any
	connect   int                 // failures to connect since then
	slowUntil time.Time
	hanging   int // attempts under way that outlived the patience of the fast lane
	slow      int // attempts under way in the slow lane
}

const (
	slowAfter = 3                // failures in a row
	slowFor   = 30 * time.Second // then another delivery may try
	// slowLatency is from when on a successful answer is a slow one. It is the patience of
	// the fast lane, so that an endpoint that needs longer does not come back to it each time.
	slowLatency = 2 * time.Second
	// slotWait is how long an attempt waits while its endpoint has all the attempts
	// under way that it may have. In the slow lane only those wait whose endpoint answers sooner.
	slotWait = 500 * time.Millisecond

	hangPause    = 10 * time.Second // after a timeout, doubled with each further one
	maxHangPause = time.Minute
	busyPause    = 5 * time.Second // after 429, 502, 503 or 504 without Retry-After
	maxBusyPause = 5 * time.Minute

	slowAtOnce    = 4 // attempts to one endpoint in the slow lane, to begin with
	maxSlowAtOnce = 32
	// maxHanging bounds the detached attempts, for one endpoint and for one origin.
	maxHanging       = 4
	maxOriginHanging = 32
	// maxOriginSlow bounds the attempts of the slow lane to endpoints of one origin that are
	// slow or fail.
	maxOriginSlow = 64

	// originAfter is how many endpoints of an origin fail before it counts as failing.
	originAfter = 5
	maxEndpoint = 20_000
)

// origin is scheme, host and port of a target.
func origin(target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return target
	}
	return u.Scheme + "://" + u.Host
}

// endpointID names an endpoint: a hash of its URL without query. It is also the group of
// its messages in the slow queue, where a group has not all the characters of a URL.
func endpointID(target string) string {
	if i := strings.IndexAny(target, "?#"); i >= 0 {
		target = target[:i]
	}
	h := sha256.Sum256([]byte(target))
	return base64.RawURLEncoding.EncodeToString(h[:16])
}

func (h *endpoints) get(id, target string) *endpointState {
	e := h.byID[id]
	if e == nil {
		if h.byID == nil {
			h.byID, h.origins = map[string]*endpointState{}, map[string]*originState{}
		}
		if len(h.byID) >= maxEndpoint {
			h.forget()
		}
		e = &endpointState{limit: slowAtOnce}
		h.byID[id] = e
	}
	if e.origin == nil && target != "" {
		name := origin(target)
		if e.origin = h.origins[name]; e.origin == nil {
			e.origin = &originState{failed: map[string]struct{}{}}
			h.origins[name] = e.origin
		}
	}
	return e
}

// forget bounds the map: endpoints without an attempt under way go, healthy ones first.
func (h *endpoints) forget() {
	idle := func(e *endpointState) bool { return e.fast+e.slow+e.hanging+len(e.waiting)+len(e.queued) == 0 }
	for _, all := range []bool{false, true} {
		for id, e := range h.byID {
			if len(h.byID) < maxEndpoint*3/4 {
				break
			}
			if idle(e) && (all || e.failures == 0) {
				delete(h.byID, id)
			}
		}
	}
	used := map[*originState]bool{}
	for _, e := range h.byID {
		used[e.origin] = true
	}
	for name, o := range h.origins {
		if !used[o] {
			delete(h.origins, name)
		}
	}
}

// enterFast takes a slot for a first attempt, or reports that the delivery belongs to the
// slow lane. When the time of a slow endpoint has passed, one delivery is the probe, and the
// others wait for its outcome: all at once they would hang again together.
func (h *endpoints) enterFast(ctx context.Context, id, target string, now time.Time) bool {
	h.mu.Lock()
	e := h.get(id, target)
	untils := []*time.Time{&e.origin.slowUntil, &e.slowUntil, &e.openUntil}
	for _, until := range untils {
		if now.Before(*until) {
			h.mu.Unlock()
			return false
		}
	}
	for _, until := range untils {
		if !until.IsZero() {
			*until = now.Add(2 * slowLatency)
		}
	}
	if e.fast < h.atOnce {
		e.fast++
		h.mu.Unlock()
		return true
	}
	if h.waiting >= h.maxWaiting {
		h.mu.Unlock()
		return false
	}
	return h.await(ctx, &e.waiting)
}

// await waits for a slot, and reports whether it came. It is called with the lock, and
// returns without it.
func (h *endpoints) await(ctx context.Context, waiting *[]chan struct{}) bool {
	turn := make(chan struct{})
	*waiting = append(*waiting, turn)
	h.waiting++
	h.mu.Unlock()
	timer := time.NewTimer(slotWait)
	defer timer.Stop()
	select {
	case <-turn:
	case <-timer.C:
	case <-ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting--
	i := slices.Index(*waiting, turn)
	if i < 0 { // the turn came just then
		return true
	}
	*waiting = slices.Delete(*waiting, i, i+1)
	return false
}

// leaveFast frees the slot of a first attempt, with its outcome.
func (h *endpoints) leaveFast(id, target string, out webhook.Outcome, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.get(id, target)
	e.freeFast()
	h.record(e, id, out, now)
}

func (e *endpointState) freeFast() {
	if len(e.waiting) > 0 {
		close(e.waiting[0])
		e.waiting = e.waiting[1:]
		return
	}
	e.fast--
}

// outlivesPatience records that a first attempt has had no answer for as long as the fast lane
// waits, and frees its slot. It reports whether the attempt may go on without its page; if not,
// it has to be canceled.
func (h *endpoints) outlivesPatience(id, target string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.get(id, target)
	e.freeFast()
	if until := now.Add(slowFor); until.After(e.slowUntil) {
		e.slowUntil = until
	}
	if e.hanging >= maxHanging || e.origin.hanging >= maxOriginHanging {
		return false
	}
	e.hanging++
	e.origin.hanging++
	return true
}

// leaveHanging frees the slot of a detached attempt.
func (h *endpoints) leaveHanging(id, target string, out webhook.Outcome, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.get(id, target)
	e.hanging--
	e.origin.hanging--
	h.record(e, id, out, now)
}

// enterSlow takes a slot in the slow lane, or returns after what time to ask again. For an endpoint
// that answers quickly, if with failures, it waits for the next slot: a delivery that is sent
// away comes back later each time.
func (h *endpoints) enterSlow(ctx context.Context, id string, now time.Time) (wait time.Duration, ok bool) {
	h.mu.Lock()
	e := h.get(id, "")
	wait, ok = e.enterSlow(now)
	if ok || !e.openUntil.IsZero() || e.took >= slotWait || h.waiting >= h.maxWaiting {
		h.mu.Unlock()
		return wait, ok
	}
	return wait, h.await(ctx, &e.queued)
}

func (e *endpointState) enterSlow(now time.Time) (wait time.Duration, ok bool) {
	switch {
	case now.Before(e.openUntil):
		return e.openUntil.Sub(now), false
	case !e.openUntil.IsZero() && e.slow+e.hanging > 0: // a probe is under way
		return slowLatency, false
	case e.slow+e.hanging >= e.limit:
		return time.Second, false
	case e.origin != nil && e.origin.slow >= maxOriginSlow && (!e.openUntil.IsZero() || now.Before(e.slowUntil)):
		return slowLatency, false
	}
	e.slow++
	if e.origin != nil {
		e.origin.slow++
	} else {
		e.unknown++
	}
	return 0, true
}

// isOpen reports whether an endpoint is tried after a pause.
func (h *endpoints) isOpen(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.byID[id]
	return e != nil && !e.openUntil.IsZero()
}

// leaveSlow frees a slot. Target is empty when no attempt was made.
func (h *endpoints) leaveSlow(id, target string, out webhook.Outcome, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.get(id, target)
	if e.slow--; e.unknown > 0 {
		e.unknown--
	} else {
		e.origin.slow--
	}
	if target != "" {
		h.record(e, id, out, now)
	}
	for len(e.queued) > 0 {
		if _, ok := e.enterSlow(now); !ok {
			break
		}
		close(e.queued[0])
		e.queued = e.queued[1:]
	}
}

// record updates the state by an outcome.
func (h *endpoints) record(e *endpointState, id string, out webhook.Outcome, now time.Time) {
	o := e.origin
	if internal(out) {
		return
	}
	e.took = out.Took
	if out.Category == "" {
		clear(o.failed)
		o.connect, o.slowUntil = 0, time.Time{}
		e.failures, e.pauses, e.openUntil = 0, 0, time.Time{}
		e.limit = min(e.limit+1, maxSlowAtOnce)
		e.slowUntil = time.Time{}
		if out.Took >= slowLatency {
			e.slowUntil = now.Add(slowFor)
		}
		return
	}
	e.failures++
	if pause := e.pause(out); pause > 0 {
		e.openUntil = now.Add(pause)
		e.slowUntil = later(e.slowUntil, e.openUntil)
	}
	if e.failures >= slowAfter {
		e.slowUntil = later(e.slowUntil, now.Add(slowFor))
	}
	if len(o.failed) < originAfter {
		o.failed[id] = struct{}{}
	}
	if unconnected(out) {
		o.connect++
	}
	if len(o.failed) >= originAfter || o.connect >= slowAfter {
		o.slowUntil = now.Add(slowFor)
	}
}

// pause is how long an endpoint gets no attempt after a failure. With 0 its deliveries follow
// their schedules.
func (e *endpointState) pause(out webhook.Outcome) time.Duration {
	base, most := time.Duration(0), time.Duration(0)
	switch {
	case out.RetryAfter > 0 && busy(out.Status):
		return out.RetryAfter
	case out.Category == webhook.Timeout:
		base, most = hangPause, maxHangPause
		e.limit = 1
	case busy(out.Status):
		base, most = busyPause, maxBusyPause
		e.limit = max(1, e.limit/2)
	default:
		e.pauses = 0
		return 0
	}
	e.pauses++
	return min(base<<min(e.pauses-1, 10), most)
}

// busy reports whether a status asks for less, of every sender and for every event (WHK-09).
func busy(status int) bool { return status == 429 || status == 502 || status == 503 || status == 504 }

// unconnected reports whether no connection was made.
func unconnected(out webhook.Outcome) bool {
	switch out.Category {
	case webhook.ConnectionRefused, webhook.DNSError, webhook.TLSError:
		return true
	}
	return false
}

// internal reports whether an outcome says nothing about the endpoint.
func internal(out webhook.Outcome) bool {
	return out.Category == webhook.Aborted || out.Category == webhook.Internal
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
