package lane

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

// share holds the attempts of one principal that wait in a pool.
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
	call  Call
	probe bool
	ready chan struct{} // closed when the verdict is known
	slot  *Slot
	Verdict
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
}

// Reserve takes a slot of the fast lane. It waits for one as long as p says. A first attempt must not overtake the deliveries that
// wait for the endpoint's rate limit, so it then belongs to the slow lane.
func (l *Lanes) Reserve(ctx context.Context, c Call, p Patience) (*Slot, Verdict) {
	if l.rate.awaited(c.Endpoint, l.now()) {
		return nil, SlowLane
	}
	l.mu.Lock()
	e := l.get(c.Endpoint, c.URL)
	if e.isSlow(l.now()) {
		l.mu.Unlock()
		return nil, SlowLane
	}
	probe := e.startProbe(l.now())
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
	return &Slot{lanes: l, e: e, Call: c, kind: fastSlot, pool: p, hung: e.silent}
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
