package backends

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	josejwt "github.com/go-jose/go-jose/v4/jwt"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// With private_key_jwt, the gateway has no secret at the authorization server. It sends a JWT that it signed with its private key, the
// assertion (RFC 7523, section 2.2; OpenID Connect Core 1.0, section 9). The audience is the authorization server's issuer and nothing
// else, as draft-ietf-oauth-rfc7523bis demands, because another server could replay an assertion with a wider audience.

const (
	assertionType = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
	// assertionJWT is the typ of an assertion in the draft. It keeps the JWT from being used as one of another kind.
	assertionJWT = "client-authentication+jwt"
	// assertionLife is how long an assertion is valid. Each request has one of its own.
	assertionLife = time.Minute
	// minRSA is the smallest size of an RSA key in bits (RFC 7518, section 3.3).
	minRSA = 2048
)

// addAssertion adds an assertion to the parameters of a token request.
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

// clientSigner returns the signer of assertions. The operator can replace the key at any time.
func (b *Backend) clientSigner(ctx context.Context) (jose.Signer, error) {
	text, err := b.options.Secrets(ctx, b.Exchange.ClientKey)
	var signer jose.Signer
	if err == nil {
		signer, err = newSigner(text, b.Exchange.KeyID)
	}
	return signer, fault.Wrap(fault.Invalid, err, "backend %s: clientKey", b.Name)
}

// newSigner returns a signer with a private key. The id replaces the one in a JWK. Errors never contain a part of the key.
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

// parseKey parses a JWK, or a private key in PEM: PKCS #8, or the older formats of OpenSSL for RSA and EC keys.
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
