package webhook

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestParseSecret: EVX-08.
func TestParseSecret(t *testing.T) {
	enc := func(n int) string { return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0xfb}, n)) }
	for in, want := range map[string]int{
		"whsec_" + enc(23): 0, "whsec_" + enc(24): 24, "whsec_" + enc(32): 32, "whsec_" + enc(64): 64, "whsec_" + enc(65): 0,
		"": 0, "whsec_": 0, enc(32): 0, "WHSEC_" + enc(32): 0, "whsk_" + enc(32): 0, " whsec_" + enc(32): 0, "whsec_" + enc(32) + " ": 0,
		"whsec_" + enc(32) + "\n":                        0,
		"whsec_" + enc(32)[:20] + "\n" + enc(32):         0,
		"whsec_" + strings.TrimRight(enc(32), "="):       0, // other libraries refuse it
		"whsec_" + strings.ReplaceAll(enc(32), "+", "-"): 0,
		"whsec_" + strings.Repeat("%", 40):               0,
		"whsec_" + strings.Repeat("A", 42) + "B=":        0, // the unused bits are not zero
		"whsec_" + strings.Repeat("A", 1<<20):            0,
	} {
		key, err := ParseSecret(in)
		if len(key) != want || (want == 0) != fault.Is(err, fault.Invalid) {
			t.Errorf("EVX-08 %.60q: %d bytes, %v", in, len(key), err)
		}
		if err != nil && len(in) > 10 && strings.Contains(err.Error(), in[6:]) {
			t.Errorf("the error holds the secret: %v", err)
		}
	}
}

func TestNewSecret(t *testing.T) {
	secret, key := NewSecret()
	parsed, err := ParseSecret(secret)
	if err != nil || !bytes.Equal(parsed, key) || len(key) != 32 {
		t.Errorf("got %d bytes, %v", len(key), err)
	}
	if other, _ := NewSecret(); other == secret {
		t.Error("two secrets are equal")
	}
	raw, key := NewRawSecret()
	if string(key) != raw || len(raw) != 43 {
		t.Errorf("raw secret of %d characters, key of %d", len(raw), len(key))
	}
}

func TestIdentity(t *testing.T) {
	text := GenerateIdentity()
	expect.OK(t, expect.ErrOf(ParseIdentity(text)))
	seed := base64.StdEncoding.EncodeToString(make([]byte, 32))
	expect.OK(t, expect.ErrOf(ParseIdentity("whsk_"+seed)))
	for _, bad := range []string{
		"", "whsk_", seed, "whsec_" + seed, "whsk_" + seed + "AAAA", "whsk_%",
		"whsk_" + base64.StdEncoding.EncodeToString(make([]byte, 64)),
	} {
		expect.Fault(t, fmt.Sprint(bad), expect.ErrOf(ParseIdentity(bad)), fault.Invalid)
	}
	var none *Identity
	expect.Equal(t, "the keys without an identity", string(none.JWKS()), `{"keys":[]}`)
	// The key, its public part and its thumbprint are from RFC 8037 appendix A.
	seedOf8037, _ := base64.RawURLEncoding.DecodeString("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A")
	key := expect.Value(ParseIdentity("whsk_" + base64.StdEncoding.EncodeToString(seedOf8037)))(t)
	want := `{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",` +
		`"kid":"kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k","use":"sig","alg":"EdDSA"}]}`
	expect.Equal(t, "the key set", string(NewIdentity(key).JWKS()), want)
}

func FuzzParseSecret(f *testing.F) {
	s, _ := NewSecret()
	f.Add(s)
	f.Add("whsec_")
	f.Fuzz(func(t *testing.T, secret string) {
		key, err := ParseSecret(secret)
		if err != nil {
			return
		}
		expect.MustEqual(t, "the secret in its only form", formatSecret(key), secret)
		expect.OK(t, expect.ErrOf(standardwebhooks.NewWebhook(secret)), "the library, with the secret", secret)
	})
}

var home = Binding{Workspace: "default", Subscription: "sub_1", Target: "https://example.com/hook"}

func keys(t *testing.T) (private []byte, s *Sealer, o *Opener) {
	t.Helper()
	private, public, err := GenerateKeyset()
	expect.OK(t, err)
	return private, sealer(t, public), opener(t, private)
}

func sealer(t *testing.T, public []byte) *Sealer {
	t.Helper()
	return expect.Value(NewSealer(public))(t)
}

func opener(t *testing.T, private []byte) *Opener {
	t.Helper()
	return expect.Value(NewOpener(private))(t)
}

func seal(t *testing.T, s *Sealer, secret []byte, b Binding) []byte {
	t.Helper()
	return expect.Value(s.Seal(t.Context(), secret, b))(t)
}

func TestSealing(t *testing.T) {
	private, s, o := keys(t)
	_, secret := NewSecret()
	sealed := seal(t, s, secret, home)

	t.Run("opens for its binding, also from the cache", func(t *testing.T) {
		for range 2 {
			got := expect.Value(o.Open(t.Context(), sealed, home))(t)
			expect.MustEqual(t, "the secret", string(got), string(secret))
		}
	})
	t.Run("sealing the same secret twice gives different results", func(t *testing.T) {
		expect.Differ(t, "the other result", string(seal(t, s, secret, home)), string(sealed))
	})
	t.Run("does not open with another binding", func(t *testing.T) {
		for _, b := range []Binding{
			{"other", home.Subscription, home.Target},
			{home.Workspace, "sub_2", home.Target},
			{home.Workspace, home.Subscription, "https://example.com/hook2"},
			{"defaul", "tsub_1", home.Target}, // the same bytes, split differently
			{},
		} {
			expect.Error(t, fmt.Sprintf("the secret for %+v", b), expect.ErrOf(o.Open(t.Context(), sealed, b)))
		}
	})
	t.Run("a changed byte is detected", func(t *testing.T) {
		for i := range sealed {
			changed := bytes.Clone(sealed)
			changed[i] ^= 1
			expect.Error(t, fmt.Sprint("the secret with another byte ", i), expect.ErrOf(o.Open(t.Context(), changed, home)))
		}
		expect.Error(t, "the secret of an empty text", expect.ErrOf(o.Open(t.Context(), nil, home)))
	})
	t.Run("another keyset does not open it", func(t *testing.T) {
		_, _, other := keys(t)
		expect.Error(t, "the secret with another key", expect.ErrOf(other.Open(t.Context(), sealed, home)))
	})
	t.Run("the public keyset cannot open", func(t *testing.T) {
		public := expect.Value(PublicKeyset(private))(t)
		if o, err := NewOpener(public); err == nil {
			expect.Error(t, "the secret with the public keyset", expect.ErrOf(o.Open(t.Context(), sealed, home)))
		}
		expect.Error(t, "a sealer with a private keyset", expect.ErrOf(NewSealer(private)))
		expect.Error(t, "an opener with arbitrary bytes", expect.ErrOf(NewOpener([]byte("no keyset"))))
	})
	t.Run("sizes are as documented", func(t *testing.T) {
		expect.Equal(t, "bytes that sealing adds", len(sealed)-len(secret), 53)
		expect.AtMost(t, "the bytes of a private keyset with one key", len(private), 220)
	})
}

// TestSealing_Rotation follows the two steps of a rotation: first every sender gets the new key, then registering
// begins to use it. Every secret can be opened at any time.
func TestSealing_Rotation(t *testing.T) {
	before, s, _ := keys(t)
	_, secret := NewSecret()
	old := seal(t, s, secret, home)

	added := expect.Value(AddKey(before))(t)
	public := expect.Value(PublicKeyset(added))(t)
	between := seal(t, sealer(t, public), secret, home)
	expect.OK(t, expect.ErrOf(opener(t, before).Open(t.Context(), between, home))) // the new key is not in use before it is promoted

	after, public, err := PromoteKey(added)
	expect.OK(t, err)
	fresh := seal(t, sealer(t, public), secret, home)
	expect.Error(t, "a fresh secret with the old key", expect.ErrOf(opener(t, before).Open(t.Context(), fresh, home)))
	for name, private := range map[string][]byte{"added": added, "promoted": after} {
		for i, sealed := range [][]byte{old, between, fresh} {
			got := expect.Value(opener(t, private).Open(t.Context(), sealed, home))(t)
			expect.Equal(t, fmt.Sprintf("secret %d with the key that was %s", i, name), string(got), string(secret))
		}
	}
	t.Run("ten rotations fit in a wrapping request", func(t *testing.T) {
		private := before
		for range 10 {
			private, _, err = PromoteKey(expect.Value(AddKey(private))(t))
			expect.OK(t, err)
		}
		expect.AtMost(t, "the bytes of the private keyset", len(private), 4096)
		expect.OK(t, expect.ErrOf(opener(t, private).Open(t.Context(), old, home)))
	})
}

func TestDropKeys_KeepsTheSealingKeyAndKeysInUse(t *testing.T) {
	private, public, err := GenerateKeyset()
	expect.OK(t, err)
	var sealed [][]byte // one for each key that has sealed, oldest first
	use := func() {
		t.Helper()
		sealed = append(sealed, seal(t, sealer(t, public), []byte("secret"), Binding{}))
	}
	use()
	for range 3 {
		private, public, err = PromoteKey(expect.Value(AddKey(private))(t))
		expect.OK(t, err)
		use()
	}
	private = expect.Value(AddKey(private))(t) // it seals after its promotion
	used := sealed[1]
	private, public, dropped, err := DropKeys(private, func(prefix []byte) (bool, error) { return bytes.HasPrefix(used, prefix), nil })
	expect.OK(t, err)
	expect.MustEqual(t, "the removed keys", dropped, 2)
	o := opener(t, private)
	for i, want := range []bool{false, true, false, true} {
		expect.Equal(t, fmt.Sprintf("key %d opens", i), expect.ErrOf(o.Open(t.Context(), sealed[i], Binding{})) == nil, want)
	}
	use()
	expect.OK(t, expect.ErrOf(o.Open(t.Context(), sealed[4], Binding{}))) // the new public keyset seals with a key of the private one
	_, _, err = PromoteKey(private)
	expect.OK(t, err)
	if _, _, _, err := DropKeys(private, func([]byte) (bool, error) { return false, errors.New("cannot search") }); err == nil || err.Error() != "cannot search" {
		t.Errorf("got %v, want the error of the search", err)
	}
}

func TestVerifyTarget(t *testing.T) {
	secret, key := NewSecret()
	echo := newEndpoint(secret)
	t.Run("EVX-12 an endpoint that echoes a signed challenge is verified", func(t *testing.T) {
		var seen captured
		srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			seen = captured{header: r.Header, body: body}
			r.Body = io.NopCloser(strings.NewReader(string(body)))
			echo.ServeHTTP(w, r)
		})
		s := open(t, Options{})
		var challenges []string
		for range 2 {
			expect.OK(t, s.Verify(t.Context(), srv.URL, "sub_1", [][]byte{key}))
			var v verification
			if err := json.Unmarshal(seen.body, &v); err != nil || v.Type != "verification" || len(v.Challenge) < 40 {
				t.Errorf("body %s", seen.body)
			}
			challenges = append(challenges, v.Challenge)
		}
		expect.Differ(t, "the second challenge", challenges[0], challenges[1])
		expect.OK(t, Verify(seen.header, seen.body, secret))
		if id := seen.header.Get(HeaderID); !strings.HasPrefix(id, "msg_verification_") || strings.Contains(id, ".") || len(id) < 30 {
			t.Errorf("EVX-13 webhook-id %q", id)
		}
		expect.Equal(t, "the header with the subscription id", seen.header.Get(HeaderSubscription), "sub_1")
	})

	for name, tt := range map[string]struct {
		status int
		body   func(challenge string) string
		want   Category
	}{
		"another challenge":          {200, func(string) string { return `{"challenge":"other"}` }, ChallengeFailed},
		"a prefix of it":             {200, func(c string) string { return `{"challenge":"` + c[:10] + `"}` }, ChallengeFailed},
		"an empty one":               {200, func(string) string { return `{"challenge":""}` }, ChallengeFailed},
		"nothing":                    {204, func(string) string { return "" }, ChallengeFailed},
		"the challenge without JSON": {200, func(c string) string { return c }, ChallengeFailed},
		"another type":               {200, func(c string) string { return `{"challenge":["` + c + `"]}` }, ChallengeFailed},
		"after 16 KiB":               {200, func(c string) string { return strings.Repeat(" ", maxAnswer) + `{"challenge":"` + c + `"}` }, ChallengeFailed},
		"it in a 4xx":                {404, func(c string) string { return `{"challenge":"` + c + `"}` }, HTTP4xx},
		"it in a redirect":           {302, func(c string) string { return `{"challenge":"` + c + `"}` }, HTTP4xx},
		"it in a 5xx":                {500, func(c string) string { return `{"challenge":"` + c + `"}` }, HTTP5xx},
		"it in a 503":                {503, func(c string) string { return `{"challenge":"` + c + `"}` }, HTTP5xx},
		"it in a 425":                {425, func(c string) string { return `{"challenge":"` + c + `"}` }, HTTP4xx},
		"it, with other members":     {201, func(c string) string { return `{"ok":true,"challenge":"` + c + `"}` }, ""},
	} {
		t.Run("EVX-12 an endpoint that answers with "+name, func(t *testing.T) {
			srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodPost {
					http.NotFound(w, r)
					return
				}
				var v verification
				_ = json.NewDecoder(r.Body).Decode(&v)
				w.Header().Set("Location", "http://127.0.0.1:1/")
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body(v.Challenge))
			})
			wantReason(t, open(t, Options{}).Verify(t.Context(), srv.URL, "sub_1", [][]byte{key}), tt.want)
		})
	}

	t.Run("EVX-12 an unreachable endpoint is not verified", func(t *testing.T) {
		srv := serve(t, nil)
		srv.Close()
		wantReason(t, open(t, Options{}).Verify(t.Context(), srv.URL, "sub_1", nil), ConnectionRefused)
	})
	t.Run("EVX-12 a blocked address is reported as a refused connection", func(t *testing.T) {
		guard := &Guard{Resolver: newNameServer(t, localhost).resolver()}
		wantReason(t, open(t, Options{Guard: guard}).Verify(t.Context(), "https://hooks.example.com/", "sub_1", nil), ConnectionRefused)
	})
	t.Run("SRF-06 an invalid URL is an invalid argument", func(t *testing.T) {
		expect.Fault(t, "http", open(t, Options{Guard: &Guard{}}).Verify(t.Context(), "http://example.com/", "sub_1", nil), fault.Invalid)
	})
}

func wantReason(t *testing.T, err error, want Category) {
	t.Helper()
	if want == "" {
		expect.OK(t, err)
		return
	}
	data, _ := fault.DataOf(err).(map[string]any)
	if !fault.Is(err, fault.Unavailable) || data["reason"] != string(want) {
		t.Errorf("got %v with %v, want the reason %s", err, data, want)
	}
	expect.Lacks(t, "SRF-05 the public error", fault.Public(err), "127.0.0.1")
}

func TestVerifyTarget_Declared(t *testing.T) {
	for name, tt := range map[string]struct {
		document string
		path     string
		ok       bool
	}{
		"under a declared path":           {`{"receivers":["/other/","/hooks/"]}`, "/hooks/a", true},
		"a declared path":                 {`{"receivers":["/hooks"]}`, "/hooks", true},
		"under a path without its slash":  {`{"receivers":["/hooks"]}`, "/hooks/a", true},
		"the whole origin":                {`{"receivers":["/"]}`, "/hooks/a", true},
		"next to a declared path":         {`{"receivers":["/hooks"]}`, "/hooks2", false},
		"none":                            {`{"receivers":[]}`, "/hooks", false},
		"an empty prefix":                 {`{"receivers":[""]}`, "/hooks", false},
		"a relative prefix":               {`{"receivers":["hooks"]}`, "/hooks", false},
		"out of a declared path":          {`{"receivers":["/hooks/"]}`, "/hooks/../admin", false},
		"out of a declared path, encoded": {`{"receivers":["/hooks/"]}`, "/hooks/%2e%2E/admin", false},
		"not a document":                  {`nothing`, "/hooks", false},
		"an endless document":             {`{"receivers":["/hooks"],"x":"` + strings.Repeat("x", maxAnswer) + `"}`, "/hooks", false},
	} {
		t.Run("EVX-12 "+name, func(t *testing.T) {
			srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet && r.URL.Path == receiverPath {
					_, _ = io.WriteString(w, tt.document)
					return
				}
				w.WriteHeader(http.StatusNotFound)
			})
			err := open(t, Options{}).Verify(t.Context(), srv.URL+tt.path, "sub_1", nil)
			wantReason(t, err, map[bool]Category{false: HTTP4xx}[tt.ok])
		})
	}
}

func TestVerifyAndChallenge(t *testing.T) {
	secret, key := NewSecret()
	older, olderKey := NewSecret()
	rawSecret, rawKey := NewRawSecret()
	srv := serve(t, newEndpoint(secret, older, rawSecret))
	s := open(t, Options{})
	for name, tt := range map[string]struct {
		change func(*Request)
		status int
	}{
		"a good one":                {func(*Request) {}, 204},
		"with the older secret":     {func(r *Request) { r.Keys = [][]byte{olderKey} }, 204},
		"with a raw secret":         {func(r *Request) { r.Keys = [][]byte{rawKey} }, 204},
		"with both during rotation": {func(r *Request) { r.Keys = [][]byte{[]byte(strings.Repeat("n", 32)), key} }, 204},
		"with a foreign secret":     {func(r *Request) { r.Keys = [][]byte{[]byte(strings.Repeat("n", 32))} }, 401},
		"with an empty key":         {func(r *Request) { r.Keys = [][]byte{{}} }, 401},
		"unsigned":                  {func(r *Request) { r.Keys = nil }, 401},
		"too old":                   {func(r *Request) { r.At = time.Now().Add(-6 * time.Minute) }, 401},
		"of the future":             {func(r *Request) { r.At = time.Now().Add(6 * time.Minute) }, 401},
		"an event that looks like a challenge": {func(r *Request) {
			r.Body = []byte(`{"type":"verification","challenge":"x"}`)
		}, 204},
		"an event with the id of a challenge": {func(r *Request) { r.ID = "msg_verification_1" }, 204},
		"a challenge": {func(r *Request) {
			r.ID, r.Body = "msg_verification_1", []byte(`{"type":"verification","challenge":"x"}`)
		}, 200},
		"a challenge with a foreign secret": {func(r *Request) {
			r.ID, r.Body, r.Keys = "msg_verification_1", []byte(`{"type":"verification","challenge":"x"}`), [][]byte{[]byte(strings.Repeat("n", 32))}
		}, 401},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(srv.URL)
			r.Keys = [][]byte{key}
			tt.change(&r)
			expect.Equal(t, "the status", s.Send(t.Context(), r).Status, tt.status)
		})
	}
}

func TestVerify_Errors(t *testing.T) {
	secret, key := NewSecret()
	body := []byte("{}")
	now := time.Now()
	header := func(id, at, signature string) http.Header {
		h := http.Header{}
		h.Set(HeaderID, id)
		h.Set(HeaderTimestamp, at)
		h.Set(HeaderSignature, signature)
		return h
	}
	at := fmt.Sprint(now.Unix())
	good := Sign([][]byte{key}, "evt_1", now, body)
	expect.OK(t, Verify(header("evt_1", at, "v1a,AAAA v2,x garbage "+good), body, secret))
	for name, h := range map[string]http.Header{
		"no headers":   {},
		"no id":        header("", at, good),
		"another id":   header("evt_2", at, good),
		"no number":    header("evt_1", "soon", good),
		"another time": header("evt_1", fmt.Sprint(now.Unix()-1), good),
		"no signature": header("evt_1", at, ""),
		"another kind": header("evt_1", at, strings.Replace(good, "v1,", "v1a,", 1)),
	} {
		expect.Fault(t, name, Verify(h, body, secret), fault.Unauthenticated)
	}
	expect.Fault(t, "without a secret", Verify(header("evt_1", at, good), body), fault.Unauthenticated)
	expect.Fault(t, "with a malformed secret", Verify(header("evt_1", at, good), body, "whsec_x"), fault.Invalid)
}
