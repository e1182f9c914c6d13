// Package quota limits what a principal asks for per second ([Rate]) and what it has at the same time ([Held]). Its users choose the
// unit and the limit.
package quota

import (
	"context"
	"math"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Rate limits how much of something a principal does on average. It counts in this
// process only: with several instances the limit is that many times higher at
// most, which protects the backend as well and costs no write per request.
type Rate struct {
	name, what string
	of         Of
	burst      func(perSecond float64) float64
	principals *Keyed[principal]
}

// Of is how much a principal may do per second; 0 or less is no limit.
type Of func(ctx context.Context, p auth.Principal) float64

// Same is the same for all.
func Same(perSecond float64) Of {
	return func(context.Context, auth.Principal) float64 { return perSecond }
}

type principal struct{ workspace, id string }

// maxPrincipals bounds the principals in memory; those that are active stay.
const maxPrincipals = 10_000

// New limits what is counted to a number per second, with bursts. The limit's name and what is
// counted are for the error.
func New(name, what string, of Of, burst func(perSecond float64) float64) *Rate {
	return &Rate{name: name, what: what, of: of, burst: burst, principals: NewKeyed[principal](0, 0, maxPrincipals)}
}

// RetryAfter is the data of a fault.Exhausted: the limit that is reached, per
// second, and when to try again.
type RetryAfter struct {
	fault.Limit
	Seconds int `json:"retryAfterSeconds"`
}

// Exceeded refuses a request because of a limit, and asks the sender to try again in a second: fault.Exhausted with [RetryAfter].
func Exceeded(limit string, most float64, format string, args ...any) error {
	return ExceededFor(limit, most, 1, format, args...)
}

// ExceededFor is [Exceeded] for a sender that has to wait for so many seconds.
func ExceededFor(limit string, most float64, seconds int, format string, args ...any) error {
	return fault.New(fault.Exhausted, format, args...).With(RetryAfter{fault.Limit{Limit: limit, Max: most}, seconds})
}

// Take counts n, or refuses them with fault.Exhausted and [RetryAfter]. Without
// authentication nothing is counted: all callers are the same principal then.
func (r *Rate) Take(ctx context.Context, p auth.Principal, n int, now time.Time) error {
	if r == nil || p.Anonymous {
		return nil
	}
	perSecond := r.of(ctx, p)
	if !(perSecond > 0) {
		return nil
	}
	l := r.principals.at(principal{p.Workspace, p.ID}, now, perSecond, int(r.burst(perSecond)))
	if l.AllowN(now, n) {
		return nil
	}
	wait := int(math.Ceil((float64(n) - l.TokensAt(now)) / perSecond))
	return ExceededFor(r.name, perSecond, max(1, wait), "the limit %s of %g %s per second is reached", r.name, perSecond, r.what)
}
