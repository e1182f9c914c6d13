package lane

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
)

// SlowSlot is the permission to make an attempt in the slow lane, for example a retry.
type SlowSlot struct {
	slot
	doubtful bool         // the attempt may hang, so its bytes count towards the limit for hanging attempts
	origin   *originState // set if the slot counts towards maxOriginDoubtful of this origin
}

// Done releases the slot and records its attempt's outcome. Further calls have no effect.
func (s *SlowSlot) Done(out webhook.Outcome) { s.done(out, s.release) }

// release subtracts the slot from the counters of running attempts. The caller holds the lock.
func (s *SlowSlot) release() {
	s.e.slow--
	s.e.slowBytes -= s.call.bytesHeld()
	s.lanes.slowBytesCounter(s.doubtful).release(s.call.Principal, s.call.bytesHeld())
	if s.origin != nil {
		s.origin.doubtful.release(s.call.Principal, 1)
	}
}

// slowBytesCounter returns the counter for the bytes of an attempt in the slow lane. Attempts to endpoints that may hang (doubtful) have
// a separate counter, which they share with first attempts that continue in the background.
func (l *Lanes) slowBytesCounter(doubtful bool) *shares {
	if doubtful {
		return &l.hangingBytes
	}
	return &l.slowBytes
}

// slowWaiter is an attempt that waits in [Lanes.ReserveSlow] for a slot of the slow lane.
type slowWaiter struct {
	call  Call
	slot  *SlowSlot
	ready chan struct{} // closed when the attempt has got its slot
}

// ReserveSlow returns a slot of the slow lane, or nil and the time after which the caller may try again. If the last attempt to the
// endpoint was quick, ReserveSlow waits up to [slotWait] for a slot, because a delivery that goes back to the queue waits longer.
func (l *Lanes) ReserveSlow(ctx context.Context, c Call) (s *SlowSlot, wait time.Duration) {
	l.mu.Lock()
	e := l.get(c.Endpoint, c.URL)
	s, wait = l.takeSlow(e, c, l.now())
	if s != nil || !e.openUntil.IsZero() || e.took >= slotWait || l.queued >= max(1, l.limits.Attempts/8) {
		l.mu.Unlock()
		return s, wait
	}
	w := &slowWaiter{call: c, ready: make(chan struct{})}
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

// takeSlow returns a slot of the slow lane without waiting for one, or nil and the time after which the caller may try again. The caller
// holds the lock.
func (l *Lanes) takeSlow(e *endpointState, c Call, now time.Time) (s *SlowSlot, wait time.Duration) {
	s = &SlowSlot{slot: slot{lanes: l, e: e, call: c}, doubtful: e.isDoubtful(now)}
	used, others := l.slowBytesCounter(s.doubtful), e.slow+e.hanging
	switch limit := l.limits.Bytes / 4; {
	case now.Before(e.openUntil):
		return nil, e.openUntil.Sub(now)
	case !e.openUntil.IsZero() && others > 0: // another attempt is under way, which shows whether the endpoint works again
		return nil, probeTime / 2
	case others >= e.limit, !used.fits(c.Principal, c.bytesHeld(), limit), e.slow > 0 && e.slowBytes+c.bytesHeld() > limit/4:
		return nil, time.Second
	case s.doubtful && e.origin != nil:
		if !e.origin.doubtful.fits(c.Principal, 1, maxOriginDoubtful) {
			return nil, probeTime / 2
		}
		e.origin.doubtful.add(c.Principal, 1)
		s.origin = e.origin
	}
	e.slow++
	e.slowBytes += c.bytesHeld()
	used.add(c.Principal, c.bytesHeld())
	return s, 0
}

// grantSlow gives free slots of the slow lane to the endpoint's waiting attempts. The caller holds the lock.
func (l *Lanes) grantSlow(e *endpointState) {
	for len(e.queued) > 0 {
		w := e.queued[0]
		s, _ := l.takeSlow(e, w.call, l.now())
		if s == nil {
			return
		}
		w.slot = s
		close(w.ready)
		e.queued = e.queued[1:]
		l.queued--
	}
}

// Postpone returns two delays for a delivery whose first attempt cannot be made now. After turn, the endpoint's rate limit permits the
// attempt, because Postpone reserves capacity of the limit for it. After wait, the endpoint's current pause is over as well, so wait is
// at least turn. During a pause, which follows timeouts and some other failures, an endpoint gets no attempts.
func (l *Lanes) Postpone(ctx context.Context, endpoint string) (turn, wait time.Duration) {
	now := l.now()
	l.mu.Lock()
	if e := l.byID[endpoint]; e != nil && now.Before(e.openUntil) {
		wait = e.openUntil.Sub(now)
		wait += rand.N(wait/5 + 1)
	}
	l.mu.Unlock()
	turn = l.ReserveTurn(ctx, endpoint)
	return turn, max(turn, wait)
}

// ReserveTurn reserves the next attempt that the endpoint's rate limit allows, and returns the time until that attempt.
func (l *Lanes) ReserveTurn(ctx context.Context, endpoint string) time.Duration {
	return l.rate.reserve(ctx, endpoint, l.now())
}
