package delivery

import (
	"context"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/webhook"
)

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
