package jwt_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth/jwt"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/identity"
)

// TestRotation shows that new keys are taken and old ones go (AUT-01).
func TestRotation(t *testing.T) {
	w := start(t, nil)
	before := w.provider.Token("alice", "", nil)
	w.accept(t, before)
	w.provider.Rotate(identity.NewKey(t, "rsa-2", "RS256"), w.provider.Key(1))
	after := w.provider.Token("alice", "", nil)
	w.accept(t, before)
	w.ahead = 5 * time.Second // a new key is looked for not more often
	w.accept(t, after)
	expect.Equal(t, "how often the keys were fetched", w.provider.Fetches(), 2)
	w.refuse(t, fault.Unauthenticated, before)
}

// TestAKeyThatWasTakenAway shows that keys are looked at again without a new one
// being asked for (AUT-01).
func TestAKeyThatWasTakenAway(t *testing.T) {
	w := start(t, nil)
	token := w.provider.Token("alice", "", claims{"exp": time.Now().Add(time.Hour).Unix()})
	w.accept(t, token)
	w.provider.Rotate(w.provider.Key(1))
	w.ahead = 5*time.Minute - time.Second
	w.accept(t, token)
	w.ahead = 5 * time.Minute
	w.refuse(t, fault.Unauthenticated, token)
}

// AUT-01: the cached keys and results get old while Lambda has frozen the process, although its monotonic clock may stand still.
func TestAKeyThatWasTakenAwayDuringAFreeze(t *testing.T) {
	w := start(t, nil)
	token := w.provider.Token("alice", "", claims{"exp": time.Now().Add(time.Hour).Unix()})
	w.accept(t, token)
	w.provider.Rotate(w.provider.Key(1))
	w.frozen = 5 * time.Minute
	w.refuse(t, fault.Unauthenticated, token)
}

// TestMadeUpKeysCostTheIssuerNothing shows that tokens with unknown keys do not
// become as many requests (AUT-01).
func TestMadeUpKeysCostTheIssuerNothing(t *testing.T) {
	w := start(t, nil)
	w.accept(t, w.provider.Token("alice", "", nil))
	stranger := identity.NewKey(t, "", "ES256")
	for i := range 100 {
		w.ahead = time.Duration(i) * 100 * time.Millisecond
		w.refuse(t, fault.Unauthenticated, stranger.Sign(t, claims{"kid": strings.Repeat("x", i+1)}, w.provider.Claims("alice", "", nil)))
	}
	expect.AtMost(t, "the requests for 100 made-up keys in 10 s", w.provider.Fetches(), 3)
}

// AUT-01: without keys tokens cannot be checked, and old keys are used for a limited time.
func TestTheProviderIsDown(t *testing.T) {
	w := start(t, nil)
	long := claims{"exp": time.Now().Add(3 * time.Hour).Unix()}
	token := w.provider.Token("alice", "", long)
	w.provider.Down(true)
	w.refuse(t, fault.Unavailable, token) // the token may be valid
	w.provider.Down(false)
	w.refuse(t, fault.Unavailable, token) // the keys are not read again immediately
	w.ahead = 5 * time.Second
	w.accept(t, token)

	w.provider.Down(true)
	for _, ahead := range []time.Duration{10 * time.Minute, 30 * time.Minute, time.Hour} {
		w.ahead = ahead
		w.accept(t, token)
	}
	fresh := identity.NewKey(t, "rsa-2", "RS256")
	w.refuse(t, fault.Unavailable, fresh.Sign(t, nil, w.provider.Claims("alice", "", long))) // may be a new key
	w.ahead = time.Hour + 5*time.Second
	w.refuse(t, fault.Unavailable, token)
	w.provider.Down(false)
	w.ahead += 5 * time.Second
	w.accept(t, token)
}

func jsonOf(t testing.TB, v any) string {
	t.Helper()
	return string(expect.Value(json.Marshal(v))(t))
}

// TestWhatAProviderMayServe shows where keys are looked for, and which are taken (AUT-01).
func TestWhatAProviderMayServe(t *testing.T) {
	write := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }
	}
	for what, tc := range map[string]struct {
		serve http.HandlerFunc
		want  fault.Kind
	}{
		"no JSON":             {write("keys"), fault.Unavailable},
		"no key set":          {write(`{}`), fault.Unavailable},
		"no keys":             {write(`{"keys":[]}`), fault.Unauthenticated},
		"keys that are none":  {write(`{"keys":[{"kty":"oct","kid":"rsa-1","k":"AAAA"},{"kty":"?"},7,{"kty":"RSA","kid":"rsa-1","n":"3w","e":"AQAB"}]}`), fault.Unauthenticated},
		"more than a key set": {write(`{"keys":[]}` + strings.Repeat(" ", 600<<10)), fault.Unavailable},
	} {
		t.Run("AUT-01 "+what, func(t *testing.T) {
			w := start(t, nil)
			token := w.provider.Token("alice", "", nil)
			w.provider.ServeKeys(tc.serve)
			w.refuse(t, tc.want, token)
			w.provider.ServeKeys(nil)
			w.ahead = 5 * time.Second
			w.accept(t, token)
		})
	}
	t.Run("AUT-01 a redirect", func(t *testing.T) {
		w := start(t, nil)
		elsewhere := httptest.NewServer(write(`{"keys":[` + jsonOf(t, w.provider.Key(0).JWK()) + `]}`))
		defer elsewhere.Close()
		w.provider.ServeKeys(func(out http.ResponseWriter, r *http.Request) { http.Redirect(out, r, elsewhere.URL, http.StatusFound) })
		w.refuse(t, fault.Unavailable, w.provider.Token("alice", "", nil))
	})
	t.Run("AUT-01 a key for another algorithm of its kind", func(t *testing.T) {
		w := start(t, nil)
		w.provider.Rotate(identity.NewKey(t, "k", "PS256"))
		as := *w.provider.Key(0)
		as.Alg = "RS256"
		w.refuse(t, fault.Unauthenticated, as.Sign(t, nil, w.provider.Claims("alice", "", nil)))
	})
	t.Run("AUT-01 no key id, and several keys that it could be", func(t *testing.T) {
		w := start(t, nil)
		w.provider.Rotate(identity.NewKey(t, "a", "RS256"), identity.NewKey(t, "b", "RS256"))
		w.refuse(t, fault.Unauthenticated, w.provider.Key(0).Sign(t, claims{"kid": nil}, w.provider.Claims("alice", "", nil)))
	})
	t.Run("AUT-01 the metadata of OpenID Connect", func(t *testing.T) {
		w := start(t, nil)
		w.provider.OpenID()
		w.accept(t, w.provider.Token("alice", "", nil))
	})
	t.Run("AUT-01 keys at a URL that is configured", func(t *testing.T) {
		p := identity.Start(t, audience)
		w := start(t, func(o *jwt.Options) { o.Issuers, o.JWKS = []string{"https://login.example.com"}, []string{p.JWKS()} })
		w.accept(t, p.Token("alice", "", claims{"iss": "https://login.example.com"}))
	})
	t.Run("AUT-01 metadata in another issuer's name", func(t *testing.T) {
		w := start(t, nil)
		issuer := w.provider.Issuer
		w.provider.Issuer = "https://honest.example.com"
		token := w.provider.Token("alice", "", claims{"iss": issuer})
		w.refuse(t, fault.Unavailable, token)
	})
}

// TestACachedTokenExpires checks that the cached result for a token is dropped when the token or a key of its issuer expires, and that
// it is used only for that token (AUT-01).
func TestACachedTokenExpires(t *testing.T) {
	w := start(t, nil)
	short := w.provider.Token("alice", "", claims{"exp": time.Now().Add(20 * time.Second).Unix()})
	long := w.provider.Token("bob", "", nil)
	w.accept(t, short)
	w.accept(t, short)
	w.accept(t, long)
	w.refuse(t, fault.Unauthenticated, long[:len(long)-4]+"AAAA")
	w.refuse(t, fault.Unauthenticated, long+"A")
	w.ahead = 51 * time.Second // 30 of which clocks may differ
	w.refuse(t, fault.Unauthenticated, short)
	w.accept(t, long)
	w.provider.Rotate(identity.NewKey(t, "rsa-2", "RS256"))
	w.accept(t, w.provider.Token("carol", "", nil)) // has the keys fetched
	w.refuse(t, fault.Unauthenticated, long)
}
