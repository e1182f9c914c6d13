package delivery

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
)

// lanes decides which attempts may start, and in which order. Every attempt holds a [slot] of a lane, from [lanes.Reserve] or
// [lanes.ReserveSlow] until [slot.Done]. A slot also counts the bytes of the attempt's bodies, so memory is bounded whatever
// the size of the payloads.
//
// The fast lane has a number of slots and bytes for the whole process. An endpoint, and an endpoint that takes its time for
// an answer, may use only a part of them. Attempts that wait are served in turn: first the principals, then the endpoints of
// each, then the attempts of each endpoint in the order in which their events were queued.
type lanes struct {
	limits laneLimits
	now    func() time.Time

	mu      sync.Mutex
	byID    map[string]*endpointState
	origins map[string]*originState

	fast    usage          // of all attempts in the fast lane
	pools   [2]pool        // one for quick endpoints, one for endpoints that are slow or may hang
	turn    int            // the pool to grant from next
	waiting map[string]int // attempts that wait in the fast lane, by principal
	waiters int            // all of them

	slowBytes, hangingBytes byteShares
	detached                int
	queued                  int // attempts that wait in the slow lane
}

// laneLimits are the limits of a process.
type laneLimits struct {
	attempts    int   // in the fast lane
	perEndpoint int   // of these, to one endpoint
	detached    int   // attempts that outlive the patience of the fast lane
	bytes       int64 // of bodies: half for the fast lane, a quarter for the slow one, a quarter for attempts that hang
	// slowAnswer is how long an endpoint takes for an answer that counts as slow. Further attempts then take the slow lane.
	slowAnswer time.Duration
}

const (
	// unproven limits the attempts to an endpoint that has not answered one with success yet: it may hang.
	unproven = 8
	// unhurriedAnswer is how long an endpoint takes for an answer to be one that takes its time. These, and the endpoints that
	// may hang, together get at most three quarters of the fast lane, so that there is always a slot for the others.
	unhurriedAnswer = 200 * time.Millisecond
	// maxWaiters is how many attempts may wait for each slot of the fast lane, on average. When there are more, no principal
	// has more of them waiting than the others.
	maxWaiters = 16
)

func newLanes(limits laneLimits, now func() time.Time) *lanes {
	l := &lanes{limits: limits, now: now, waiting: map[string]int{}}
	all := usage{slots: limits.attempts, bytes: limits.bytes / 2}
	l.pools[quickPool].limit = all
	l.pools[unhurriedPool].limit = usage{slots: max(1, all.slots*3/4), bytes: max(1, all.bytes*3/4)}
	return l
}

// usage is a number of attempts and the bytes of their bodies.
type usage struct {
	slots int
	bytes int64
}

// fits reports whether another attempt is within a limit. The first one always is.
func (u usage) fits(bytes int64, limit usage) bool {
	return u.slots == 0 || u.slots < limit.slots && u.bytes+bytes <= limit.bytes
}

func (u *usage) add(bytes int64) {
	u.slots++
	u.bytes += bytes
}

func (u *usage) remove(bytes int64) {
	u.slots--
	u.bytes -= bytes
}

// call is an attempt that is to be made.
type call struct {
	endpoint  string // its [endpointID]
	url       string // "" if it is not known yet
	principal string // with its workspace
	bytes     int64  // of the event
	since     int64  // when the event was queued, in milliseconds since 1970
}

// slot is the permission to make an attempt.
type slot struct {
	lanes *lanes
	e     *endpointState
	call
	kind   slotKind
	pool   *pool // of a fast slot
	waited bool  // for it
	hung   bool  // the endpoint did not answer the last attempt in time
	// doubtful attempts of the slow lane may hang. They use the memory of attempts that hang.
	doubtful bool
	origin   *originState // whose shares it uses
}

type slotKind int

const (
	noSlot slotKind = iota
	fastSlot
	slowSlot
	hangingSlot
)

// unused is the outcome of a slot without an attempt.
var unused = webhook.Outcome{Category: webhook.Aborted}

// Done releases a slot, with the outcome of its attempt. It does nothing the second time.
func (s *slot) Done(out webhook.Outcome) {
	l := s.lanes
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.kind == noSlot {
		return
	}
	kind, now := s.kind, l.now()
	s.release()
	if s.url != "" {
		l.record(l.get(s.endpoint, s.url), out, now)
	}
	if kind == slowSlot {
		l.grantSlow(s.e, now)
	}
	l.grantFast(s.e)
}

// release gives back what the slot holds. It is called with the lock.
func (s *slot) release() {
	l, e := s.lanes, s.e
	switch s.kind {
	case fastSlot:
		e.fast--
		e.fastBytes -= s.bytes
		l.fast.remove(s.bytes)
		s.pool.used.remove(s.bytes)
	case slowSlot:
		e.slow--
		e.slowBytes -= s.held()
		if s.doubtful {
			l.hangingBytes.release(s.principal, s.held())
		} else {
			l.slowBytes.release(s.principal, s.held())
		}
		if s.origin != nil {
			s.origin.doubtful.release(s.principal)
		}
	case hangingSlot:
		e.hanging--
		l.detached--
		l.hangingBytes.release(s.principal, s.held())
		s.origin.hanging.release(s.principal)
	}
	s.kind = noSlot
}

// held is the memory of an attempt that is not part of a page: its event, decoded, and the webhook made from it.
func (s *slot) held() int64 { return 2 * s.bytes }

// Detach records that an attempt of the fast lane has had no answer for as long as the fast lane waits. It reports whether
// the attempt may continue without its page; the slot then no longer counts in the fast lane. If not, the caller has to
// cancel the attempt. Either way, the caller calls [slot.Done] when the attempt has ended.
func (s *slot) Detach() bool {
	l, e := s.lanes, s.e
	l.mu.Lock()
	defer l.mu.Unlock()
	e.noteHang(s.hung, l.now())
	may := l.detached < l.limits.detached && e.hanging < maxHanging &&
		l.hangingBytes.fits(s.principal, s.held(), l.limits.bytes/4) && e.origin.hanging.take(s.principal, maxOriginHanging)
	if may {
		s.release()
		s.kind, s.origin = hangingSlot, e.origin
		e.hanging++
		l.detached++
		l.hangingBytes.add(s.principal, s.held())
	}
	l.grantFast(e)
	return may
}

// pauseLeft returns how long an endpoint stays paused after failures, or 0 if it may receive attempts now.
func (l *lanes) pauseLeft(endpoint string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.byID[endpoint]
	if e == nil {
		return 0
	}
	return max(0, e.openUntil.Sub(l.now()))
}

// slowWaiter waits for a slot of the slow lane.
type slowWaiter struct {
	slot  *slot
	ready chan struct{} // closed when it has got one
}

// ReserveSlow takes a slot of the slow lane, or returns after what time to ask again. It waits for the next slot of an
// endpoint that answers quickly, if with failures, because a delivery that is sent away comes back later each time.
func (l *lanes) ReserveSlow(ctx context.Context, c call) (s *slot, wait time.Duration) {
	l.mu.Lock()
	e := l.get(c.endpoint, c.url)
	s, wait = l.takeSlow(e, c, l.now())
	if s != nil || !e.openUntil.IsZero() || e.took >= slotWait || l.queued >= max(1, l.limits.attempts/8) {
		l.mu.Unlock()
		return s, wait
	}
	w := &slowWaiter{slot: &slot{call: c}, ready: make(chan struct{})}
	e.queued = append(e.queued, w)
	l.queued++
	l.mu.Unlock()
	timer := time.NewTimer(slotWait)
	defer timer.Stop()
	select {
	case <-w.ready:
	case <-timer.C:
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(e.queued, w); i >= 0 {
		e.queued = slices.Delete(e.queued, i, i+1)
		l.queued--
		return nil, wait
	}
	return w.slot, 0
}

// takeSlow takes a slot of the slow lane if there is one. It is called with the lock.
func (l *lanes) takeSlow(e *endpointState, c call, now time.Time) (s *slot, wait time.Duration) {
	s = &slot{lanes: l, e: e, call: c, kind: slowSlot, doubtful: e.isDoubtful(now)}
	used, others := &l.slowBytes, e.slow+e.hanging
	if s.doubtful {
		used = &l.hangingBytes
	}
	switch limit := l.limits.bytes / 4; {
	case now.Before(e.openUntil):
		return nil, e.openUntil.Sub(now)
	case !e.openUntil.IsZero() && others > 0: // a probe is under way
		return nil, probeTime / 2
	case others >= e.limit, !used.fits(c.principal, s.held(), limit), e.slow > 0 && e.slowBytes+s.held() > limit/4:
		return nil, time.Second
	case s.doubtful && e.origin != nil:
		if !e.origin.doubtful.take(c.principal, maxOriginDoubtful) {
			return nil, probeTime / 2
		}
		s.origin = e.origin
	}
	e.slow++
	e.slowBytes += s.held()
	used.add(c.principal, s.held())
	return s, 0
}

// grantSlow gives free slots of the slow lane to the attempts that wait for the endpoint. It is called with the lock.
func (l *lanes) grantSlow(e *endpointState, now time.Time) {
	for len(e.queued) > 0 {
		w := e.queued[0]
		s, _ := l.takeSlow(e, w.slot.call, now)
		if s == nil {
			return
		}
		w.slot = s
		close(w.ready)
		e.queued = e.queued[1:]
		l.queued--
	}
}
