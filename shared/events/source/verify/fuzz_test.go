package verify

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

var reasons = []string{
	noSignature, manySignatures, headerTwice, headerMissing, malformed, noTime, NoMatch, tooOld, tooNew,
}

// FuzzVerify checks that no scheme accepts headers that were made without the secret, and that a genuine request is
// still accepted when other headers are added to it.
func FuzzVerify(f *testing.F) {
	for _, s := range senders {
		h := s.send([]byte("{}"), s.secrets[1], at)
		f.Add(h.Get(s.signature), h.Get(s.time), "{}", uint32(at.Unix()))
	}
	f.Add("t=1792411200,v1=,v1=00,v0=00,t=1,=,,", "2026-10-19T00:00:00Z", "", uint32(0))
	f.Add("v1,AA== v1a,AA== v1", "18446744073709551616", "\xff", uint32(1))
	f.Fuzz(func(t *testing.T, signature, timestamp, body string, seconds uint32) {
		now := time.Unix(int64(seconds), 0)
		for _, s := range senders {
			v, err := New(s.settings, s.secrets[:1]) // a secret that the seeds do not use
			expect.OK(t, err)
			h := http.Header{"Webhook-Id": {"msg_1"}}
			r := Request{Header: h, Body: []byte(body), Key: signature}
			h.Set(s.signature, signature)
			if s.time != "" && s.time != s.signature {
				h.Set(s.time, timestamp)
			}
			if err := refusalOf(v, r, now); !fault.Is(err, fault.Unauthenticated) || !slices.Contains(reasons, err.Error()) {
				t.Errorf("%s: got %v", s.name, err)
			}
			r.Header, r.Key = s.send(r.Body, s.secrets[0], at), s.secrets[0]
			if err := refusalOf(v, r, at); err != nil {
				t.Errorf("%s: a genuine request is refused: %v", s.name, err)
			}
		}
	})
}

var inBraces = regexp.MustCompile(`\{[^}]*\}`)

// FuzzSettings checks that settings of the scheme hmac are either refused with reasons, or verify requests that are
// signed accordingly.
func FuzzSettings(f *testing.F) {
	f.Add("X-Signature", "sha256", "hex", "sha256=", "{body}", "", int64(0))
	f.Add("X-Signature", "sha512", "base64", "v1,", "{header:x-id}.{timestamp}.{body}", "X-Time", int64(time.Minute))
	f.Add("X-Signature", "sha1", "", "", "v0:{timestamp}:{body}", "X-Time", int64(time.Second))
	f.Add("X:", "md5", "hex ", "a b", "{body}{body}{x", "\x00", int64(-1))
	f.Fuzz(func(t *testing.T, header, algorithm, encoding, prefix, signed, timestamp string, tolerance int64) {
		s := Settings{HMAC, header, algorithm, encoding, prefix, signed, timestamp, time.Duration(tolerance)}
		const secret = "a secret for fuzzing"
		v, err := New(s, []string{secret})
		if err != nil {
			faults, _ := fault.DataOf(err).([]Fault)
			if !fault.Is(err, fault.Invalid) || len(faults) == 0 || strings.Contains(err.Error(), secret) {
				t.Fatalf("%v with %v", err, faults)
			}
			return
		}
		_, _ = json.Marshal(s)
		s = s.complete()
		h := http.Header{}
		text := inBraces.ReplaceAllStringFunc(s.Signed, func(p string) string {
			switch name, isHeader := strings.CutPrefix(strings.Trim(p, "{}"), "header:"); {
			case isHeader && strings.EqualFold(name, s.Timestamp):
				return fmt.Sprint(at.Unix())
			case isHeader:
				h.Set(name, "value of "+strings.ToLower(name))
				return "value of " + strings.ToLower(name)
			case name == "body":
				return "the body"
			}
			return fmt.Sprint(at.Unix())
		})
		if s.Timestamp != "" {
			h.Set(s.Timestamp, fmt.Sprint(at.Unix()))
		}
		sum := digest(s.Algorithm, secret, text)
		h.Set(s.Header, s.Prefix+encode(s.Encoding, sum))
		if err := refusalOf(v, Request{Header: h, Body: []byte("the body")}, at); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
		if err := refusalOf(v, Request{Header: h, Body: []byte("another body")}, at); err == nil {
			t.Errorf("%+v: another body is accepted", s)
		}
	})
}
