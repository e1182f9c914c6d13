package subscription

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// RegisterRequest is the request of resources/subscriptions/register (SEP-1803).
type RegisterRequest struct {
	URIs   []string
	Target string
	// IdempotencyKey is optional and has at most [maxIdempotencyKey] bytes. Repeating a request with the same key
	// within a day returns the same subscription with a fresh secret.
	IdempotencyKey string
}

// maxIdempotencyKey is the maximum length of an idempotency key in bytes.
const maxIdempotencyKey = 128

// Registered is the answer to a [RegisterRequest]. It is the only answer that contains the secret.
type Registered struct {
	Subscription *Subscription
	SecretType   SecretType
	Secret       string
}

// Register creates a webhook subscription for all of the URIs, or for none of them. Every event that is published after Register has
// returned is delivered. Errors are Invalid (naming the URI or the target), Forbidden or Exhausted.
func (g *Registrar) Register(ctx context.Context, p auth.Principal, r RegisterRequest) (*Registered, error) {
	cat, err := g.Service.permit(ctx, p)
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
	sub.rely(cat, grantOf(cat, p))
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
	switch err := g.Service.Records.insert(ctx, cat, sub, extra...); {
	case errors.Is(err, store.ErrConflict) && r.IdempotencyKey != "":
		again, err := g.registerAgain(ctx, cat, p, r) // a concurrent repetition was faster
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

// registerAgain answers a repeated registration with the same subscription and a fresh secret, because the first answer may have been
// lost and the secret is not stored in clear text. The principal's current rights replace the former ones. registerAgain returns nil
// if the idempotency key is new.
func (g *Registrar) registerAgain(ctx context.Context, cat *catalog.Catalog, p auth.Principal, r RegisterRequest) (*Registered, error) {
	it, err := store.One(ctx, g.Service.Records.DB, idempotencyKey(p, r.IdempotencyKey), "read the idempotency key")
	if err != nil || it == nil {
		return nil, err
	}
	var out *Registered
	err = g.Service.Records.change(ctx, p.Workspace, p.ID, string(it.Value), func(sub *Subscription) error {
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
		sub.Target.Previous, sub.Target.PreviousUntil = previous.Secret, g.now().Add(rotationGrace).Unix()
		out = &Registered{Subscription: sub, SecretType: sub.Target.Type, Secret: secret}
		return g.Service.Records.update(ctx, sub)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// verifyRegistration verifies the target if the operator requires that. SEP-1803 itself does not (SRF-07).
func (g *Registrar) verifyRegistration(ctx context.Context, p auth.Principal, sub *Subscription, key []byte) error {
	if !g.Options.VerifyRegistrations {
		return nil
	}
	err := g.verify(ctx, p, sub.Target.URL, sub.ID, key)
	if data := fault.DataOf(err); fault.Is(err, fault.Unavailable) && data != nil { // the target failed, not this server
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

// Binding returns the binding of the subscription's sealed secrets.
func (s *Subscription) Binding() Binding {
	return Binding{Workspace: s.Workspace, Subscription: s.ID, Target: s.Target.URL}
}

func (g *Registrar) checkTarget(url string) error {
	if len(url) > MaxTargetURL {
		return fault.New(fault.Invalid, "the target URL is longer than %d bytes", MaxTargetURL).AtLimit("targetURL", MaxTargetURL)
	}
	return g.Targets.Check(url)
}

func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (Go 1.24)
	return idPrefix + hex.EncodeToString(b[:])
}

func idempotencyKey(p auth.Principal, key string) store.Key {
	h := sha256.Sum256([]byte(key))
	return store.Key{
		Table: store.Subscriptions, Partition: "idem#" + p.Workspace + "#" + p.ID,
		Sort: base64.RawURLEncoding.EncodeToString(h[:]),
	}
}
