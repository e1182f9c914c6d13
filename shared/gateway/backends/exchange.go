package backends

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	josejwt "github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
	"golang.org/x/sync/singleflight"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
)

// With [api.Exchange], the gateway calls the backend with a separate token for each caller. An authorization server issues it in exchange
// for the caller's token (RFC 8693), so that the backend never sees the caller's token. The gateway has checked the caller's token
// before. So an exchange fails only if the authorization server is stricter than the gateway, or is down.

const (
	grantExchange = "urn:ietf:params:oauth:grant-type:token-exchange"
	accessToken   = "urn:ietf:params:oauth:token-type:access_token"

	// maxExchanged limits the cached outcomes of token exchanges per backend. maxToken limits the size of a token in bytes.
	maxExchanged = 1024
	maxToken     = 16 << 10
	// expiryMargin is how long before a token's expiry the gateway stops using the token, because requests take time and clocks differ.
	expiryMargin = 10 * time.Second
	unstatedLife = time.Minute // how long the gateway uses a token without an expires_in
	// refusedFor and failedFor are pauses after a failed token exchange, before the gateway asks the authorization server again.
	//
	//   - The pause is refusedFor if the server refused the caller, issued an unusable token, or took longer than failedFor to fail. It
	//     applies only to this caller.
	//   - The pause is failedFor after any other failure, because the server may be down. It applies to all callers only if the previous
	//     failure of this kind concerned another user. A single user for whom the server always fails must not block the others.
	refusedFor, failedFor = 10 * time.Second, 2 * time.Second
)

// subject is the hash of a caller's token.
type subject [sha256.Size]byte

// exchanged is the outcome of a token exchange: the Authorization header for requests to the backend, or an error.
type exchanged struct {
	header string
	err    error
	until  time.Time // when to ask the authorization server again
	user   string    // the user whose exchange failed, if the authorization server may be down; otherwise empty
	forAll bool      // the error concerns all callers
}

type exchanges struct {
	asking singleflight.Group
	kept   *bounded.Map[subject, exchanged]
	failed atomic.Pointer[exchanged] // the last failure of the authorization server, or nil after a success
}

func (b *Backend) noToken(kind fault.Kind, cause error, text string) *upstream.UnsentError {
	return &upstream.UnsentError{Fault: fault.New(kind, "%s", fmt.Sprintf(text, b.Name)), Cause: cause, NoToken: true}
}

// exchangeToken returns the Authorization header for requests to the backend on behalf of a caller. The parameter caller is the caller's
// own Authorization header. The error is an [upstream.UnsentError].
func (b *Backend) exchangeToken(ctx context.Context, caller string) (string, error) {
	token, user, expires, ok := readToken(caller)
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
	if failed := b.tokens.failed.Load(); failed != nil && failed.forAll && now.Before(failed.until) {
		return "", failed.err
	}
	// Concurrent calls of a caller share one token exchange, and each stops waiting when its own context ends.
	asked := b.tokens.asking.DoChan(string(key[:]), func() (any, error) {
		got := b.askExchange(token, user)
		// Remove the monotonic clock reading, because the monotonic clock may stand still while Lambda has frozen the process.
		got.until = got.until.Round(0)
		switch {
		case got.err == nil:
			b.tokens.failed.Store(nil)
		case got.user != "":
			before := b.tokens.failed.Load()
			got.forAll = before != nil && before.user != user
			b.tokens.failed.Store(&got)
		}
		b.tokens.kept.Put(key, got)
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

// readToken returns the token in a caller's Authorization header, the user that the token names, and its expiry. The result ok is false
// if the token is not a JWT with an expiry. The signature needs no check, because the caller has already been authenticated.
func readToken(caller string) (token, user string, expires time.Time, ok bool) {
	scheme, token, _ := strings.Cut(caller, " ")
	token = strings.TrimSpace(token)
	parts := strings.Split(token, ".")
	if !strings.EqualFold(scheme, "Bearer") || len(parts) != 3 {
		return "", "", time.Time{}, false
	}
	payload, err := opaque.Decode(parts[1])
	var claims struct {
		Iss, Sub string
		Exp      float64
	}
	if err != nil || json.Unmarshal(payload, &claims) != nil || claims.Exp <= 0 {
		return "", "", time.Time{}, false
	}
	return token, claims.Iss + " " + claims.Sub, time.Unix(int64(claims.Exp), 0), true
}

// askExchange asks the authorization server to exchange a user's token. It also decides for how long the outcome is cached.
func (b *Backend) askExchange(token, user string) exchanged {
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
	pause := failedFor
	if ofCaller || !fault.Is(e, fault.Unavailable) {
		pause, user = refusedFor, ""
	}
	b.logExchange.Do(func() {
		b.options.Log.Warn("token exchange failed", slog.String("backend", b.Name), slog.Any("error", e.Cause))
	})
	return exchanged{err: e, until: now.Add(pause), user: user}
}

// tooLarge reports whether the authorization server refused a token exchange with status 413, because the caller's token is too long.
func tooLarge(err error) bool {
	refused, ok := errors.AsType[*oauth2.RetrieveError](err)
	return ok && refused.Response.StatusCode == http.StatusRequestEntityTooLarge
}

// requestExchange sends the token exchange request of RFC 8693, section 2.1.
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

// checkExchanged returns an error if the token that the authorization server issued cannot be sent to the backend, or is the caller's own
// token.
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

// errorCode matches the error codes of RFC 6749, section 5.2. The gateway does not log other codes, because they might contain a token.
var errorCode = regexp.MustCompile(`^[a-z_]{1,40}$`)

// judgeExchange returns the error that the caller gets if the token exchange failed with err. It leaves out texts of the authorization
// server, because they may contain tokens.
func (b *Backend) judgeExchange(err error) *upstream.UnsentError {
	unavailable := func(cause error) *upstream.UnsentError {
		return b.noToken(fault.Unavailable, cause, "the authorization server gives no tokens for backend %s now; try again")
	}
	refused, ok := errors.AsType[*oauth2.RetrieveError](err)
	if !ok {
		return unavailable(withoutURL(err))
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

// tokenError is called after a name was not found. It tries the token exchange for each backend that may have the name, because a failed
// exchange may be the only reason why the name is missing. It returns the error of the first exchange that fails, or nil.
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

// With private_key_jwt, the gateway and the authorization server share no secret. Instead, the gateway sends an assertion, a JWT signed
// with its private key (RFC 7523, section 2.2; OpenID Connect Core 1.0, section 9). As draft-ietf-oauth-rfc7523bis demands, the assertion's
// only audience is the authorization server's issuer, because another server in the audience could replay it.

const (
	assertionType = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
	// assertionJWT is the typ of an assertion's header. The draft requires it, so that an assertion cannot pass as a JWT with another
	// purpose.
	assertionJWT  = "client-authentication+jwt"
	assertionLife = time.Minute // the gateway signs one for each token request
	minRSA        = 2048        // bits (RFC 7518, section 3.3)
)

func (b *Backend) addAssertion(ctx context.Context, params url.Values) error {
	signer, err := b.clientSigner(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	assertion, err := josejwt.Signed(signer).Claims(map[string]any{ // the type josejwt.Claims would make the audience an array
		"iss": b.Exchange.ClientID, "sub": b.Exchange.ClientID, "aud": b.Exchange.Issuer,
		"jti": rand.Text(), "iat": now.Unix(), "exp": now.Add(assertionLife).Unix(),
	}).Serialize()
	if err != nil {
		return fault.Wrap(fault.Internal, err, "sign the assertion for backend %s", b.Name)
	}
	params.Set("client_assertion_type", assertionType)
	params.Set("client_assertion", assertion)
	return nil
}

// clientSigner returns a signer for assertions. It reads the private key each time, because the operator can replace the key.
func (b *Backend) clientSigner(ctx context.Context) (jose.Signer, error) {
	text, err := b.options.Secrets(ctx, b.Exchange.ClientKey)
	var signer jose.Signer
	if err == nil {
		signer, err = newSigner(text, b.Exchange.KeyID)
	}
	return signer, fault.Wrap(fault.Invalid, err, "backend %s: clientKey", b.Name)
}

// newSigner returns a signer for the private key in text. The parameter id, if not empty, replaces the kid of a JWK. Errors never contain
// a part of the key.
func newSigner(text, id string) (jose.Signer, error) {
	key, err := parseKey(text)
	if err != nil {
		return nil, err
	}
	key.KeyID = cmp.Or(id, key.KeyID)
	var possible []jose.SignatureAlgorithm
	switch k := key.Key.(type) {
	case *rsa.PrivateKey:
		if k.N.BitLen() < minRSA {
			return nil, fault.New(fault.Invalid, "the RSA key has %d bits (at least %d)", k.N.BitLen(), minRSA)
		}
		possible = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512}
	case *ecdsa.PrivateKey:
		possible = map[int][]jose.SignatureAlgorithm{256: {jose.ES256}, 384: {jose.ES384}, 521: {jose.ES512}}[k.Curve.Params().BitSize]
	case ed25519.PrivateKey:
		possible = []jose.SignatureAlgorithm{jose.EdDSA}
	}
	if len(possible) == 0 {
		return nil, errors.New("it is not a private RSA, P-256, P-384, P-521 or Ed25519 key")
	}
	algorithm := jose.SignatureAlgorithm(cmp.Or(key.Algorithm, string(possible[0])))
	if !slices.Contains(possible, algorithm) {
		return nil, errors.New("the JWK's alg does not fit its key")
	}
	return jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, (&jose.SignerOptions{}).WithType(assertionJWT))
}

// parseKey parses a private key: a JWK, or PEM with PKCS #8 or the older OpenSSL formats for RSA and EC keys.
func parseKey(text string) (key jose.JSONWebKey, err error) {
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		if key.UnmarshalJSON([]byte(text)) != nil || !key.Valid() {
			return key, errors.New("it is not a valid JWK")
		}
		return key, nil
	}
	block, rest := pem.Decode([]byte(text))
	if block == nil || strings.TrimSpace(string(rest)) != "" {
		return key, errors.New("it is not a single private key in PEM, and not a JWK")
	}
	switch block.Type {
	case "RSA PRIVATE KEY":
		key.Key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key.Key, err = x509.ParseECPrivateKey(block.Bytes)
	default:
		key.Key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	}
	if err != nil {
		return key, errors.New("it is not an unencrypted private key in PEM")
	}
	return key, nil
}
