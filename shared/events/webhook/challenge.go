package webhook

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// VerificationPrefix is the prefix of the webhook-id of a challenge (SEP-3415).
const VerificationPrefix = "msg_verification_"

// receiverPath is the path at which an origin may declare which of its paths receive webhooks (SEP-3415, "Endpoint
// verification").
const receiverPath = "/.well-known/mcp-webhook-receiver.json"

// challengeTimeout limits each of the two requests of a verification, because a client is waiting for the response to
// events/subscribe.
const challengeTimeout = 10 * time.Second

// verification is the control envelope of a challenge. Its fields are in the order in which they are sent.
type verification struct {
	Type      string `json:"type"`
	Challenge string `json:"challenge"`
}

// Verify checks that an endpoint wants deliveries (SEP-3415). It posts a fresh challenge, signed like a delivery, and
// expects to find it in the body of a 2xx response. If the endpoint does not echo the challenge, its origin may
// instead declare the path in /.well-known/mcp-webhook-receiver.json. Each challenge is used for one call only.
// Callers limit how many calls they make (SRF-07).
//
// A target that the guard refuses is a fault of kind Invalid. Other failures are of kind Unavailable. Their data is
// {"reason": category}, with one of the published categories, unless the failure was on our side.
func (s *Sender) Verify(ctx context.Context, target, subscriptionID string, keys [][]byte) error {
	u, err := s.guard.checkURL(target)
	if err != nil {
		return err
	}
	failure := s.challenge(ctx, target, subscriptionID, keys)
	if failure == nil {
		return nil
	}
	reached := failure.Category == ChallengeFailed || failure.Category == HTTP4xx || failure.Category == HTTP5xx
	if reached && s.isDeclared(ctx, u) {
		return nil
	}
	if failure.Category == Aborted || failure.Category == Internal {
		return fault.Wrap(fault.Unavailable, failure, "verify the target")
	}
	return &fault.Error{
		Kind: fault.Unavailable, Message: "the target could not be verified: " + string(failure.Category.Published()),
		Data: map[string]any{"reason": string(failure.Category.Published())}, Err: failure,
	}
}

func (s *Sender) challenge(ctx context.Context, target, subscriptionID string, keys [][]byte) *Failure {
	nonce := rand.Text() + rand.Text() // 260 bits
	body, _ := json.Marshal(verification{Type: "verification", Challenge: nonce})
	a, failure := s.post(ctx, &Request{
		URL: target, ID: NewMessageID("verification"), SubscriptionID: subscriptionID,
		Body: body, Keys: keys, Timeout: challengeTimeout,
	}, make([]byte, 0, 512))
	if failure != nil {
		return failure
	}
	if c := ofStatus(a.status); c != "" {
		return &Failure{c, "the challenge was not accepted"}
	}
	if !echoes(a.body, nonce) {
		return &Failure{ChallengeFailed, "the challenge was not echoed"}
	}
	return nil
}

// echoes reports whether a response contains the challenge. Its time does not depend on where the two differ. It may
// depend on the length, because the length of a challenge is not secret.
func echoes(body []byte, nonce string) bool {
	var echo struct {
		Challenge string `json:"challenge"`
	}
	if len(body) > maxAnswer || json.Unmarshal(body, &echo) != nil {
		return false
	}
	return subtle.ConstantTimeCompare([]byte(echo.Challenge), []byte(nonce)) == 1
}

// isDeclared reports whether the target's origin declares that the target's path receives webhooks.
func (s *Sender) isDeclared(ctx context.Context, target *url.URL) bool {
	u := &url.URL{Scheme: target.Scheme, Host: target.Host, Path: receiverPath}
	req := http.Request{
		Method: http.MethodGet, URL: u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"User-Agent": s.userAgent, "Accept": contentType},
	}
	a, failure := s.exchange(ctx, &req, challengeTimeout, make([]byte, 0, 512))
	if failure != nil || a.status != http.StatusOK || len(a.body) > maxAnswer {
		return false
	}
	var doc struct {
		Receivers []string `json:"receivers"`
	}
	if json.Unmarshal(a.body, &doc) != nil {
		return false
	}
	path := target.EscapedPath()
	// Resolving dot segments or encoded slashes could lead outside the prefix.
	if strings.Contains(path, "/.") || strings.Contains(strings.ToLower(path), "%2e") || strings.Contains(strings.ToLower(path), "%2f") {
		return false
	}
	for _, prefix := range doc.Receivers {
		if !strings.HasPrefix(prefix, "/") {
			continue
		}
		if path == prefix || strings.HasPrefix(path, strings.TrimSuffix(prefix, "/")+"/") {
			return true
		}
	}
	return false
}

// NewMessageID returns a webhook-id for a control envelope, in the form msg_KIND_RANDOM (SEP-3415).
func NewMessageID(kind string) string {
	b := make([]byte, 18)
	_, _ = rand.Read(b)
	return "msg_" + kind + "_" + base64.RawURLEncoding.EncodeToString(b)
}
