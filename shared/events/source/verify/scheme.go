package verify

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"strings"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// scheme describes how a provider authenticates its requests.
type scheme struct {
	headers []string // with credentials or signatures, in lower case
	timed   bool     // whether the signature covers a time
	bind    func(s Settings, secret string) (check, error)
}

// schemes holds all schemes. The scheme hmac has no headers here, because its header is a setting.
var schemes = map[string]scheme{
	// GitHub also sends x-hub-signature, with SHA-1. We ignore it.
	GitHub: {[]string{"x-hub-signature", "x-hub-signature-256"}, false, preset(Settings{
		Header: "X-Hub-Signature-256", Prefix: "sha256=",
	})},
	Slack: {[]string{"x-slack-signature"}, true, preset(Settings{
		Header: "X-Slack-Signature", Prefix: "v0=", Signed: "v0:{timestamp}:{body}", Timestamp: "X-Slack-Request-Timestamp",
	})},
	Shopify: {[]string{"x-shopify-hmac-sha256"}, false, preset(Settings{
		Header: "X-Shopify-Hmac-Sha256", Encoding: "base64",
	})},
	Stripe:           {[]string{"stripe-signature"}, true, bindStripe},
	GitLab:           {[]string{"x-gitlab-token", standardwebhooks.HeaderWebhookSignature}, true, bindGitLab},
	StandardWebhooks: {[]string{standardwebhooks.HeaderWebhookSignature}, true, bindStandardWebhooks},
	HMAC:             {nil, false, bindHMAC},
	None:             {nil, false, bindNone},
}

// preset returns the bind function of a scheme that is hmac with fixed settings.
func preset(of Settings) func(Settings, string) (check, error) {
	of.Scheme = HMAC
	return func(_ Settings, secret string) (check, error) { return bindHMAC(of, secret) }
}

// bindNone compares the last segment of the path with the secret.
func bindNone(_ Settings, secret string) (check, error) {
	same := equalTo(secret)
	return func(r Request) (p proof, no *refusal) {
		if !same(r.Key) {
			no = refuse(NoMatch)
		}
		return p, no
	}, nil
}

// bindGitLab supports both of GitLab's methods. A secret that begins with whsec_ is a signing token, which follows
// Standard Webhooks. Any other secret is a secret token, which GitLab sends in a header.
func bindGitLab(s Settings, secret string) (check, error) {
	if isWebhookSecret(secret) {
		return bindStandardWebhooks(s, secret)
	}
	same := equalTo(secret)
	return func(r Request) (p proof, no *refusal) {
		token, no := one(r.Header, "X-Gitlab-Token", NoSignature)
		if no == nil && !same(token) {
			no = refuse(NoMatch)
		}
		return p, no
	}, nil
}

// equalTo returns a function that compares a string with the secret. It takes the same time wherever they differ, and whatever the
// secret's length is.
func equalTo(secret string) func(string) bool {
	want := sha256.Sum256([]byte(secret))
	return func(s string) bool {
		got := sha256.Sum256([]byte(s))
		return hmac.Equal(got[:], want[:])
	}
}

// bindStandardWebhooks verifies signatures with the specification's own library. We check the time ourselves, because
// the library uses its own clock and a fixed tolerance of five minutes.
func bindStandardWebhooks(_ Settings, secret string) (check, error) {
	key, err := webhookKey(secret)
	if err != nil {
		return nil, err
	}
	wh, err := standardwebhooks.NewWebhookRaw(key)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "make a verifier of Standard Webhooks")
	}
	return func(r Request) (p proof, no *refusal) {
		for _, name := range []string{
			standardwebhooks.HeaderWebhookSignature, standardwebhooks.HeaderWebhookID, standardwebhooks.HeaderWebhookTimestamp,
		} {
			missing := HeaderMissing
			if name == standardwebhooks.HeaderWebhookSignature {
				missing = NoSignature
			}
			if _, no := one(r.Header, name, missing); no != nil {
				return p, no
			}
		}
		timestamp := r.Header.Get(standardwebhooks.HeaderWebhookTimestamp)
		if p.at, no = parseTime(timestamp); no != nil {
			return p, no
		}
		if wh.VerifyIgnoringTimestamp(r.Body, r.Header) != nil {
			return p, refuse(NoMatch)
		}
		plain := sha256.New() // the text that the library signs; it parses the time as a number, so leading zeros do not count
		fmt.Fprintf(plain, "%s.%s.%s", r.Header.Get(standardwebhooks.HeaderWebhookID), strings.TrimLeft(timestamp, "0"), r.Body)
		p.signed = sumOf(plain)
		return p, nil
	}, nil
}
