// Package webhook sends events to endpoints, and is the only way out: every
// request to an address that a subscriber named passes its [Guard].
//
//	secret at rest ──[Opener]──▶ keys ──[Sign]──▶ headers ┐
//	                                                      ├─▶ [Sender] ─▶ [Guard] ─▶ endpoint
//	event, already serialised ───────────────────────────▶┘       └────▶ [Outcome]
//
// It also holds the other end: [Verify] and [Challenge] for whoever
// receives. It knows no subscriptions and no store; when to send, and what a
// failure means for a subscription, is decided in shared/events/delivery. What an
// endpoint answered stays here: only a status and a [Category] leave.
package webhook

import "time"

// Header names as they are written on the wire (Standard Webhooks; SEP-3415 for
// the subscription id).
const (
	HeaderID           = "webhook-id"
	HeaderTimestamp    = "webhook-timestamp"
	HeaderSignature    = "webhook-signature"
	HeaderSubscription = "X-MCP-Subscription-Id"
	// HeaderHubSignature carries sha256=HEX for subscriptions with a raw secret
	// (SEP-1803 WebhookSecret "raw"), in the form that GitHub made common.
	HeaderHubSignature = "X-Hub-Signature-256"
)

// Limits of an exchange (design: limits and defaults).
const (
	// MaxBody is the largest body that is sent, in bytes.
	MaxBody = 256 << 10
	// MaxURL is the longest target URL in bytes.
	MaxURL = 2048
	// maxAnswer is how much of an answer's body is read, in bytes.
	maxAnswer = 16 << 10
	// maxAnswerHeader bounds an answer's header, informational ones included.
	maxAnswerHeader = 32 << 10
	// DefaultTimeout bounds an exchange of which nothing else was said.
	DefaultTimeout = 20 * time.Second
	// MaxRetryAfter bounds what an endpoint may ask for.
	MaxRetryAfter = 24 * time.Hour
)
