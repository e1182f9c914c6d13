package jwt_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/jwt"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic/periodictest"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/identity"
)

const audience = "https://events.example.com/mcp"

type claims = identity.Claims

// world is an authenticator, its provider, and a clock that a test can move.
type world struct {
	*jwt.Authenticator
	provider *identity.Provider
	log      *strings.Builder
	ahead    time.Duration
	frozen   time.Duration // how long Lambda has frozen the process
}

func start(t *testing.T, change func(*jwt.Options)) *world {
	t.Helper()
	w := &world{provider: identity.Start(t, audience), log: &strings.Builder{}}
	o := jwt.Options{
		Issuers: []string{w.provider.Issuer}, Audience: []string{audience},
		Leeway: 30 * time.Second, Now: func() time.Time { return periodictest.AfterFreeze(time.Now().Add(w.ahead), w.frozen) },
		Log: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&o)
	}
	w.Authenticator = expect.Value(jwt.New(o))(t)
	return w
}

func bearer(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

func (w *world) accept(t *testing.T, token string) auth.Principal {
	t.Helper()
	p, err := w.Authenticate(t.Context(), bearer(token))
	expect.OK(t, err, "a good token", w.log)
	return p
}

func (w *world) refuse(t *testing.T, kind fault.Kind, token string) {
	t.Helper()
	p, err := w.Authenticate(t.Context(), bearer(token))
	expect.Fault(t, "the error", err, kind)
	expect.Equal(t, "the ID", p.ID, "")
	if len(token) > 20 && strings.Contains(w.log.String(), token[len(token)-20:]) {
		t.Error("a token is in the log")
	}
	if kind == fault.Unavailable && strings.Contains(fault.Public(err), w.provider.Issuer) {
		t.Errorf("the caller is shown %q", fault.Public(err))
	}
}

// TestGoodTokens shows who the holder of a token is (AUT-01).
func TestGoodTokens(t *testing.T) {
	w := start(t, nil)
	p := w.accept(t, w.provider.Token("alice", "events:read  events:subscribe", claims{
		"scp": []string{"github", "events:read", "other\u00a0events:operate"}, "org": "acme", "team": []any{"red", 7, true}, "tenant": 42, "nested": claims{"a": "b"},
	}))
	if want := jwt.PrincipalID(w.provider.Issuer, "sub", "alice"); p.ID != want || !auth.ValidPrincipal(p.ID) || p.Workspace != "default" || p.Anonymous {
		t.Errorf("got %+v, want %s", p, want)
	}
	expect.List(t, "the scopes", p.Scopes, []string{"events:read", "events:subscribe", "github", "other\u00a0events:operate"})
	for name, want := range map[string][]string{"org": {"acme"}, "team": {"red", "7"}, "tenant": {"42"}, "nested": nil} {
		expect.List(t, "the claim "+name, p.Claims[name], want)
	}
	if until := time.Until(p.Expires); until < 5*time.Minute || until > 6*time.Minute {
		t.Errorf("it expires in %v", until)
	}
	for _, alg := range []string{"RS256", "RS512", "PS256", "ES256", "EdDSA"} {
		t.Run("AUT-01 signed with "+alg, func(t *testing.T) {
			w := start(t, nil)
			w.provider.Rotate(identity.NewKey(t, "k", alg))
			w.accept(t, w.provider.Token("alice", "", nil))
		})
	}
	for what, token := range map[string]string{
		"several audiences":              w.provider.Token("a", "", claims{"aud": []string{"https://other.example.com", audience}}),
		"the audience in another case":   w.provider.Token("a", "", claims{"aud": "HTTPS://Events.Example.COM/mcp"}),
		"the type JWT":                   w.provider.Key(0).Sign(t, claims{"typ": "JWT"}, w.provider.Claims("a", "", nil)),
		"no type":                        w.provider.Key(0).Sign(t, claims{"typ": nil}, w.provider.Claims("a", "", nil)),
		"no key id, one key of its kind": w.provider.Key(1).Sign(t, claims{"kid": nil}, w.provider.Claims("a", "", nil)),
		"expired within the leeway":      w.provider.Token("a", "", claims{"exp": time.Now().Add(-20 * time.Second).Unix()}),
		"valid from within the leeway":   w.provider.Token("a", "", claims{"nbf": time.Now().Add(20 * time.Second).Unix()}),
	} {
		t.Run("AUT-01 "+what, func(t *testing.T) { w.accept(t, token) })
	}
}

// TestBadTokens checks that invalid tokens are refused (AUT-01).
func TestBadTokens(t *testing.T) {
	w := start(t, nil)
	p := w.provider
	good := p.Token("alice", "events:read", nil)
	w.accept(t, good)
	parts := strings.Split(good, ".")
	stranger := identity.NewKey(t, "rsa-1", "RS256") // with the id of a key that is trusted
	other := identity.Start(t, audience)
	public := expect.Value(x509.MarshalPKIXPublicKey(p.Key(0).Private.Public()))(t)
	// confused returns a token that is signed with HS256, and with a public key as the secret.
	confused := func(secret []byte) string {
		return identity.Token(t, claims{"alg": "HS256", "kid": "rsa-1", "typ": "JWT"}, p.Claims("alice", "", nil), func(input string) []byte {
			mac := hmac.New(sha256.New, secret)
			mac.Write([]byte(input))
			return mac.Sum(nil)
		})
	}
	unsigned := func(alg string) string {
		return identity.Token(t, claims{"alg": alg, "typ": "JWT"}, p.Claims("alice", "", nil), func(string) []byte { return nil })
	}
	twice := func(key *identity.Key, c claims) string {
		body := jsonOf(t, c)
		return key.SignBytes(t, nil, []byte(body[:len(body)-1]+`,"sub":"root"}`))
	}
	// A server of the attacker's with a key that a header points to.
	evil := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the header's URL was fetched") }))
	defer evil.Close()
	for what, token := range map[string]string{
		"expired":                             p.Token("alice", "", claims{"exp": time.Now().Add(-31 * time.Second).Unix()}),
		"without an end":                      p.Token("alice", "", claims{"exp": nil}),
		"an end in milliseconds":              p.Token("alice", "", claims{"exp": time.Now().Add(time.Hour).UnixMilli()}),
		"an end that is no number":            p.Token("alice", "", claims{"exp": "tomorrow"}),
		"not yet valid":                       p.Token("alice", "", claims{"nbf": time.Now().Add(time.Minute).Unix()}),
		"issued in the future":                p.Token("alice", "", claims{"iat": time.Now().Add(time.Minute).Unix()}),
		"for another audience":                p.Token("alice", "", claims{"aud": "https://other.example.com/mcp"}),
		"for the host of the audience":        p.Token("alice", "", claims{"aud": "https://events.example.com"}),
		"for a path below the audience":       p.Token("alice", "", claims{"aud": audience + "/x"}),
		"without an audience":                 p.Token("alice", "", claims{"aud": nil}),
		"for no audience":                     p.Token("alice", "", claims{"aud": []string{}}),
		"of another issuer":                   other.Token("alice", "", nil),
		"in another issuer's name":            other.Token("alice", "", claims{"iss": p.Issuer}),
		"issuer with a slash more":            p.Token("alice", "", claims{"iss": p.Issuer + "/"}),
		"without an issuer":                   p.Token("alice", "", claims{"iss": nil}),
		"without a subject":                   p.Token("alice", "", claims{"sub": nil}),
		"an empty subject":                    p.Token("", "", nil),
		"a subject that is not a string":      p.Token("alice", "", claims{"sub": 7}),
		"alg none":                            unsigned("none"),
		"alg None":                            unsigned("None"),
		"an allowed alg without signature":    unsigned("RS256"),
		"HS256 with the public key, PEM":      confused(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})),
		"HS256 with the public key, DER":      confused(public),
		"another key of the same id":          stranger.Sign(t, nil, p.Claims("alice", "", nil)),
		"a key of its own in the header":      stranger.Sign(t, claims{"jwk": stranger.JWK()}, p.Claims("alice", "", nil)),
		"a key of its own alone":              stranger.Sign(t, claims{"kid": nil, "jwk": stranger.JWK()}, p.Claims("alice", "", nil)),
		"a URL of keys in the header":         stranger.Sign(t, claims{"jku": evil.URL, "x5u": evil.URL}, p.Claims("alice", "", nil)),
		"the key of another algorithm":        p.Key(1).Sign(t, claims{"kid": "rsa-1"}, p.Claims("alice", "", nil)),
		"another algorithm of the key's kind": p.Key(0).Sign(t, claims{"alg": "RS512"}, p.Claims("alice", "", nil)),
		"a critical extension":                p.Key(0).Sign(t, claims{"crit": []string{"exp2"}, "exp2": 1}, p.Claims("alice", "", nil)),
		"an identity token":                   p.Key(0).Sign(t, claims{"typ": "id+jwt"}, p.Claims("alice", "", nil)),
		"a logout token":                      p.Key(0).Sign(t, claims{"typ": "logout+jwt"}, p.Claims("alice", "", nil)),
		"other claims under the signature":    parts[0] + "." + strings.Split(p.Token("root", "", nil), ".")[1] + "." + parts[2],
		"a signature cut short":               good[:len(good)-4],
		"garbage":                             "garbage",
		"dots":                                "..",
		"garbage in three parts":              "a.b.c",
		"five parts, as if encrypted":         good + ".a.b",
		"JSON":                                `{"payload":"","signatures":[]}`,
		"claims that are no object":           identity.Encode([]byte(`{"alg":"RS256"}`)) + "." + identity.Encode([]byte(`[]`)) + ".AAAA",
		"a claim twice":                       twice(p.Key(0), p.Claims("alice", "", nil)),
		"over long":                           p.Token("alice", "", claims{"padding": strings.Repeat("x", 16<<10)}),
	} {
		t.Run("AUT-01 "+what, func(t *testing.T) { w.refuse(t, fault.Unauthenticated, token) })
	}
	expect.Equal[error](t, "a request without a token", expect.ErrOf(w.Authenticate(t.Context(), http.Header{})), auth.ErrNoToken)
}

// AUT-01, AUT-05: equal subjects of two issuers are different principals.
func TestIssuersAreApart(t *testing.T) {
	second := identity.Start(t, audience)
	w := start(t, func(o *jwt.Options) { o.Issuers = append(o.Issuers, second.Issuer) })
	one, two := w.accept(t, w.provider.Token("alice", "", nil)), w.accept(t, second.Token("alice", "", nil))
	expect.Differ(t, "the id for another issuer", one.ID, two.ID)
	expect.Equal(t, "the id for a second token", w.accept(t, w.provider.Token("alice", "events:read", nil)).ID, one.ID)
	// The second issuer's key does not sign for the first.
	w.refuse(t, fault.Unauthenticated, second.Key(0).Sign(t, nil, w.provider.Claims("alice", "", nil)))
	expect.Differ(t, "the id of another pair with the same concatenation", jwt.PrincipalID("a", "sub", "bc"), jwt.PrincipalID("ab", "sub", "c"))
}

// AUT-01, AUT-05: the principal and the workspace can come from other claims.
func TestClaimsThatAreConfigured(t *testing.T) {
	w := start(t, func(o *jwt.Options) { o.PrincipalClaim, o.WorkspaceClaim = "client_id", "tenant" })
	p := w.accept(t, w.provider.Token("alice", "", claims{"tenant": "acme"}))
	expect.Equal(t, "the workspace", p.Workspace, "acme")
	expect.Equal(t, "the ID", p.ID, jwt.PrincipalID(w.provider.Issuer, "client_id", "tests"))
	w.refuse(t, fault.Unauthenticated, w.provider.Token("alice", "", claims{"tenant": "acme", "client_id": nil}))
	for _, tenant := range []any{nil, "", "a/b", 7, []string{"acme"}} {
		w.refuse(t, fault.Forbidden, w.provider.Token("alice", "", claims{"tenant": tenant}))
	}
}

// TestSettingsAreChecked shows which settings of --auth jwt are refused (AUT-01).
func TestSettingsAreChecked(t *testing.T) {
	for what, change := range map[string]func(*jwt.Options){
		"no issuer":                   func(o *jwt.Options) { o.Issuers = nil },
		"an issuer twice":             func(o *jwt.Options) { o.Issuers = append(o.Issuers, o.Issuers...) },
		"an issuer over http":         func(o *jwt.Options) { o.Issuers = []string{"http://login.example.com"} },
		"an issuer with a query":      func(o *jwt.Options) { o.Issuers = []string{"https://login.example.com?a=b"} },
		"an issuer that is no URL":    func(o *jwt.Options) { o.Issuers = []string{"login"} },
		"no audience":                 func(o *jwt.Options) { o.Audience = nil },
		"an audience that is no URL":  func(o *jwt.Options) { o.Audience = []string{"api"} },
		"an audience with a fragment": func(o *jwt.Options) { o.Audience = []string{audience + "#x"} },
		"an audience to be encoded":   func(o *jwt.Options) { o.Audience = []string{"https://x.example/{a}"} },
		"an audience to be resolved":  func(o *jwt.Options) { o.Audience = []string{"https://x.example/../a"} },
		"too few JWKS": func(o *jwt.Options) {
			o.Issuers, o.JWKS = append(o.Issuers, "https://b.example"), []string{"https://a.example/keys"}
		},
		"JWKS over http":    func(o *jwt.Options) { o.JWKS = []string{"http://login.example.com/keys"} },
		"a long leeway":     func(o *jwt.Options) { o.Leeway = 61 * time.Second },
		"a negative leeway": func(o *jwt.Options) { o.Leeway = -1 },
	} {
		t.Run("AUT-01 "+what, func(t *testing.T) {
			o := jwt.Options{Issuers: []string{"https://login.example.com"}, Audience: []string{audience}}
			expect.OK(t, expect.ErrOf(jwt.New(o)))
			change(&o)
			expect.Fault(t, "the settings", expect.ErrOf(jwt.New(o)), fault.Invalid)
		})
	}
}

// cognito makes the claims of an access token as Amazon Cognito writes it: it names its client and no audience.
func cognito(use, client string) claims {
	return claims{"aud": nil, "client_id": client, "token_use": use, "scope": "https://events.example.com/events:read other/events:publish openid"}
}

func TestTokensOfCognito(t *testing.T) {
	const client, prefix = "1example23456789", "https://events.example.com/"
	w := start(t, func(o *jwt.Options) {
		o.Audience, o.ScopePrefix = append(o.Audience, client), prefix
	})
	t.Run("AWS-24 client_id is the audience, and scopes have a prefix", func(t *testing.T) {
		p := w.accept(t, w.provider.Token("alice", "", cognito("access", client)))
		expect.List(t, "the scopes", p.Scopes, []string{"events:read"})
	})
	t.Run("AWS-24 a token of another client is refused", func(t *testing.T) {
		w.refuse(t, fault.Unauthenticated, w.provider.Token("alice", "", cognito("access", "another")))
	})
	t.Run("AWS-24 client_id does not count if the token has an audience", func(t *testing.T) {
		c := cognito("access", client)
		c["aud"] = "https://other.example.com"
		w.refuse(t, fault.Unauthenticated, w.provider.Token("alice", "", c))
	})
	t.Run("AWS-24 an ID token is refused", func(t *testing.T) {
		c := cognito("id", client)
		c["aud"] = client
		w.refuse(t, fault.Unauthenticated, w.provider.Token("alice", "", c))
	})
	t.Run("AWS-24 challenges name the scopes as the authorization server does", func(t *testing.T) {
		_, err := w.Authenticate(t.Context(), http.Header{})
		expect.Equal(t, "the challenge without a token", auth.Challenge(err, "", auth.ScopeRead), `Bearer scope="`+prefix+`events:read"`)
		_, err = w.Authenticate(t.Context(), http.Header{"Authorization": {"Bearer unknown"}})
		expect.Equal(t, "the challenge for an invalid token", auth.Challenge(err, "", auth.ScopeRead), `Bearer error="invalid_token", scope="`+prefix+`events:read"`)
		p := w.accept(t, w.provider.Token("alice", "", cognito("access", client)))
		err = p.Require(auth.ScopeRead, auth.ScopeSubscribe)
		expect.Equal(t, "the challenge for a missing scope", auth.Challenge(err, "", auth.ScopeRead),
			`Bearer error="insufficient_scope", scope="`+prefix+`events:read `+prefix+`events:subscribe"`)
	})
	t.Run("AWS-24 the metadata names the scopes as the authorization server does", func(t *testing.T) {
		mux := http.NewServeMux()
		w.Mount(mux)
		r := httptest.NewRecorder()
		mux.ServeHTTP(r, httptest.NewRequest(http.MethodGet, jwt.WellKnown, http.NoBody))
		expect.Contains(t, "the metadata", r.Body.String(), `"`+prefix+`events:read"`)
	})
}

// TestMetadata shows where the protected resource metadata is (AUT-01, RFC 9728).
func TestMetadata(t *testing.T) {
	const known = "/.well-known/oauth-protected-resource"
	for resource, want := range map[string]struct {
		url   string
		paths []string
	}{
		"https://events.example.com/mcp":      {"https://events.example.com" + known + "/mcp", []string{known, known + "/mcp"}},
		"https://events.example.com":          {"https://events.example.com" + known, []string{known, known + "/mcp"}},
		"https://events.example.com/":         {"https://events.example.com" + known, []string{known, known + "/mcp"}},
		"https://example.com:8443/public/mcp": {"https://example.com:8443" + known + "/public/mcp", []string{known, known + "/mcp", known + "/public/mcp"}},
	} {
		t.Run("AUT-01 "+resource, func(t *testing.T) {
			w := start(t, func(o *jwt.Options) { o.Audience = []string{resource, "api://events"} })
			expect.Equal(t, "the URL", w.MetadataURL(), want.url)
			mux := http.NewServeMux()
			w.Mount(mux)
			for _, path := range want.paths {
				rec := httptest.NewRecorder()
				mux.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
				var doc struct {
					Resource string
					Servers  []string `json:"authorization_servers"`
					Scopes   []string `json:"scopes_supported"`
					Methods  []string `json:"bearer_methods_supported"`
				}
				if err := json.Unmarshal(rec.Body.Bytes(), &doc); err != nil || rec.Code != http.StatusOK {
					t.Fatalf("%s: %d %s %v", path, rec.Code, rec.Body, err)
				}
				if doc.Resource != resource || !slices.Equal(doc.Servers, []string{w.provider.Issuer}) ||
					!slices.Equal(doc.Methods, []string{"header"}) || !slices.Contains(doc.Scopes, "events:subscribe") {
					t.Errorf("%s: got %+v", path, doc)
				}
				expect.Equal(t, path+": the header Content-Type", rec.Header().Get("Content-Type"), "application/json")
				expect.Equal(t, path+": the header Access-Control-Allow-Origin", rec.Header().Get("Access-Control-Allow-Origin"), "*")
			}
			rec := httptest.NewRecorder()
			mux.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, known+"/other", nil))
			expect.Equal(t, "the status for another resource", rec.Code, http.StatusNotFound)
		})
	}
}

// newAuthenticator returns an authenticator for fuzzing and benchmarks, and the provider that it trusts.
func newAuthenticator(tb testing.TB) (*jwt.Authenticator, *identity.Provider) {
	tb.Helper()
	p := identity.Start(tb, audience)
	a := expect.Value(jwt.New(jwt.Options{
		Issuers: []string{p.Issuer}, Audience: []string{audience},
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
			expect.Fault(t, "the token", err, fault.Unauthenticated)
			return
		}
		if !auth.ValidPrincipal(who.ID) || who.Workspace != auth.DefaultWorkspace || time.Until(who.Expires) < 0 {
			t.Errorf("got %+v", who)
		}
	})
}
