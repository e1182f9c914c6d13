package backends

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
	"golang.org/x/sync/singleflight"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
)

// A backend with [api.Exchange] gets a token of its own for each caller. The authorization server issues it in exchange for the caller's
// token (RFC 8693), which therefore never leaves for the backend. The caller's token was checked before, so an exchange only fails if the
// authorization server is stricter than we are, or if it is down.

const (
	grantExchange = "urn:ietf:params:oauth:grant-type:token-exchange"
	accessToken   = "urn:ietf:params:oauth:token-type:access_token"

	// maxExchanged limits the cached outcomes per backend, and maxToken the size of one token in bytes.
	maxExchanged = 1024
	maxToken     = 16 << 10
	// expiryMargin is how long before its end a token is no longer used, because the request takes time and clocks differ.
	expiryMargin = 10 * time.Second
	// unstatedLife is how long a token is used if the authorization server does not say how long it is valid.
	unstatedLife = time.Minute
	// A refusal, an unusable token or a slow answer concerns one caller, who is refused without another request for refusedFor. A failure
	// within failedFor concerns all callers, who then get errors without a request for failedFor.
	refusedFor, failedFor = 10 * time.Second, 2 * time.Second
)

// subject is the hash of a caller's token.
type subject [sha256.Size]byte

// exchanged is the outcome of an exchange: the Authorization header for the backend, or an error.
type exchanged struct {
	header string
	err    error
	until  time.Time
	forAll bool // the error concerns all callers
}

// exchanges has the recent outcomes of a backend's exchanges.
type exchanges struct {
	asking singleflight.Group
	kept   *bounded.Map[subject, exchanged]
	failed atomic.Pointer[exchanged] // the last failure of the authorization server
}

// TokenError is the error of a request that was not sent because its caller has no token for the backend. It is a fault with a text for
// the caller.
type TokenError struct {
	public *fault.Error
	cause  error
}

func (e *TokenError) Error() string {
	if e.cause == nil {
		return e.public.Message
	}
	return e.public.Message + ": " + e.cause.Error()
}

// Unwrap returns the fault before the cause, so that the fault's kind and text count.
func (e *TokenError) Unwrap() []error { return []error{e.public, e.cause} }

func (b *Backend) noToken(kind fault.Kind, cause error, text string) *TokenError {
	return &TokenError{public: fault.New(kind, "%s", fmt.Sprintf(text, b.Name)), cause: cause}
}

// exchangeToken returns the Authorization header for a request to the backend on behalf of the caller with the given Authorization header.
// The error is a [TokenError].
func (b *Backend) exchangeToken(ctx context.Context, caller string) (string, error) {
	token, expires, ok := readToken(caller)
	now := time.Now()
	switch {
	case !ok: // for example an API key, which must not be sent to the authorization server
		return "", b.noToken(fault.Forbidden, nil, "backend %s is only for callers with a token of an authorization server")
	case !now.Before(expires):
		return "", b.noToken(fault.Unauthenticated, nil, "the token has expired, and backend %s needs a valid one")
	}
	key := subject(sha256.Sum256([]byte(token)))
	if have, ok := b.tokens.kept.Get(key); ok && now.Before(have.until) {
		return have.header, have.err
	}
	if failed := b.tokens.failed.Load(); failed != nil && now.Before(failed.until) {
		return "", failed.err
	}
	// Concurrent calls of a caller share one request, and each stops waiting when its own context ends.
	asked := b.tokens.asking.DoChan(string(key[:]), func() (any, error) {
		got := b.askExchange(token)
		if got.forAll {
			b.tokens.failed.Store(&got)
		} else {
			b.tokens.kept.Put(key, got)
		}
		return got, nil
	})
	select {
	case r := <-asked:
		got := r.Val.(exchanged)
		return got.header, got.err
	case <-ctx.Done():
		return "", b.noToken(fault.Unavailable, ctx.Err(), "the authorization server of backend %s did not answer in time")
	}
}

// readToken returns the token in a caller's Authorization header and its expiry. It reports false for anything but a JWT. The token's
// signature was checked when the caller was authenticated.
func readToken(caller string) (token string, expires time.Time, ok bool) {
	scheme, token, _ := strings.Cut(caller, " ")
	token = strings.TrimSpace(token)
	parts := strings.Split(token, ".")
	if !strings.EqualFold(scheme, "Bearer") || len(parts) != 3 {
		return "", time.Time{}, false
	}
	payload, err := opaque.Decode(parts[1])
	var claims struct{ Exp float64 }
	if err != nil || json.Unmarshal(payload, &claims) != nil || claims.Exp <= 0 {
		return "", time.Time{}, false
	}
	return token, time.Unix(int64(claims.Exp), 0), true
}

// askExchange exchanges a token at the authorization server.
func (b *Backend) askExchange(token string) exchanged {
	began := time.Now()
	got, err := b.requestExchange(token)
	now := time.Now()
	took := now.Sub(began)
	ofCaller := err == nil || tooLarge(err) || took >= failedFor
	if err == nil {
		err = checkExchanged(got, token)
	}
	if err == nil {
		until := got.Expiry.Add(-expiryMargin)
		if got.Expiry.IsZero() {
			until = now.Add(unstatedLife)
		}
		return exchanged{header: "Bearer " + got.AccessToken, until: until}
	}
	e := b.judgeExchange(err)
	pause, forAll := refusedFor, fault.Is(e, fault.Unavailable) && !ofCaller
	if forAll {
		pause = failedFor
	}
	b.logExchange.Do(func() {
		b.options.Log.Warn("token exchange failed", slog.String("backend", b.Name), slog.Any("error", e.cause))
	})
	return exchanged{err: e, until: now.Add(pause), forAll: forAll}
}

// tooLarge reports whether the authorization server answered that the request is too large, which is because of the caller's token.
func tooLarge(err error) bool {
	refused, ok := errors.AsType[*oauth2.RetrieveError](err)
	return ok && refused.Response.StatusCode == http.StatusRequestEntityTooLarge
}

// requestExchange sends the request of RFC 8693, section 2.1.
func (b *Backend) requestExchange(token string) (*oauth2.Token, error) {
	x := b.Exchange
	ctx := b.tokenContext()
	params := url.Values{
		"grant_type": {grantExchange}, "subject_token": {token}, "subject_token_type": {accessToken}, "requested_token_type": {accessToken},
	}
	for name, value := range map[string]string{"audience": x.Audience, "resource": x.Resource} {
		if value != "" {
			params.Set(name, value)
		}
	}
	config := clientcredentials.Config{ClientID: x.ClientID, TokenURL: x.TokenURL, Scopes: x.Scopes, EndpointParams: params, AuthStyle: oauth2.AuthStyleInHeader}
	if x.SecretInBody || x.Signs() {
		config.AuthStyle = oauth2.AuthStyleInParams
	}
	var err error
	if x.Signs() {
		err = b.addAssertion(ctx, params)
	} else {
		config.ClientSecret, err = b.clientSecret(ctx, &x.OAuth)
	}
	if err != nil {
		return nil, err
	}
	return config.Token(ctx)
}

// checkExchanged checks that an issued token can be sent to the backend, and that it is another one than the caller's.
func checkExchanged(got *oauth2.Token, token string) error {
	switch {
	case !strings.EqualFold(got.TokenType, "Bearer"):
		return fmt.Errorf("backends: the authorization server issued a token of the type %.40q, not a bearer token", got.TokenType)
	case got.AccessToken == token:
		return errors.New("backends: the authorization server returned the caller's own token")
	case len(got.AccessToken) > maxToken || strings.ContainsFunc(got.AccessToken, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("backends: the authorization server issued a token that is too long or has other characters than visible ASCII")
	}
	return nil
}

// errorCode matches the codes of RFC 6749, section 5.2. Others are not logged, because they might contain a token.
var errorCode = regexp.MustCompile(`^[a-z_]{1,40}$`)

// judgeExchange returns the error for the caller. The authorization server refuses a caller with a code of its own; other failures are
// the operator's to solve. It drops error texts, which may contain tokens.
func (b *Backend) judgeExchange(err error) *TokenError {
	unavailable := func(cause error) *TokenError {
		return b.noToken(fault.Unavailable, cause, "the authorization server gives no tokens for backend %s now; try again")
	}
	refused, ok := errors.AsType[*oauth2.RetrieveError](err)
	if !ok {
		if cause, ok := errors.AsType[*url.Error](err); ok {
			err = cause.Err // the URL may contain a secret
		}
		return unavailable(err)
	}
	code := refused.ErrorCode
	if code != "" && !errorCode.MatchString(code) {
		code = "an unknown error"
	}
	status := refused.Response.StatusCode
	cause := fmt.Errorf("backends: the authorization server answered %d %s", status, cmp.Or(code, "without an error code"))
	switch {
	case status < 400 || status >= 500 || status == 429:
		return unavailable(cause)
	case code == "", code == "invalid_client", code == "unauthorized_client", code == "unsupported_grant_type", code == "temporarily_unavailable":
		return unavailable(cause)
	case code == "invalid_grant", code == "invalid_token":
		return b.noToken(fault.Unauthenticated, cause, "the authorization server no longer accepts the token, so backend %s cannot be used; sign in again")
	}
	return b.noToken(fault.Forbidden, cause, "the authorization server gives this caller no token for backend %s")
}

// tokenError returns why the caller cannot find a name that may belong to a backend without a token for the caller. It returns nil if all
// such backends have one.
func tokenError(ctx context.Context, views []*View, kind api.Kind, name string) error {
	for _, v := range views {
		b := v.backend
		if b.Exchange == nil || v.token == "" || kind.Prefixed() && !strings.HasPrefix(name, b.Prefix) {
			continue
		}
		if _, err := b.exchangeToken(ctx, v.token); err != nil {
			return err
		}
	}
	return nil
}
