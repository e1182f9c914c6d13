package verify

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/provider"
)

func TestSettings_Check(t *testing.T) {
	for name, tt := range map[string]struct {
		settings Settings
		want     []Fault
	}{
		"github":                    {Settings{Scheme: GitHub}, nil},
		"slack with a tolerance":    {Settings{Scheme: Slack, Tolerance: time.Second}, nil},
		"stripe with the longest":   {Settings{Scheme: Stripe, Tolerance: 24 * time.Hour}, nil},
		"hmac with only a header":   {Settings{Scheme: HMAC, Header: "Linear-Signature"}, nil},
		"hmac with all of it":       {Settings{HMAC, "X-Sig", "sha512", "base64", "v1,", "{header:x-id}.{timestamp}.{body}", "X-At", time.Minute}, nil},
		"none":                      {Settings{Scheme: None}, nil},
		"gitlab with a tolerance":   {Settings{Scheme: GitLab, Tolerance: time.Minute}, nil}, // a signing token signs the time
		"standard with a tolerance": {Settings{Scheme: StandardWebhooks, Tolerance: time.Minute}, nil},
		"no scheme":                 {Settings{}, []Fault{{"scheme", `"" is not a scheme (allowed: github, gitlab, hmac, none, shopify, slack, standard-webhooks, stripe)`}}},
		"another scheme":            {Settings{Scheme: "GitHub"}, []Fault{{"scheme", `"GitHub" is not a scheme (allowed: github, gitlab, hmac, none, shopify, slack, standard-webhooks, stripe)`}}},
		"settings of hmac":          {Settings{Scheme: GitHub, Header: "X", Prefix: "y"}, []Fault{{"header", "is a setting of the scheme hmac only, not of github"}, {"prefix", "is a setting of the scheme hmac only, not of github"}}},
		"a tolerance too short":     {Settings{Scheme: Slack, Tolerance: time.Millisecond}, []Fault{{"tolerance", "1ms is not allowed (allowed: 1s to 24h0m0s)"}}},
		"a tolerance too long":      {Settings{Scheme: Slack, Tolerance: 25 * time.Hour}, []Fault{{"tolerance", "25h0m0s is not allowed (allowed: 1s to 24h0m0s)"}}},
		"a tolerance below zero":    {Settings{Scheme: Slack, Tolerance: -time.Minute}, []Fault{{"tolerance", "-1m0s is not allowed (allowed: 1s to 24h0m0s)"}}},
		"a tolerance of nothing":    {Settings{Scheme: GitHub, Tolerance: time.Minute}, []Fault{{"tolerance", "the scheme github signs no time here, so there is nothing to tolerate"}}},
		"hmac, of nothing":          {Settings{Scheme: HMAC, Header: "X", Tolerance: time.Minute}, []Fault{{"tolerance", "the scheme hmac signs no time here, so there is nothing to tolerate"}}},
		"hmac without a header":     {Settings{Scheme: HMAC}, []Fault{{"header", "is needed: the name of the header with the signature"}}},
		"hmac with a bad header":    {Settings{Scheme: HMAC, Header: "X Sig"}, []Fault{{"header", `"X Sig" is not the name of a header`}}},
		"a long header":             {Settings{Scheme: HMAC, Header: strings.Repeat("X", 101)}, []Fault{{"header", `"` + strings.Repeat("X", 64) + `" is not the name of a header`}}},
		"hmac with MD5":             {Settings{Scheme: HMAC, Header: "X", Algorithm: "md5"}, []Fault{{"algorithm", `"md5" is not allowed (allowed: sha1, sha256, sha512)`}}},
		"hmac in base32":            {Settings{Scheme: HMAC, Header: "X", Encoding: "base32"}, []Fault{{"encoding", `"base32" is not allowed (allowed: base64, hex)`}}},
		"a prefix with a space":     {Settings{Scheme: HMAC, Header: "X", Prefix: "HMAC x"}, []Fault{{"prefix", "must be at most 64 printable ASCII characters without spaces"}}},
		"nothing signed":            {Settings{Scheme: HMAC, Header: "X", Signed: "x"}, []Fault{{"signed", "has {body} 0 times; it must appear once"}}},
		"the body twice":            {Settings{Scheme: HMAC, Header: "X", Signed: "{body}{body}"}, []Fault{{"signed", "has {body} 2 times; it must appear once"}}},
		"an unknown part":           {Settings{Scheme: HMAC, Header: "X", Signed: "{url}{body}"}, []Fault{{"signed", "{url} is not allowed (allowed: {body}, {timestamp}, {header:NAME})"}}},
		"a header without name":     {Settings{Scheme: HMAC, Header: "X", Signed: "{header:}{body}"}, []Fault{{"signed", "{header:} is not allowed (allowed: {body}, {timestamp}, {header:NAME})"}}},
		"the Host":                  {Settings{Scheme: HMAC, Header: "X", Signed: "{header:Host}{body}"}, []Fault{{"signed", "{header:Host} is not allowed: proxies change it, and the server does not have it among the headers"}}},
		"an open brace":             {Settings{Scheme: HMAC, Header: "X", Signed: "{body}{"}, []Fault{{"signed", "{} is not allowed (allowed: {body}, {timestamp}, {header:NAME})"}}},
		"a closing brace":           {Settings{Scheme: HMAC, Header: "X", Signed: "}{body}"}, []Fault{{"signed", "has a } without a {"}}},
		"a long text":               {Settings{Scheme: HMAC, Header: "X", Signed: strings.Repeat("x", 513)}, []Fault{{"signed", "has 513 bytes, 512 are allowed"}}},
		"many parts":                {Settings{Scheme: HMAC, Header: "X", Signed: "{body}" + strings.Repeat("{timestamp}", 20)}, []Fault{{"signed", "has 21 parts, 20 are allowed"}}},
		"a time without its header": {Settings{Scheme: HMAC, Header: "X", Signed: "{timestamp}{body}"}, []Fault{{"timestamp", "is needed: the name of the header that {timestamp} stands for"}}},
		"a time that is not signed": {Settings{Scheme: HMAC, Header: "X", Timestamp: "X-At"}, []Fault{{"signed", "lacks {timestamp}; anyone can change a time that is not signed"}}},
		"all of it": {Settings{HMAC, "", "x", "y", "\x00", "{", ":", time.Hour * 100}, []Fault{
			{"header", "is needed: the name of the header with the signature"},
			{"timestamp", `":" is not the name of a header`},
			{"algorithm", `"x" is not allowed (allowed: sha1, sha256, sha512)`},
			{"encoding", `"y" is not allowed (allowed: base64, hex)`},
			{"prefix", "must be at most 64 printable ASCII characters without spaces"},
			{"signed", "{} is not allowed (allowed: {body}, {timestamp}, {header:NAME})"},
			{"tolerance", "100h0m0s is not allowed (allowed: 1s to 24h0m0s)"},
		}},
	} {
		t.Run("SRC-02 "+name, func(t *testing.T) {
			err := tt.settings.Check()
			if tt.want == nil {
				expect.OK(t, err)
				return
			}
			if diff := cmp.Diff(tt.want, fault.DataOf(err)); diff != "" || !fault.Is(err, fault.Invalid) {
				t.Errorf("%v\n%s", err, diff)
			}
			if _, e := New(tt.settings, plain[:1]); e == nil || e.Error() != err.Error() {
				t.Errorf("New: %v", e)
			}
		})
	}
}

func TestNew_Secrets(t *testing.T) {
	const good = "0123456789abcdef"
	for name, tt := range map[string]struct {
		scheme  string
		secrets []string
		want    string
	}{
		"one":                           {GitHub, []string{good}, ""},
		"five":                          {GitHub, []string{good, good + "1", good + "2", good + "3", good + "4"}, ""},
		"no secrets":                    {GitHub, nil, "0 secrets are not allowed (allowed: 1 to 5)"},
		"six":                           {GitHub, []string{good, good, good, good, good, good}, "6 secrets are not allowed (allowed: 1 to 5)"},
		"an empty one":                  {GitHub, []string{good, ""}, "secret 2 of 2 is empty"},
		"a short one":                   {GitHub, []string{"0123456789abcde"}, "secret 1 of 1 has 15 bytes; at least 16 are needed"},
		"a long one":                    {GitHub, []string{strings.Repeat("x", 1025)}, "secret 1 of 1 has 1025 bytes, 1024 are allowed"},
		"a line break":                  {GitHub, []string{good + "\n"}, "secret 1 of 1 begins or ends with white space; was a line break stored with it?"},
		"only spaces":                   {GitHub, []string{strings.Repeat(" ", 20)}, "secret 1 of 1 begins or ends with white space; was a line break stored with it?"},
		"a short key of a path":         {None, []string{good}, "secret 1 of 1 has 16 bytes; at least 24 are needed"},
		"a key that would be escaped":   {None, []string{"0123456789abcdef/0123456789"}, "secret 1 of 1 has characters that a path would escape (allowed: letters, digits, - . _ ~)"},
		"standard without its prefix":   {StandardWebhooks, []string{good}, "secret 1 of 1: does not begin with whsec_"},
		"standard that is not base64":   {StandardWebhooks, []string{standard[0], "whsec_!" + good}, "secret 2 of 2: is not base64 after whsec_"},
		"standard that is short":        {StandardWebhooks, []string{"whsec_AAECAwQFBgcICQoLDA0ODw=="}, "secret 1 of 1: has 16 bytes, 24 to 64 are allowed"},
		"gitlab's signing token, short": {GitLab, []string{"whsec_AAECAwQFBgcICQoLDA0ODw=="}, "secret 1 of 1: has 16 bytes, 24 to 64 are allowed"},
		"stripe's is not base64":        {Stripe, []string{"whsec_5f1d2c3b4a5968778695847"}, ""},
	} {
		t.Run("SRC-02 "+name, func(t *testing.T) {
			v, err := New(Settings{Scheme: tt.scheme}, tt.secrets)
			if tt.want == "" {
				expect.OK(t, err)
				return
			}
			if !fault.Is(err, fault.Invalid) || err.Error() != tt.want || v != nil {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			for _, s := range tt.secrets {
				if s != "" && strings.Contains(fmt.Sprint(err), s) {
					t.Errorf("%v names a secret", err)
				}
			}
		})
	}
	t.Run("SRC-02 printing a verifier reveals no secret", func(t *testing.T) {
		v := expect.Value(New(Settings{Scheme: GitHub}, []string{good}))(t)
		for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
			expect.Equal(t, format, fmt.Sprintf(format, v), "verify by github")
		}
	})
}

// sender creates requests as a provider does.
type sender struct {
	name     string
	settings Settings
	// secrets are an old, a new and an unrelated secret.
	secrets [3]string
	// signature and time are the names of their headers. Time is empty if no time is signed.
	signature, time string
	// bodySigned is false for providers that send the secret itself.
	bodySigned bool
	send       func(body []byte, secret string, at time.Time) http.Header
}

func digest(algorithm, secret, text string) []byte {
	h := hmac.New(map[string]func() hash.Hash{"sha1": sha1.New, "sha256": sha256.New, "sha512": sha512.New}[algorithm], []byte(secret))
	h.Write([]byte(text))
	return h.Sum(nil)
}

func encode(encoding string, sum []byte) string {
	if encoding == "base64" {
		return base64.StdEncoding.EncodeToString(sum)
	}
	return hex.EncodeToString(sum)
}

func hexMAC(secret, text string) string { return encode("hex", digest("sha256", secret, text)) }

// sendAs returns a function that makes requests as the provider with the name of a scheme does.
func sendAs(scheme string) func(body []byte, secret string, at time.Time) http.Header {
	all := provider.Schemes()
	p := all[slices.IndexFunc(all, func(p provider.Scheme) bool { return p.Name == scheme })]
	return func(body []byte, secret string, at time.Time) http.Header {
		p.Secret = secret
		return p.Headers("msg_1", body, at)
	}
}

var plain = [3]string{"the-old-secret-0123456789", "the-new-secret-0123456789", "a-foreign-secret-012345678"}

var standard = [3]string{
	"whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
	"whsec_ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=",
	"whsec_QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl8=",
}

var senders = []sender{
	{"github", Settings{Scheme: GitHub}, plain, "X-Hub-Signature-256", "", true, sendAs(GitHub)},
	{"stripe", Settings{Scheme: Stripe}, plain, "Stripe-Signature", "Stripe-Signature", true, sendAs(Stripe)},
	{"slack", Settings{Scheme: Slack}, plain, "X-Slack-Signature", "X-Slack-Request-Timestamp", true, sendAs(Slack)},
	{"shopify", Settings{Scheme: Shopify}, plain, "X-Shopify-Hmac-Sha256", "", true, sendAs(Shopify)},
	{"gitlab with a secret token", Settings{Scheme: GitLab}, plain, "X-Gitlab-Token", "", false, sendAs(GitLab)},
	{"gitlab with a signing token", Settings{Scheme: GitLab}, standard, "webhook-signature", "webhook-timestamp", true, sendAs(StandardWebhooks)},
	{"standard-webhooks", Settings{Scheme: StandardWebhooks}, standard, "webhook-signature", "webhook-timestamp", true, sendAs(StandardWebhooks)},
	{
		"hmac",
		Settings{
			Scheme: HMAC, Header: "X-Sig", Algorithm: "sha512", Encoding: "base64", Prefix: "a=",
			Signed: "{header:X-Id}|{timestamp}|{body}", Timestamp: "X-At",
		},
		plain, "X-Sig", "X-At", true,
		func(body []byte, secret string, at time.Time) http.Header {
			sum := digest("sha512", secret, fmt.Sprintf("1|%d|%s", at.UnixMilli(), body))
			return headers("X-Id", "1", "X-At", fmt.Sprint(at.UnixMilli()), "X-Sig", "a="+encode("base64", sum))
		},
	},
}

// TestVerify_Refuses changes a genuine request of each sender in every relevant way.
func TestVerify_Refuses(t *testing.T) {
	const tolerance = defaultTolerance
	for _, s := range senders {
		signature := func(h http.Header, change func(string) string) { h.Set(s.signature, change(h.Get(s.signature))) }
		other := s.send([]byte("{}"), s.secrets[2], at)
		timed := s.time != ""
		inHeader := timed && s.time == s.signature // as in Stripe's header
		for _, tt := range []struct {
			name   string
			when   bool
			change func(r *Request)
			after  time.Duration
			want   string
		}{
			{"genuine", true, func(*Request) {}, 0, ""},
			{"genuine, in other letters", true, func(r *Request) { r.Header = lower(r.Header) }, 0, ""},
			{"forged with another secret", true, func(r *Request) { r.Header = other.Clone() }, 0, NoMatch},
			{"with another body", s.bodySigned, func(r *Request) { r.Body = []byte("{ }") }, 0, NoMatch},
			{"with an empty body", s.bodySigned, func(r *Request) { r.Body = nil }, 0, NoMatch},
			{"with a letter changed", true, func(r *Request) { signature(r.Header, flipped) }, 0, NoMatch},
			{"without the header", true, func(r *Request) { r.Header.Del(s.signature) }, 0, noSignature},
			{"with an empty header", true, func(r *Request) { r.Header.Set(s.signature, "") }, 0, noSignature},
			{"with the header twice", true, func(r *Request) { r.Header.Add(s.signature, r.Header.Get(s.signature)) }, 0, headerTwice},
			{"with a forged and a good header", true, func(r *Request) {
				r.Header[http.CanonicalHeaderKey(s.signature)] = []string{other.Get(s.signature), r.Header.Get(s.signature)}
			}, 0, headerTwice},
			{"at the edge of the tolerance", timed, func(*Request) {}, tolerance, ""},
			{"at the other edge", timed, func(*Request) {}, -tolerance, ""},
			{"replayed after the tolerance", timed, func(*Request) {}, tolerance + time.Second, tooOld},
			{"replayed after a year", timed, func(*Request) {}, 365 * 24 * time.Hour, tooOld},
			{"from the future", timed, func(*Request) {}, -tolerance - time.Second, tooNew},
			{"replayed where no time is signed", !timed, func(*Request) {}, 24 * time.Hour, ""},
			{"stale with a fresh time", timed && !inHeader, func(r *Request) {
				r.Header.Set(s.time, s.send(nil, "", at.Add(time.Hour)).Get(s.time))
			}, time.Hour, NoMatch},
			{"without a time", timed && !inHeader, func(r *Request) { r.Header.Del(s.time) }, 0, missingTime(s)},
			{"with two times", timed && !inHeader, func(r *Request) { r.Header.Add(s.time, r.Header.Get(s.time)) }, 0, headerTwice},
			{"with an invalid time", timed && !inHeader, func(r *Request) { r.Header.Set(s.time, "yesterday") }, 0, noTime},
			{"with a negative time", timed && !inHeader, func(r *Request) { r.Header.Set(s.time, "-1") }, 0, noTime},
		} {
			if !tt.when {
				continue
			}
			t.Run("SRC-02 "+s.name+": "+tt.name, func(t *testing.T) {
				v := expect.Value(New(s.settings, s.secrets[:1]))(t)
				r := Request{Header: s.send([]byte("{}"), s.secrets[0], at), Body: []byte("{}")}
				tt.change(&r)
				wantReason(t, refusalOf(v, r, at.Add(tt.after)), tt.want, s.secrets)
			})
		}
	}
}

// missingTime returns the expected reason for a request without a time. In Standard Webhooks the time is one of
// several required headers.
func missingTime(s sender) string {
	if s.time == "webhook-timestamp" {
		return headerMissing
	}
	return noTime
}

// refusalOf returns the error of a refused request.
func refusalOf(v *Verifier, r Request, now time.Time) error {
	_, err := v.Verify(r, now)
	return err
}

func wantReason(t *testing.T, err error, want string, secrets [3]string) {
	t.Helper()
	if want == "" {
		expect.OK(t, err, "the secrets")
		return
	}
	if !fault.Is(err, fault.Unauthenticated) || err.Error() != want || fault.DataOf(err) != nil {
		t.Errorf("got %v, want %q", err, want)
	}
	for _, s := range secrets {
		expect.Lacks(t, "the error", err.Error(), s)
	}
}

// lower converts the names of headers to lower case, as HTTP/2 sends them, and then to the canonical form of
// net/http.
func lower(h http.Header) http.Header {
	out := http.Header{}
	for name, values := range h {
		out.Set(strings.ToLower(name), values[0])
	}
	return out
}

// flipped changes the last character that is not padding.
func flipped(s string) string {
	i := len(strings.TrimRight(s, "=")) - 2
	c := "0"
	if s[i] == '0' {
		c = "1"
	}
	return s[:i] + c + s[i+1:]
}

func TestVerify_WrongForm(t *testing.T) {
	hexed := hexMAC(plain[0], "{}")
	based := encode("base64", digest("sha256", plain[0], "{}"))
	stripe := hexMAC(plain[0], "1792411200.{}")
	for name, tt := range map[string]struct {
		settings Settings
		header   http.Header
		want     string
	}{
		"github in base64":                     {Settings{Scheme: GitHub}, headers("X-Hub-Signature-256", "sha256="+based), malformed},
		"github without its prefix":            {Settings{Scheme: GitHub}, headers("X-Hub-Signature-256", hexed), malformed},
		"github with SHA-1":                    {Settings{Scheme: GitHub}, headers("X-Hub-Signature-256", "sha256="+encode("hex", digest("sha1", plain[0], "{}"))), malformed},
		"github with the old header":           {Settings{Scheme: GitHub}, headers("X-Hub-Signature", "sha1="+encode("hex", digest("sha1", plain[0], "{}"))), noSignature},
		"github cut short":                     {Settings{Scheme: GitHub}, headers("X-Hub-Signature-256", "sha256="+hexed[:62]), malformed},
		"github in capitals":                   {Settings{Scheme: GitHub}, headers("X-Hub-Signature-256", "sha256="+strings.ToUpper(hexed)), ""},
		"github with nothing":                  {Settings{Scheme: GitHub}, headers("X-Hub-Signature-256", "sha256="), malformed},
		"shopify in hex":                       {Settings{Scheme: Shopify}, headers("X-Shopify-Hmac-Sha256", hexed), malformed},
		"shopify without padding":              {Settings{Scheme: Shopify}, headers("X-Shopify-Hmac-Sha256", strings.TrimRight(based, "=")), malformed},
		"stripe without v1":                    {Settings{Scheme: Stripe}, headers("Stripe-Signature", "t=1792411200,v0="+stripe), malformed},
		"stripe without t":                     {Settings{Scheme: Stripe}, headers("Stripe-Signature", "v1="+stripe), noTime},
		"stripe with two times":                {Settings{Scheme: Stripe}, headers("Stripe-Signature", "t=1792411200,t=1792411201,v1="+stripe), noTime},
		"stripe with a word as t":              {Settings{Scheme: Stripe}, headers("Stripe-Signature", "t=now,v1="+stripe), noTime},
		"stripe with a plus before t":          {Settings{Scheme: Stripe}, headers("Stripe-Signature", "t=+1792411200,v1="+stripe), noTime},
		"stripe with its test's v0":            {Settings{Scheme: Stripe}, headers("Stripe-Signature", "t=1792411200,v1="+stripe+",v0=00"), ""},
		"stripe with an additional forged one": {Settings{Scheme: Stripe}, headers("Stripe-Signature", "t=1792411200,v1="+strings.Repeat("0", 64)+",v1="+stripe), ""},
		"stripe with eleven":                   {Settings{Scheme: Stripe}, headers("Stripe-Signature", "t=1792411200"+strings.Repeat(",v1="+stripe, 11)), manySignatures},
		"stripe in 292 million years":          {Settings{Scheme: Stripe}, headers("Stripe-Signature", "t=9223372036854775807,v1="+hexMAC(plain[0], "9223372036854775807.{}")), tooNew},
		"stripe beyond all numbers":            {Settings{Scheme: Stripe}, headers("Stripe-Signature", "t=9223372036854775808,v1="+hexMAC(plain[0], "9223372036854775808.{}")), noTime},
		"stripe in 1970":                       {Settings{Scheme: Stripe}, headers("Stripe-Signature", "t=0,v1="+hexMAC(plain[0], "0.{}")), tooOld},
		"stripe in the year 1":                 {Settings{Scheme: Stripe}, headers("Stripe-Signature", "t=0001-01-01T00:00:00Z,v1="+hexMAC(plain[0], "0001-01-01T00:00:00Z.{}")), noTime},
		"stripe with an hour of one digit":     {Settings{Scheme: Stripe}, headers("Stripe-Signature", "t=2026-10-19T0:00:00Z,v1="+hexMAC(plain[0], "2026-10-19T0:00:00Z.{}")), noTime},
		"slack of another version":             {Settings{Scheme: Slack}, headers("X-Slack-Request-Timestamp", "1792411200", "X-Slack-Signature", "v1="+hexMAC(plain[0], "v0:1792411200:{}")), malformed},
		"hmac without a signed header":         {Settings{Scheme: HMAC, Header: "X-Sig", Signed: "{header:X-Id}{body}"}, headers("X-Sig", hexMAC(plain[0], "{}")), headerMissing},
		"hmac with a signed header twice": {
			Settings{Scheme: HMAC, Header: "X-Sig", Signed: "{header:X-Id}{body}"},
			headers("X-Id", "1", "X-Id", "2", "X-Sig", hexMAC(plain[0], "1{}")), headerTwice,
		},
	} {
		t.Run("SRC-02 "+name, func(t *testing.T) {
			v := expect.Value(New(tt.settings, plain[:1]))(t)
			wantReason(t, refusalOf(v, Request{Header: tt.header, Body: []byte("{}")}, at), tt.want, plain)
		})
	}
}

func TestVerify_Rotation(t *testing.T) {
	for _, s := range senders {
		for _, tt := range []struct {
			name, signedBy string
			secrets        []string
			want           string
		}{
			{"the old secret during it", s.secrets[0], s.secrets[:2], ""},
			{"the new secret during it", s.secrets[1], s.secrets[:2], ""},
			{"a foreign secret during it", s.secrets[2], s.secrets[:2], NoMatch},
		} {
			t.Run("SRC-02 "+s.name+": "+tt.name, func(t *testing.T) {
				v := expect.Value(New(s.settings, tt.secrets))(t)
				r := Request{Header: s.send([]byte("{}"), tt.signedBy, at), Body: []byte("{}")}
				wantReason(t, refusalOf(v, r, at), tt.want, s.secrets)
				if s.time != "" && tt.want == "" {
					wantReason(t, refusalOf(v, r, at.Add(time.Hour)), tooOld, s.secrets)
				}
			})
		}
	}
	t.Run("SRC-02 gitlab: from a secret token to a signing token", func(t *testing.T) {
		for _, secrets := range [][]string{{plain[0], standard[0]}, {standard[0], plain[0]}} {
			v := expect.Value(New(Settings{Scheme: GitLab}, secrets))(t)
			before := Request{Header: headers("X-Gitlab-Token", plain[0]), Body: []byte("{}")}
			after := Request{Header: sendAs(StandardWebhooks)([]byte("{}"), standard[0], at), Body: []byte("{}")}
			wantReason(t, refusalOf(v, before, at), "", plain)
			wantReason(t, refusalOf(v, after, at), "", plain)
			wantReason(t, refusalOf(v, after, at.Add(time.Hour)), tooOld, plain)
			before.Header.Set("X-Gitlab-Token", plain[2])
			wantReason(t, refusalOf(v, before, at), NoMatch, plain)
		}
	})
}

func TestVerify_None(t *testing.T) {
	secrets := [3]string{"dY5fM0-a~b.c_UZ1qRrL4HJx", "QmVub3RoZXJzZWNyZXRrZXkx", ""}
	v := expect.Value(New(Settings{Scheme: None}, secrets[:2]))(t)
	for key, want := range map[string]string{
		secrets[0]: "", secrets[1]: "", "": NoMatch, secrets[0][:23]: NoMatch, secrets[0] + "x": NoMatch, "DY5FM0-A~B.C_UZ1QRRL4HJX": NoMatch,
	} {
		t.Run("SRC-02 key "+key, func(t *testing.T) {
			wantReason(t, refusalOf(v, Request{Key: key}, at), want, [3]string{"\x00", "\x00", "\x00"})
		})
	}
}
