package delivery

import (
	"net/url"
	"sync"
	"time"

	"mcpevents/shared/webhook"
)

// health remembers which endpoint origins are slow or failing, so that their
// deliveries go through the slow lane and hold nobody else up. It belongs to a
// process: an instance learns by its own few failures, which costs less than
// sharing every outcome.
type health struct {
	mu      sync.Mutex
	origins map[string]*originHealth
}

type originHealth struct {
	failures int // in a row
	until    time.Time
}

const (
	slowAfter   = 3                // failures in a row
	slowFor     = 30 * time.Second // then another delivery may try
	maxSlowFor  = 5 * time.Minute
	maxOrigins  = 10_000
	slowLatency = 5 * time.Second // an answer later than this counts as a failure here
)

func origin(target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return target
	}
	return u.Scheme + "://" + u.Host
}

// slow reports whether the origin is to be served from the slow lane only. When
// its time is over one delivery may try, and the others wait for what that finds: all at
// once they would hang again together.
func (h *health) slow(origin string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	o := h.origins[origin]
	if o == nil || o.until.IsZero() {
		return false
	}
	if now.Before(o.until) {
		return true
	}
	o.until = now.Add(slowLatency)
	return false
}

// waits takes in that an attempt has no answer yet. The next answer in time
// makes up for it.
func (h *health) waits(origin string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o, until := h.get(origin, now), now.Add(slowFor); until.After(o.until) {
		o.until = until
	}
}

func (h *health) get(origin string, now time.Time) *originHealth {
	o := h.origins[origin]
	if o == nil {
		if h.origins == nil {
			h.origins = map[string]*originHealth{}
		}
		if len(h.origins) >= maxOrigins {
			h.forget(now)
		}
		o = &originHealth{}
		h.origins[origin] = o
	}
	return o
}

// saw takes an outcome in.
func (h *health) saw(origin string, out webhook.Outcome, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if out.Category == "" && out.Took < slowLatency {
		delete(h.origins, origin)
		return
	}
	o := h.get(origin, now)
	o.failures++
	pause := time.Duration(0)
	switch {
	case out.RetryAfter > 0 && (out.Status == 429 || out.Status >= 502):
		pause = out.RetryAfter
	case out.Category == webhook.Timeout || out.Status == 429 || out.Status == 502 || out.Status == 503 || out.Status == 504:
		pause = slowFor
	case o.failures >= slowAfter:
		pause = slowFor * time.Duration(o.failures-slowAfter+1)
	}
	if pause > 0 {
		o.until = now.Add(min(pause, maxSlowFor))
	}
}

// forget makes room: first what is over, else anything.
func (h *health) forget(now time.Time) {
	for k, o := range h.origins {
		if now.After(o.until) {
			delete(h.origins, k)
		}
	}
	for k := range h.origins {
		if len(h.origins) < maxOrigins {
			return
		}
		delete(h.origins, k)
	}
}

// known is a bounded set of strings; it may forget.
type known struct {
	mu  sync.Mutex
	set map[string]struct{}
}

const maxKnown = 20_000

func (k *known) has(s string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.set[s]
	return ok
}

func (k *known) add(s string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.set == nil || len(k.set) >= maxKnown {
		k.set = map[string]struct{}{}
	}
	k.set[s] = struct{}{}
}

// Gate makes deregistering exact where register and dispatch share a process: no
// attempt starts after [Gate.Ended] returned. The zero value is ready.
type Gate struct {
	mu    sync.RWMutex
	ended map[string]time.Time
}

// gateFor is how long an ended subscription is remembered: far longer than a
// page that was read before can take to be sent.
const gateFor = 15 * time.Minute

// Ended closes the gate for a subscription.
func (g *Gate) Ended(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.ended == nil {
		g.ended = map[string]time.Time{}
	}
	if len(g.ended) > 1000 && len(g.ended)%1000 == 0 {
		for id, at := range g.ended {
			if now.Sub(at) > gateFor {
				delete(g.ended, id)
			}
		}
	}
	g.ended[id] = now
}

// Started opens the gate again for a subscription that was made anew under the
// same id.
func (g *Gate) Started(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.ended, id)
}

// enter reports whether an attempt may start for a subscription that was read at
// the given time. What was read after the end is right about it: the
// subscription is gone, or was made anew.
func (g *Gate) enter(id string, read time.Time) bool {
	if g == nil {
		return true
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	at, ended := g.ended[id]
	return !ended || read.After(at)
}
