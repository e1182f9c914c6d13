package jwt

import (
	"crypto/sha256"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
)

// Verifying a token costs more than most requests that carry one. So verified tokens are cached for a minute under their
// SHA-256: never beyond the expiry of the token or of its issuer's keys, and only until these are fetched again. A key that
// an issuer removes is trusted until the next fetch ([fresh]), with or without this cache.

const (
	// remember is how long a verified token is cached.
	remember = time.Minute
	// maxVerified is the largest number of cached tokens.
	maxVerified = 2048
)

// verified is a cached token.
type verified struct {
	who    auth.Principal
	issuer *keySet
	keys   *issuerKeys // the keys with which it was verified
	until  time.Time
}

// tokens has the cached tokens by their SHA-256.
type tokens struct {
	*bounded.Map[[sha256.Size]byte, verified]
}

func (t tokens) find(text string, now time.Time) (auth.Principal, bool) {
	v, ok := t.Get(sha256.Sum256([]byte(text)))
	if !ok || !now.Before(v.until) {
		return auth.Principal{}, false
	}
	current, _ := v.issuer.Peek()
	return v.who, v.keys == current
}

// keep caches a verified token.
func (t tokens) keep(text string, who auth.Principal, c *claims, now time.Time) {
	until := slices.MinFunc([]time.Time{now.Add(remember), who.Expires, c.issuer.freshUntil(c.keys)}, time.Time.Compare)
	if now.Before(until) {
		t.Put(sha256.Sum256([]byte(text)), verified{who, c.issuer, c.keys, until})
	}
}
