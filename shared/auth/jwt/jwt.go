// Package jwt authenticates callers with access tokens of OAuth 2.1 authorization servers (--auth jwt). go-jose parses tokens and
// verifies signatures. This package decides which keys are trusted and for how long, and maps tokens to principals. It never issues,
// stores, forwards or logs a token.
package jwt

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
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
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

const maxLeeway = time.Minute

// algorithms are the accepted signature algorithms. All are asymmetric, so "none" and algorithms with a shared secret (HS256 …) are
// refused.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// Options configure an [Authenticator]. Issuers and Audience are required.
type Options struct {
	// Issuers are the authorization servers whose tokens are accepted, written as in the claim iss: https URLs, or http URLs on this machine.
	Issuers []string
	// JWKS are the URLs of the issuers' keys, in the order of Issuers. If it is empty, each issuer's metadata names the URL (RFC 8414,
	// OpenID Connect Discovery 1.0).
	JWKS []string
	// Audience lists the accepted audiences of tokens. The first is the canonical URL of the MCP endpoint (RFC 8707).
	Audience []string
	// PrincipalClaim is the claim that, together with the issuer, identifies the caller. By default it is "sub".
	PrincipalClaim string
	// WorkspaceClaim is the claim that names the caller's workspace. By default all callers are in [auth.DefaultWorkspace].
	WorkspaceClaim string
	// ScopePrefix is the prefix of scopes in tokens. For example, scopes of Amazon Cognito begin with the identifier of a resource server
	// and a slash. Scopes without the prefix are ignored.
	ScopePrefix string
	// Leeway is the allowed difference between the clocks of this server and an issuer, at most [maxLeeway].
	Leeway time.Duration
	// Client, Now and Log may be nil. Log receives refused tokens (debug) and failed fetches of keys.
	Client *http.Client
	Now    func() time.Time
	Log    *slog.Logger
}

// Authenticator authenticates callers with access tokens. It fetches no keys before it receives the first token. It may be used
// concurrently.
type Authenticator struct {
	options  Options
	issuers  map[string]*keySet
	metadata *url.URL // the URL of the metadata of the MCP endpoint, as clients see it
	good     tokens
}

// New returns an authenticator. If an option is invalid, the error is of kind fault.Invalid.
func New(o Options) (*Authenticator, error) {
	o.PrincipalClaim = cmp.Or(o.PrincipalClaim, "sub")
	o.Log = cmp.Or(o.Log, slog.Default())
	o.Now = periodic.Clock(o.Now)
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
	case o.Leeway < 0 || o.Leeway > maxLeeway:
		return invalid("the leeway is %v, which is not between 0s and %v", o.Leeway, maxLeeway)
	case slices.Contains(o.Audience, ""):
		return invalid("--jwt-audience has an empty entry")
	}
	for i, issuer := range o.Issuers {
		if slices.Contains(o.Issuers[:i], issuer) {
			return invalid("--jwt-issuer names %.200q twice", issuer)
		}
		if u, err := parseSecureURL(issuer); err != nil {
			return fault.Wrap(fault.Invalid, err, "--jwt-issuer")
		} else if u.RawQuery != "" {
			return invalid("--jwt-issuer: %.200q has a query", issuer)
		}
	}
	for _, keys := range o.JWKS {
		if _, err := parseSecureURL(keys); err != nil {
			return fault.Wrap(fault.Invalid, err, "--jwt-jwks-url")
		}
	}
	return nil
}

// Authenticate authenticates a request with the token in its Authorization header. Errors are of kind
//
//   - fault.Unauthenticated if there is no token, or if it is invalid,
//   - fault.Forbidden if the token is valid but does not name the workspace that [Options.WorkspaceClaim] requires, and
//   - fault.Unavailable if the token cannot be checked, because the issuer's keys cannot be fetched.
func (a *Authenticator) Authenticate(ctx context.Context, h http.Header) (auth.Principal, error) {
	p, err := a.authenticate(ctx, h)
	return p, auth.WithScopePrefix(err, a.options.ScopePrefix)
}

func (a *Authenticator) authenticate(ctx context.Context, h http.Header) (auth.Principal, error) {
	text, err := auth.Bearer(h)
	if err != nil {
		return auth.Principal{}, err
	}
	if principal, ok := a.good.find(text, a.options.Now()); ok {
		return principal, nil
	}
	c, err := a.verify(ctx, text)
	if err != nil {
		return auth.Principal{}, err
	}
	if reason := a.validate(c); reason != "" {
		return auth.Principal{}, a.refuse(ctx, reason)
	}
	principal, err := a.principalOf(ctx, c)
	if err == nil {
		a.good.keep(text, principal, c, a.options.Now())
	}
	return principal, err
}

// refuse logs why a token is refused, and returns an error that does not tell the caller the reason.
func (a *Authenticator) refuse(ctx context.Context, reason string) error {
	a.options.Log.DebugContext(ctx, "token refused", "reason", reason)
	return auth.ErrInvalidToken
}

// verify parses a token and verifies its signature with its issuer's keys. Before the signature is verified, it only uses the parts of the
// token that select the key. It ignores keys in the token itself (jwk, jku, x5c).
func (a *Authenticator) verify(ctx context.Context, text string) (*claims, error) {
	token, err := josejwt.ParseSigned(text, algorithms)
	if err != nil {
		return nil, a.refuse(ctx, "it is malformed, or its algorithm is not allowed")
	}
	header := token.Headers[0]
	if !isAccessToken(header) {
		return nil, a.refuse(ctx, "its type is not that of an access token")
	}
	var unverified struct {
		Issuer string `json:"iss"`
	}
	if token.UnsafeClaimsWithoutVerification(&unverified) != nil {
		return nil, a.refuse(ctx, "its claims are malformed")
	}
	issuer := a.issuers[unverified.Issuer]
	if issuer == nil {
		return nil, a.refuse(ctx, "its issuer is not configured")
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
		return nil, a.refuse(ctx, "its issuer does not have the key")
	}
	return nil, a.refuse(ctx, "its signature or its claims are wrong")
}

// isAccessToken reports whether the header typ allows a token to be an access token (RFC 9068, section 2.1). Many servers only say JWT or
// leave it out. Identity and logout tokens that have their own type are refused.
func isAccessToken(h jose.Header) bool {
	value, given := h.ExtraHeaders[jose.HeaderType]
	typ, _ := value.(string)
	switch strings.TrimPrefix(strings.ToLower(typ), "application/") {
	case "":
		return !given
	case "jwt", "at+jwt":
		return true
	}
	return false
}

// Verifying a token costs more than most requests that carry one, so verified tokens are cached. An entry is valid for at most a minute.
// It ends earlier if the token expires or the issuer's keys are fetched again, so the cache does not extend the trust in a key that the
// issuer has removed (see [fresh]).

const (
	remember    = time.Minute
	maxVerified = 2048
)

type verified struct {
	principal auth.Principal
	issuer    *keySet
	keys      *issuerKeys // the keys with which the token was verified
	until     time.Time
}

// tokens caches verified tokens, by the SHA-256 of the token.
type tokens struct {
	*bounded.Map[[sha256.Size]byte, verified]
}

func (t tokens) find(text string, now time.Time) (auth.Principal, bool) {
	v, ok := t.Get(sha256.Sum256([]byte(text)))
	// Check both clocks. The monotonic clock may stand still while Lambda has frozen the process, and the wall clock may be set back.
	if !ok || !now.Before(v.until) || !now.Round(0).Before(v.until) {
		return auth.Principal{}, false
	}
	current, _ := v.issuer.Peek()
	return v.principal, v.keys == current
}

func (t tokens) keep(text string, principal auth.Principal, c *claims, now time.Time) {
	until := slices.MinFunc([]time.Time{now.Add(remember), principal.Expires, c.issuer.freshUntil(c.keys)}, time.Time.Compare)
	if now.Before(until) {
		t.Put(sha256.Sum256([]byte(text)), verified{principal, c.issuer, c.keys, until})
	}
}

// claims are the claims of a token whose signature was verified.
type claims struct {
	josejwt.Claims
	all map[string]json.RawMessage

	issuer *keySet
	keys   *issuerKeys
}

// maxExpiry is the end of the year 9999 in seconds since 1970. An exp in milliseconds is later, and would make a token valid forever.
const maxExpiry = 253402300799

// validate returns the reason why this server refuses a token although its signature is valid, or "" if it accepts the token. The issuer
// need not be checked again, because the token was verified with the issuer's key.
func (a *Authenticator) validate(c *claims) string {
	if c.Expiry == nil {
		return "it never expires"
	}
	if *c.Expiry > maxExpiry {
		return "its exp is after the year 9999, so it is probably in milliseconds; exp must be in seconds"
	}
	if use := c.stringClaim("token_use"); use != "" && use != "access" {
		return "it is not an access token"
	}
	if !slices.ContainsFunc(c.audiences(), a.isAudience) {
		return "it is for another audience"
	}
	if err := c.ValidateWithLeeway(josejwt.Expected{Time: a.options.Now()}, a.options.Leeway); err != nil {
		return err.Error()
	}
	return ""
}

// audiences returns the values of the claim aud or, if the token has no such claim, of client_id. Access tokens of Amazon Cognito have no
// audience but name the client that requested them.
func (c *claims) audiences() []string {
	if id := c.stringClaim("client_id"); len(c.Audience) == 0 && id != "" {
		return []string{id}
	}
	return c.Audience
}

// isAudience reports whether an audience of a token is this server.
func (a *Authenticator) isAudience(value string) bool {
	return slices.ContainsFunc(a.options.Audience, func(own string) bool {
		return value == own || sameResource(value, own)
	})
}

// sameResource compares URLs as in MCP's authorization chapter. It ignores the case of scheme and host, and a path that is only a slash.
func sameResource(a, b string) bool {
	x, errX := url.Parse(a)
	y, errY := url.Parse(b)
	if errX != nil || errY != nil || x.Host == "" {
		return false
	}
	return canonicalURL(x) == canonicalURL(y)
}

func canonicalURL(u *url.URL) string {
	c := *u
	c.Scheme, c.Host = strings.ToLower(c.Scheme), strings.ToLower(c.Host)
	if c.Path == "/" {
		c.Path = ""
	}
	return c.String()
}

func (a *Authenticator) principalOf(ctx context.Context, c *claims) (auth.Principal, error) {
	subject := c.stringClaim(a.options.PrincipalClaim)
	if subject == "" {
		return auth.Principal{}, a.refuse(ctx, "it names no principal")
	}
	workspace := auth.DefaultWorkspace
	if name := a.options.WorkspaceClaim; name != "" {
		if workspace = c.stringClaim(name); !auth.ValidWorkspace(workspace) {
			return auth.Principal{}, fault.New(fault.Forbidden, "the token names no workspace")
		}
	}
	return auth.Principal{
		ID:        PrincipalID(c.Issuer, a.options.PrincipalClaim, subject),
		Workspace: workspace,
		Scopes:    c.scopes(a.options.ScopePrefix),
		Claims:    c.listTexts(),
		Expires:   c.Expiry.Time().Add(a.options.Leeway),

		ScopePrefix: a.options.ScopePrefix,
	}, nil
}

// PrincipalID returns the id of the principal to whom tokens with this issuer and claim value belong: "jwt:" and the base64url SHA-256 of
// issuer, claim and value, each preceded by its length. The issuer is included because values are only unique per issuer. The value is
// hashed because it may be of any length and may be personal, such as an email address.
func PrincipalID(issuer, claim, value string) string {
	var b []byte
	for _, part := range []string{issuer, claim, value} {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	sum := sha256.Sum256(b)
	return "jwt:" + base64.RawURLEncoding.EncodeToString(sum[:])
}

// stringClaim returns the value of a string claim, or "".
func (c *claims) stringClaim(name string) string {
	s, _ := jsonrpc.String(c.all[name])
	return s
}

// scopes returns the scopes that begin with the prefix, and removes the prefix. They are in the claim scope (RFC 9068, section
// 2.2.3), or in scp, which some servers use instead. Each claim is an array or a string. In both, only spaces separate scopes
// (RFC 6749, section 3.3).
func (c *claims) scopes(prefix string) []string {
	var scopes []string
	for _, name := range []string{"scope", "scp"} {
		for _, text := range textsOf(c.all[name]) {
			for s := range strings.SplitSeq(text, " ") {
				s, ours := strings.CutPrefix(s, prefix)
				if ours && s != "" && !slices.Contains(scopes, s) {
					scopes = append(scopes, s)
				}
			}
		}
	}
	return scopes
}

// listTexts returns the values of the claims that access rules can use: strings, numbers, and arrays of strings and numbers.
func (c *claims) listTexts() map[string][]string {
	out := make(map[string][]string, len(c.all))
	for name, raw := range c.all {
		if v := textsOf(raw); v != nil {
			out[name] = v
		}
	}
	return out
}

// textsOf returns the text of a string or number, or the texts of an array of them. It ignores other values.
func textsOf(raw json.RawMessage) (out []string) {
	if len(raw) == 0 {
		return nil
	}
	claim := jsonrpc.Value(raw)
	items, ok := claim.([]any)
	if !ok {
		items = []any{claim}
	}
	for _, item := range items {
		switch v := item.(type) {
		case string:
			out = append(out, v)
		case json.Number:
			out = append(out, v.String())
		}
	}
	return out
}
