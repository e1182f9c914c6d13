package delivery

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/subscription"
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
	unknown int             // of these, the ones that began before the origin was known
	queued  []chan struct{} // for a slot there, the oldest first
	took    time.Duration   // the last attempt
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
	// slowLatency is from when on a successful answer is a slow one. Embedded it is the
	// patience of the fast lane, so that an endpoint that needs longer does not come back to it each time; on AWS that is 3 s.
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
		name := subscription.OriginOf(target)
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
