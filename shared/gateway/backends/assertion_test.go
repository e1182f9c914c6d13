package backends

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/test/expect"
)

// signing returns a backend that authenticates itself at the authority with the given key.
func signing(a *authority, key, id string) (*Backend, *bytes.Buffer) {
	b, log := exchanging(a, api.Exchange{Audience: "b", ClientKey: secret.Env("KEY"), KeyID: id, Issuer: "https://id.example"})
	b.options.Secrets = func(context.Context, secret.Value) (string, error) { return key, nil }
	return b, log
}

// encodePEM returns a key in PEM.
func encodePEM(t *testing.T, kind string, der []byte, err error) string {
	t.Helper()
	expect.OK(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// encodeJWK returns a key as JWK.
func encodeJWK(t *testing.T, key any, id, alg string) string {
	t.Helper()
	text := expect.Value(json.Marshal(jose.JSONWebKey{Key: key, KeyID: id, Algorithm: alg}))(t)
	return string(text)
}

// GWN-27: instead of a secret, the client can sign an assertion with a key of any usual kind and format.
func TestClientAssertion(t *testing.T) {
	r := expect.Value(rsa.GenerateKey(rand.Reader, 2048))(t)
	e := expect.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	e5 := expect.Value(ecdsa.GenerateKey(elliptic.P521(), rand.Reader))(t)
	_, d, err := ed25519.GenerateKey(rand.Reader)
	expect.OK(t, err)
	pkcs8 := func(key any) string {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		return encodePEM(t, "PRIVATE KEY", der, err)
	}
	sec1 := expect.Value(x509.MarshalECPrivateKey(e))(t)
	for name, tt := range map[string]struct {
		key, id     string
		public      crypto.PublicKey
		alg, wantID string
	}{
		"RSA":                   {pkcs8(r), "k", r.Public(), "RS256", "k"},
		"RSA, PKCS #1":          {encodePEM(t, "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(r), nil), "", r.Public(), "RS256", ""},
		"RSA, JWK with PS256":   {encodeJWK(t, r, "of the key", "PS256"), "", r.Public(), "PS256", "of the key"},
		"P-256":                 {pkcs8(e), "k", e.Public(), "ES256", "k"},
		"P-256, SEC 1":          {encodePEM(t, "EC PRIVATE KEY", sec1, nil), "k", e.Public(), "ES256", "k"},
		"P-521, JWK, other id":  {encodeJWK(t, e5, "of the key", ""), "k", e5.Public(), "ES512", "k"},
		"Ed25519, after a line": {"\n" + pkcs8(d), "k", d.Public(), "EdDSA", "k"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &authority{}
				b, _ := signing(a, tt.key, tt.id)
				expect.OK(t, b.checkSecrets(t.Context()))
				seen := map[string]bool{}
				for i := range 2 { // each request has an assertion of its own
					caller := callerOf(fmt.Sprint(i), time.Hour)
					expect.OK(t, b.ClientFor(caller).Credentials(t.Context(), http.Header{}))
					form := a.asked[i]
					expect.Equal(t, "the secret in the header", a.basic[i], ":")
					jws := expect.Value(jose.ParseSignedCompact(form.Get("client_assertion"), []jose.SignatureAlgorithm{jose.SignatureAlgorithm(tt.alg)}))(t)
					payload := expect.Value(jws.Verify(tt.public))(t)
					var claims struct {
						Jti string
						Exp int64
					}
					expect.OK(t, json.Unmarshal(payload, &claims))
					if claims.Jti == "" || seen[claims.Jti] {
						t.Errorf("the jti is %q, want a new one", claims.Jti)
					}
					seen[claims.Jti] = true
					expect.Equal(t, "the life of the assertion in seconds", claims.Exp-time.Now().Unix(), 60)
					want := fmt.Sprintf(`{"aud":"https://id.example","exp":%d,"iat":%d,"iss":"me&you","jti":%q,"sub":"me&you"}`, claims.Exp, time.Now().Unix(), claims.Jti)
					expect.Equal(t, "the claims", strings.ReplaceAll(string(payload), `\u0026`, "&"), want)
					header := jws.Signatures[0].Protected
					expect.Equal(t, "the key id", header.KeyID, tt.wantID)
					expect.Equal(t, "the type", fmt.Sprint(header.ExtraHeaders[jose.HeaderType]), "client-authentication+jwt")
					form.Del("client_assertion")
					expect.Equal(t, "the rest of the request", form.Encode(), url.Values{
						"grant_type": {grantExchange}, "requested_token_type": {accessToken}, "audience": {"b"}, "client_id": {"me&you"},
						"subject_token": {strings.TrimPrefix(caller, "Bearer ")}, "subject_token_type": {accessToken},
						"client_assertion_type": {"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"},
					}.Encode())
				}
			})
		})
	}
}

// GWN-27: a key that cannot be used is refused with the configuration. If it is replaced by one later, callers get an error. No part of it
// appears in the errors or the log.
func TestUnusableClientKeys(t *testing.T) {
	weak := expect.Value(rsa.GenerateKey(rand.Reader, 1024))(t)
	odd := expect.Value(ecdsa.GenerateKey(elliptic.P224(), rand.Reader))(t)
	good := expect.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	public := expect.Value(x509.MarshalPKIXPublicKey(good.Public()))(t)
	oddDER := expect.Value(x509.MarshalECPrivateKey(odd))(t)
	goodDER, err := x509.MarshalECPrivateKey(good)
	goodPEM := encodePEM(t, "EC PRIVATE KEY", goodDER, err)
	keys := map[string]struct{ key, want string }{
		"no key":             {"hunter2", "not a single private key in PEM, and not a JWK"},
		"two keys":           {goodPEM + goodPEM, "not a single private key in PEM, and not a JWK"},
		"broken PEM":         {encodePEM(t, "PRIVATE KEY", []byte("hunter2"), nil), "not an unencrypted private key in PEM"},
		"public PEM":         {encodePEM(t, "PUBLIC KEY", public, nil), "not an unencrypted private key in PEM"},
		"broken JWK":         {`{"kty":"EC","d":"hunter2"}`, "not a valid JWK"},
		"public JWK":         {encodeJWK(t, good.Public(), "hunter2", ""), "not a private RSA"},
		"shared secret":      {encodeJWK(t, []byte("hunter2hunter2hunter2hunter2hunter2"), "", "HS256"), "not a valid JWK"},
		"weak RSA":           {encodePEM(t, "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(weak), nil), "the RSA key has 1024 bits (at least 2048)"},
		"other curve":        {encodePEM(t, "EC PRIVATE KEY", oddDER, nil), "not a private RSA"},
		"alg of another key": {encodeJWK(t, good, "", "RS256"), "alg does not fit"},
		"none":               {encodeJWK(t, good, "", "none"), "alg does not fit"},
	}
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		t.Run(name, func(t *testing.T) {
			tt, a := keys[name], &authority{}
			b, log := signing(a, tt.key, "k")
			err := b.checkSecrets(t.Context())
			if !fault.Is(err, fault.Invalid) || !strings.Contains(fmt.Sprint(err), "backend b: clientKey: it") && !strings.Contains(fmt.Sprint(err), "clientKey: the") || !strings.Contains(fmt.Sprint(err), tt.want) {
				t.Errorf("got %v, want an error about the clientKey with %q", err, tt.want)
			}
			expect.Fault(t, "a caller", b.ClientFor(callerOf("ann", time.Hour)).Credentials(t.Context(), http.Header{}), fault.Unavailable)
			expect.Equal(t, "requests", a.count(), 0)
			for _, part := range append(strings.Split(tt.key, "\n"), "hunter2") {
				if text := fmt.Sprint(err, log); len(part) > 6 && !strings.Contains(part, "KEY-") && strings.Contains(text, part) {
					t.Errorf("%s contains %s", text, part)
				}
			}
		})
	}
}
