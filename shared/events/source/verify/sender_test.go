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
	"time"
)

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
