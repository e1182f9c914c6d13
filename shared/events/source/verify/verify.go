// Package verify says who sent a request: it checks the signature or the secret that a
// provider of webhooks puts into each one, before anything else is looked at (SRC-02).
//
// [Settings] choose a scheme: that of a provider, or hmac, which is put together from
// settings. [New] binds it to the secrets, several at once while one is being replaced.
// A scheme only says where in a request its signatures, its time and the signed text
// are; one function compares, in constant time.
//
// It depends on no other packages than event, for times, and fault. Package shared/events/source turns a verified request into an event.
package verify

import (
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Request is what arrived.
type Request struct {
	Header http.Header
	// Body is what may have been signed.
	Body []byte
	// Key is the segment of the path after the source's name, for the scheme none.
	Key string
}

// Reasons why a request is refused. They are constant and say nothing of a secret.
const (
	NoSignature    = "the signature is missing"
	ManySignatures = "there are too many signatures"
	HeaderTwice    = "a header that is needed to verify the request is there twice"
	HeaderMissing  = "a header that is needed to verify the request is missing"
	Malformed      = "no signature is written as the scheme says"
	NoTime         = "the time of the signature is missing, or is no time"
	NoMatch        = "no signature or key matches a secret"
	TooOld         = "the signature is too old"
	TooNew         = "the signature is from the future"
)

// Verifier checks requests by one scheme. It may be used by several goroutines.
type Verifier struct {
	name      string
	checks    []check // one for each secret
	tolerance time.Duration
}

// check verifies a request by one secret.
type check func(Request) (proof, *refusal)

// proof is what a verified request has that no one else can make.
type proof struct {
	// at is when it was signed; zero if its scheme does not sign a time.
	at time.Time
	// signed is a hash of all that was signed; "" if its scheme signs nothing.
	signed string
}

// New binds the scheme that s chooses to secrets; one of them must verify a request.
func New(s Settings, secrets []string) (*Verifier, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	s = s.complete()
	if err := checkSecrets(s.Scheme, secrets); err != nil {
		return nil, err
	}
	v := &Verifier{name: s.Scheme, tolerance: s.Tolerance}
	for i, secret := range secrets {
		c, err := schemes[s.Scheme].bind(s, secret)
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "secret %d of %d", i+1, len(secrets))
		}
		v.checks = append(v.checks, c)
	}
	return v, nil
}

// Verify succeeds if r was sent by someone who has a secret, and not longer before or after now
// than is tolerated. Else it is a fault of kind Unauthenticated with one of the reasons.
//
// Signed is the same for all requests that can be made of one that was recorded: a hash of what was signed, whatever the
// secret. It is "" if the scheme signs nothing.
//
// Every secret is tried, whichever of them fits, so that the time this takes does not show which.
func (v *Verifier) Verify(r Request, now time.Time) (signed string, err error) {
	var refused *refusal
	verified := false
	for _, c := range v.checks {
		p, why := c(r)
		if why == nil {
			why = v.timely(p.at, now)
		}
		if why == nil {
			verified, signed = true, p.signed
		} else if refused == nil || why.rank > refused.rank {
			refused = why
		}
	}
	if verified {
		return signed, nil
	}
	return "", fault.New(fault.Unauthenticated, "%s", refused.reason)
}

// timely reports whether a time, which is zero if none is signed, is within the tolerance.
func (v *Verifier) timely(at, now time.Time) *refusal {
	switch {
	case at.IsZero():
		return nil
	case at.Before(now.Add(-v.tolerance)):
		return &refusal{TooOld, rankTime}
	case at.After(now.Add(v.tolerance)): // not by a difference: that of a far time does not fit into a Duration
		return &refusal{TooNew, rankTime}
	}
	return nil
}

// refusal is why one secret does not verify a request. Of several the one of the highest rank is given: secrets may
// be of different forms, and what came closest says most.
type refusal struct {
	reason string
	rank   int
}

const (
	rankForm = iota
	rankMatch
	rankTime
)

func refuse(reason string) *refusal {
	if reason == NoMatch {
		return &refusal{reason, rankMatch}
	}
	return &refusal{reason, rankForm}
}

// String is the scheme, so that no secret gets into a log with a Verifier.
func (v *Verifier) String() string { return "verify by " + v.name }

// GoString is the same for %#v.
func (v *Verifier) GoString() string { return v.String() }
