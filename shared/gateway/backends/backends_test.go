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
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/rules"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestTemplatesMatchTheirExpansions(t *testing.T) {
	for template, uris := range map[string]struct{ expanded, other []string }{
		"x://{a}/{b}":     {[]string{"x://1/2", "x://a%20b/c", "x:///", "x://a@b.c/12:30+é"}, []string{"x://1", "x://1/2/3", "y://1/2"}},
		"x://{a}.json":    {[]string{"x://1.json", "x://a.json.json"}, []string{"x://1.jso", "x://1/2.json"}},
		"x://{+path}":     {[]string{"x://a/b?c#d"}, []string{"y://a"}},
		"x://a{/b,c}":     {[]string{"x://a", "x://a/1", "x://a/1/2"}, []string{"x://a1", "x://a?1"}},
		"x://a{?q,limit}": {[]string{"x://a", "x://a?q=1", "x://a?q=1&limit=2", "x://a?q=b/c"}, []string{"x://a&q=1", "x://a/b"}},
		"x://a?b=1{&c}":   {[]string{"x://a?b=1", "x://a?b=1&c=2"}, []string{"x://a?b=1?c=2"}},
		"x://a{;b}{#c}":   {[]string{"x://a", "x://a;b=1", "x://a#x/y", "x://a;b=1#x"}, []string{"x://a,b"}},
		"x://{list*}/end": {[]string{"x://a,b/end", "x://k=v,l=w/end"}, []string{"x://a,b"}},
		"x://{path*}":     {[]string{"x://a", "x://a/b/c.txt"}, []string{"y://a"}},
		"x://fixed":       {[]string{"x://fixed"}, []string{"x://fixed/1", "x://fixe"}},
	} {
		m := matcher(template)
		for _, uri := range uris.expanded {
			expect.True(t, "GWN-01 "+template+" matches "+uri, m(uri))
		}
		for _, uri := range uris.other {
			expect.True(t, "GWN-01 "+template+" does not match "+uri, !m(uri))
		}
	}
}

// GWN-01: a backend's template or a client's URI cannot keep the gateway busy, for example a URI that can be divided between the
// template's expressions in many ways.
func TestCostlyTemplatesAndURIsAreCheap(t *testing.T) {
	if matcher("x://"+strings.Repeat("{a*}", 200)+"z") != nil {
		t.Error("matcher accepts a template with 200 expressions, want nil")
	}
	m := matcher("x://" + strings.Repeat("{a*}", maxVariables) + "z")
	began := time.Now()
	uris := []string{"x://" + strings.Repeat("a,", 1000) + "!", "x://" + strings.Repeat("a,", 1<<18) + "!"}
	for range 20 {
		for _, uri := range uris {
			if m(uri) {
				t.Fatalf("the template matches a URI of %d bytes that does not end in z", len(uri))
			}
		}
	}
	expect.AtMost(t, "the time that 40 matches took", time.Since(began), 10*time.Second)
}

// steersText reports whether a character controls terminals or the direction of text, according to the code charts of Unicode.
func steersText(r rune) bool {
	switch {
	case r < 0x20, 0x7f <= r && r < 0xa0: // C0, DEL, C1
		return true
	case r == 0x061c, r == 0x200e, r == 0x200f, 0x202a <= r && r <= 0x202e, 0x2066 <= r && r <= 0x2069:
		return true // UAX #9, Explicit Formatting Characters
	}
	return r == 0xfffd
}

// FuzzEntry checks that the names and titles in a list for clients contain no characters that control terminals or the direction of
// text, whatever the backend sends.
func FuzzEntry(f *testing.F) {
	for _, seed := range []string{
		`{"name":"t","title":"T","annotations":{"title":"x"}}`, `{"uri":"x:\u001b","name":"n"}`, `{"uriTemplate":"x:{a}","NAME":"\u202e"}`,
		`{"name":"a","name":"\u0000"}`, `{"\u006eame":"\u009b"}`, `{"name":"\ud800"}`, `{"annotations":{"title":"\u2066"},"name":"b"}`, "{\"name\":\"\x7f\"}",
	} {
		for kind := range api.Kinds {
			f.Add(uint8(kind), []byte(seed), "p_")
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, text []byte, prefix string) {
		parts, batch, bad := jsonrpc.Split(text)
		if bad != nil || batch || int(kind) >= len(api.Kinds) || strings.ContainsFunc(prefix, steersText) {
			return
		}
		v := &View{backend: &Backend{}}
		v.backend.Prefix = prefix
		e, why := v.parseEntry(api.Kind(kind), parts[0])
		if why != "" {
			return
		}
		var shown struct {
			Name, Title, URI, URITemplate any
			Annotations                   struct{ Title any }
		}
		if err := json.Unmarshal(e.JSON, &shown); err != nil && !json.Valid(e.JSON) {
			t.Fatalf("%s became %s, which is no JSON", text, e.JSON)
		}
		for _, v := range []any{e.Name, e.Own, shown.Name, shown.Title, shown.URI, shown.URITemplate, shown.Annotations.Title} {
			if s, ok := v.(string); ok && strings.ContainsFunc(s, steersText) {
				t.Fatalf("%s became %s with %q", text, e.JSON, s)
			}
		}
	})
}

// GWN-05: entries of lists whose names, URIs or titles have control characters or invalid Unicode, and entries that are nested too
// deeply, are dropped for this reason.
func TestEntriesThatAreDropped(t *testing.T) {
	nested := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	for _, kind := range api.Kinds {
		reasons := map[string]string{
			`"x:1","title":"Gut \u00e4\u200d\ud83d\ude00","description":"a\n\u001bb"`:         "",
			`"x:1","annotations":` + nested(60):                                               "",
			`"x:1","annotations":` + nested(61):                                               dropDeep,
			`"x:1"` + strings.Repeat(`,"annotations":{"a":1`, 100) + strings.Repeat("}", 100): dropDeep,
			`""`:                    dropNameless,
			`"x:1","Name":"\u001b"`: dropControls,
		}
		for _, c := range []string{`\u0000`, `\u001b[31m`, `\n`, `\t`, "\x7f", `\u0085`, "\u009b", `\u061c`, `\u200f`, `\u202e`, "\u202e", `\u2066`, `\ud800`} {
			for _, entry := range []string{`"x:%s"`, `"x:1","title":"t%s"`, `"x:1","NAME":"n%s"`, `"x:1","annotations":{"title":"t%s"}`} {
				reasons[fmt.Sprintf(entry, c)] = dropControls
			}
		}
		for entry, want := range reasons {
			_, why := (&View{backend: &Backend{}}).parseEntry(kind, fmt.Appendf(nil, `{%q:%s}`, kind.Name(), entry))
			expect.Equal(t, fmt.Sprintf("the reason to drop the %s with %q", kind, entry), why, want)
		}
	}
}

// GWN-19: while a token endpoint hangs, all callers share one request for the token, and each waits no longer than its own context.
func TestCallersShareARequestToAHangingTokenEndpoint(t *testing.T) {
	var asked atomic.Int64
	arrived, gate := make(chan struct{}, 10), make(chan struct{})
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		arrived <- struct{}{}
		<-gate
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"access_token":"granted","token_type":"bearer","expires_in":3600}`))
	}))
	defer tokens.Close()
	b := newBackend(&Options{
		Secrets: func(context.Context, secret.Value) (string, error) { return "s3cret", nil }, HTTP: upstream.NewHTTP(), AskTimeout: time.Minute,
	}, api.Backend{Name: "b", OAuth: &api.OAuth{TokenURL: tokens.URL, ClientID: "me"}})
	impatient, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := b.getOAuthToken(impatient)
		gone <- err
	}()
	<-arrived
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got, err := b.getOAuthToken(t.Context()); got != "Bearer granted" || err != nil {
				t.Errorf("got %q, %v, want Bearer granted", got, err)
			}
		})
	}
	cancel()
	expect.Fault(t, "the caller that gave up", expect.Receive(t, "the error of the caller that gave up", gone), fault.Unavailable)
	close(gate)
	wg.Wait()
	expect.Equal(t, "requests at the endpoint", asked.Load(), 1)
}

// GWN-24: the gateway does not pass on its own extensions, extensions about the connection, and malformed or large declarations.
func TestDeclaredExtensions(t *testing.T) {
	var many []string
	for i := range 2 * maxExtensions {
		many = append(many, fmt.Sprintf(`"com.example/e%d":{}`, i))
	}
	for declared, want := range map[string]int{
		`{"com.example/catalog":{},"io.modelcontextprotocol/ui":{"mimeTypes":["text/html"]}}`:   2,
		`{"io.modelcontextprotocol/events":{},"io.modelcontextprotocol/tasks":{}}`:              0,
		`{"io.modelcontextprotocol/Events":{},"IO.ModelContextProtocol/tasks":{}}`:              0,
		`{"io.github.mcp-events/subscriptions":{},"IO.GitHub.MCP-Events/x":{}}`:                 0,
		`{"io.modelcontextprotocol/oauth-client-credentials":{}}`:                               0,
		`{"catalog":{},"/x":{},"com.example/":{},"com.example/a/b":{},"a b/c":{},"a/\n":{}}`:    0,
		`{"com.example/a":true,"com.example/b":null,"com.example/c":[]}`:                        0,
		`{"com.example/a":{"x":"` + strings.Repeat("x", maxSettings) + `"}}`:                    0,
		`{"com.example/a":` + strings.Repeat(`{"x":`, 20) + `1` + strings.Repeat(`}`, 20) + `}`: 0,
		`{` + strings.Join(many, ",") + `}`:                                                     maxExtensions,
		`5`:                                                                                     0,
	} {
		expect.Equal(t, fmt.Sprintf("the extensions of %.80s", declared), len(parseExtensions(json.RawMessage(declared))), want)
	}
}

// GWN-24: a method that may belong to several extensions needs all of them to be allowed, with their scopes.
func TestMethodOfSeveralExtensions(t *testing.T) {
	ann := auth.Principal{ID: "ann", Scopes: []string{"orders"}}
	info := &ServerInfo{}
	info.Extensions = parseExtensions(json.RawMessage(`{"com.example/catalog":{},"com.example/orders":{}}`))
	for _, tc := range []struct {
		rules  rules.Rules
		method string
		ok     bool
		lacks  bool
	}{
		{rules.Rules{}, "com.example/search", true, false},
		{rules.Rules{Deny: []string{"com.example/orders"}}, "com.example/search", false, false},
		{rules.Rules{Deny: []string{"com.example/orders"}}, "com.example/orders/cancel", false, false},
		{rules.Rules{Deny: []string{"com.example/orders"}}, "com.example/catalog/search", true, false},
		{rules.Rules{Deny: []string{"com.example/orders"}}, "catalog/search", true, false},
		{rules.Rules{Scopes: map[string][]string{"com.example/orders": {"orders"}}}, "com.example/search", true, false},
		{rules.Rules{Scopes: map[string][]string{"com.example/orders": {"admin"}}}, "com.example/search", false, true},
		{rules.Rules{Scopes: map[string][]string{"com.example/orders": {"admin"}}}, "catalog/search", true, false},
		{rules.Rules{}, "com.other/search", false, false},
	} {
		b := newBackend(&Options{}, api.Backend{Name: "b", Extensions: tc.rules})
		for range 20 { // the order of the extensions does not matter
			ok, err := b.view.Extends(ann, info, tc.method)
			if ok != tc.ok || auth.LacksScope(err) != tc.lacks {
				t.Fatalf("%v: %s: got %t, %v", tc.rules, tc.method, ok, err)
			}
		}
	}
}

// GWN-24: no extension can take over a method of MCP or of the gateway's own extensions, whatever a backend declares.
func FuzzExtensions(f *testing.F) {
	f.Add(`{"com.example/tools":{},"com.example/events":{}}`, "tools/call")
	f.Add(`{"tools/x":{},"notifications/tools":{}}`, "notifications/tools/list_changed")
	f.Add(`{"a/b":{"x":[1,2]}}`, "a/b/c")
	f.Fuzz(func(t *testing.T, declared, method string) {
		if _, _, bad := jsonrpc.Split([]byte(`{"jsonrpc":"2.0","method":"x","params":` + declared + `}`)); bad != nil {
			return // the client of the backend refuses it
		}
		for id, settings := range parseExtensions(json.RawMessage(declared)) {
			if !json.Valid(settings) || spec.IsOwn(id) || strings.Count(id, "/") != 1 {
				t.Fatalf("got the extension %q with %q", id, settings)
			}
			for _, own := range []string{
				"tools/call", "tools/list", "prompts/get", "resources/read", "resources/subscribe", "resources/subscriptions/register", "events/subscribe",
				"tasks/get", "completion/complete", "logging/setLevel", "initialize", "server/discover", "subscriptions/listen", "conversation/userMessage",
				"notifications/cancelled", "notifications/tools/list_changed", "notifications/tasks/status", "sampling/createMessage",
			} {
				if hasMethod(id, own) {
					t.Fatalf("%s belongs to the extension %q", own, id)
				}
			}
			if name := strings.TrimPrefix(method, "notifications/"); hasMethod(id, method) && !strings.HasPrefix(name, strings.Split(id, "/")[0]+"/") && !strings.HasPrefix(name, strings.Split(id, "/")[1]+"/") {
				t.Fatalf("%q belongs to the extension %q", method, id)
			}
		}
	})
}

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
	return string(expect.Value(json.Marshal(jose.JSONWebKey{Key: key, KeyID: id, Algorithm: alg}))(t))
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
	oddDER := expect.Value(x509.MarshalECPrivateKey(odd))(t)
	goodDER, err := x509.MarshalECPrivateKey(good)
	goodPEM := encodePEM(t, "EC PRIVATE KEY", goodDER, err)
	keys := map[string]struct{ key, want string }{
		"no key":             {"hunter2", "not a single private key in PEM, and not a JWK"},
		"two keys":           {goodPEM + goodPEM, "not a single private key in PEM, and not a JWK"},
		"broken PEM":         {encodePEM(t, "PRIVATE KEY", []byte("hunter2"), nil), "not an unencrypted private key in PEM"},
		"broken JWK":         {`{"kty":"EC","d":"hunter2"}`, "not a valid JWK"},
		"public JWK":         {encodeJWK(t, good.Public(), "hunter2", ""), "not a private RSA"},
		"shared secret":      {encodeJWK(t, []byte("hunter2hunter2hunter2hunter2hunter2"), "", "HS256"), "not a valid JWK"},
		"weak RSA":           {encodePEM(t, "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(weak), nil), "the RSA key has 1024 bits (at least 2048)"},
		"other curve":        {encodePEM(t, "EC PRIVATE KEY", oddDER, nil), "not a private RSA"},
		"alg of another key": {encodeJWK(t, good, "", "RS256"), "alg does not fit"},
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
