package lane

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// On AWS, an attempt that hangs holds one of few processes. A process that has not sent to the endpoint before, or not for a while,
// would wait until the patience of the fast lane ends. So a process that notices a hanging endpoint writes a mark. Other processes
// read the mark in two cases:
//
//   - Their attempt takes longer than usual. If there is a mark, its page does not wait for it any longer.
//   - The endpoint did not answer their last attempt, and it is time for a probe. While the attempts of the slow lane hang, they
//     renew the mark, and are probes enough. So the page makes none, and does not wait for one.
//
// That costs a write per attempt that hangs, and a read per late answer and per half minute of each process.

// hangKey returns the key of the mark of a hanging endpoint. The version of the item is the time until which processes need no
// probe. The item outlives that time. If the endpoint answers again, the mark then harms only attempts that are late.
func hangKey(endpoint string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: "t#" + endpoint, Sort: "hangs"}
}

// slowLaneProbes is how long a mark of the slow lane replaces probes. An endpoint that hangs gets an attempt of the slow lane about
// every 80 s, which is its longest pause and the time limit of an attempt.
const slowLaneProbes = 2 * time.Minute

// Hang records that an attempt has had no answer for so long that the endpoint hangs. Further first attempts then take the slow lane, in
// all processes.
func (s *Slot) Hang(ctx context.Context) {
	l := s.lanes
	if s.Usual == 0 {
		return // Detach has noted it
	}
	l.mu.Lock()
	s.e.noteHang(s.hung, l.now())
	until := s.e.slowUntil
	l.grantFast(s.e)
	l.mu.Unlock()
	if !s.warned {
		l.mark(ctx, s.Endpoint, until)
	}
}

// Warn tells the other processes that an attempt of the slow lane has had no answer.
func (s *Slot) Warn(ctx context.Context) {
	if l := s.lanes; l.limits.Hurry > 0 {
		l.mark(ctx, s.Endpoint, l.now().Add(slowLaneProbes))
	}
}

func (l *Lanes) mark(ctx context.Context, endpoint string, until time.Time) {
	it := store.Item{Key: hangKey(endpoint), Version: until.Unix(), Expires: until.Add(maxHold)}
	_ = l.rate.db.Write(ctx, store.Put(it)) // without it, others find out later
}

// readMark returns the mark of an endpoint, or nil without a mark.
func (l *Lanes) readMark(ctx context.Context, endpoint string) *store.Item {
	items, err := l.rate.db.Get(ctx, hangKey(endpoint))
	if err != nil || items[0] == nil || !l.now().Before(items[0].Expires) {
		return nil
	}
	return items[0]
}

// Warned reports whether another process knows that the endpoint hangs.
func (s *Slot) Warned(ctx context.Context) bool {
	s.warned = s.lanes.readMark(ctx, s.Endpoint) != nil
	return s.warned
}

// spareProbe reports whether another process has seen that the endpoint still hangs, so that no probe is needed. First attempts then
// continue to take the slow lane. It is called without the lock.
func (l *Lanes) spareProbe(ctx context.Context, e *endpointState) bool {
	mark := l.readMark(ctx, e.id)
	if mark == nil || l.now().Unix() >= mark.Version {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.slowUntil = Later(e.slowUntil, l.now().Add(slowFor-rand.N(slowFor/3)))
	return true
}
