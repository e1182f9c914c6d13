package lane

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// endpointRates limits the attempts per second and endpoint across all processes. A write per attempt would be too
// expensive, so each process leases several tokens of the current second with one conditional write. Unused tokens expire
// with the second. The limit therefore holds exactly, but up to one lease per process may be wasted. We cannot use
// x/time/rate because it limits a single process.
//
// A delivery without a token waits for its turn in a later second. Turns are leased in the same way as tokens, so that the
// waiting deliveries of all processes arrive at the rate that the endpoint can have. A turn is not a token: an attempt needs
// one when its turn comes.
type endpointRates struct {
	db    store.DB
	limit int64 // per second; 0 is no limit
	now   func() time.Time

	mu   sync.Mutex
	byID map[string]*tokenLease
}

// tokenLease is a process's share of one endpoint's attempts.
type tokenLease struct {
	lease *semaphore.Weighted // one write at a time

	second int64 // since 1970
	left   int64
	spent  bool // no process has tokens left for the second

	turn      int64 // the last second in which deliveries have turns
	turnsLeft int64 // of it, in this process
}

const (
	// maxSeek bounds how many seconds are tried for a turn, and seekStep how many seconds are skipped after a full one. So
	// the search reaches an hour further than the last turn of this process.
	maxSeek  = 70
	seekStep = 60
)

// leasesPerSecond is the number of leases into which a second's attempts are divided.
const leasesPerSecond = 4

// allow takes a token for one attempt. If the store does not answer, it allows the attempt, because a limit that protects an
// endpoint must not cut it off.
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
	err := r.count(ctx, id, fmt.Sprint(now.Unix()), now, n)
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

// take uses a token of the lease. Known is false if the store has to be asked.
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

// count adds n to the tokens or turns of a second. It returns [store.ErrConflict] if the second has no n left.
func (r *endpointRates) count(ctx context.Context, id, sort string, second time.Time, n int64) error {
	op := store.Add(store.Key{Table: store.Deliveries, Partition: "t#" + id, Sort: sort}, map[string]int64{"n": n}, map[string]int64{"n": r.limit})
	op.Item.Expires = second.Add(time.Minute)
	return r.db.Write(ctx, op)
}

// reserve returns how long a delivery waits for its turn.
func (r *endpointRates) reserve(ctx context.Context, id string, now time.Time) time.Duration {
	if r.limit == 0 {
		return 0
	}
	r.mu.Lock()
	lease := r.get(id).lease
	r.mu.Unlock()
	if lease.Acquire(ctx, 1) != nil {
		return time.Second // the write of the delivery will fail, too
	}
	defer lease.Release(1)
	r.mu.Lock()
	t := r.get(id)
	second := max(t.turn, now.Unix()+1)
	if t.turn == second && t.turnsLeft > 0 {
		t.turnsLeft--
		r.mu.Unlock()
		return time.Unix(second, 0).Sub(now)
	}
	r.mu.Unlock()
	n := max(1, r.limit/leasesPerSecond)
	for step, tries := int64(1), 0; tries < maxSeek; tries++ {
		// If the store does not answer, the process spaces its own deliveries.
		if err := r.count(ctx, id, fmt.Sprintf("turn#%d", second), time.Unix(second, 0), n); !errors.Is(err, store.ErrConflict) {
			break
		}
		second += step
		step = min(2*step, seekStep)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t = r.get(id)
	t.turn, t.turnsLeft = second, n-1
	return time.Unix(second, 0).Sub(now)
}

// hasWaiting reports whether earlier deliveries wait for their turns. A first attempt must not overtake them.
func (r *endpointRates) hasWaiting(id string, now time.Time) bool {
	if r.limit == 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.get(id).turn > now.Unix()
}
