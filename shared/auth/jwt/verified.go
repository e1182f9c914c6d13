package jwt

import (
	"crypto/sha256"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
)

// Verifying a token costs more than most requests that it comes with. So what was
// found of a good one is kept for a moment, under the token's hash: never longer
// than the token and the keys of its issuer are good, and not over another fetch of these.
//
// The price: a key that an issuer takes away without our fetching the keys again is
// trusted as long as keys are ([fresh]), with and without this.

const (
	// remember is how long what was found of a token is used.
	remember = time.Minute
	// maxVerified bounds the tokens that are remembered.
	maxVerified = 2048
)

// verified is a good token.
type verified struct {
	who    auth.Principal
	issuer *keySet
	keys   int64     // the generation that it was verified by, or one before
	until  time.Time // is not used from then on
}

// tokens are good ones, by their SHA-256.
type tokens struct {
	*bounded.Map[[sha256.Size]byte, verified]
}

func (t tokens) find(text string, now time.Time) (auth.Principal, bool) {
	v, ok := t.Get(sha256.Sum256([]byte(text)))
	if !ok || !now.Before(v.until) || v.keys != v.issuer.generation.Load() {
		return auth.Principal{}, false
	}
	return v.who, true
}

// keep remembers a token that was verified.
func (t tokens) keep(text string, who auth.Principal, c *claims, now time.Time) {
	until := slices.MinFunc([]time.Time{now.Add(remember), who.Expires, c.issuer.freshUntil()}, time.Time.Compare)
	if now.Before(until) {
		t.Put(sha256.Sum256([]byte(text)), verified{who, c.issuer, c.generation, until})
	}
}
