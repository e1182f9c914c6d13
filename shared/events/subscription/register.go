package subscription

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription/challenge"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// RegisterRequest is the request of resources/subscriptions/register (SEP-1803).
type RegisterRequest struct {
	URIs   []string
	Target string
	// IdempotencyKey is optional. Another request with the same key within a day returns the same subscription, with a new secret.
	IdempotencyKey string
}

const maxIdempotencyKey = 128 // bytes

// Registered is the response to a [RegisterRequest]. It is the only response that contains the secret.
type Registered struct {
	Subscription *Subscription
	SecretType   SecretType
	Secret       string
}

// Register creates a webhook subscription to all of the URIs, or fails if any of them is refused. Every event that is published after
// Register has returned is delivered. If Register refuses a request, its error is of kind Invalid, Forbidden or Exhausted.
func (g *Registrar) Register(ctx context.Context, p auth.Principal, r RegisterRequest) (*Registered, error) {
	cat, err := g.Service.authorize(ctx, p)
	if err != nil {
		return nil, err
	}
	if err := g.Options.Rate.Take(ctx, p, 1, g.now()); err != nil {
		return nil, err
	}
	if len(r.URIs) == 0 || len(r.URIs) > MaxURIs {
		return nil, fault.New(fault.Invalid, "uris has %d entries, 1 to %d are allowed", len(r.URIs), MaxURIs).AtLimit("registrationURIs", MaxURIs)
	}
	if n := len(r.IdempotencyKey); n > maxIdempotencyKey {
		return nil, fault.New(fault.Invalid, "the idempotency key has %d bytes (allowed: up to %d)", n, maxIdempotencyKey)
	}
	if err := g.checkTarget(r.Target); err != nil {
		return nil, err
	}
	var patterns []match.Pattern
	for _, uri := range r.URIs {
		found, access, err := match.Resolve(cat, uri)
		if err != nil {
			return nil, err
		}
		if err := match.CheckAccess(p, access); err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(access, func(a match.Access) bool { return a.Entry.WebhookAllowed() }) {
			return nil, fault.New(fault.Invalid, "%s is not delivered by webhook", uri).With(map[string]any{"uri": uri})
		}
		for _, f := range found {
			if !slices.ContainsFunc(patterns, func(p match.Pattern) bool { return p.Key == f.Key }) {
				patterns = append(patterns, f)
			}
		}
	}
	if len(patterns) > MaxURIs+10 {
		return nil, fault.New(fault.Invalid, "the URIs stand for too many patterns")
	}
	if r.IdempotencyKey != "" {
		if again, err := g.registerAgain(ctx, cat, p, r); again != nil || err != nil {
			return again, err
		}
	}
	sub := &Subscription{
		ID: newID(), Workspace: p.Workspace, Principal: p.ID, Origin: SEP1803,
		EventURIs: slices.Clone(r.URIs), Patterns: patterns,
		Target:  Target{URL: r.Target},
		Created: g.now().UTC(), State: Active,
	}
	sub.recordGrant(cat, grantOf(cat, p))
	secret, key, err := g.freshSecret(ctx, sub)
	if err != nil {
		return nil, err
	}
	if err := g.verifyRegistration(ctx, p, sub, key); err != nil {
		return nil, err
	}
	var extra []store.Op
	if r.IdempotencyKey != "" {
		extra = append(extra, store.Put(store.Item{
			Key: idempotencyKey(p, r.IdempotencyKey), Value: []byte(sub.ID), Expires: g.now().Add(24 * time.Hour),
		}, store.Absent()))
	}
	switch err := g.Service.Store.insert(ctx, cat, sub, extra...); {
	case errors.Is(err, store.ErrConflict) && r.IdempotencyKey != "":
		again, err := g.registerAgain(ctx, cat, p, r) // a concurrent request with the same key was faster
		if again == nil && err == nil {
			err = fault.New(fault.Unavailable, "the registration raced with another; try again")
		}
		return again, err
	case err != nil:
		return nil, fault.Wrap(fault.Unavailable, err, "register")
	}
	g.Service.notifyPrincipal(ctx, p.Workspace, p.ID)
	return &Registered{Subscription: sub, SecretType: sub.Target.Type, Secret: secret}, nil
}

// registerAgain handles a registration that a client repeats, for example because it has lost the first response. It returns the existing
// subscription with the principal's current rights, and with a new secret, because a [Registrar] cannot decrypt the old secret. It
// returns nil if the idempotency key is new.
func (g *Registrar) registerAgain(ctx context.Context, cat *catalog.Catalog, p auth.Principal, r RegisterRequest) (*Registered, error) {
	it, err := store.One(ctx, g.Service.Store.DB, idempotencyKey(p, r.IdempotencyKey), "read the idempotency key")
	if err != nil || it == nil {
		return nil, err
	}
	var out *Registered
	err = g.Service.Store.change(ctx, p.Workspace, p.ID, string(it.Value), func(sub *Subscription) error {
		if sub == nil || sub.State == Disabled {
			return fault.New(fault.Invalid, "the idempotency key belongs to a subscription that has ended")
		}
		if sub.Target.URL != r.Target || !slices.Equal(sub.EventURIs, r.URIs) {
			return fault.New(fault.Invalid, "the idempotency key belongs to a registration with other parameters")
		}
		sub.Grant = grantOf(cat, p)
		previous := sub.Target
		secret, _, err := g.freshSecret(ctx, sub)
		if err != nil {
			return err
		}
		sub.Target.Previous, sub.Target.PreviousUntil = previous.Secret, SecondsOf(g.now().Add(rotationGrace))
		out = &Registered{Subscription: sub, SecretType: sub.Target.Type, Secret: secret}
		return g.Service.Store.update(ctx, sub)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// verifyRegistration sends a challenge to the endpoint of a SEP-1803 subscription, if the operator's settings require that. SEP-1803
// itself does not require it (SRF-07).
func (g *Registrar) verifyRegistration(ctx context.Context, p auth.Principal, sub *Subscription, key []byte) error {
	if !g.Options.VerifyRegistrations {
		return nil
	}
	err := g.verify(ctx, p, sub.Target.URL, sub.ID, key)
	if data := fault.DataOf(err); fault.Is(err, fault.Unavailable) && data != nil { // only failures of the endpoint have data
		return fault.New(fault.Invalid, "the target was not verified: it must echo the challenge that it was sent").With(data)
	}
	return err
}

func (g *Registrar) freshSecret(ctx context.Context, sub *Subscription) (secret string, key []byte, err error) {
	sub.Target.Type = g.Options.withDefaults().Secret
	sub.Target.Secret = nil
	if sub.Target.Type == None {
		return "", nil, nil
	}
	secret, key = g.Targets.NewSecret(sub.Target.Type)
	sealed, err := g.seal(ctx, sub, key)
	if err != nil {
		return "", nil, err
	}
	sub.Target.Secret = sealed
	return secret, key, nil
}

func (g *Registrar) seal(ctx context.Context, sub *Subscription, key []byte) ([]byte, error) {
	sealed, err := g.Targets.Seal(ctx, key, sub.Binding())
	return sealed, fault.Wrap(fault.Unavailable, err, "seal the secret")
}

// Binding returns the identifiers with which the subscription's secrets are encrypted. Decryption fails with any other binding.
func (s *Subscription) Binding() Binding {
	return Binding{Workspace: s.Workspace, Subscription: s.ID, Target: s.Target.URL}
}

func (g *Registrar) checkTarget(url string) error {
	if len(url) > maxTargetURL {
		return fault.New(fault.Invalid, "the target URL is longer than %d bytes", maxTargetURL).AtLimit("targetURL", maxTargetURL)
	}
	return g.Targets.Check(url)
}

func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // cannot fail (since Go 1.24)
	return idPrefix + hex.EncodeToString(b[:])
}

func idempotencyKey(p auth.Principal, key string) store.Key {
	h := sha256.Sum256([]byte(key))
	return store.Key{
		Table: store.Subscriptions, Partition: "idem#" + p.Workspace + "#" + p.ID,
		Sort: base64.RawURLEncoding.EncodeToString(h[:]),
	}
}

const (
	MaxURIs      = 50
	maxTargetURL = 2048
	// rotationGrace is how long a replaced secret still signs deliveries, in addition to the new secret.
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
	// Seal encrypts a key for storage. It can be decrypted only with an equal binding.
	Seal(ctx context.Context, key []byte, b Binding) ([]byte, error)
}

// Replayer sends past events to one subscription. shared/events/delivery implements it.
type Replayer interface {
	// Replay enqueues the subscription's events whose log positions are greater than the parameter after. The result truncated is true if
	// Replay leaves out some of these events.
	Replay(ctx context.Context, s *Subscription, after int64) (truncated bool, err error)
	// Reactivate resumes the deliveries that were waiting when the subscription was suspended.
	Reactivate(ctx context.Context, s *Subscription) error
}

// Watermark finds a subscription's watermark. This is the position of the event log up to which all deliveries to the subscriber are
// settled, which means acknowledged or dead-lettered. So a client that resumes from the watermark misses no event. shared/events/delivery
// implements the interface.
type Watermark interface {
	// SettledPosition returns the watermark. The result open reports whether deliveries of later events are waiting.
	SettledPosition(ctx context.Context, workspace, id string) (at int64, open bool, err error)
}

// Options are the operator's settings for registrations. A zero value means the default.
type Options struct {
	// Secret is the type of secret for SEP-1803 subscriptions.
	Secret SecretType
	// DefaultTTL (24 h) is the lifetime of a subscription if events/subscribe suggests none. A suggested lifetime is limited to MinTTL (1
	// min) and MaxTTL (7 d).
	DefaultTTL, MaxTTL, MinTTL time.Duration
	// AllowNoExpiry allows subscriptions that never expire (ttlMs is null).
	AllowNoExpiry bool
	// VerifyRegistrations requires a challenge for the endpoints of SEP-1803 subscriptions too. Endpoints of MCP Events subscriptions
	// always need one.
	VerifyRegistrations bool
	// VerifiedTargets are URL prefixes of endpoints that need no challenge, because the operator vouches for them.
	VerifiedTargets []string
	// Verifications returns how many challenges to endpoints a principal may cause per minute. Nil means [quota.DefaultVerifications] for
	// all principals.
	Verifications func(ctx context.Context, workspace, principal string) int64
	// Rate limits how often a principal registers or subscribes. A refresh of a subscription counts too, because it costs as much as a
	// new one. Ending a subscription is not limited. Nil means no limit.
	Rate *quota.Rate
}

func (o Options) withDefaults() Options {
	o.DefaultTTL = cmp.Or(o.DefaultTTL, 24*time.Hour)
	o.MaxTTL = cmp.Or(o.MaxTTL, 7*24*time.Hour)
	o.MinTTL = cmp.Or(o.MinTTL, time.Minute)
	o.Secret = cmp.Or(o.Secret, Standard)
	return o
}

// NewRate returns a limit on each principal's registrations per second. A burst may have as many registrations as ten seconds allow, for
// example 20 at two per second, but always at least one.
func NewRate(limitOf quota.LimitFunc) *quota.Rate {
	return quota.NewRate(quota.RegistrationRate, "registrations", limitOf, func(perSecond float64) float64 { return max(1, 10*perSecond) })
}

// Registrar creates and refreshes subscriptions of SEP-1803 and of the MCP Events extension.
type Registrar struct {
	Service *Service
	Sealer  *eventlog.Sealer
	Targets Targets
	Replay  Replayer
	// Watermark finds the position up to which all deliveries to a subscriber are finished. A refresh moves the subscription's cursor to
	// this position. If Watermark is nil, the cursor never moves.
	Watermark Watermark
	// Switches knows whether an operator had paused an earlier subscription with the same id, because then the new one is paused too.
	// Switches may be nil.
	Switches *switches.Set
	// Demand records that a principal wants the events of a URI. If the URI belongs to a backend, the relay (shared/gateway/relay) then
	// subscribes to the events there. Nil means that there are no backends.
	Demand  func(ctx context.Context, workspace, principal, uri string) error
	Options Options
}

func (g *Registrar) now() time.Time { return g.Service.Store.now() }

func (g *Registrar) verify(ctx context.Context, p auth.Principal, target, id string, key []byte) error {
	return challenge.Verifier{
		DB: g.Service.Store.DB, Now: g.now, Send: g.Targets.Verify,
		Trusted: g.Options.VerifiedTargets, PerMinute: g.Options.Verifications, Log: g.Service.Store.log(),
	}.Verify(ctx, p, target, id, key)
}

// Grant records the rights that a principal had when it last made or refreshed a subscription: all its scopes, and the claims that the
// access rules of the event types checked at that time. If a changed rule checks another claim, the client must subscribe again.
type Grant struct {
	Scopes []string            `json:"s,omitempty"`
	Claims map[string][]string `json:"c,omitempty"`
}

func grantOf(cat *catalog.Catalog, p auth.Principal) Grant {
	g := Grant{Scopes: p.Scopes}
	for _, e := range cat.Entries() {
		if e.Access == nil {
			continue
		}
		for claim := range maps.Values(e.Access.Claims) {
			if values, ok := p.Claims[claim]; ok {
				if g.Claims == nil {
					g.Claims = map[string][]string{}
				}
				g.Claims[claim] = values
			}
		}
	}
	return g
}

// IsZero makes encoding/json omit an empty grant.
func (g Grant) IsZero() bool { return len(g.Scopes) == 0 && len(g.Claims) == 0 }

// Terminated is the error for a subscription that must end (SEP-3415, sections "Subscription Termination" and "Event type removal and
// breaking changes"). Its reason comes from [AccessRevoked], [SchemaChanged], [TypeRemoved] or [NoWebhooks].
type Terminated struct{ Reason error }

func (e *Terminated) Error() string { return "subscription terminated: " + e.Reason.Error() }

// AccessRevoked returns the reason for terminating a subscription if its principal may no longer receive the events.
func AccessRevoked() error {
	return fault.New(fault.Forbidden, "access was revoked").With(map[string]any{"reason": "Access revoked"})
}

// SchemaChanged returns the reason for terminating a subscription if its event type has changed incompatibly. The parameter name is the
// name of the event type. The parameter feature is the changed part of it, as [catalog.FindBreakingFeature] returns it.
func SchemaChanged(name, feature string) error {
	return fault.New(fault.Unsupported, "%s changed incompatibly", name).
		With(map[string]any{"feature": feature, "reason": "schema_changed"})
}

// NeedsPrincipal returns the error for the anonymous principal, which may not use the methods of MCP Events for webhooks.
func NeedsPrincipal() error {
	return fault.New(fault.Unauthenticated, "an authenticated principal is needed; for development only, a server that runs with --allow-insecure-targets needs none")
}

// TypeRemoved returns the reason for terminating a subscription if its event type was removed from the catalog. The parameter name is the
// name of the event type or, for a subscription to all types below a parent URI, that URI.
func TypeRemoved(name string) error {
	return fault.New(fault.NotFound, "the event type %.128s was removed", name).With(map[string]any{"kind": "event"})
}

// NoWebhooks returns the reason for terminating a subscription if its event type is no longer delivered by webhook. It is also the error
// for a new subscription to such an event type.
func NoWebhooks(name string) error {
	return fault.New(fault.Unsupported, "%s is not delivered by webhook", name).
		With(map[string]any{"feature": "deliveryMode", "value": "webhook"})
}

// Service finds, pauses, suspends and ends existing subscriptions, and notifies their owners. A [Registrar] creates subscriptions. The
// methods may be called concurrently, in any number of processes.
type Service struct {
	Store   Store
	Catalog catalog.Source
	Log     *eventlog.Log
	// AllowAnonymous lets the anonymous principal use events/subscribe and events/unsubscribe. It is for development only.
	AllowAnonymous bool
	// PrincipalTopic and SubscriptionTopic return the topics of a principal and of a subscription in the event log. When a subscription
	// changes, the Service publishes notices for open streams under these topics. If the functions are nil, it publishes no notices.
	PrincipalTopic    func(principal string) string
	SubscriptionTopic func(id string) string
}

// Lookup reads a subscription for a delivery. It returns nil if the subscription has ended or was disabled.
func (s *Service) Lookup(ctx context.Context, workspace, principal, id string) (*Subscription, error) {
	sub, err := s.Store.load(ctx, workspace, principal, id)
	if err != nil || sub == nil || sub.State == Disabled || sub.isExpired(s.Store.now()) {
		return nil, err
	}
	return sub, nil
}

// Find returns a subscription of any principal of the workspace, or nil if it does not exist or has expired.
func (s *Service) Find(ctx context.Context, workspace, id string) (*Selected, error) {
	if !validID(id) {
		return nil, nil
	}
	entry, err := store.One(ctx, s.Store.DB, indexKey(workspace, id), "read subscriptions")
	if err != nil || entry == nil {
		return nil, err
	}
	sub, err := s.Store.load(ctx, workspace, string(entry.Value), id)
	if err != nil || sub == nil || sub.isExpired(s.Store.now()) {
		return nil, err
	}
	status, err := statusOf(ctx, s.Store.DB, workspace, id)
	return &Selected{sub, status}, err
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
	notice, _ := json.Marshal(what) // cannot fail for strings
	if err := s.Log.Notify(ctx, workspace, topic(of), notice); err != nil {
		s.Store.log().WarnContext(ctx, "subscription change not announced", "error", err)
	}
}

// authorize checks that the principal has [auth.ScopeSubscribe], and returns the workspace's catalog.
func (s *Service) authorize(ctx context.Context, p auth.Principal) (*catalog.Catalog, error) {
	if err := p.Require(auth.ScopeSubscribe); err != nil {
		return nil, err
	}
	cat, err := s.Catalog.Catalog(ctx, p.Workspace)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the catalog")
	}
	return cat, nil
}

// permitEvents does the same as authorize, for the methods of MCP Events. It also refuses anonymous callers. They all are the same
// principal, so one of them could end another one's subscription by guessing its parameters.
func (s *Service) permitEvents(ctx context.Context, p auth.Principal) (*catalog.Catalog, error) {
	if p.Anonymous && !s.AllowAnonymous {
		return nil, NeedsPrincipal()
	}
	return s.authorize(ctx, p)
}
