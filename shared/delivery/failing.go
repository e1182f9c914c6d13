package delivery

import "time"

// Failing is how many endpoints get no first attempt now: Slow are attempted in the slow lane, Paused not at all, until
// a time that they asked for or that grows with their failures.
type Failing struct{ Slow, Paused int }

// Failing counts the endpoints that fail or are slow.
func (d *Dispatcher) Failing() Failing { return d.endpoints.failing(d.now()) }

func (h *endpoints) failing(now time.Time) (n Failing) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.byID {
		switch {
		case now.Before(e.openUntil):
			n.Paused++
		case now.Before(e.slowUntil) || e.origin != nil && now.Before(e.origin.slowUntil):
			n.Slow++
		}
	}
	return n
}
