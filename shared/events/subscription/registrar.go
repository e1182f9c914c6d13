package subscription

import (
	"cmp"
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription/challenge"
	"github.com/mcp-events/mcpevents/shared/events/switches"
)

// Limits of subscriptions (design: limits and defaults).
const (
	MaxURIs      = 50
	MaxTargetURL = 2048
	// rotationGrace is how long the previous secret signs as well.
	rotationGrace = 24 * time.Hour
)

// Targets checks and verifies the endpoints of webhooks. shared/events/webhook/targets implements it.
type Targets interface {
	// Check returns an error of kind Invalid for a URL that deliveries can never reach.
	Check(url string) error
	// Verify sends the challenge of the MCP Events extension, signed unless key is nil, and returns nil if the endpoint echoed it.
	Verify(ctx context.Context, url, subscriptionID string, key []byte) error
	// ParseSecret decodes a client's secret, which begins with whsec_. Its errors are of kind Invalid.
	ParseSecret(secret string) ([]byte, error)
	// NewSecret generates a secret. It returns the text for the client and the key that the text encodes.
	NewSecret(t SecretType) (secret string, key []byte)
	// Seal encrypts a key for storage.
	Seal(ctx context.Context, key []byte, b Binding) ([]byte, error)
}

// Replayer sends past events to one subscription. shared/events/delivery implements it.
type Replayer interface {
	// Replay enqueues the events of the subscription's patterns after the given position of the log. truncated reports that it left
	// some out.
	Replay(ctx context.Context, s *Subscription, after int64) (truncated bool, err error)
	// Reactivate resumes the deliveries that were suspended with the subscription.
	Reactivate(ctx context.Context, s *Subscription) error
}

// Watermark finds the position up to which a subscription's deliveries are settled. shared/events/delivery implements it.
type Watermark interface {
	// Settled returns a position of the log up to which every enqueued event has been attempted and none waits for a retry. open
	// reports whether the subscription has deliveries that wait.
	Settled(ctx context.Context, workspace, id string) (at int64, open bool, err error)
}

// Options are the operator's settings for registrations. Zero values stand for the defaults.
type Options struct {
	// Secret is the type of secret for SEP-1803 subscriptions.
	Secret SecretType
	// DefaultTTL (24 h) is granted if events/subscribe suggests no TTL. A suggested TTL is limited to MinTTL (1 min) and MaxTTL (7 d).
	DefaultTTL, MaxTTL, MinTTL time.Duration
	// AllowNoExpiry allows subscriptions that never expire (ttlMs is null).
	AllowNoExpiry bool
	// VerifyRegistrations requires the verification of SEP-1803 targets too.
	VerifyRegistrations bool
	// VerifiedTargets are URL prefixes that need no challenge.
	VerifiedTargets []string
	// Verifications returns how many challenges a principal may have sent within a minute. Nil means [quota.DefaultVerifications] for
	// all.
	Verifications func(ctx context.Context, workspace, principal string) int64
	// Rate limits how often a principal registers or subscribes. Refreshes count because they cost as much. Ending a subscription is not
	// limited. Nil means no limit.
	Rate *quota.Rate
}

func (o Options) withDefaults() Options {
	o.DefaultTTL = cmp.Or(o.DefaultTTL, 24*time.Hour)
	o.MaxTTL = cmp.Or(o.MaxTTL, 7*24*time.Hour)
	o.MinTTL = cmp.Or(o.MinTTL, time.Minute)
	o.Secret = cmp.Or(o.Secret, Standard)
	return o
}

// NewRate returns a limit on registrations per second. A burst may use up to ten seconds' worth.
func NewRate(of quota.Of) *quota.Rate {
	return quota.New(quota.RegistrationRate, "registrations", of, func(perSecond float64) float64 { return max(1, 10*perSecond) })
}

// Registrar makes and refreshes subscriptions of both protocols.
type Registrar struct {
	Service *Service
	Sealer  *eventlog.Sealer
	Targets Targets
	Replay  Replayer
	// Watermark advances the cursors of subscriptions. If it is nil, they stay where they began.
	Watermark Watermark
	// Switches has the pauses that operators imposed on earlier subscriptions with the same id. Nil stands for none.
	Switches *switches.Set
	// Demand records that the events of a URI are wanted from the backend that it belongs to. Nil means there are no backends.
	Demand  func(ctx context.Context, workspace, principal, uri string) error
	Options Options
}

func (g *Registrar) now() time.Time { return g.Service.Records.now() }

// verify makes sure that a target wants deliveries.
func (g *Registrar) verify(ctx context.Context, p auth.Principal, target, id string, key []byte) error {
	return challenge.Verifier{
		DB: g.Service.Records.DB, Now: g.now, Send: g.Targets.Verify,
		Trusted: g.Options.VerifiedTargets, PerMinute: g.Options.Verifications,
	}.Verify(ctx, p, target, id, key)
}
