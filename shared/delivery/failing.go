package delivery

import "time"

// Failing is how many endpoints get no first attempt now, because they fail or are slow.
func (d *Dispatcher) Failing() int { return d.endpoints.failing(d.now()) }

func (h *endpoints) failing(now time.Time) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.byID {
		if now.Before(e.slowUntil) || now.Before(e.openUntil) || e.origin != nil && now.Before(e.origin.slowUntil) {
			n++
		}
	}
	return n
}
