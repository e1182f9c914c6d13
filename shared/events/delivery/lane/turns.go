package lane

import (
	"context"
	"slices"
	"time"
)

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
