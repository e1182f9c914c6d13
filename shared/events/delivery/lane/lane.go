// Package lane decides when an attempt to send a webhook may start, and in which order attempts start. It limits the concurrent attempts
// and the memory of each endpoint, origin and principal, and learns from the outcomes which endpoints are slow or fail.
//
// There are two lanes. The fast lane is for first attempts. They hold up a page task, which sends events to a range of subscribers. The
// slow lane is for retries, and for first attempts to endpoints that are slow or fail.
//
// A page task waits for the response to each of its first attempts, up to [Limits.Patience], for example 3 s. On AWS, each process
// handles one batch of page tasks at a time, so a few endpoints that begin to hang could keep all processes waiting. Therefore page tasks
// are "in a hurry" while batches quickly follow each other: they wait only as long as the endpoint usually takes to respond, for example
// 100 ms. A slower attempt is "detached": it continues in the background until Patience is over, while the process handles the next
// batches.
//
// A page task that is not in a hurry waits for the full Patience, because Lambda may freeze the process after the batch, and with it the
// attempt. See [PageWait], [FastSlot] and [DetachedSlot].
package lane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Lanes are the fast and the slow lane of a process. Every attempt gets a slot, i.e. the permission to start, from [Lanes.Reserve] or
// [Lanes.ReserveSlow], and holds it until the slot's method Done is called. A slot also counts the bytes of the attempt's bodies, so that
// memory is bounded even if payloads are large.
//
// The fast lane has a number of slots and bytes for the whole process. A single endpoint may use only a part of them. All slow or hanging
// endpoints together may also use only a part (see [quickAnswer]).
//
// If attempts have to wait, the principals take turns, and the endpoints of each principal take turns. The attempts to one endpoint start
// in the order in which their events were queued.
type Lanes struct {
	limits Limits
	rate   endpointRates
	now    func() time.Time

	mu      sync.Mutex
	byID    map[string]*endpointState
	origins map[string]*originState

	fast    usage          // the slots and bytes that all attempts in the fast lane use
	pools   [2]pool        // one for quick endpoints, one for endpoints that are slow or may hang
	turn    int            // index of the pool from which grantFast last tried to take a waiting attempt
	waiting map[string]int // the number of attempts that wait for a slot of the fast lane, by principal
	waiters int            // the number of all attempts that wait for a slot of the fast lane

	slowBytes, hangingBytes shares
	detached                int
	queued                  int // the number of attempts that wait for a slot of the slow lane
}

// Limits are the limits for the attempts of one process.
type Limits struct {
	Attempts    int   // maximum number of concurrent attempts in the fast lane
	PerEndpoint int   // maximum number of concurrent attempts to one endpoint in the fast lane
	Detached    int   // maximum number of attempts that continue without their page; see [FastSlot.Detach]
	Bytes       int64 // memory for bodies: half for the fast lane, a quarter for the slow lane, a quarter for attempts that hang
	Rate        int64 // maximum attempts per second to one endpoint, from all processes together; 0 is no limit
	// Patience is how long an attempt may keep a slot of the fast lane without a response. 0 means until the attempt ends.
	Patience time.Duration
	// SlowAnswer is the response time at which an endpoint counts as slow. The endpoint's next attempts then take the slow lane.
	SlowAnswer time.Duration
	// MinWait is the minimum time that a page task in a hurry waits for an attempt, for example 100 ms. While another attempt to the
	// endpoint hangs, the minimum is a tenth of MinWait. 0 means that page tasks are never in a hurry; see the package comment.
	MinWait time.Duration
}

const (
	// unproven limits the concurrent attempts to an endpoint that has never answered with success, because it may hang.
	unproven = 8
	// quickAnswer is the response time at which an endpoint is no longer quick. Endpoints that are not quick, and endpoints that may
	// hang, together get at most three quarters of the fast lane, so that quick endpoints always find a slot.
	quickAnswer = 200 * time.Millisecond
	// maxWaiters is how many attempts may wait for the fast lane, for each of its slots. For example, with 128 slots, 2,048 attempts may
	// wait. If more wait, only principals with fewer than the average number of waiting attempts may add one.
	maxWaiters = 16
)

// New returns Lanes without attempts. The store has the counts for the rate limit, because all processes share them.
func New(db store.DB, limits Limits, now func() time.Time) *Lanes {
	l := &Lanes{limits: limits, rate: endpointRates{db: db, limit: limits.Rate, now: now}, now: now, waiting: map[string]int{}}
	all := usage{slots: limits.Attempts, bytes: limits.Bytes / 2}
	l.pools[quickPool].limit = all
	l.pools[otherPool].limit = usage{slots: max(1, all.slots*3/4), bytes: max(1, all.bytes*3/4)}
	return l
}

// usage counts concurrent attempts and the bytes of their bodies.
type usage struct {
	slots int
	bytes int64
}

// fits reports whether one more attempt, whose bodies have the given number of bytes, is within a limit. If no attempt is under way, the
// result is always true, so that even a body larger than the limit can be sent.
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

// Call describes an attempt for which a caller requests a slot.
type Call struct {
	Endpoint  string // the endpoint's id, which is the same in all processes
	URL       string // the endpoint's URL, or "" if it is not known yet
	Principal string // the principal's id and workspace
	Bytes     int64  // the size of the event
	Since     int64  // when the event was queued, in milliseconds since 1970
}

// bytesHeld returns the memory that an attempt needs if it is detached or in the slow lane. It counts the decoded event and the webhook's
// body, because such an attempt does not share the decoded event with other attempts.
func (c Call) bytesHeld() int64 { return 2 * c.Bytes }

// Verdict says whether a first attempt got a slot of the fast lane.
type Verdict int

const (
	// Granted means that the attempt has its slot.
	Granted Verdict = iota
	// SlowLane means that the attempt must take the slow lane, because the endpoint fails, is slow, or has deliveries that wait for its
	// rate limit.
	SlowLane
	// TooLate means that no slot was free in time, or that the attempt could not wait because too many attempts wait already.
	TooLate
)

// PageWait says how long a page task, which sends events to a range of subscribers, waits for its first attempts and their slots.
type PageWait struct {
	// IfBusy is the time until which the page task waits for a slot if the endpoint has as many attempts under way as allowed. IfFull is
	// the time until which it waits if only attempts to other endpoints use up the slots.
	IfBusy, IfFull time.Time
	// InHurry is set if the process probably gets another batch of tasks soon. The page task then waits for a response only as long as
	// the endpoint usually takes ([FastSlot.Usual]) or, if that is unknown, for half of [Limits.SlowAnswer].
	InHurry bool
}

// Reserve returns a slot of the fast lane for a first attempt, and waits for one as long as the parameter wait permits. The slot is nil
// unless the verdict is Granted. If other deliveries wait for the endpoint's rate limit, the verdict is SlowLane, because a first attempt
// must not overtake them.
func (l *Lanes) Reserve(ctx context.Context, c Call, wait PageWait) (*FastSlot, Verdict) {
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
	if probe && e.silent && l.limits.MinWait > 0 {
		l.mu.Unlock()
		if l.skipProbe(ctx, e) {
			return nil, SlowLane
		}
		l.mu.Lock()
	}
	if pool := l.poolOf(e); len(e.flows) == 0 && len(pool.ring) == 0 && !l.full(e, c.Bytes) && l.fits(pool, c.Bytes) {
		s := l.take(e, pool, c, wait.InHurry)
		l.mu.Unlock()
		return s, Granted
	}
	if l.waiters >= maxWaiters*l.limits.Attempts && l.waiting[c.Principal]*len(l.waiting) >= l.waiters {
		l.mu.Unlock()
		return nil, TooLate
	}
	w := &waiter{call: c, hurry: wait.InHurry, probe: probe, ready: make(chan struct{})}
	l.enqueue(e, w)
	l.mu.Unlock()

	until := wait.IfBusy
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
		if !ended && until.Before(wait.IfFull) && !l.full(e, c.Bytes) {
			l.mu.Unlock()
			until = wait.IfFull
			timer.Reset(time.Until(until))
			continue
		}
		l.remove(w)
		l.mu.Unlock()
		return nil, TooLate
	}
}

// full reports whether another attempt to the endpoint, with the given bytes of bodies, would exceed the endpoint's limits in the fast
// lane.
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
	if e.took >= quickAnswer || !e.proven || e.silent {
		return &l.pools[otherPool]
	}
	return &l.pools[quickPool]
}

func (l *Lanes) take(e *endpointState, p *pool, c Call, inHurry bool) *FastSlot {
	e.fast++
	e.fastBytes += c.Bytes
	l.fast.add(c.Bytes)
	p.used.add(c.Bytes)
	s := &FastSlot{slot: slot{lanes: l, e: e, call: c}, pool: p, hung: e.silent, Wait: l.limits.Patience}
	if s.hung { // the attempt tests whether the endpoint still hangs; it must not hold up its page for long
		s.Wait = min(s.Wait, l.limits.SlowAnswer/2)
	}
	if l.limits.MinWait > 0 {
		s.Usual = min(l.usualLimit(e), s.Wait)
	}
	if s.Usual > 0 && inHurry {
		if e.proven {
			s.Wait = s.Usual
		} else { // the process does not know how long the endpoint usually takes
			s.Wait = min(s.Wait, l.limits.SlowAnswer/2)
		}
		s.Rest = l.limits.Patience - s.Wait
	}
	return s
}

// slot has the fields that [FastSlot], [DetachedSlot] and [SlowSlot] share.
type slot struct {
	lanes    *Lanes
	e        *endpointState
	call     Call
	released bool
}

// Start reports whether the endpoint's rate limit permits the attempt, and counts the attempt. Call it right before the POST. The caller
// passes the endpoint's URL, because a slot of the slow lane is reserved before the URL is known.
func (s *slot) Start(ctx context.Context, url string) bool {
	if !s.lanes.rate.allow(ctx, s.call.Endpoint) {
		return false
	}
	s.call.URL = url
	return true
}

// done releases the slot with the given function, records the outcome of its attempt, and gives free slots to waiting attempts.
func (s *slot) done(out webhook.Outcome, release func()) {
	l := s.lanes
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.released {
		return
	}
	s.released = true
	release()
	if s.call.URL != "" {
		l.record(s.call.Endpoint, s.call.URL, out, l.now())
	}
	l.grantSlow(s.e)
	l.grantFast(s.e)
}

// Unused is the outcome for [FastSlot.Done], [SlowSlot.Done] and [DetachedSlot.Done] if no attempt was made.
var Unused = webhook.Outcome{Category: webhook.Aborted}

// FastSlot is the permission to make a first attempt in the fast lane. If the endpoint does not respond, the page task that makes the
// attempt acts at these times after the attempt's start:
//
//	0 ─────▶ Usual ─────▶ Wait ─────▶ Wait + Rest
//	           │            │             └ the attempt is canceled, even if it continues in the background
//	           │            └ the page task calls Detach, so that the attempt continues in the background, or waits if that is not allowed
//	           └ if the store has a mark that the endpoint hangs, the page task calls Detach now instead of at Wait
type FastSlot struct {
	slot
	pool   *pool
	Waited bool // whether the attempt had to wait for the slot
	// Wait is how long the page task waits for a response before it calls [FastSlot.Detach]. 0 means until the attempt ends.
	Wait time.Duration
	// Rest is the time that the attempt still has after Wait. It is 0 unless the page task is in a hurry. For example, if the page task
	// waits for 100 ms of the 3 s in [Limits.Patience], Rest is 2.9 s.
	Rest time.Duration
	// Usual is the time within which nearly all responses of the endpoint arrive, or 0 if [Limits.MinWait] is 0. A page task in a hurry
	// waits only this long. Other page tasks then call [FastSlot.HasWarning], which tells them whether to wait any longer.
	Usual  time.Duration
	hung   bool // the endpoint did not answer an earlier attempt in time, and has not answered with success since
	warned bool // a process has stored that the endpoint hangs; see [hangKey]
}

// Done releases the slot and records its attempt's outcome. Further calls have no effect.
func (s *FastSlot) Done(out webhook.Outcome) { s.done(out, s.release) }

// release subtracts the slot from the counters of running attempts. The caller holds the lock.
func (s *FastSlot) release() {
	s.e.fast--
	s.e.fastBytes -= s.call.Bytes
	s.lanes.fast.remove(s.call.Bytes)
	s.pool.used.remove(s.call.Bytes)
}

// Detach lets an attempt continue in the background, after its page task has stopped waiting for it. It releases the slot and returns a
// [DetachedSlot], which the caller releases when the attempt has ended.
//
// Detach returns nil if the attempt may not continue in the background. The page task then waits until the slot's Rest is over. If there
// is still no response, it calls [FastSlot.Hang], cancels the attempt and releases the slot.
func (s *FastSlot) Detach() *DetachedSlot {
	l, e := s.lanes, s.e
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.Usual == 0 {
		e.noteHang(s.hung, l.now())
	}
	may := (s.Rest > 0 || s.Usual == 0) && l.detached < l.limits.Detached && e.hanging < maxHanging &&
		l.hangingBytes.fits(s.call.Principal, s.call.bytesHeld(), l.limits.Bytes/4) && e.origin.hanging.fits(s.call.Principal, 1, maxOriginHanging)
	var detached *DetachedSlot
	if may {
		s.release()
		s.released = true
		detached = &DetachedSlot{slot: slot{lanes: l, e: e, call: s.call}, origin: e.origin, hung: s.hung, warned: s.warned}
		if s.Rest > 0 {
			detached.HangsAfter = max(1, l.limits.SlowAnswer-s.Wait)
			detached.Rest = max(1, s.Rest-detached.HangsAfter)
		}
		e.hanging++
		e.origin.hanging.add(s.call.Principal, 1)
		l.detached++
		l.hangingBytes.add(s.call.Principal, s.call.bytesHeld())
	}
	l.grantFast(e)
	return detached
}

// DetachedSlot is the permission for a webhook request to continue in the background. The task that sent the request no longer waits for
// the response, so that a slow endpoint does not hold up other deliveries. Call [DetachedSlot.Done] when the request has ended.
type DetachedSlot struct {
	slot
	origin *originState
	// HangsAfter is the time after which the attempt counts as hanging, and the caller calls [DetachedSlot.Hang]. Rest is the time that the
	// attempt still has after that. Both are 0 if the attempt may continue until it ends.
	HangsAfter, Rest time.Duration
	hung, warned     bool // as in [FastSlot]
}

// Done releases the slot and records its attempt's outcome. Further calls have no effect.
func (s *DetachedSlot) Done(out webhook.Outcome) { s.done(out, s.release) }

// release subtracts the slot from the counters of running attempts. The caller holds the lock.
func (s *DetachedSlot) release() {
	s.e.hanging--
	s.lanes.detached--
	s.lanes.hangingBytes.release(s.call.Principal, s.call.bytesHeld())
	s.origin.hanging.release(s.call.Principal, 1)
}

// The fast lane has two pools of slots. Each pool has a ring of principals with waiting attempts, and each principal has a ring of
// endpoints. The first entry of a ring gets the next slot, and then moves to the end of the ring.

const (
	quickPool = iota
	otherPool
)

// pool is one of two parts of the fast lane: for quick endpoints (see [quickAnswer]) and for all others.
type pool struct {
	limit, used usage
	ring        []*ringEntry // the principals with attempts that could start; the first one has the next turn
}

// ringEntry is a principal that takes turns with the other principals of a pool. It has the principal's waiting attempts that could
// start.
type ringEntry struct {
	principal string
	ring      []*flow // one per endpoint; the first one has the next turn
}

// flow holds the waiting attempts of one principal to one endpoint. It takes part in the turns of its pool unless the endpoint has as
// many attempts under way as allowed.
type flow struct {
	e         *endpointState
	principal string
	waiting   []*waiter // in the order in which their events were queued
	pool      *pool     // the pool whose ring has the flow; nil while the endpoint may not have more attempts
}

// waiter is an attempt that waits for a slot of the fast lane.
type waiter struct {
	flow  *flow
	call  Call
	hurry bool          // its page is in a hurry; see [PageWait.InHurry]
	probe bool          // the attempt finds out whether the endpoint is still slow
	ready chan struct{} // closed when the verdict is known
	slot  *FastSlot
	Verdict
}

// enqueue puts a waiting attempt into the flow, i.e. the queue, of its principal and its endpoint e. The attempts in a flow are sorted by
// the time at which their events were queued.
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
		l.addToRing(f)
	}
}

// addToRing puts a flow at the end of its principal's ring, so that it takes turns with the principal's other flows. It does nothing if
// the flow's endpoint has as many attempts under way as allowed.
func (l *Lanes) addToRing(f *flow) {
	if l.full(f.e, f.waiting[0].call.Bytes) {
		return
	}
	f.pool = l.poolOf(f.e)
	i := slices.IndexFunc(f.pool.ring, func(s *ringEntry) bool { return s.principal == f.principal })
	if i < 0 {
		i = len(f.pool.ring)
		f.pool.ring = append(f.pool.ring, &ringEntry{principal: f.principal})
	}
	f.pool.ring[i].ring = append(f.pool.ring[i].ring, f)
}

// removeFromRing takes a flow out of its principal's ring. It also moves the principal to the end of the pool's ring, or removes
// the principal if its ring is empty.
func (l *Lanes) removeFromRing(f *flow) {
	p := f.pool
	if p == nil {
		return
	}
	f.pool = nil
	i := slices.IndexFunc(p.ring, func(s *ringEntry) bool { return s.principal == f.principal })
	s := p.ring[i]
	s.ring = slices.DeleteFunc(s.ring, func(other *flow) bool { return other == f })
	p.ring = slices.Delete(p.ring, i, i+1)
	if len(s.ring) > 0 {
		p.ring = append(p.ring, s)
	}
}

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
	l.removeFromRing(f)
	if len(f.waiting) > 0 {
		l.addToRing(f)
	} else {
		f.e.flows = slices.DeleteFunc(f.e.flows, func(other *flow) bool { return other == f })
	}
}

func (l *Lanes) endWait(w *waiter, s *FastSlot, v Verdict) {
	l.remove(w)
	w.slot, w.Verdict = s, v
	close(w.ready)
}

// grantFast gives the free slots of the fast lane to waiting attempts of all endpoints. The caller holds the lock, and has changed the
// state of the endpoint e. If e is slow, its waiting attempts get the verdict SlowLane instead, except a probe, which tests whether e is
// still slow.
func (l *Lanes) grantFast(e *endpointState) {
	for _, f := range slices.Clone(e.flows) {
		if f.pool == nil {
			l.addToRing(f)
		}
	}
	if e.isSlow(l.now()) {
		for _, f := range slices.Clone(e.flows) {
			for _, w := range slices.Clone(f.waiting) {
				if !w.probe {
					l.endWait(w, nil, SlowLane)
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

// grantFrom gives a slot to the next waiting attempt of a pool. It returns false if no waiting attempt of the pool can start now.
func (l *Lanes) grantFrom(p *pool) bool {
	for len(p.ring) > 0 {
		f := p.ring[0].ring[0]
		w := f.waiting[0]
		switch {
		case !w.probe && f.e.isSlow(l.now()):
			l.endWait(w, nil, SlowLane)
		case l.full(f.e, w.call.Bytes):
			l.removeFromRing(f)
		case !l.fits(p, w.call.Bytes):
			return false
		default:
			s := l.take(f.e, p, w.call, w.hurry)
			s.Waited = true
			l.endWait(w, s, Granted)
			return true
		}
	}
	return false
}

// endpointRates limits the attempts per second to one endpoint, across all processes. Each attempt takes a token, and each second has as
// many tokens as the limit allows attempts. A write to the store for each token would be too expensive, so each process leases several
// tokens of the current second with one conditional write. Unused tokens expire with the second. The limit therefore holds exactly, but
// up to one lease per process may be wasted. We cannot use x/time/rate because it limits a single process.
//
// A delivery that gets no token gets a turn: a later second in which it is tried again. Processes lease turns in the same way as tokens,
// so that the waiting deliveries of all processes together arrive at the rate of the limit. In its turn, an attempt still has to take a
// token, and may fail to get one.
type endpointRates struct {
	db    store.DB
	limit int64 // attempts per second to one endpoint; 0 is no limit
	now   func() time.Time

	mu   sync.Mutex
	byID map[string]*tokenLease
}

// tokenLease holds the tokens and turns that this process has leased for one endpoint; see [endpointRates]. The semaphore in the field
// tokens guards the tokens, and the semaphore in the field turns guards the turns.
type tokenLease struct {
	tokens *semaphore.Weighted
	second int64 // the second for which the tokens are valid, since 1970
	left   int64 // the tokens that this process has left for the second
	spent  bool  // whether all tokens of the second are leased, so that the store has no more

	turns     *semaphore.Weighted
	turn      int64 // the last second in which deliveries of this process have turns; to write it, also lock [endpointRates.mu]
	turnsLeft int64 // the turns in that second that this process has left
	reserved  int64 // the second in which this process last reserved a turn; to write it, also lock [endpointRates.mu]
}

// lastTurn returns the last second in which deliveries of this process have turns, which are times for another try. If the clock was set
// back by more than [turnStepBack] seconds since the last reservation, lastTurn returns 0. New turns then need not come after the old
// turns, which are now far ahead.
func (t *tokenLease) lastTurn(now time.Time) int64 {
	if t.reserved-now.Unix() > turnStepBack {
		return 0
	}
	return t.turn
}

const (
	// maxSeek is the number of seconds that [endpointRates.reserve] checks for a free turn. The distance from one checked second to the
	// next is 1, 2, 4, … and finally always seekStep, so reserve finds turns up to about an hour ahead.
	maxSeek  = 70
	seekStep = 60
	// turnStepBack is how many seconds the clock may be set back before the process forgets its turns. If the clock is set back by less,
	// deliveries wait for up to this many seconds longer.
	turnStepBack = 60
)

// leasesPerSecond divides the tokens of a second into leases. For example, with a rate limit of 100, a lease has 25 tokens.
const leasesPerSecond = 4

// allow takes a token for one attempt, or returns false if the tokens of this second are used up. If the store does not answer, it allows
// the attempt, because the rate limit must not stop all deliveries to an endpoint.
func (r *endpointRates) allow(ctx context.Context, id string) bool {
	if r.limit == 0 {
		return true
	}
	t := r.get(id)
	if t.tokens.Acquire(ctx, 1) != nil {
		return true // the context is done, so the attempt ends immediately
	}
	defer t.tokens.Release(1)
	now := r.now() // Acquire may have waited for a slow store
	if t.second != now.Unix() {
		t.second, t.left, t.spent = now.Unix(), 0, false
	}
	if t.left == 0 && !t.spent {
		n := max(1, r.limit/leasesPerSecond)
		if t.spent = errors.Is(r.count(ctx, id, fmt.Sprint(t.second), now, n), store.ErrConflict); !t.spent {
			t.left = n
		}
	}
	if t.left == 0 {
		return false
	}
	t.left--
	return true
}

func (r *endpointRates) get(id string) *tokenLease {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.byID[id]
	if t == nil {
		if r.byID == nil || len(r.byID) >= maxEndpoint {
			r.byID = map[string]*tokenLease{} // forget all leased tokens, to bound the memory
		}
		t = &tokenLease{tokens: semaphore.NewWeighted(1), turns: semaphore.NewWeighted(1)}
		r.byID[id] = t
	}
	return t
}

// count leases n tokens or turns of a second from the store, and returns [store.ErrConflict] if fewer than n are left. The parameter sort
// is the sort key of the item that counts the second's tokens or turns.
func (r *endpointRates) count(ctx context.Context, id, sort string, second time.Time, n int64) error {
	op := store.Add(store.Key{Table: store.Deliveries, Partition: "t#" + id, Sort: sort}, map[string]int64{"n": n}, map[string]int64{"n": r.limit})
	op.Item.Expires = second.Add(time.Minute)
	return r.db.Write(ctx, op)
}

// reserve reserves an attempt in a later second in which the endpoint's rate limit has capacity left, and returns the time until that
// second.
func (r *endpointRates) reserve(ctx context.Context, id string, now time.Time) time.Duration {
	if r.limit == 0 {
		return 0
	}
	t := r.get(id)
	if t.turns.Acquire(ctx, 1) != nil {
		return time.Second // the context is done, so the caller's write of the delivery will fail anyway
	}
	defer t.turns.Release(1)
	second := max(t.lastTurn(now), now.Unix()+1)
	if t.turn != second || t.turnsLeft == 0 {
		t.turnsLeft = max(1, r.limit/leasesPerSecond)
		for step, tries := int64(1), 0; tries < maxSeek; tries++ {
			// If the store does not answer, use the turns without a lease, so that at least this process's own deliveries keep to the rate.
			if err := r.count(ctx, id, fmt.Sprintf("turn#%d", second), time.Unix(second, 0), t.turnsLeft); !errors.Is(err, store.ErrConflict) {
				break
			}
			second += step
			step = min(2*step, seekStep)
		}
	}
	t.turnsLeft--
	r.mu.Lock()
	defer r.mu.Unlock()
	t.turn, t.reserved = second, now.Unix()
	return time.Unix(second, 0).Sub(now)
}

// hasWaiting reports whether deliveries of this process wait for their turns to be sent to the endpoint (see [endpointRates]).
func (r *endpointRates) hasWaiting(id string, now time.Time) bool {
	if r.limit == 0 {
		return false
	}
	t := r.get(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	return t.lastTurn(now) > now.Unix()
}
