package delivery

import (
	"sync"
	"time"
)

// Gate stops the attempts to a deregistered subscription immediately if register and dispatch share a process: no attempt
// starts after [Gate.Ended] has returned. The zero value is ready to use.
type Gate struct {
	mu    sync.RWMutex
	ended map[string]time.Time
}

// gateFor is how long the gate remembers an ended subscription. It is far longer than the time between reading the subscribers of
// a page and sending its events.
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

// Started opens the gate for a subscription that was created again under the same id.
func (g *Gate) Started(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.ended, id)
}

// enter reports whether an attempt may start for a subscription that was read at the given time. A subscription that was read
// after its end was created again, so its attempts may start.
func (g *Gate) enter(id string, read time.Time) bool {
	if g == nil {
		return true
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	at, ended := g.ended[id]
	return !ended || read.After(at)
}
