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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
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
				if err != nil {
					t.Error(err)
				}
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
				if err != nil {
					t.Error(err)
				}
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

func sendStandard(body []byte, secret string, at time.Time) http.Header {
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	sum := digest("sha256", string(key), fmt.Sprintf("msg_1.%d.%s", at.Unix(), body))
	return headers("webhook-id", "msg_1", "webhook-timestamp", fmt.Sprint(at.Unix()), "webhook-signature", "v1,"+encode("base64", sum))
}

var plain = [3]string{"the-old-secret-0123456789", "the-new-secret-0123456789", "a-foreign-secret-012345678"}

var standard = [3]string{
	"whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
	"whsec_ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=",
	"whsec_QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl8=",
}

var senders = []sender{
	{
		"github",
		Settings{Scheme: GitHub},
		plain, "X-Hub-Signature-256", "", true,
		func(body []byte, secret string, _ time.Time) http.Header {
			return headers("X-Hub-Signature-256", "sha256="+hexMAC(secret, string(body)))
		},
	},
	{
		"stripe",
		Settings{Scheme: Stripe},
		plain, "Stripe-Signature", "Stripe-Signature", true,
		func(body []byte, secret string, at time.Time) http.Header {
			return headers("Stripe-Signature", fmt.Sprintf("t=%d,v1=%s", at.Unix(), hexMAC(secret, fmt.Sprintf("%d.%s", at.Unix(), body))))
		},
	},
	{
		"slack",
		Settings{Scheme: Slack},
		plain, "X-Slack-Signature", "X-Slack-Request-Timestamp", true,
		func(body []byte, secret string, at time.Time) http.Header {
			return headers(
				"X-Slack-Request-Timestamp", fmt.Sprint(at.Unix()),
				"X-Slack-Signature", "v0="+hexMAC(secret, fmt.Sprintf("v0:%d:%s", at.Unix(), body)),
			)
		},
	},
	{
		"shopify",
		Settings{Scheme: Shopify},
		plain, "X-Shopify-Hmac-Sha256", "", true,
		func(body []byte, secret string, _ time.Time) http.Header {
			return headers("X-Shopify-Hmac-Sha256", encode("base64", digest("sha256", secret, string(body))))
		},
	},
	{
		"gitlab with a secret token",
		Settings{Scheme: GitLab},
		plain, "X-Gitlab-Token", "", false,
		func(_ []byte, secret string, _ time.Time) http.Header { return headers("X-Gitlab-Token", secret) },
	},
	{"gitlab with a signing token", Settings{Scheme: GitLab}, standard, "webhook-signature", "webhook-timestamp", true, sendStandard},
	{"standard-webhooks", Settings{Scheme: StandardWebhooks}, standard, "webhook-signature", "webhook-timestamp", true, sendStandard},
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
