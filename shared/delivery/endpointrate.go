package delivery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/mcp-events/mcpevents/shared/store"
)

// endpointRates bound the attempts a second to one endpoint, those of all processes
// together, without a write per attempt: a process takes a part of a second's attempts at
// once, by one conditional write, and what it does not use of them is lost. So the bound holds
// exactly, and up to a part per process may go unused.
type endpointRates struct {
	db    store.DB
	limit int64 // a second; 0 is none
	now   func() time.Time

	mu   sync.Mutex
	byID map[string]*lot
}

func newEndpointRates(db store.DB, limit int64, now func() time.Time) *endpointRates {
	return &endpointRates{db: db, limit: limit, now: now}
}

// lot is what a process holds of one endpoint's attempts.
type lot struct {
	lease *semaphore.Weighted // one write at a time

	second int64 // since 1970
	left   int64
	spent  bool      // nothing is left of the second anywhere
	next   time.Time // for the next delivery that has to wait
}

// parts is into how many lots a second's attempts are cut.
const parts = 4

// allow takes one attempt. Where the store does not answer it allows: a bound on what an
// endpoint gets must not keep it from getting anything.
func (r *endpointRates) allow(ctx context.Context, id string) bool {
	if r.limit == 0 {
		return true
	}
	if ok, known := r.take(id, r.now()); known {
		return ok
	}
	r.mu.Lock()
	lease := r.get(id).lease
	r.mu.Unlock()
	if lease.Acquire(ctx, 1) != nil {
		return true // the attempt will find that its time is over
	}
	defer lease.Release(1)
	now := r.now()                           // it may have waited for a slow store
	if ok, known := r.take(id, now); known { // by whoever was before us
		return ok
	}
	n := max(1, r.limit/parts)
	op := store.Add(store.Key{
		Table: store.Deliveries, Partition: "t#" + id, Sort: fmt.Sprint(now.Unix()),
	}, map[string]int64{"n": n}, map[string]int64{"n": r.limit})
	op.Item.Expires = now.Add(time.Minute)
	err := r.db.Write(ctx, op)
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.get(id)
	l.second, l.left, l.spent = now.Unix(), n-1, false
	if errors.Is(err, store.ErrConflict) {
		l.left, l.spent = 0, true
		return false
	}
	return true
}

func (r *endpointRates) get(id string) *lot {
	l := r.byID[id]
	if l == nil {
		if r.byID == nil || len(r.byID) >= maxEndpoint {
			r.byID = map[string]*lot{} // what was held is lost
		}
		l = &lot{lease: semaphore.NewWeighted(1)}
		r.byID[id] = l
	}
	return l
}

// take uses what is held; known is false when the store has to be asked.
func (r *endpointRates) take(id string, now time.Time) (ok, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.get(id)
	switch {
	case l.second != now.Unix():
		return false, false
	case l.left > 0:
		l.left--
		return true, true
	}
	return false, l.spent
}

// delay is how long a delivery that found no room waits: they come again one by one, at the pace of
// the endpoint.
func (r *endpointRates) delay(id string, now time.Time) time.Duration {
	if r.limit == 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.get(id)
	l.next = later(l.next, now).Add(time.Second / time.Duration(r.limit))
	return l.next.Sub(now)
}

// awaited reports whether deliveries wait for room already: a first attempt comes after them.
func (r *endpointRates) awaited(id string, now time.Time) bool {
	if r.limit == 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.get(id).next.After(now)
}
