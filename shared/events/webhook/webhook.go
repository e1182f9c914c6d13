// Package webhook sends events to endpoints. It is the only package that does: every request to an address that a
// subscriber chose passes its [Guard].
//
//	secret at rest ──[Opener]──▶ keys ──[Sign]──▶ headers ┐
//	                                                      ├─▶ [Sender] ─▶ [Guard] ─▶ endpoint
//	event, already serialized ───────────────────────────▶┘       └────▶ [Outcome]
//
// It also contains the receiver's side, [Verify] and [Challenge]. It does not use subscriptions or the store, because package
// delivery decides when to send, and how a failure affects a subscription. The content of an endpoint's response
// does not leave this package; only a status and a [Category] do.
package webhook

import "time"

// Names of headers, spelled as they are sent (Standard Webhooks, and SEP-3415 for the subscription id).
const (
	HeaderID           = "webhook-id"
	HeaderTimestamp    = "webhook-timestamp"
	HeaderSignature    = "webhook-signature"
	HeaderSubscription = "X-MCP-Subscription-Id"
	// HeaderHubSignature contains sha256=HEX, as GitHub's webhooks do, for subscriptions with a raw secret (SEP-1803
	// WebhookSecret "raw").
	HeaderHubSignature = "X-Hub-Signature-256"
)

// Limits of an exchange.
const (
	// MaxBody is the maximum size of a sent body, in bytes.
	MaxBody = 256 << 10
	// MaxURL is the maximum length of a target URL, in bytes.
	MaxURL = 2048
	// maxAnswer is how much of a response body is read, in bytes.
	maxAnswer = 16 << 10
	// maxAnswerHeader is the maximum size of a response header, including informational responses.
	maxAnswerHeader = 32 << 10
	// DefaultTimeout limits exchanges for which no other timeout is given.
	DefaultTimeout = 20 * time.Second
	// MaxRetryAfter is the longest delay that an endpoint can request.
	MaxRetryAfter = 24 * time.Hour
)
