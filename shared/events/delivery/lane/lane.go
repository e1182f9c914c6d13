// Package lane decides which attempts of webhooks may start, when and in which order. It limits what endpoints, their origins and
// principals use of a process, and learns from the outcomes which endpoints are slow or fail.
//
// There are two lanes. The fast lane is for first attempts, which hold up a page of subscribers. The slow lane is for retries, and
// for first attempts to endpoints that are slow or fail.
package lane

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Lanes are the lanes of a process. Every attempt holds a [Slot] of a lane, from [Lanes.Reserve] or [Lanes.ReserveSlow] until
// [Slot.Done]. A slot also counts the bytes of the attempt's bodies, so memory is bounded whatever the size of the payloads.
//
// The fast lane has a number of slots and bytes for the whole process. An endpoint may use only a part of them, and so may all
// endpoints together that take their time for an answer. Attempts that wait are served in turn: first the principals, then the
// endpoints of each, then the attempts of each endpoint in the order in which their events were queued.
type Lanes struct {
	limits Limits
	rate   endpointRates
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

// Limits are the limits of a process.
type Limits struct {
	Attempts    int   // in the fast lane
	PerEndpoint int   // of these, to one endpoint
	Detached    int   // attempts that outlive the patience of the fast lane
	Bytes       int64 // of bodies: half for the fast lane, a quarter for the slow one, a quarter for attempts that hang
	Rate        int64 // attempts per second and endpoint, of all processes together; 0 is no limit
	// Patience is how long an attempt may keep a slot of the fast lane without an answer; 0 waits to the end.
	Patience time.Duration
	// SlowAnswer is how long an endpoint takes for an answer that counts as slow. Further attempts then take the slow lane.
	SlowAnswer time.Duration
	// Hurry, if it is not 0, is the least time for which a page in a hurry waits for an attempt; see [Call.Hurry].
	Hurry time.Duration
}

const (
	// unproven limits the attempts to an endpoint that has not answered one with success yet: it may hang.
	unproven = 8
	// unhurriedAnswer is how long an endpoint that takes its time needs for an answer. These endpoints, and endpoints that may hang,
	// together get at most three quarters of the fast lane, so that there is always a slot for the others.
	unhurriedAnswer = 200 * time.Millisecond
	// maxWaiters is how many attempts may wait for each slot of the fast lane, on average. When there are more, no principal
	// has more of them waiting than the others.
	maxWaiters = 16
)

// New returns empty lanes. The store counts the attempts of all processes for the rate limit.
func New(db store.DB, limits Limits, now func() time.Time) *Lanes {
	l := &Lanes{limits: limits, rate: endpointRates{db: db, limit: limits.Rate, now: now}, now: now, waiting: map[string]int{}}
	all := usage{slots: limits.Attempts, bytes: limits.Bytes / 2}
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

// Call is an attempt that is to be made.
type Call struct {
	Endpoint  string // its id, the same in all processes
	URL       string // "" if it is not known yet
	Principal string // with its workspace
	Bytes     int64  // of the event
	Since     int64  // when the event was queued, in milliseconds since 1970
	// Hurry asks for an attempt that does not hold up its page. When it takes longer than the endpoint's answers usually do, it
	// continues without the page, until the patience of the fast lane ends. The first attempts to an endpoint hold it up.
	Hurry bool
}

// Verdict is the answer to whether an attempt may start in the fast lane.
type Verdict int

const (
	// Granted attempts start now.
	Granted Verdict = iota
	// SlowLane attempts belong to the slow lane, because their endpoint fails or is slow.
	SlowLane
	// TooLate attempts got no slot in time.
	TooLate
)

// Patience is how long a page waits for slots.
type Patience struct {
	// Busy is until when the page waits for an endpoint that has all the attempts under way that it may have. Others is until
	// when it waits for slots that other endpoints have.
	Busy, Others time.Time
	// Hurry is the [Call.Hurry] of its attempts.
	Hurry bool
}

// Reserve takes a slot of the fast lane. It waits for one as long as p says. A first attempt must not overtake the deliveries that
// wait for the endpoint's rate limit, so it then belongs to the slow lane.
func (l *Lanes) Reserve(ctx context.Context, c Call, p Patience) (*Slot, Verdict) {
	if l.rate.hasWaiting(c.Endpoint, l.now()) {
		return nil, SlowLane
	}
	l.mu.Lock()
	e := l.get(c.Endpoint, c.URL)
	if e.isSlow(l.now()) {
		l.mu.Unlock()
		return nil, SlowLane
	}
	probe := e.startProbe(l.now())
	if probe && e.silent && l.limits.Hurry > 0 {
		l.mu.Unlock()
		if l.spareProbe(ctx, e) {
			return nil, SlowLane
		}
		l.mu.Lock()
	}
	if pool := l.poolOf(e); len(e.flows) == 0 && len(pool.ring) == 0 && !l.full(e, c.Bytes) && l.fits(pool, c.Bytes) {
		s := l.take(e, pool, c)
		l.mu.Unlock()
		return s, Granted
	}
	if l.waiters >= maxWaiters*l.limits.Attempts && l.waiting[c.Principal]*len(l.waiting) >= l.waiters {
		l.mu.Unlock()
		return nil, TooLate
	}
	w := &waiter{call: c, probe: probe, ready: make(chan struct{})}
	l.enqueue(e, w)
	l.mu.Unlock()

	until := p.Busy
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for ended := false; ; {
		select {
		case <-w.ready:
			return w.slot, w.Verdict
		case <-timer.C:
		case <-ctx.Done():
			ended = true
		}
		l.mu.Lock()
		select {
		case <-w.ready:
			l.mu.Unlock()
			return w.slot, w.Verdict
		default:
		}
		if !ended && until.Before(p.Others) && !l.full(e, c.Bytes) {
			l.mu.Unlock()
			until = p.Others
			timer.Reset(time.Until(until))
			continue
		}
		l.remove(w)
		l.mu.Unlock()
		return nil, TooLate
	}
}

// full reports whether an endpoint has all the attempts under way that it may have.
func (l *Lanes) full(e *endpointState, bytes int64) bool {
	limit := usage{slots: l.limits.PerEndpoint, bytes: l.limits.Bytes / 8}
	if !e.proven {
		limit.slots = min(limit.slots, unproven)
	}
	return !usage{e.fast, e.fastBytes}.fits(bytes, limit)
}

func (l *Lanes) fits(p *pool, bytes int64) bool {
	return l.fast.fits(bytes, l.pools[quickPool].limit) && p.used.fits(bytes, p.limit)
}

func (l *Lanes) poolOf(e *endpointState) *pool {
	if e.took >= unhurriedAnswer || !e.proven || e.silent {
		return &l.pools[unhurriedPool]
	}
	return &l.pools[quickPool]
}

func (l *Lanes) take(e *endpointState, p *pool, c Call) *Slot {
	e.fast++
	e.fastBytes += c.Bytes
	l.fast.add(c.Bytes)
	p.used.add(c.Bytes)
	s := &Slot{lanes: l, e: e, Call: c, kind: fastSlot, pool: p, hung: e.silent, Patience: l.limits.Patience}
	if s.hung { // a probe must not hold up its page for long, and the slow lane serves the endpoint meanwhile
		s.Patience = min(s.Patience, l.limits.SlowAnswer/2)
	}
	if l.limits.Hurry > 0 {
		s.Usual = min(l.usualLimit(e), s.Patience)
	}
	if s.Usual > 0 && c.Hurry && e.proven {
		s.Patience = s.Usual
		s.Rest = l.limits.Patience - s.Patience
	}
	return s
}

// Slot is the permission to make an attempt.
type Slot struct {
	lanes *Lanes
	e     *endpointState
	Call
	kind   slotKind
	pool   *pool // of a fast slot
	Waited bool  // for it
	// Patience is how long an attempt may keep the slot without an answer, or 0 if it may wait to the end.
	Patience time.Duration
	// Rest is how long an attempt in a hurry may take after that. A detached attempt counts as hanging after its Patience.
	Rest time.Duration
	// Usual is the time within which nearly all answers of the endpoint arrive, or 0 without [Limits.Hurry].
	Usual  time.Duration
	hung   bool // the endpoint did not answer the last attempt in time
	warned bool // another process knows that
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

// Unused is the outcome of a slot without an attempt.
var Unused = webhook.Outcome{Category: webhook.Aborted}

// Done releases a slot with the outcome of its attempt. Further calls have no effect.
func (s *Slot) Done(out webhook.Outcome) {
	l := s.lanes
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.kind == noSlot {
		return
	}
	kind, now := s.kind, l.now()
	s.release()
	if s.URL != "" {
		l.record(l.get(s.Endpoint, s.URL), out, now)
	}
	if kind == slowSlot {
		l.grantSlow(s.e, now)
	}
	l.grantFast(s.e)
}

// release gives back the slot's share of all limits. It is called with the lock.
func (s *Slot) release() {
	l, e := s.lanes, s.e
	switch s.kind {
	case fastSlot:
		e.fast--
		e.fastBytes -= s.Bytes
		l.fast.remove(s.Bytes)
		s.pool.used.remove(s.Bytes)
	case slowSlot:
		e.slow--
		e.slowBytes -= s.held()
		if s.doubtful {
			l.hangingBytes.release(s.Principal, s.held())
		} else {
			l.slowBytes.release(s.Principal, s.held())
		}
		if s.origin != nil {
			s.origin.doubtful.release(s.Principal)
		}
	case hangingSlot:
		e.hanging--
		l.detached--
		l.hangingBytes.release(s.Principal, s.held())
		s.origin.hanging.release(s.Principal)
	}
	s.kind = noSlot
}

// held returns the memory that an attempt outside of a page needs, for its decoded event and for the webhook.
func (s *Slot) held() int64 { return 2 * s.Bytes }

// Start reports whether the attempt may start now by the endpoint's rate limit. The caller calls it right before the POST. A
// slot of the slow lane learns the URL only then.
func (s *Slot) Start(ctx context.Context, url string) bool {
	if !s.lanes.rate.allow(ctx, s.Endpoint) {
		return false
	}
	s.URL = url
	return true
}

// Detach ends the patience of the fast lane with an attempt that has had no answer. If the attempt may continue without its page,
// Detach releases the slot and returns another one, which the caller releases when the attempt has ended. Otherwise it returns
// nil. The caller then waits for the slot's Rest, calls Hang if there is a Usual time, cancels the attempt and releases the slot.
func (s *Slot) Detach() *Slot {
	l, e := s.lanes, s.e
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.Usual == 0 {
		e.noteHang(s.hung, l.now())
	}
	may := (s.Rest > 0 || s.Usual == 0) && l.detached < l.limits.Detached && e.hanging < maxHanging &&
		l.hangingBytes.fits(s.Principal, s.held(), l.limits.Bytes/4) && e.origin.hanging.take(s.Principal, maxOriginHanging)
	var detached *Slot
	if may {
		s.release()
		detached = &Slot{lanes: l, e: e, Call: s.Call, kind: hangingSlot, origin: e.origin, hung: s.hung, warned: s.warned}
		if s.Rest > 0 {
			detached.Usual = s.Usual
			detached.Patience = max(1, l.limits.SlowAnswer-s.Patience)
			detached.Rest = max(1, s.Rest-detached.Patience)
		}
		e.hanging++
		l.detached++
		l.hangingBytes.add(s.Principal, s.held())
	}
	l.grantFast(e)
	return detached
}

// Postpone returns when a delivery that got no slot of the fast lane may be attempted in the slow one. Turn is how long the rate
// limit makes it wait, which does not count as time of its schedule. Wait is at least as long, and ends when the endpoint may
// get attempts again.
func (l *Lanes) Postpone(ctx context.Context, endpoint string) (turn, wait time.Duration) {
	now := l.now()
	l.mu.Lock()
	if e := l.byID[endpoint]; e != nil && now.Before(e.openUntil) {
		wait = e.openUntil.Sub(now)
		wait += rand.N(wait/5 + 1)
	}
	l.mu.Unlock()
	turn = l.NextTurn(ctx, endpoint)
	return turn, max(turn, wait)
}

// NextTurn reserves a turn under the endpoint's rate limit and returns how long the delivery waits for it.
func (l *Lanes) NextTurn(ctx context.Context, endpoint string) time.Duration {
	return l.rate.reserve(ctx, endpoint, l.now())
}

// Attempts that wait for a slot of the fast lane are served in turn. In the slow lane they are served in order of arrival.

const (
	quickPool = iota
	unhurriedPool
)

// pool is the part of the fast lane for one class of endpoints.
type pool struct {
	limit, used usage
	ring        []*share // the principals with attempts that could start, in turn
}

// share holds the attempts of one principal that wait in a pool.
type share struct {
	principal string
	ring      []*flow // endpoints, in turn
}

// flow is a principal's attempts that wait for a slot of the same endpoint. It is in the ring of a pool, unless the endpoint
// is at its limit of concurrent attempts.
type flow struct {
	e         *endpointState
	principal string
	waiting   []*waiter // by the time at which their events were queued
	pool      *pool     // nil while the endpoint is busy
}

// waiter is an attempt that waits for its slot.
type waiter struct {
	flow  *flow
	call  Call
	probe bool
	ready chan struct{} // closed when the verdict is known
	slot  *Slot
	Verdict
}

// enqueue puts an attempt into the queue of its endpoint and principal.
func (l *Lanes) enqueue(e *endpointState, w *waiter) {
	i := slices.IndexFunc(e.flows, func(f *flow) bool { return f.principal == w.call.Principal })
	if i < 0 {
		i = len(e.flows)
		e.flows = append(e.flows, &flow{e: e, principal: w.call.Principal})
	}
	f := e.flows[i]
	w.flow = f
	at := len(f.waiting)
	for at > 0 && f.waiting[at-1].call.Since > w.call.Since {
		at--
	}
	f.waiting = slices.Insert(f.waiting, at, w)
	l.waiters++
	l.waiting[f.principal]++
	if f.pool == nil {
		l.list(f)
	}
}

// list puts a flow at the end of its pool's ring, unless its endpoint is busy.
func (l *Lanes) list(f *flow) {
	if l.full(f.e, f.waiting[0].call.Bytes) {
		return
	}
	f.pool = l.poolOf(f.e)
	i := slices.IndexFunc(f.pool.ring, func(s *share) bool { return s.principal == f.principal })
	if i < 0 {
		i = len(f.pool.ring)
		f.pool.ring = append(f.pool.ring, &share{principal: f.principal})
	}
	f.pool.ring[i].ring = append(f.pool.ring[i].ring, f)
}

// unlist takes a flow out of the ring. Its principal's turn is over.
func (l *Lanes) unlist(f *flow) {
	p := f.pool
	if p == nil {
		return
	}
	f.pool = nil
	i := slices.IndexFunc(p.ring, func(s *share) bool { return s.principal == f.principal })
	s := p.ring[i]
	s.ring = slices.DeleteFunc(s.ring, func(other *flow) bool { return other == f })
	p.ring = slices.Delete(p.ring, i, i+1)
	if len(s.ring) > 0 {
		p.ring = append(p.ring, s)
	}
}

// remove takes an attempt out of its queue.
func (l *Lanes) remove(w *waiter) {
	f := w.flow
	first := f.waiting[0] == w
	f.waiting = slices.DeleteFunc(f.waiting, func(other *waiter) bool { return other == w })
	l.waiters--
	if l.waiting[f.principal]--; l.waiting[f.principal] == 0 {
		delete(l.waiting, f.principal)
	}
	if !first {
		return
	}
	l.unlist(f)
	if len(f.waiting) > 0 {
		l.list(f)
	} else {
		f.e.flows = slices.DeleteFunc(f.e.flows, func(other *flow) bool { return other == f })
	}
}

// answer ends the wait of an attempt.
func (l *Lanes) answer(w *waiter, s *Slot, v Verdict) {
	l.remove(w)
	w.slot, w.Verdict = s, v
	close(w.ready)
}

// grantFast gives free slots of the fast lane to waiting attempts, after an attempt to the given endpoint has ended.
func (l *Lanes) grantFast(e *endpointState) {
	for _, f := range slices.Clone(e.flows) {
		if f.pool == nil {
			l.list(f)
		}
	}
	if e.isSlow(l.now()) {
		for _, f := range slices.Clone(e.flows) {
			for _, w := range slices.Clone(f.waiting) {
				if !w.probe {
					l.answer(w, nil, SlowLane)
				}
			}
		}
	}
	for idle := 0; idle < len(l.pools); {
		l.turn = (l.turn + 1) % len(l.pools)
		if l.grantFrom(&l.pools[l.turn]) {
			idle = 0
		} else {
			idle++
		}
	}
}

// grantFrom gives one slot to the attempt of a pool whose turn it is, and reports whether it did.
func (l *Lanes) grantFrom(p *pool) bool {
	for len(p.ring) > 0 {
		f := p.ring[0].ring[0]
		w := f.waiting[0]
		switch {
		case !w.probe && f.e.isSlow(l.now()):
			l.answer(w, nil, SlowLane)
		case l.full(f.e, w.call.Bytes):
			l.unlist(f)
		case !l.fits(p, w.call.Bytes):
			return false
		default:
			s := l.take(f.e, p, w.call)
			s.Waited = true
			l.answer(w, s, Granted)
			return true
		}
	}
	return false
}

// slowWaiter waits for a slot of the slow lane.
type slowWaiter struct {
	slot  *Slot
	ready chan struct{} // closed when it has got one
}

// ReserveSlow takes a slot of the slow lane, or returns the time after which the caller tries again. If the endpoint answers
// quickly, even with failures, ReserveSlow waits for its next slot, because a rejected delivery returns later each time.
func (l *Lanes) ReserveSlow(ctx context.Context, c Call) (s *Slot, wait time.Duration) {
	l.mu.Lock()
	e := l.get(c.Endpoint, c.URL)
	s, wait = l.takeSlow(e, c, l.now())
	if s != nil || !e.openUntil.IsZero() || e.took >= slotWait || l.queued >= max(1, l.limits.Attempts/8) {
		l.mu.Unlock()
		return s, wait
	}
	w := &slowWaiter{slot: &Slot{Call: c}, ready: make(chan struct{})}
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
func (l *Lanes) takeSlow(e *endpointState, c Call, now time.Time) (s *Slot, wait time.Duration) {
	s = &Slot{lanes: l, e: e, Call: c, kind: slowSlot, doubtful: e.isDoubtful(now)}
	used, others := &l.slowBytes, e.slow+e.hanging
	if s.doubtful {
		used = &l.hangingBytes
	}
	switch limit := l.limits.Bytes / 4; {
	case now.Before(e.openUntil):
		return nil, e.openUntil.Sub(now)
	case !e.openUntil.IsZero() && others > 0: // a probe is under way
		return nil, probeTime / 2
	case others >= e.limit, !used.fits(c.Principal, s.held(), limit), e.slow > 0 && e.slowBytes+s.held() > limit/4:
		return nil, time.Second
	case s.doubtful && e.origin != nil:
		if !e.origin.doubtful.take(c.Principal, maxOriginDoubtful) {
			return nil, probeTime / 2
		}
		s.origin = e.origin
	}
	e.slow++
	e.slowBytes += s.held()
	used.add(c.Principal, s.held())
	return s, 0
}

// grantSlow gives free slots of the slow lane to the attempts that wait for the endpoint. It is called with the lock.
func (l *Lanes) grantSlow(e *endpointState, now time.Time) {
	for len(e.queued) > 0 {
		w := e.queued[0]
		s, _ := l.takeSlow(e, w.slot.Call, now)
		if s == nil {
			return
		}
		w.slot = s
		close(w.ready)
		e.queued = e.queued[1:]
		l.queued--
	}
}
