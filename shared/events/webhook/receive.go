package webhook

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Verify checks a received webhook with the Standard Webhooks library. One of the signatures must match one of the
// secrets, and the timestamp must be within five minutes of now. A secret that begins with whsec_ is decoded; any
// other secret is used as the key itself. The fault is of kind Unauthenticated, or Invalid for a malformed secret.
func Verify(h http.Header, body []byte, secrets ...string) error {
	for _, secret := range secrets {
		key := []byte(secret)
		if strings.HasPrefix(secret, secretPrefix) {
			var err error
			if key, err = ParseSecret(secret); err != nil {
				return err
			}
		}
		if len(key) == 0 {
			continue // anyone can sign with an empty key
		}
		wh, _ := standardwebhooks.NewWebhookRaw(key)
		err := wh.Verify(body, h)
		if err == nil {
			return nil
		}
		if !errors.Is(err, standardwebhooks.ErrNoMatchingSignature) {
			return fault.New(fault.Unauthenticated, "verify the webhook: %s", reason(err))
		}
	}
	return fault.New(fault.Unauthenticated, "verify the webhook: no signature matches a known secret")
}

func reason(err error) string {
	for _, known := range []error{
		standardwebhooks.ErrRequiredHeaders, standardwebhooks.ErrMessageTooOld, standardwebhooks.ErrMessageTooNew,
	} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return standardwebhooks.ErrInvalidHeaders.Error()
}

// MaxReceived is the largest body that a receiver should accept, in bytes. It is twice the size of the largest
// webhook.
const MaxReceived = 2 * MaxBody

// Challenge returns the challenge in a verified request, or false if the request is not a challenge. It also checks
// the webhook-id, which is signed, because the data of an event could look like a challenge.
func Challenge(h http.Header, body []byte) (string, bool) {
	if !strings.HasPrefix(h.Get(HeaderID), VerificationPrefix) {
		return "", false
	}
	var v verification
	if json.Unmarshal(body, &v) != nil || v.Type != "verification" || v.Challenge == "" {
		return "", false
	}
	return v.Challenge, true
}
