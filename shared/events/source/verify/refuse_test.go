package verify

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

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
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	if !fault.Is(err, fault.Unauthenticated) || err.Error() != want || fault.DataOf(err) != nil {
		t.Errorf("got %v, want %q", err, want)
	}
	for _, s := range secrets {
		if strings.Contains(err.Error(), s) {
			t.Errorf("%q names a secret", err)
		}
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
			{"the old secret before the rotation", s.secrets[0], s.secrets[:1], ""},
			{"the old secret during it", s.secrets[0], s.secrets[:2], ""},
			{"the new secret during it", s.secrets[1], s.secrets[:2], ""},
			{"the new secret, listed first", s.secrets[1], []string{s.secrets[1], s.secrets[0]}, ""},
			{"the old secret, listed last", s.secrets[0], []string{s.secrets[1], s.secrets[0]}, ""},
			{"the new secret after it", s.secrets[1], s.secrets[1:2], ""},
			{"the old secret after it", s.secrets[0], s.secrets[1:2], NoMatch},
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
			after := Request{Header: sendStandard([]byte("{}"), standard[0], at), Body: []byte("{}")}
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
