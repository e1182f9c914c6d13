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

// at is the time of most examples: 2026-10-19T00:00:00Z.
var at = time.Unix(1792411200, 0)

// TestKnownAnswers verifies requests whose signatures were made elsewhere. A comment marks each signature that is printed in a
// provider's documentation. The others were made with the documentation's formula and
//
//	printf '%s' SIGNED | openssl dgst -sha256 -hmac SECRET
//
// plus -binary and "openssl base64" for schemes with base64.
func TestKnownAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		settings Settings
		secret   string
		header   http.Header
		body     string
		key      string
		now      time.Time
	}{
		// https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries prints all of it.
		"github": {
			Settings{Scheme: GitHub},
			"It's a Secret to Everybody",
			headers("X-Hub-Signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"),
			"Hello, World!", "", at,
		},
		// https://docs.slack.dev/authentication/verifying-requests-from-slack prints all of it.
		"slack": {
			Settings{Scheme: Slack},
			"8f742231b10e8888abcd99yyyzzz85a5",
			headers(
				"X-Slack-Request-Timestamp", "1531420618",
				"X-Slack-Signature", "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
			),
			"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar" +
				"&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=" +
				"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN" +
				"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
			"", time.Unix(1531420618, 0),
		},
		// https://github.com/standard-webhooks/standard-webhooks: the test vector of its libraries.
		"standard-webhooks": {
			Settings{Scheme: StandardWebhooks},
			"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
			headers(
				"webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek",
				"webhook-timestamp", "1614265330",
				"webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
			),
			`{"test": 2432232314}`, "", time.Unix(1614265330, 0),
		},
		// https://docs.stripe.com/webhooks/signature: the formula, and that a secret is used with its whsec_.
		"stripe": {
			Settings{Scheme: Stripe},
			"whsec_5f1d2c3b4a59687786958473",
			headers("Stripe-Signature", "t=1792411200,v1=7249c213d96b1adf0070a59fa42219444156bc248b721b3564a71e2962ae89fc,v0=6ffbb59b2300aae63f272406069a9788598b792a944a07aba816edb039989a39"),
			stripeBody, "", at,
		},
		"stripe while a secret is rolled": {
			Settings{Scheme: Stripe},
			"whsec_5f1d2c3b4a59687786958473",
			headers("Stripe-Signature", "t=1792411200,v1=0cf7f6650e5786c97472225ea5bd08f8338a774eb2794549bf265111ec3c602b,v1=7249c213d96b1adf0070a59fa42219444156bc248b721b3564a71e2962ae89fc"),
			stripeBody, "", at,
		},
		// https://shopify.dev/docs/apps/build/webhooks/verify-deliveries: the formula.
		"shopify": {
			Settings{Scheme: Shopify},
			"shpss_0123456789abcdef0123456789abcdef",
			headers("X-Shopify-Hmac-SHA256", "8++5uqaSbZMvfZWESSDj93PLZ220nqZIKaoc0fiVLe4="),
			`{"id":820982911946154508,"email":"jon@example.com"}`, "", at,
		},
		// https://docs.gitlab.com/user/project/integrations/webhooks/#secret-token: it is sent as it is.
		"gitlab secret token": {
			Settings{Scheme: GitLab},
			"a-secret-token-of-gitlab",
			headers("X-Gitlab-Token", "a-secret-token-of-gitlab"), `{"object_kind":"push"}`, "", at,
		},
		// https://docs.gitlab.com/user/project/integrations/webhooks/#signing-tokens: Standard Webhooks, with a key of 32 bytes.
		"gitlab signing token": {
			Settings{Scheme: GitLab},
			"whsec_dGVzdHRlc3R0ZXN0dGVzdHRlc3R0ZXN0dGVzdHRlc3Q=",
			headers(
				"webhook-id", "f5ae1c2d-1c3b-4a5e-9f6d-7a8b9c0d1e2f",
				"webhook-timestamp", "1792411200",
				"webhook-signature", "v1,d2rM5DtR1xp7IkUl0pQ2uk/KA48OhuZ8ZRfvUsTFPBs=",
			),
			`{"object_kind":"push"}`, "", at,
		},
		// https://developer.pagerduty.com/docs/verifying-webhook-signatures: the formula, and that there may be several.
		"hmac as PagerDuty": {
			Settings{Scheme: HMAC, Header: "X-PagerDuty-Signature", Prefix: "v1="},
			"lDQHScfUeXUKaQRNF+8XIiDKZ7XX3itB",
			headers("X-PagerDuty-Signature", "v1=f03de6f61df6e454f3620c4d6aca17ad072d3f8bbb2760eac3b2ad391b5e8073,v1=df22f3bd0861899b329bac783a4f6d52d0c2577cae3cb7a4b538a8579749f9c0"),
			`{"event":{"id":"01BWDWL3NYY7LUFPZCC28QUCMK","event_type":"incident.triggered"}}`, "", at,
		},
		// https://linear.app/developers/webhooks#securing-webhooks: the formula. The time that Linear signs is in the body.
		"hmac as Linear": {
			Settings{Scheme: HMAC, Header: "Linear-Signature"},
			"lin_wh_0123456789abcdefABCDEF",
			headers("Linear-Signature", "26db6238d3ac2cca35b722e03a16a2437a1fd20ff5bd52ada9042a6dbf244e48"),
			`{"action":"create","type":"Issue","webhookTimestamp":1792411200000}`, "", at,
		},
		// https://dev.twitch.tv/docs/eventsub/handling-webhook-events: the formula, whose parts have nothing between them.
		"hmac as Twitch": {
			Settings{
				Scheme: HMAC, Header: "Twitch-Eventsub-Message-Signature", Prefix: "sha256=",
				Signed: "{header:Twitch-Eventsub-Message-Id}{timestamp}{body}", Timestamp: "Twitch-Eventsub-Message-Timestamp",
			},
			"s3cRe7s3cRe7s3cRe7",
			headers(
				"Twitch-Eventsub-Message-Id", "e76c6bd4-55c9-4987-8304-da1588d8988b",
				"Twitch-Eventsub-Message-Timestamp", "2026-10-18T00:00:00.123456789Z",
				"Twitch-Eventsub-Message-Signature", "sha256=6787726fb83484fb66cc65d7ea2775cba2d901ea763c53f968f1b5ad38dfb78e",
			),
			`{"challenge":"x"}`, "", time.Date(2026, 10, 18, 0, 0, 0, 0, time.UTC),
		},
		// https://vercel.com/docs/webhooks/webhooks-api#securing-webhooks: the formula, with SHA-1.
		"hmac as Vercel": {
			Settings{Scheme: HMAC, Header: "x-vercel-signature", Algorithm: "sha1"},
			"vercel-secret-0123456789",
			headers("X-Vercel-Signature", "53fced0579a8e6d50d6f4822ca3667abe3d1de70"),
			`{"type":"deployment.created"}`, "", at,
		},
		"hmac with SHA-512 in base64": {
			Settings{
				Scheme: HMAC, Header: "X-Signature", Algorithm: "sha512", Encoding: "base64", Prefix: "v1,",
				Signed: "{header:x-id}.{timestamp}.{body}", Timestamp: "X-Time",
			},
			"key-of-the-hmac-scheme",
			headers(
				"X-Id", "id-1", "X-Time", "1792411200",
				"X-Signature", "v1,AAAA v1,AO16vN06o2BuF1EjrwzfNCPOTJ+tBNLxwETf+EOp4vxQxgO4dTI1JeARw8lV2I0/WuHKAOSIggEFAyInZd7kEQ==",
			),
			`{"a":1}`, "", at,
		},
		"none": {Settings{Scheme: None}, "dY5fM0-a~b.c_UZ1qRrL4HJx", nil, "{}", "dY5fM0-a~b.c_UZ1qRrL4HJx", at},
	} {
		t.Run("SRC-02 "+name, func(t *testing.T) {
			v := expect.Value(New(tt.settings, []string{tt.secret}))(t)
			r := Request{Header: tt.header, Body: []byte(tt.body), Key: tt.key}
			expect.OK(t, refusalOf(v, r, tt.now), "the request")
		})
	}
}

const stripeBody = `{"id":"evt_1Q2w3E","object":"event","type":"payment_intent.succeeded"}`

func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func TestSettings_Headers(t *testing.T) {
	for scheme, want := range map[string]string{
		GitHub: "x-hub-signature x-hub-signature-256", Stripe: "stripe-signature", Slack: "x-slack-signature",
		Shopify: "x-shopify-hmac-sha256", GitLab: "x-gitlab-token webhook-signature", StandardWebhooks: "webhook-signature",
		HMAC: "x-my-signature", None: "",
	} {
		t.Run("SRC-02 headers that "+scheme+" keeps out of documents", func(t *testing.T) {
			s := Settings{Scheme: scheme}
			if scheme == HMAC {
				s.Header = "X-My-Signature"
			}
			expect.Equal(t, "the headers", strings.Join(s.Headers(), " "), want)
		})
	}
}

func TestVerify_Signed(t *testing.T) {
	for _, s := range senders {
		t.Run("SRC-02 the hash of the text signed by "+s.name, func(t *testing.T) {
			v := expect.Value(New(s.settings, s.secrets[:2]))(t)
			signed := func(body, secret string, at time.Time) string {
				return expect.Value(v.Verify(Request{Header: s.send([]byte(body), secret, at), Body: []byte(body)}, at))(t)
			}
			first := signed("{}", s.secrets[0], at)
			expect.Equal(t, "the signature of the body", (first != ""), s.bodySigned)
			expect.Equal(t, "the signature by another secret", first, signed("{}", s.secrets[1], at))
			if other := signed("[]", s.secrets[0], at); s.bodySigned && other == first {
				t.Error("another body has the same hash")
			}
			if other := signed("{}", s.secrets[0], at.Add(time.Minute)); (other != first) != (s.time != "") {
				t.Errorf("a minute later: %q, before %q", other, first)
			}
		})
	}
}

func TestChallenge(t *testing.T) {
	for name, tt := range map[string]struct {
		body any
		want string
	}{
		// https://docs.slack.dev/reference/events/url_verification
		"as Slack sends it":   {map[string]any{"token": "Jhj5dZrVaK7ZwHHjRyZWjbDl", "challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P", "type": "url_verification"}, "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"},
		"an event":            {map[string]any{"type": "event_callback", "challenge": "x"}, ""},
		"without a challenge": {map[string]any{"type": "url_verification"}, ""},
		"an empty one":        {map[string]any{"type": "url_verification", "challenge": ""}, ""},
		"a number":            {map[string]any{"type": "url_verification", "challenge": 5}, ""},
		"a long one":          {map[string]any{"type": "url_verification", "challenge": strings.Repeat("x", maxChallenge+1)}, ""},
		"not an object":       {[]any{"url_verification"}, ""},
		"nothing":             {nil, ""},
	} {
		t.Run("SRC-02 "+name, func(t *testing.T) {
			if got, ok := Challenge(tt.body); got != tt.want || ok != (tt.want != "") {
				t.Errorf("got %q, %t", got, ok)
			}
		})
	}
}

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
			expect.OK(t, refusalOf(v, r, at), s.name)
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
		expect.OK(t, refusalOf(v, Request{Header: h, Body: []byte("the body")}, at), s)
		if err := refusalOf(v, Request{Header: h, Body: []byte("another body")}, at); err == nil {
			t.Errorf("%+v: another body is accepted", s)
		}
	})
}
