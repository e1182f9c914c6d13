// Package rate bounds how much a principal asks for in a time. Who counts what, and what
// the bound is, is said by those who use it.
package rate

import (
	"math"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/fault"
)

// Rate limits how much of something a principal does on average. It counts in this
// process only: with several instances the limit is that many times higher at
// most, which protects what is behind as well and costs no write per request.
type Rate struct {
	name, what string
	perSecond  float64
	burst      float64

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

// New limits what is counted to a number per second, with bursts. The limit's name and what is
// counted are for the error. 0 or less per second is no limit: nil.
func New(name, what string, perSecond, burst float64) *Rate {
	if !(perSecond > 0) {
		return nil
	}
	return &Rate{name: name, what: what, perSecond: perSecond, burst: burst, young: map[who]*bucket{}}
}

// RetryAfter is the data of a fault.Exhausted: the limit that is reached, per
// second, and when to try again.
type RetryAfter struct {
	Limit   string  `json:"limit"`
	Max     float64 `json:"max"`
	Seconds int     `json:"retryAfterSeconds"`
}

// Take counts n, or refuses them with fault.Exhausted and [RetryAfter]. Without
// authentication nothing is counted: there is nobody to tell apart then.
func (r *Rate) Take(p auth.Principal, n int, now time.Time) error {
	if r == nil || p.Anonymous {
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
	return fault.New(fault.Exhausted, "the limit %s of %g %s per second is reached", r.name, r.perSecond, r.what).
		With(RetryAfter{r.name, r.perSecond, max(1, wait)})
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
