package webhook

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Verify checks a received webhook with the Standard Webhooks library: one of
// the signatures must be by one of the secrets, and the timestamp within five
// minutes of now. A secret is whsec_ text, or else a raw one that is its own key.
// The fault is of kind Unauthenticated, or Invalid for a secret that is none.
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
			continue // anybody could sign with an empty key
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

// MaxReceived is how large a body a receiver takes, in bytes: the largest webhook there is, and as much again.
const MaxReceived = 2 * MaxBody

// Challenge finds the challenge in a verified request, if it is one. The
// webhook-id, which is signed, must say so too: an event's own members must not be
// taken for an envelope.
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
