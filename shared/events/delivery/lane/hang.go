package lane

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// On AWS, an attempt that hangs holds one of few processes. A process that has not sent to the endpoint before, or not for a while,
// would wait until the patience of the fast lane ends. So a process that notices a hanging endpoint writes a mark, and a process
// whose attempt takes longer than usual looks for one. That costs a write per pause of the endpoint, and a read per late answer.

// hangKey returns the key of the mark of a hanging endpoint. The item outlives the next probes. If one of them succeeds, the mark
// harms only attempts that are late.
func hangKey(endpoint string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: "t#" + endpoint, Sort: "hangs"}
}

// Hang records that an attempt has had no answer for so long that the endpoint hangs. Further first attempts then take the slow lane, in
// all processes.
func (s *Slot) Hang(ctx context.Context) {
	l := s.lanes
	if s.Usual == 0 {
		return // Detach has noted it
	}
	l.mu.Lock()
	s.e.noteHang(s.hung, l.now())
	until := s.e.slowUntil.Add(maxHold)
	l.grantFast(s.e)
	l.mu.Unlock()
	if !s.warned {
		_ = l.rate.db.Write(ctx, store.Put(store.Item{Key: hangKey(s.Endpoint), Expires: until})) // without it, others find out later
	}
}

// Warned reports whether another process knows that the endpoint hangs.
func (s *Slot) Warned(ctx context.Context) bool {
	items, err := s.lanes.rate.db.Get(ctx, hangKey(s.Endpoint))
	s.warned = err == nil && items[0] != nil && s.lanes.now().Before(items[0].Expires)
	return s.warned
}
