package quota

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-events/mcpevents/shared/platform/bounded"
)

// Keyed has a token bucket for each key, up to a limited number of keys. It keeps the buckets of keys that are in use. The bucket of a
// dropped key starts full again.
type Keyed[K comparable] struct {
	perSecond rate.Limit
	burst     int

	mu    sync.Mutex // prevents two buckets for a key
	byKey *bounded.Map[K, *rate.Limiter]
}

// NewKeyed returns token buckets for at most bound keys.
func NewKeyed[K comparable](perSecond float64, burst, bound int) *Keyed[K] {
	return &Keyed[K]{perSecond: rate.Limit(perSecond), burst: burst, byKey: bounded.NewMap[K, *rate.Limiter](bound)}
}

// Get returns the bucket of a key.
func (l *Keyed[K]) Get(k K) *rate.Limiter {
	return l.at(k, time.Time{}, float64(l.perSecond), l.burst)
}

// at returns the bucket of a key that has its own rate and burst. It changes an existing bucket that has another rate.
func (l *Keyed[K]) at(k K, now time.Time, perSecond float64, burst int) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	bucket, ok := l.byKey.Get(k)
	if !ok {
		bucket = rate.NewLimiter(rate.Limit(perSecond), burst)
		l.byKey.Put(k, bucket)
	}
	if bucket.Limit() != rate.Limit(perSecond) {
		bucket.SetLimitAt(now, rate.Limit(perSecond))
		bucket.SetBurstAt(now, burst)
	}
	return bucket
}
