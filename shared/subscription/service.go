package subscription

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/bounded"
	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/rate"
	"github.com/mcp-events/mcpevents/shared/store"
)

// Limits of subscriptions (design: limits and defaults).
const (
	MaxURIs      = 50
	MaxTargetURL = 2048
	// DefaultQuota is how many subscriptions a principal may have.
	DefaultQuota = 1000
	// rotationGrace is how long a replaced secret still signs.
	rotationGrace = 24 * time.Hour
	// verificationTTL is how long a verified target stays verified.
	verificationTTL = 24 * time.Hour
)

// Targets checks and verifies where webhooks go. shared/webhook implements it.
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
	Seal(key []byte, b Binding) ([]byte, error)
}

// Replayer sends past events to one subscription. shared/delivery implements it.
type Replayer interface {
	// Replay enqueues the events of the subscription's patterns with keys after
	// the given one. Truncated reports that there were more than it replays.
	Replay(ctx context.Context, s *Subscription, after int64) (truncated bool, err error)
	// Reactivate makes the deliveries that were suspended with the subscription.
	Reactivate(ctx context.Context, s *Subscription) error
}

// Watermark finds the position up to which a subscription's deliveries are settled. shared/delivery implements it.
type Watermark interface {
	// Settled is a position in the log up to which all that was enqueued has been attempted,
	// and nothing of the subscription waits for a retry; open reports whether anything does.
	Settled(ctx context.Context, workspace, id string) (at int64, open bool, err error)
}

// Options are the operator's choices. Zero values are the defaults.
type Options struct {
	// QuotaOf is how many subscriptions a principal may have; nil is [DefaultQuota] for all.
	QuotaOf func(ctx context.Context, workspace, principal string) int64
	// SumOf is how many subscriptions all principals of a workspace may have together; 0 is any number, and so is nil.
	SumOf func(ctx context.Context, workspace string) int64
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
	// AllowAnonymous lets the anonymous principal use events/subscribe; for
	// development only.
	AllowAnonymous bool
	// Rate limits how often a principal registers or subscribes; nil does not. Refreshes
	// count: they cost as much. Ending a subscription is never refused.
	Rate *rate.Rate
	// UnknownUnsubscribe answers events/unsubscribe of an unknown subscription
	// with NotFound, as SEP-3415 says, and not with an empty result.
	UnknownUnsubscribe bool
}

func (o Options) withDefaults() Options {
	o.DefaultTTL = cmp.Or(o.DefaultTTL, 24*time.Hour)
	o.MaxTTL = cmp.Or(o.MaxTTL, 7*24*time.Hour)
	o.MinTTL = cmp.Or(o.MinTTL, time.Minute)
	o.Secret = cmp.Or(o.Secret, Standard)
	return o
}

// Service registers and ends subscriptions. Its methods may be called
// concurrently, at any number of instances.
type Service struct {
	DB      store.DB
	Catalog catalog.Source
	Log     *eventlog.Log
	Sealer  *eventlog.Sealer
	Targets Targets
	Replay  Replayer
	// Watermark moves the cursors of deliveries; nil leaves them where they began.
	Watermark Watermark
	Options   Options
	// Ended is called for every subscription that ended or was disabled, before the
	// caller is answered; embedded, the dispatcher starts no attempt after that. May be nil.
	Ended func(id string)
	// Started is called for every subscription before it is written. May be nil.
	Started func(id string)
	// DeadLetter dead-letters an item that [Service.Sweep] cannot decode; without it
	// the item stays.
	DeadLetter func(ctx context.Context, it *store.Item, reason error) error
	// The topics that notices go to; see shared/stream.
	PrincipalTopic    func(principal string) string
	SubscriptionTopic func(id string) string
	Now               func() time.Time

	written bounded.Map[store.Key, bool] // items that stay as they are, by [Service.once]; what is forgotten is written once more
	// SaveEvery is that of [periodic.Minutes], for the sweep.
	SaveEvery time.Duration
}

// NewRate limits registrations to a number per second, with bursts of ten seconds' worth.
func NewRate(of rate.Of) *rate.Rate {
	return rate.New("registrationRate", "registrations", of, func(perSecond float64) float64 { return max(1, 10*perSecond) })
}

func (s *Service) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

func (s *Service) options() Options { return s.Options.withDefaults() }

// Lookup reads a subscription for a delivery; nil when it is gone or no longer
// served.
func (s *Service) Lookup(ctx context.Context, workspace, principal, id string) (*Subscription, error) {
	sub, err := s.load(ctx, workspace, principal, id)
	if err != nil || sub == nil || sub.State == Disabled || s.lapsed(sub) {
		return nil, err
	}
	return sub, nil
}

func (s *Service) notifyPrincipal(ctx context.Context, workspace, principal string) {
	s.notify(ctx, workspace, s.PrincipalTopic, principal, map[string]any{"changed": "subscriptions"})
}

func (s *Service) notifySubscription(ctx context.Context, workspace, id string, state State) {
	s.notify(ctx, workspace, s.SubscriptionTopic, id, map[string]any{"uri": URI(id), "state": state})
}

func (s *Service) notify(ctx context.Context, workspace string, topic func(string) string, of string, what map[string]any) {
	if topic == nil {
		return
	}
	notice, _ := json.Marshal(what) // texts
	if err := s.Log.Notify(ctx, workspace, topic(of), notice); err != nil {
		slog.WarnContext(ctx, "subscription change not announced", "error", err)
	}
}

// permit checks what every method needs: the scope, and a catalog to look at.
func (s *Service) permit(ctx context.Context, p auth.Principal) (*catalog.Catalog, error) {
	if err := p.Require(auth.ScopeSubscribe); err != nil {
		return nil, err
	}
	cat, err := s.Catalog.Catalog(ctx, p.Workspace)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the catalog")
	}
	return cat, nil
}
