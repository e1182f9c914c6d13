// Package identity is an OAuth authorization server for tests, with the parts that a resource server sees. It signs access
// tokens, serves its metadata and keys, rotates the keys, and can be down. It makes tokens with the standard library alone, so
// that it shares no code with the package under test.
package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

// Claims are a token's claims, or the members of its header.
type Claims = map[string]any

// Key signs tokens.
type Key struct {
	ID, Alg string
	Private crypto.Signer
}

// NewKey makes a key for RS256, PS256, ES256 or EdDSA.
func NewKey(tb testing.TB, id, alg string) *Key {
	tb.Helper()
	k := &Key{ID: id, Alg: alg}
	var err error
	switch alg {
	case "RS256", "PS256", "RS512":
		k.Private, err = rsa.GenerateKey(rand.Reader, 2048)
	case "ES256":
		k.Private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "EdDSA":
		_, k.Private, err = ed25519.GenerateKey(rand.Reader)
	default:
		tb.Fatalf("no keys for %s", alg)
	}
	expect.OK(tb, err)
	return k
}

// JWK returns the public key in the format of RFC 7517.
func (k *Key) JWK() Claims {
	jwk := Claims{"kid": k.ID, "alg": k.Alg, "use": "sig"}
	switch pub := k.Private.Public().(type) {
	case *rsa.PublicKey:
		jwk["kty"], jwk["n"], jwk["e"] = "RSA", Encode(pub.N.Bytes()), Encode(big.NewInt(int64(pub.E)).Bytes())
	case *ecdsa.PublicKey:
		point, _ := pub.Bytes() // 4, x, y
		jwk["kty"], jwk["crv"], jwk["x"], jwk["y"] = "EC", "P-256", Encode(point[1:33]), Encode(point[33:])
	case ed25519.PublicKey:
		jwk["kty"], jwk["crv"], jwk["x"] = "OKP", "Ed25519", Encode(pub)
	}
	return jwk
}

// Sign returns a token. Members of header replace the usual ones, and nil removes a member.
func (k *Key) Sign(tb testing.TB, header, claims Claims) string {
	tb.Helper()
	return k.SignBytes(tb, header, encode(tb, claims))
}

// SignBytes signs any payload, while [Key.Sign] needs JSON.
func (k *Key) SignBytes(tb testing.TB, header Claims, payload []byte) string {
	tb.Helper()
	full := Claims{"alg": k.Alg, "kid": k.ID, "typ": "at+jwt"}
	for name, value := range header {
		if full[name] = value; value == nil {
			delete(full, name)
		}
	}
	return join(encode(tb, full), payload, k.signature(tb))
}

// Token puts a token together with a signature over its first two parts.
func Token(tb testing.TB, header, claims Claims, sign func(input string) []byte) string {
	tb.Helper()
	return join(encode(tb, header), encode(tb, claims), sign)
}

func join(header, payload []byte, sign func(input string) []byte) string {
	input := Encode(header) + "." + Encode(payload)
	return input + "." + Encode(sign(input))
}

func encode(tb testing.TB, v Claims) []byte {
	tb.Helper()
	b, err := json.Marshal(v)
	expect.OK(tb, err)
	return b
}

func (k *Key) signature(tb testing.TB) func(string) []byte {
	return func(input string) []byte {
		tb.Helper()
		digest := sha256.Sum256([]byte(input))
		var sig []byte
		var err error
		switch key := k.Private.(type) {
		case *rsa.PrivateKey:
			switch k.Alg {
			case "PS256":
				sig, err = rsa.SignPSS(rand.Reader, key, crypto.SHA256, digest[:], &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash})
			case "RS512":
				long := sha512.Sum512([]byte(input))
				sig, err = rsa.SignPKCS1v15(nil, key, crypto.SHA512, long[:])
			default:
				sig, err = rsa.SignPKCS1v15(nil, key, crypto.SHA256, digest[:])
			}
		case *ecdsa.PrivateKey:
			var r, s *big.Int
			if r, s, err = ecdsa.Sign(rand.Reader, key, digest[:]); err == nil {
				sig = append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
			}
		case ed25519.PrivateKey:
			sig = ed25519.Sign(key, []byte(input))
		}
		expect.OK(tb, err)
		return sig
	}
}

// Encode returns base64url without padding.
func Encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// Provider is a running authorization server.
type Provider struct {
	// Issuer is its identifier, with a path.
	Issuer string
	// Audience is the audience of its tokens, unless a test changes it.
	Audience string

	tb      testing.TB
	server  *httptest.Server
	down    atomic.Bool
	fetches atomic.Int64

	mu     sync.Mutex
	keys   []*Key
	serve  http.HandlerFunc // in place of the key set
	openID bool

	granted []string
	codes   map[string]url.Values // the requests at the authorization endpoint, by code
}

// Secret is the secret of every client.
const Secret = "the secret of every client"

// Granted returns the scopes that the token endpoint has granted.
func (p *Provider) Granted() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.granted)
}

// Start starts a provider with an RS256 key that signs and an ES256 key. It ends
// with the test.
func Start(tb testing.TB, audience string) *Provider {
	tb.Helper()
	p := &Provider{tb: tb, Audience: audience}
	p.keys = []*Key{NewKey(tb, "rsa-1", "RS256"), NewKey(tb, "ec-1", "ES256")}
	p.server = httptest.NewServer(http.HandlerFunc(p.answer))
	p.Issuer = p.server.URL + "/tenant"
	tb.Cleanup(p.server.Close)
	return p
}

func (p *Provider) answer(w http.ResponseWriter, r *http.Request) {
	if p.down.Load() {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var doc any
	switch at := r.URL.Path; {
	case at == "/.well-known/oauth-authorization-server/tenant" && !p.openID, at == "/tenant/.well-known/openid-configuration" && p.openID:
		doc = Claims{
			"issuer": p.Issuer, "jwks_uri": p.JWKS(), "token_endpoint": p.Issuer + "/token", "authorization_endpoint": p.Issuer + "/authorize",
			"token_endpoint_auth_methods_supported": []string{"client_secret_post"},
			"response_types_supported":              []string{"code"}, "code_challenge_methods_supported": []string{"S256"},
		}
	case at == "/tenant/authorize":
		p.authorize(w, r)
		return
	case at == "/tenant/token" && r.PostFormValue("grant_type") == "authorization_code":
		w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		doc = p.redeem(w, r)
	case at == "/tenant/token" && r.Method == http.MethodPost:
		if r.PostFormValue("grant_type") != "client_credentials" || r.PostFormValue("client_secret") != Secret {
			w.WriteHeader(http.StatusUnauthorized)
			doc = Claims{"error": "invalid_client"}
			break
		}
		scopes := r.PostFormValue("scope")
		p.granted = append(p.granted, scopes)
		doc = Claims{
			"access_token": p.keys[0].Sign(p.tb, nil, p.Claims(r.PostFormValue("client_id"), scopes, nil)),
			"token_type":   "Bearer", "expires_in": 300, "scope": scopes,
		}
	case at == "/tenant/keys":
		p.fetches.Add(1)
		if p.serve != nil {
			p.serve(w, r)
			return
		}
		keys := []Claims{}
		for _, k := range p.keys {
			keys = append(keys, k.JWK())
		}
		doc = Claims{"keys": keys}
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(doc)
}

// JWKS returns the URL of the key set.
func (p *Provider) JWKS() string { return p.server.URL + "/tenant/keys" }

// Fetches returns how often clients have fetched the key set.
func (p *Provider) Fetches() int { return int(p.fetches.Load()) }

// Down stops or resumes answering.
func (p *Provider) Down(down bool) { p.down.Store(down) }

// OpenID serves the metadata only where OpenID Connect puts it, behind the path.
func (p *Provider) OpenID() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.openID = true
}

// ServeKeys answers requests for the key set by h; nil is the keys again.
func (p *Provider) ServeKeys(h http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serve = h
}

// Rotate replaces all keys; the first signs.
func (p *Provider) Rotate(keys ...*Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = keys
}

// Key returns the n-th key.
func (p *Provider) Key(n int) *Key {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keys[n]
}

// Claims returns the claims of a good token for a subject, valid for five minutes. The claims in more replace them, and nil
// removes a claim.
func (p *Provider) Claims(subject string, scopes string, more Claims) Claims {
	now := time.Now()
	c := Claims{
		"iss": p.Issuer, "aud": p.Audience, "sub": subject, "client_id": "tests", "scope": scopes,
		"iat": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(),
	}
	maps.Copy(c, more)
	for name, value := range c {
		if value == nil {
			delete(c, name)
		}
	}
	return c
}

// Token signs [Provider.Claims] with the first key.
func (p *Provider) Token(subject, scopes string, more Claims) string {
	p.tb.Helper()
	return p.Key(0).Sign(p.tb, nil, p.Claims(subject, scopes, more))
}
