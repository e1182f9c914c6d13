package quota

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-events/mcpevents/shared/platform/bounded"
)

// Keyed is a token bucket for each of a bounded number of keys. The buckets of keys that are
// in use stay; one that was forgotten is full again.
type Keyed[K comparable] struct {
	perSecond rate.Limit
	burst     int

	mu    sync.Mutex // a key has one bucket
	byKey *bounded.Map[K, *rate.Limiter]
}

// NewKeyed makes token buckets for at most bound keys.
func NewKeyed[K comparable](perSecond float64, burst, bound int) *Keyed[K] {
	return &Keyed[K]{perSecond: rate.Limit(perSecond), burst: burst, byKey: bounded.NewMap[K, *rate.Limiter](bound)}
}

// Get returns the bucket of a key.
func (l *Keyed[K]) Get(k K) *rate.Limiter {
	return l.at(k, time.Time{}, float64(l.perSecond), l.burst)
}

// at is [Keyed.Get] with a rate and a burst of the key's own, from now on.
func (l *Keyed[K]) at(k K, now time.Time, perSecond float64, burst int) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	bucket, ok := l.byKey.Get(k)
	if !ok {
		bucket = rate.NewLimiter(rate.Limit(perSecond), burst)
		l.byKey.Put(k, bucket)
	}
	if bucket.Limit() != rate.Limit(perSecond) { // it was changed
		bucket.SetLimitAt(now, rate.Limit(perSecond))
		bucket.SetBurstAt(now, burst)
	}
	return bucket
}
