package publish

import (
	"math"
	"sync"
	"time"

	"mcpevents/shared/auth"
	"mcpevents/shared/fault"
)

// Rate limits how many events a principal publishes on average. It counts in this
// process only: with several instances the limit is that many times higher at
// most, which protects the queue as well and costs no write per request.
type Rate struct {
	perSecond float64
	burst     float64

	// Two generations bound the principals in memory: when the young one is full it
	// becomes the old one, and who is not seen again until the next change is forgotten.
	mu         sync.Mutex
	young, old map[who]*bucket
}

type who struct{ workspace, id string }

type bucket struct {
	tokens float64
	filled time.Time
}

// maxBuckets bounds a generation.
const maxBuckets = 5_000

// NewRate limits to a number of events per second, with bursts of two seconds' worth
// and at least one full request. 0 or less is no limit: nil.
func NewRate(perSecond float64) *Rate {
	if !(perSecond > 0) {
		return nil
	}
	return &Rate{perSecond: perSecond, burst: max(2*perSecond, MaxEvents), young: map[who]*bucket{}}
}

// RetryAfter is the data of a fault.Exhausted: the limit that is reached, in events per
// second, and when to try again.
type RetryAfter struct {
	Limit   string  `json:"limit"`
	Max     float64 `json:"max"`
	Seconds int     `json:"retryAfterSeconds"`
}

// take counts n events, or refuses them with fault.Exhausted and [RetryAfter].
func (r *Rate) take(p auth.Principal, n int, now time.Time) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.bucket(who{p.Workspace, p.ID}, now)
	b.tokens = min(r.burst, b.tokens+r.perSecond*max(0, now.Sub(b.filled).Seconds()))
	b.filled = now
	if b.tokens >= float64(n) {
		b.tokens -= float64(n)
		return nil
	}
	wait := int(math.Ceil((float64(n) - b.tokens) / r.perSecond))
	return fault.New(fault.Exhausted, "the publish rate of %g events per second is reached", r.perSecond).
		With(RetryAfter{"publishRate", r.perSecond, max(1, wait)})
}

func (r *Rate) bucket(id who, now time.Time) *bucket {
	if b := r.young[id]; b != nil {
		return b
	}
	b := r.old[id]
	if b == nil {
		b = &bucket{tokens: r.burst, filled: now}
	}
	if len(r.young) >= maxBuckets {
		r.young, r.old = map[who]*bucket{}, r.young
	}
	r.young[id] = b
	return b
}
