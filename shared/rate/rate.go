// Package rate bounds how much a principal asks for in a time. Who counts what, and what
// the bound is, is up to those who use it.
package rate

import (
	"math"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/fault"
)

// Rate limits how much of something a principal does on average. It counts in this
// process only: with several instances the limit is that many times higher at
// most, which protects the backend as well and costs no write per request.
type Rate struct {
	name, what string
	perSecond  float64
	principals *Keyed[principal]
}

type principal struct{ workspace, id string }

// maxPrincipals bounds the principals in memory; those that are active stay.
const maxPrincipals = 10_000

// New limits what is counted to a number per second, with bursts. The limit's name and what is
// counted are for the error. 0 or less per second is no limit: nil.
func New(name, what string, perSecond, burst float64) *Rate {
	if !(perSecond > 0) {
		return nil
	}
	return &Rate{name: name, what: what, perSecond: perSecond, principals: NewKeyed[principal](perSecond, int(burst), maxPrincipals)}
}

// RetryAfter is the data of a fault.Exhausted: the limit that is reached, per
// second, and when to try again.
type RetryAfter struct {
	Limit   string  `json:"limit"`
	Max     float64 `json:"max"`
	Seconds int     `json:"retryAfterSeconds"`
}

// Take counts n, or refuses them with fault.Exhausted and [RetryAfter]. Without
// authentication nothing is counted: all callers are the same principal then.
func (r *Rate) Take(p auth.Principal, n int, now time.Time) error {
	if r == nil || p.Anonymous {
		return nil
	}
	l := r.principals.Get(principal{p.Workspace, p.ID})
	if l.AllowN(now, n) {
		return nil
	}
	wait := int(math.Ceil((float64(n) - l.TokensAt(now)) / r.perSecond))
	return fault.New(fault.Exhausted, "the limit %s of %g %s per second is reached", r.name, r.perSecond, r.what).
		With(RetryAfter{r.name, r.perSecond, max(1, wait)})
}
