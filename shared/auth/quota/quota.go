// Package quota limits how much a principal may do per second ([Rate]), how many things it may hold concurrently ([Concurrency]), and how
// much memory it may use ([Share]).
package quota

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Rate limits how much a principal may do per second, on average. It counts in this process only, so it needs no write per request. With
// three instances of the server a principal may do up to three times as much.
type Rate struct {
	name, what string
	limitOf    LimitFunc
	burst      func(perSecond float64) float64
	principals *Buckets[principal]
}

// LimitFunc returns a principal's limit. 0 or less means no limit.
type LimitFunc func(ctx context.Context, p auth.Principal) float64

// FixedLimit returns a LimitFunc with the same limit for all principals.
func FixedLimit(perSecond float64) LimitFunc {
	return func(context.Context, auth.Principal) float64 { return perSecond }
}

type principal struct{ workspace, id string }

// maxPrincipals is the number of principals that a Rate keeps in memory.
const maxPrincipals = 10_000

// NewRate returns a Rate. The function limitOf returns a principal's limit per second, and burst returns how many things a
// principal with this limit may do in one instant. The other two parameters are for error messages: name is the name of the limit
// (for example "publishRate"), and the parameter what is the plural of the counted things (for example "events").
func NewRate(name, what string, limitOf LimitFunc, burst func(perSecond float64) float64) *Rate {
	return &Rate{name: name, what: what, limitOf: limitOf, burst: burst, principals: NewBuckets[principal](0, 0, maxPrincipals)}
}

// RetryAfter is the data of an error of kind fault.Exhausted: the reached limit, and the seconds after which the caller may retry.
type RetryAfter struct {
	fault.Limit
	Seconds int `json:"retryAfterSeconds"`
}

// Exceeded returns an error of kind fault.Exhausted. The parameter limit is the name of the reached limit, and most is its value.
// The error's [RetryAfter] is one second.
func Exceeded(limit string, most float64, format string, args ...any) error {
	return ExceededFor(limit, most, 1, format, args...)
}

// ExceededFor returns an error like [Exceeded], with the given number of seconds in its [RetryAfter].
func ExceededFor(limit string, most float64, seconds int, format string, args ...any) error {
	return fault.New(fault.Exhausted, format, args...).With(RetryAfter{fault.Limit{Limit: limit, Max: most}, seconds})
}

// SetRetryAfter sets the header Retry-After of an answer with status 429 or 503. If the error has no [RetryAfter], the header is 5 s for a
// reached limit (429), and 1 s for a failure of the server (503), which is usually over sooner.
func SetRetryAfter(h http.Header, status int, err error) {
	after, ok := fault.DataOf(err).(RetryAfter)
	switch {
	case ok:
	case status == http.StatusTooManyRequests:
		after.Seconds = 5
	case status == http.StatusServiceUnavailable:
		after.Seconds = 1
	default:
		return
	}
	h.Set("Retry-After", strconv.Itoa(after.Seconds))
}

// Take counts n things. If they exceed the principal's limit, it counts none of them and returns an error of kind fault.Exhausted with
// [RetryAfter]. It does not limit the anonymous principal, because all callers without credentials share this principal.
func (r *Rate) Take(ctx context.Context, p auth.Principal, n int, now time.Time) error {
	if r == nil || p.Anonymous {
		return nil
	}
	perSecond := r.limitOf(ctx, p)
	if !(perSecond > 0) {
		return nil
	}
	now = now.Round(0) // because the monotonic clock may stand still while Lambda has frozen the process
	l := r.principals.getWith(principal{p.Workspace, p.ID}, now, perSecond, int(r.burst(perSecond)))
	if l.AllowN(now, n) {
		return nil
	}
	wait := int(math.Ceil((float64(n) - l.TokensAt(now)) / perSecond))
	return ExceededFor(r.name, perSecond, max(1, wait), "the limit %s of %g %s per second is reached", r.name, perSecond, r.what)
}

// The names of the quotas in errors, metrics and the configuration.
const (
	Subscriptions    = "subscriptions"
	Streams          = "streams"
	PublishRate      = "publishRate"
	RegistrationRate = "registrationRate"

	// The following quotas are only in the section "quotas" of the configuration.

	Calls            = "calls"
	Sessions         = "sessions"
	ConversationRate = "conversationRate"
	// Verifications limits how many challenges per minute are sent to webhook endpoints for a principal.
	Verifications = "verifications"
	// WorkspaceSubscriptions limits the subscriptions of a workspace. By default there is no limit.
	WorkspaceSubscriptions = "workspaceSubscriptions"
)

// The default limits of the quotas that have no command-line flag.
const (
	DefaultCalls            = 100
	DefaultSessions         = 1000
	DefaultConversationRate = 10
	DefaultVerifications    = 200
)

// Names returns the names of all quotas in a stable order.
func Names() []string {
	return []string{Subscriptions, Streams, Calls, Sessions, PublishRate, RegistrationRate, ConversationRate, Verifications, WorkspaceSubscriptions}
}

// Buckets are token buckets, one for each key. If there are too many keys, the buckets that have been unused the longest are dropped. If
// such a key is used again, it gets a new, full bucket.
type Buckets[K comparable] struct {
	perSecond rate.Limit
	burst     int

	mu    sync.Mutex // keeps two callers from creating two buckets for a key
	byKey *bounded.Map[K, *rate.Limiter]
}

// NewBuckets returns Buckets for at most maxKeys keys. Each bucket has room for burst tokens and gets perSecond new tokens per
// second.
func NewBuckets[K comparable](perSecond float64, burst, maxKeys int) *Buckets[K] {
	return &Buckets[K]{perSecond: rate.Limit(perSecond), burst: burst, byKey: bounded.NewMap[K, *rate.Limiter](maxKeys)}
}

// Get returns the bucket of a key.
func (b *Buckets[K]) Get(k K) *rate.Limiter {
	return b.getWith(k, time.Time{}, float64(b.perSecond), b.burst)
}

// getWith returns the bucket of a key, and changes its rate and burst if necessary.
func (b *Buckets[K]) getWith(k K, now time.Time, perSecond float64, burst int) *rate.Limiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	bucket, ok := b.byKey.Get(k)
	if !ok {
		bucket = rate.NewLimiter(rate.Limit(perSecond), burst)
		b.byKey.Put(k, bucket)
	}
	if bucket.Limit() != rate.Limit(perSecond) {
		bucket.SetLimitAt(now, rate.Limit(perSecond))
		bucket.SetBurstAt(now, burst)
	}
	return bucket
}

// holdings counts the things or bytes that each principal holds.
type holdings struct {
	mu          sync.Mutex
	byPrincipal map[principal]int
	sum         int
}

// add counts n things or bytes for a principal until release is called, which must happen only once. The caller of add holds h.mu,
// but the caller of release must not.
func (h *holdings) add(key principal, n int) (release func()) {
	if h.byPrincipal == nil {
		h.byPrincipal = map[principal]int{}
	}
	h.byPrincipal[key] += n
	h.sum += n
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.sum -= n
		if h.byPrincipal[key] -= n; h.byPrincipal[key] == 0 {
			delete(h.byPrincipal, key)
		}
	}
}

// Concurrency limits how many things a principal may hold at the same time, such as open calls, in this process.
type Concurrency struct {
	name, what string
	limitOf    LimitFunc
	total      int
	held       holdings
}

// NewConcurrency returns a Concurrency. The function limitOf returns the limit of a principal, and the parameter total is the limit of
// all principals together. The other two parameters are for error messages: name is the name of the limit, and the parameter what is the
// plural of the counted things (for example "calls").
func NewConcurrency(name, what string, limitOf LimitFunc, total int) *Concurrency {
	return &Concurrency{name: name, what: what, limitOf: limitOf, total: total}
}

// Take counts one thing until release is called, which must happen exactly once. If a limit is reached, the error is of kind
// fault.Exhausted with [RetryAfter]. All callers without credentials share the anonymous principal, so it has no limit of its own. Only the
// limit of all principals together applies to it.
func (c *Concurrency) Take(ctx context.Context, p auth.Principal) (release func(), err error) {
	if c == nil {
		return func() {}, nil
	}
	limit := c.total
	if own := int(c.limitOf(ctx, p)); own > 0 && !p.Anonymous {
		limit = min(limit, own)
	}
	key := principal{p.Workspace, p.ID}
	c.held.mu.Lock()
	defer c.held.mu.Unlock()
	switch {
	case c.held.byPrincipal[key] >= limit:
	case c.held.sum >= c.total:
		limit = c.total
	default:
		return c.held.add(key, 1), nil
	}
	return nil, Exceeded(c.name, float64(limit), "the limit %s of %d %s at the same time is reached", c.name, limit, c.what)
}

// Share divides memory between principals. After each reservation, the principal may hold at most as much memory as is still free. For
// example, with a total of 60 MiB, a single principal can hold 30 MiB, and then a second one can hold 15 MiB. Share counts in this
// process only.
type Share struct {
	name, what string
	total      int
	held       holdings
}

// NewShare returns a Share that divides total bytes. The other two parameters are for error messages: name is the name of the limit, and
// what describes the bytes, for example "answers that clients have not read".
func NewShare(name, what string, total int) *Share {
	return &Share{name: name, what: what, total: total}
}

// Take counts bytes until release is called, which must happen exactly once. If the limit is reached, the error is of kind
// fault.Exhausted with [RetryAfter].
func (s *Share) Take(p auth.Principal, bytes int) (release func(), err error) {
	key := principal{p.Workspace, p.ID}
	s.held.mu.Lock()
	defer s.held.mu.Unlock()
	if s.held.byPrincipal[key]+bytes > s.total-s.held.sum-bytes {
		return nil, Exceeded(s.name, float64(s.total), "the limit %s of %d bytes of %s is reached", s.name, s.total, s.what)
	}
	return s.held.add(key, bytes), nil
}
