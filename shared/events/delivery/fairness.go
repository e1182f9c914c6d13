package delivery

import (
	"context"
	"slices"
	"time"
)

const (
	quickPool = iota
	unhurriedPool
)

// pool is the part of the fast lane for one class of endpoints.
type pool struct {
	limit, used usage
	ring        []*share // the principals with attempts that could start, in turn
}

// share is what waits in a pool for one principal.
type share struct {
	principal string
	ring      []*flow // endpoints, in turn
}

// flow is a principal's attempts that wait for a slot of the same endpoint. It is in the ring of a pool, unless the endpoint
// has all the attempts under way that it may have.
type flow struct {
	e         *endpointState
	principal string
	waiting   []*waiter // by the time at which their events were queued
	pool      *pool     // nil while the endpoint is busy
}

// waiter is an attempt that waits for its slot.
type waiter struct {
	flow  *flow
	call  call
	probe bool
	ready chan struct{} // closed when the verdict is known
	slot  *slot
	verdict
}

// verdict is the answer to whether an attempt may start in the fast lane.
type verdict int

const (
	// granted attempts start now.
	granted verdict = iota
	// slowLane attempts belong to the slow lane, because their endpoint fails or is slow.
	slowLane
	// tooLate attempts got no slot in time.
	tooLate
)

// patience is how long a page waits for slots.
type patience struct {
	// busy is until when it waits for an endpoint that has all the attempts under way that it may have, others until when
	// it waits for the slots that other endpoints have.
	busy, others time.Time
}

// Reserve takes a slot of the fast lane. It waits for one as long as p says.
func (l *lanes) Reserve(ctx context.Context, c call, p patience) (*slot, verdict) {
	l.mu.Lock()
	e := l.get(c.endpoint, c.url)
	if e.isSlow(l.now()) {
		l.mu.Unlock()
		return nil, slowLane
	}
	probe := e.startProbe(l.now())
	if pool := l.poolOf(e); len(e.flows) == 0 && len(pool.ring) == 0 && !l.full(e, c.bytes) && l.fits(pool, c.bytes) {
		s := l.take(e, pool, c)
		l.mu.Unlock()
		return s, granted
	}
	if l.waiters >= maxWaiters*l.limits.attempts && l.waiting[c.principal]*len(l.waiting) >= l.waiters {
		l.mu.Unlock()
		return nil, tooLate
	}
	w := &waiter{call: c, probe: probe, ready: make(chan struct{})}
	l.enqueue(e, w)
	l.mu.Unlock()

	until := p.busy
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for ended := false; ; {
		select {
		case <-w.ready:
			return w.slot, w.verdict
		case <-timer.C:
		case <-ctx.Done():
			ended = true
		}
		l.mu.Lock()
		select {
		case <-w.ready:
			l.mu.Unlock()
			return w.slot, w.verdict
		default:
		}
		if !ended && until.Before(p.others) && !l.full(e, c.bytes) {
			l.mu.Unlock()
			until = p.others
			timer.Reset(time.Until(until))
			continue
		}
		l.remove(w)
		l.mu.Unlock()
		return nil, tooLate
	}
}

// full reports whether an endpoint has all the attempts under way that it may have.
func (l *lanes) full(e *endpointState, bytes int64) bool {
	limit := usage{slots: l.limits.perEndpoint, bytes: l.limits.bytes / 8}
	if !e.proven {
		limit.slots = min(limit.slots, unproven)
	}
	return !usage{e.fast, e.fastBytes}.fits(bytes, limit)
}

func (l *lanes) fits(p *pool, bytes int64) bool {
	return l.fast.fits(bytes, l.pools[quickPool].limit) && p.used.fits(bytes, p.limit)
}

func (l *lanes) poolOf(e *endpointState) *pool {
	if e.took >= unhurriedAnswer || !e.proven || e.silent {
		return &l.pools[unhurriedPool]
	}
	return &l.pools[quickPool]
}

func (l *lanes) take(e *endpointState, p *pool, c call) *slot {
	e.fast++
	e.fastBytes += c.bytes
	l.fast.add(c.bytes)
	p.used.add(c.bytes)
	return &slot{lanes: l, e: e, call: c, kind: fastSlot, pool: p, hung: e.silent}
}

// enqueue has an attempt wait.
func (l *lanes) enqueue(e *endpointState, w *waiter) {
	i := slices.IndexFunc(e.flows, func(f *flow) bool { return f.principal == w.call.principal })
	if i < 0 {
		i = len(e.flows)
		e.flows = append(e.flows, &flow{e: e, principal: w.call.principal})
	}
	f := e.flows[i]
	w.flow = f
	at := len(f.waiting)
	for at > 0 && f.waiting[at-1].call.since > w.call.since {
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
func (l *lanes) list(f *flow) {
	if l.full(f.e, f.waiting[0].call.bytes) {
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
func (l *lanes) unlist(f *flow) {
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

// remove takes an attempt out of the line.
func (l *lanes) remove(w *waiter) {
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
func (l *lanes) answer(w *waiter, s *slot, v verdict) {
	l.remove(w)
	w.slot, w.verdict = s, v
	close(w.ready)
}

// grantFast gives free slots of the fast lane to attempts that wait, after one to the given endpoint has ended.
func (l *lanes) grantFast(e *endpointState) {
	for _, f := range slices.Clone(e.flows) {
		if f.pool == nil {
			l.list(f)
		}
	}
	if e.isSlow(l.now()) {
		for _, f := range slices.Clone(e.flows) {
			for _, w := range slices.Clone(f.waiting) {
				if !w.probe {
					l.answer(w, nil, slowLane)
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
func (l *lanes) grantFrom(p *pool) bool {
	for len(p.ring) > 0 {
		f := p.ring[0].ring[0]
		w := f.waiting[0]
		switch {
		case !w.probe && f.e.isSlow(l.now()):
			l.answer(w, nil, slowLane)
		case l.full(f.e, w.call.bytes):
			l.unlist(f)
		case !l.fits(p, w.call.bytes):
			return false
		default:
			s := l.take(f.e, p, w.call)
			s.waited = true
			l.answer(w, s, granted)
			return true
		}
	}
	return false
}
