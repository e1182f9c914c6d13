package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/mcp-events/mcpevents/shared/fault"
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

// Received is a verified webhook.
type Received struct {
	// ID is the webhook-id: equal for all attempts of one event, so that a receiver
	// recognises a repetition.
	ID string
	// At is the time of this attempt.
	At time.Time
	// Subscription is the X-MCP-Subscription-Id. It is not covered by the signature;
	// the secret that it was verified with is.
	Subscription string
	// Body is the JSON, unparsed.
	Body   []byte
	Header http.Header
}

// DefaultMaxReceived is how large a body a [ReceiverHandler] takes, in bytes: the largest webhook there is, and as much again.
const DefaultMaxReceived = 2 * MaxBody

// ReceiverHandler is an endpoint for webhooks. It verifies every request, answers
// challenges itself and hands on the rest.
//
// Statuses: 204 handed on; 200 challenge echoed; 401 no valid signature; 405 not a
// POST; 413 too large; 503 unknown subscription, or Deliver failed, so that the
// sender tries again.
type ReceiverHandler struct {
	// Secrets finds the secrets of a subscription, the newest first. None means that
	// it is not known (yet): a challenge comes before events/subscribe is answered, so
	// a receiver must know its pending secrets too.
	Secrets func(subscription string) []string
	// Deliver takes a webhook. It must be idempotent by ID, and quick: the sender waits.
	Deliver func(context.Context, Received) error
}

func (h *ReceiverHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "POST webhooks here", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, DefaultMaxReceived))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			http.Error(w, "too large", http.StatusRequestEntityTooLarge)
			return
		}
		http.Error(w, "the body broke off", http.StatusBadRequest)
		return
	}
	subscription := r.Header.Get(HeaderSubscription)
	secrets := h.Secrets(subscription)
	if len(secrets) == 0 {
		http.Error(w, "unknown subscription", http.StatusServiceUnavailable)
		return
	}
	if err := Verify(r.Header, body, secrets...); err != nil {
		http.Error(w, fault.Public(err), http.StatusUnauthorized)
		return
	}
	if challenge, ok := Challenge(r.Header, body); ok {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]string{"challenge": challenge})
		return
	}
	at, _ := strconv.ParseInt(r.Header.Get(HeaderTimestamp), 10, 64) // Verify has read it
	err = h.Deliver(r.Context(), Received{
		ID: r.Header.Get(HeaderID), At: time.Unix(at, 0), Subscription: subscription, Body: body, Header: r.Header,
	})
	if err != nil {
		http.Error(w, "not taken", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

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
