// Package jwt authenticates callers by the access tokens of OAuth 2.1 authorization
// servers (--auth jwt): this server is the resource server of MCP's authorization
// chapter.
//
//	Authorization: Bearer ─▶ [Authenticator] ─ signature ─▶ keySet ─ JWKS ─▶ issuer
//	                               └─ claims ─▶ auth.Principal
//
// go-jose reads tokens and verifies signatures; which keys are trusted, for how
// long, and who a token's holder is here, is said in this package. No token is
// issued, kept, passed on or logged. Package catalog has the access rules of events.
package jwt

import (
	"cmp"
	"context"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	josejwt "github.com/go-jose/go-jose/v4/jwt"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// MaxLeeway is the most that a clock here and one of an issuer may differ.
const MaxLeeway = time.Minute

// Algorithms lists the signature algorithms that can be allowed. All are
// asymmetric: "none" and those with a shared secret (HS256 …) cannot be configured.
func Algorithms() []string {
	return []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
}

// Options configure an [Authenticator]. Issuers and Audience are required.
type Options struct {
	// Issuers are the authorization servers whose tokens are accepted: https URLs,
	// spelled as in the claim iss. On this machine they may be http.
	Issuers []string
	// JWKS are the URLs of their keys, in the same order; empty finds them by the
	// metadata of each issuer (RFC 8414, OpenID Connect Discovery 1.0).
	JWKS []string
	// Audience is what a token must be for. The first is the canonical URL of the
	// MCP endpoint (RFC 8707), which the resource metadata names; a token may name any.
	Audience []string
	// Algorithms that tokens may be signed with; see [Algorithms].
	Algorithms []string
	// PrincipalClaim says who the caller is, together with the issuer; empty is "sub".
	PrincipalClaim string
	// WorkspaceClaim names the caller's workspace; empty puts everybody into
	// [auth.DefaultWorkspace].
	WorkspaceClaim string
	// ScopePrefix is in front of the names of scopes, as in tokens of Amazon Cognito, whose scopes begin with the identifier
	// of a resource server and a slash. Scopes without it grant nothing. May be empty.
	ScopePrefix string
	// Leeway is by how much clocks may differ, at most [MaxLeeway].
	Leeway time.Duration
	// Client fetches keys; nil is one of the package's own.
	Client *http.Client
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Log gets why tokens are refused (debug) and keys could not be fetched; nil is slog.Default.
	Log *slog.Logger
}

// Authenticator authenticates by access tokens. It makes no request before it sees
// the first token, and is safe for concurrent use.
type Authenticator struct {
	options    Options
	algorithms []jose.SignatureAlgorithm
	issuers    map[string]*keySet
	metadata   *url.URL // of the MCP endpoint as the outside sees it
	good       tokens
}

// New checks the options; an error is of kind fault.Invalid.
func New(o Options) (*Authenticator, error) {
	o.PrincipalClaim = cmp.Or(o.PrincipalClaim, "sub")
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Client == nil {
		o.Client = newClient()
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	metadata, err := metadataURL(o.Audience[0])
	if err != nil {
		return nil, err
	}
	a := &Authenticator{
		options: o, issuers: map[string]*keySet{}, metadata: metadata,
		good: tokens{bounded.NewMap[[sha256.Size]byte, verified](maxVerified)},
	}
	for _, name := range o.Algorithms {
		a.algorithms = append(a.algorithms, jose.SignatureAlgorithm(name))
	}
	for i, issuer := range o.Issuers {
		url := ""
		if len(o.JWKS) > 0 {
			url = o.JWKS[i]
		}
		a.issuers[issuer] = newKeySet(issuer, url, fetcher{o.Client}, &o)
	}
	return a, nil
}

func (o *Options) check() error {
	invalid := func(format string, args ...any) error { return fault.New(fault.Invalid, format, args...) }
	switch {
	case len(o.Issuers) == 0:
		return invalid("--auth jwt needs --jwt-issuer, the URL of the authorization server")
	case len(o.Audience) == 0:
		return invalid("--auth jwt needs --jwt-audience, the URL of the MCP endpoint as clients see it")
	case len(o.JWKS) > 0 && len(o.JWKS) != len(o.Issuers):
		return invalid("--jwt-jwks-url has %d entries for %d issuers", len(o.JWKS), len(o.Issuers))
	case len(o.Algorithms) == 0:
		return invalid("--jwt-algorithms is empty")
	case o.Leeway < 0 || o.Leeway > MaxLeeway:
		return invalid("the leeway is %v, which is not between 0s and %v", o.Leeway, MaxLeeway)
	case slices.Contains(o.Audience, ""):
		return invalid("--jwt-audience has an empty entry")
	}
	for i, issuer := range o.Issuers {
		if slices.Contains(o.Issuers[:i], issuer) {
			return invalid("--jwt-issuer names %.200q twice", issuer)
		}
		if u, err := secureURL(issuer); err != nil {
			return fault.Wrap(fault.Invalid, err, "--jwt-issuer")
		} else if u.RawQuery != "" {
			return invalid("--jwt-issuer: %.200q has a query", issuer)
		}
	}
	for _, keys := range o.JWKS {
		if _, err := secureURL(keys); err != nil {
			return fault.Wrap(fault.Invalid, err, "--jwt-jwks-url")
		}
	}
	for _, name := range o.Algorithms {
		if !slices.Contains(Algorithms(), name) {
			return invalid("--jwt-algorithms has %.40q; it can have %s", name, strings.Join(Algorithms(), ", "))
		}
	}
	return nil
}

// Authenticate takes the token of the Authorization header. Errors are of kind
//
//   - fault.Unauthenticated: there is no token, or it is not good
//   - fault.Forbidden: it is good and names no workspace, where it has to
//   - fault.Unavailable: whether it is good is not known, for the issuer's keys
//     cannot be fetched
func (a *Authenticator) Authenticate(ctx context.Context, h http.Header) (auth.Principal, error) {
	text, err := auth.Bearer(h)
	if err != nil {
		return auth.Principal{}, err
	}
	if who, ok := a.good.find(text, a.options.Now()); ok {
		return who, nil
	}
	c, err := a.verify(ctx, text)
	if err != nil {
		return auth.Principal{}, err
	}
	if reason := a.validate(c); reason != "" {
		return auth.Principal{}, a.refused(ctx, reason)
	}
	who, err := a.principal(ctx, c)
	if err == nil {
		a.good.keep(text, who, c, a.options.Now())
	}
	return who, err
}

// refused is one error for every bad token; the reason is for the log alone.
func (a *Authenticator) refused(ctx context.Context, reason string) error {
	a.options.Log.DebugContext(ctx, "token refused", "reason", reason)
	return auth.ErrInvalidToken
}

// verify reads a token, finds the keys of its issuer, and verifies the signature.
// Nothing of a token is believed before, but what selects a key. A key that the
// token brings itself (jwk, jku, x5c) is never looked at.
func (a *Authenticator) verify(ctx context.Context, text string) (*claims, error) {
	token, err := josejwt.ParseSigned(text, a.algorithms)
	if err != nil {
		return nil, a.refused(ctx, "it is malformed, or its algorithm is not allowed")
	}
	header := token.Headers[0]
	if !accessToken(header) {
		return nil, a.refused(ctx, "its type is not that of an access token")
	}
	var unverified struct {
		Issuer string `json:"iss"`
	}
	if token.UnsafeClaimsWithoutVerification(&unverified) != nil {
		return nil, a.refused(ctx, "its claims are malformed")
	}
	issuer := a.issuers[unverified.Issuer]
	if issuer == nil {
		return nil, a.refused(ctx, "its issuer is not configured")
	}
	keys, fetched, err := issuer.find(ctx, header.KeyID, jose.SignatureAlgorithm(header.Algorithm))
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		c := &claims{issuer: issuer, keys: fetched}
		if token.Claims(key.Key, &c.Claims, &c.all) == nil {
			return c, nil
		}
	}
	if len(keys) == 0 {
		return nil, a.refused(ctx, "its issuer has no such key")
	}
	return nil, a.refused(ctx, "its signature or its claims are wrong")
}

// accessToken decides by the header typ (RFC 9068, section 2.1). Many servers say just JWT,
// or nothing; an identity or logout token that says what it is, is none.
func accessToken(h jose.Header) bool {
	value, there := h.ExtraHeaders[jose.HeaderType]
	typ, _ := value.(string)
	switch strings.TrimPrefix(strings.ToLower(typ), "application/") {
	case "":
		return !there
	case "jwt", "at+jwt":
		return true
	}
	return false
}
