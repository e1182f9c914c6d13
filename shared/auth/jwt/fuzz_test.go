package jwt_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/jwt"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/identity"
)

// newAuthenticator returns an authenticator for fuzzing and benchmarks, and the provider that it trusts.
func newAuthenticator(tb testing.TB) (*jwt.Authenticator, *identity.Provider) {
	tb.Helper()
	p := identity.Start(tb, audience)
	a := expect.Value(jwt.New(jwt.Options{
		Issuers: []string{p.Issuer}, Audience: []string{audience}, Algorithms: []string{"RS256", "ES256"},
		Leeway: time.Minute, Log: slog.New(slog.DiscardHandler),
	}))(tb)
	return a, p
}

// FuzzToken checks that malformed tokens are refused as unauthenticated (AUT-01).
func FuzzToken(f *testing.F) {
	a, p := newAuthenticator(f)
	f.Add(p.Token("alice", "events:read", nil))
	f.Add("a.b.c")
	f.Add("..")
	f.Add(identity.Encode([]byte(`{"alg":"RS256","kid":"rsa-1","jwk":{}}`)) + "." + identity.Encode([]byte(`{"iss":"x"}`)) + ".AA")
	f.Fuzz(func(t *testing.T, token string) {
		who, err := a.Authenticate(t.Context(), bearer(token))
		if err == nil && who.ID == "" || err != nil && !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("got %+v, %v", who, err)
		}
	})
}

// FuzzClaims checks that a token is accepted only if it has all required claims, whatever else its issuer signs (AUT-01).
func FuzzClaims(f *testing.F) {
	a, p := newAuthenticator(f)
	key := p.Key(1)
	for _, claims := range []string{
		`{}`, `[]`, `null`, `{"iss":"` + p.Issuer + `"}`,
		`{"iss":"` + p.Issuer + `","aud":["` + audience + `"],"sub":"a","exp":9e9,"scope":["a b",1],"org":[1,"x",null,{}]}`,
		`{"iss":"` + p.Issuer + `","aud":"` + audience + `","sub":"a","exp":1e300}`,
	} {
		f.Add([]byte(claims))
	}
	f.Fuzz(func(t *testing.T, claims []byte) {
		who, err := a.Authenticate(t.Context(), bearer(key.SignBytes(t, nil, claims)))
		if err != nil {
			if !fault.Is(err, fault.Unauthenticated) {
				t.Errorf("got %v", err)
			}
			return
		}
		if !auth.ValidPrincipal(who.ID) || who.Workspace != auth.DefaultWorkspace || time.Until(who.Expires) < 0 {
			t.Errorf("got %+v", who)
		}
	})
}

func BenchmarkAuthenticate(b *testing.B) {
	a, p := newAuthenticator(b)
	for n, alg := range []string{"RS256", "ES256"} {
		h := bearer(p.Key(n).Sign(b, nil, p.Claims("alice", "events:read events:subscribe", claims{"org": "acme"})))
		b.Run(alg, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				expect.OK(b, expect.ErrOf(a.Authenticate(b.Context(), h)))
			}
		})
	}
}
