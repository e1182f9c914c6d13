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
// together, without a write per attempt: a process leases several of a second's tokens
// by one conditional write, and those that it does not use are lost. So the bound holds
// exactly, and up to one lease per process may go unused. A limiter of x/time/rate knows one
// process only.
type endpointRates struct {
	db    store.DB
	limit int64 // a second; 0 is none
	now   func() time.Time

	mu   sync.Mutex
	byID map[string]*tokenLease
}

func newEndpointRates(db store.DB, limit int64, now func() time.Time) *endpointRates {
	return &endpointRates{db: db, limit: limit, now: now}
}

// tokenLease is a process's share of one endpoint's attempts.
type tokenLease struct {
	lease *semaphore.Weighted // one write at a time

	second int64 // since 1970
	left   int64
	spent  bool      // nothing is left of the second anywhere
	next   time.Time // for the next delivery that has to wait
}

// leasesPerSecond is into how many leases a second's attempts are cut.
const leasesPerSecond = 4

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
	if ok, known := r.take(id, now); known { // another attempt was first
		return ok
	}
	n := max(1, r.limit/leasesPerSecond)
	op := store.Add(store.Key{
		Table: store.Deliveries, Partition: "t#" + id, Sort: fmt.Sprint(now.Unix()),
	}, map[string]int64{"n": n}, map[string]int64{"n": r.limit})
	op.Item.Expires = now.Add(time.Minute)
	err := r.db.Write(ctx, op)
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.get(id)
	t.second, t.left, t.spent = now.Unix(), n-1, false
	if errors.Is(err, store.ErrConflict) {
		t.left, t.spent = 0, true
		return false
	}
	return true
}

func (r *endpointRates) get(id string) *tokenLease {
	t := r.byID[id]
	if t == nil {
		if r.byID == nil || len(r.byID) >= maxEndpoint {
			r.byID = map[string]*tokenLease{} // the leases are lost
		}
		t = &tokenLease{lease: semaphore.NewWeighted(1)}
		r.byID[id] = t
	}
	return t
}

// take uses a token of the lease; known is false when the store has to be asked.
func (r *endpointRates) take(id string, now time.Time) (ok, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.get(id)
	switch {
	case t.second != now.Unix():
		return false, false
	case t.left > 0:
		t.left--
		return true, true
	}
	return false, t.spent
}

// delay is how long a delivery over the rate waits: they are redelivered one by one, at the
// endpoint's rate.
func (r *endpointRates) delay(id string, now time.Time) time.Duration {
	if r.limit == 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.get(id)
	t.next = later(t.next, now).Add(time.Second / time.Duration(r.limit))
	return t.next.Sub(now)
}

// awaited reports whether earlier deliveries wait for the rate: a first attempt comes after them.
func (r *endpointRates) awaited(id string, now time.Time) bool {
	if r.limit == 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.get(id).next.After(now)
}
