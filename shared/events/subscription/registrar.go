package subscription

import (
	"cmp"
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth/quota"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
)

// Limits of subscriptions (design: limits and defaults).
const (
	MaxURIs      = 50
	MaxTargetURL = 2048
	// rotationGrace is how long a replaced secret still signs.
	rotationGrace = 24 * time.Hour
	// verificationTTL is how long a verified target stays verified.
	verificationTTL = 24 * time.Hour
)

// Targets checks and verifies where webhooks go. shared/events/webhook implements it.
type Targets interface {
	// Check refuses a URL that could never be delivered to; a fault of kind Invalid.
	Check(url string) error
	// Verify sends the challenge of the MCP Events extension, signed unless key is nil, and
	// returns nil when it was echoed.
	Verify(ctx context.Context, url, subscriptionID string, key []byte) error
	// ParseSecret decodes a client's whsec_ secret; a fault of kind Invalid.
	ParseSecret(secret string) ([]byte, error)
	// NewSecret makes a secret: what the client gets, and the key it stands for.
	NewSecret(t SecretType) (secret string, key []byte)
	// Seal encrypts a key for storage.
	Seal(ctx context.Context, key []byte, b Binding) ([]byte, error)
}

// Replayer sends past events to one subscription. shared/events/delivery implements it.
type Replayer interface {
	// Replay enqueues the events of the subscription's patterns with keys after
	// the given one. Truncated reports that there were more than it replays.
	Replay(ctx context.Context, s *Subscription, after int64) (truncated bool, err error)
	// Reactivate makes the deliveries that were suspended with the subscription.
	Reactivate(ctx context.Context, s *Subscription) error
}

// Watermark finds the position up to which a subscription's deliveries are settled. shared/events/delivery implements it.
type Watermark interface {
	// Settled is a position in the log up to which all that was enqueued has been attempted,
	// and nothing of the subscription waits for a retry; open reports whether anything does.
	Settled(ctx context.Context, workspace, id string) (at int64, open bool, err error)
}

// Options are the operator's choices for what is registered. Zero values are the defaults.
type Options struct {
	// Secret is the type of secret for SEP-1803 subscriptions.
	Secret SecretType
	// DefaultTTL is granted when events/subscribe asks for none (24 h), MaxTTL
	// the most (7 d), MinTTL the least (1 min).
	DefaultTTL, MaxTTL, MinTTL time.Duration
	// AllowNoExpiry grants ttlMs null as asked.
	AllowNoExpiry bool
	// VerifyRegistrations has the targets of SEP-1803 verified too.
	VerifyRegistrations bool
	// VerifiedTargets are URL prefixes that need no challenge.
	VerifiedTargets []string
	// Verifications returns how many challenges a principal may have sent within a minute; nil is
	// [quota.DefaultVerifications] for all.
	Verifications func(ctx context.Context, workspace, principal string) int64
	// Rate limits how often a principal registers or subscribes; nil does not. Refreshes
	// count: they cost as much. Ending a subscription is never refused.
	Rate *quota.Rate
}

func (o Options) withDefaults() Options {
	o.DefaultTTL = cmp.Or(o.DefaultTTL, 24*time.Hour)
	o.MaxTTL = cmp.Or(o.MaxTTL, 7*24*time.Hour)
	o.MinTTL = cmp.Or(o.MinTTL, time.Minute)
	o.Secret = cmp.Or(o.Secret, Standard)
	return o
}

// NewRate limits registrations to a number per second, with bursts of ten seconds' worth.
func NewRate(of quota.Of) *quota.Rate {
	return quota.New(quota.RegistrationRate, "registrations", of, func(perSecond float64) float64 { return max(1, 10*perSecond) })
}

// Registrar makes and refreshes subscriptions, by both protocols.
type Registrar struct {
	Service *Service
	Sealer  *eventlog.Sealer
	Targets Targets
	Replay  Replayer
	// Watermark moves the cursors of deliveries; nil leaves them where they began.
	Watermark Watermark
	Options   Options
}

func (g *Registrar) now() time.Time { return g.Service.Records.now() }
