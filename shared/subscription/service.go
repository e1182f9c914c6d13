package subscription

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
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
)

// Targets checks and verifies where webhooks go. shared/webhook implements it.
type Targets interface {
	// Check refuses a URL that could never be delivered to; a fault of kind Invalid.
	Check(url string) error
	// Verify sends the signed challenge of the MCP Events extension and returns
	// nil when it was echoed.
	Verify(ctx context.Context, url, subscriptionID string, key []byte) error
	// ParseSecret decodes a client's whsec_ secret; a fault of kind Invalid.
	ParseSecret(secret string) ([]byte, error)
	// NewSecret makes a secret: what the client is told, and the key it stands for.
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
	Quota int64
	// Secret is the type of secret for SEP-1803 subscriptions.
	Secret SecretType
	// DefaultTTL is granted when events/subscribe asks for none (24 h), MaxTTL
	// the most (7 d), MinTTL the least (1 min).
	DefaultTTL, MaxTTL, MinTTL time.Duration
	// AllowNoExpiry grants ttlMs null as asked.
	AllowNoExpiry bool
	// RotationGrace is how long a replaced secret still signs (24 h).
	RotationGrace time.Duration
	// VerificationTTL is how long a verified target stays verified (24 h).
	VerificationTTL time.Duration
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
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&o.DefaultTTL, 24*time.Hour)
	set(&o.MaxTTL, 7*24*time.Hour)
	set(&o.MinTTL, time.Minute)
	set(&o.RotationGrace, 24*time.Hour)
	set(&o.VerificationTTL, 24*time.Hour)
	if o.Quota == 0 {
		o.Quota = DefaultQuota
	}
	if o.Secret == "" {
		o.Secret = Standard
	}
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

	written     *bounded.Map[store.Key, bool] // items that stay as they are, by [Service.once]
	makeWritten sync.Once
	// SaveEvery is that of [periodic.Minutes], for the sweep.
	SaveEvery time.Duration
}

// maxWritten bounds what is known to be written: what is forgotten is written once more.
const maxWritten = 10_000

// NewRate limits registrations to a number per second, with bursts of ten seconds' worth. 0 or
// less is no limit: nil.
func NewRate(perSecond float64) *rate.Rate {
	return rate.New("registrationRate", "registrations", perSecond, max(1, 10*perSecond))
}

func (s *Service) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

func (s *Service) options() Options { return s.Options.withDefaults() }

const quotaCount = "n"

func quotaKey(workspace, principal string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "q#" + workspace + "#" + principal, Sort: "-"}
}

// insert writes a new subscription with the extra operations given, in one
// transaction. It is listed before. The counters are raised before, too, and lowered again
// when it is certain that it was not written.
func (s *Service) insert(ctx context.Context, cat *catalog.Catalog, sub *Subscription, extra ...store.Op) error {
	if err := s.list(ctx, cat, sub); err != nil {
		return err
	}
	if err := s.count(ctx, sub.Workspace, sub.Patterns, 1); err != nil {
		return err
	}
	sub.Revision = 1
	if s.Started != nil {
		s.Started(sub.ID)
	}
	ops := []store.Op{
		store.Put(sub.encode(), store.Absent()),
		store.Add(quotaKey(sub.Workspace, sub.Principal), map[string]int64{quotaCount: 1},
			map[string]int64{quotaCount: s.options().Quota}),
	}
	for _, it := range sub.subscribers() {
		ops = append(ops, store.Put(it))
	}
	err := s.DB.Write(ctx, append(ops, extra...)...)
	if err == nil {
		return nil
	}
	if kind := fault.KindOf(err); !errors.Is(err, store.ErrConflict) && (kind == fault.Unavailable || kind == fault.Internal) {
		// It may have been written all the same: then the counters are right, and
		// lowering them would hide the subscription from fanout.
		slog.WarnContext(ctx, "subscription counters uncertain", "error", err)
		return fault.Wrap(fault.Unavailable, err, "write the subscription")
	}
	// The caller may be gone; the counters must not be left behind for that.
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if uerr := s.count(undo, sub.Workspace, sub.Patterns, -1); uerr != nil {
		slog.WarnContext(ctx, "subscription counters too high", "error", uerr)
	}
	if !errors.Is(err, store.ErrConflict) {
		return fault.Wrap(fault.Unavailable, err, "write the subscription")
	}
	used, qerr := s.DB.Get(ctx, quotaKey(sub.Workspace, sub.Principal))
	if qerr == nil && used[0] != nil && used[0].Counts[quotaCount] >= s.options().Quota {
		return fault.New(fault.Exhausted, "the limit of %d subscriptions is reached", s.options().Quota).
			With(map[string]any{"limit": "subscriptions", "max": s.options().Quota})
	}
	return err
}

// update writes a changed subscription over the revision it was read at.
func (s *Service) update(ctx context.Context, sub *Subscription) error {
	return s.updateWith(ctx, sub)
}

// remove takes a subscription's items away, with the extra operations given. With
// keep, the record stays with its state, so that the owner can see why it ended.
func (s *Service) remove(ctx context.Context, sub *Subscription, keep bool, extra ...store.Op) error {
	was := sub.Revision
	ops := append(extra, sub.mark(!keep)...)
	if keep {
		sub.Revision++
		it := sub.encode()
		it.Expires = s.now().Add(7 * 24 * time.Hour)
		ops = append(ops, store.Put(it, store.VersionIs(was)))
	} else {
		ops = append(ops, store.Delete(recordKey(sub.Workspace, sub.Principal, sub.ID), store.VersionIs(was)))
	}
	served := sub.State != Disabled || keep
	if served {
		ops = append(ops, store.Add(quotaKey(sub.Workspace, sub.Principal), map[string]int64{quotaCount: -1}, nil))
		for _, p := range sub.Patterns {
			ops = append(ops, store.Delete(subscriberKey(sub.Workspace, p.Key, sub.ID)))
		}
	}
	if err := s.DB.Write(ctx, ops...); err != nil {
		return err
	}
	if s.Ended != nil {
		s.Ended(sub.ID)
	}
	if !served {
		return nil
	}
	if err := s.count(ctx, sub.Workspace, sub.Patterns, -1); err != nil {
		slog.WarnContext(ctx, "subscription counters too high", "error", err)
	}
	s.unlist(ctx, sub)
	return nil
}

// load reads a principal's subscription; nil when there is none.
func (s *Service) load(ctx context.Context, workspace, principal, id string) (*Subscription, error) {
	items, err := s.DB.Get(ctx, recordKey(workspace, principal, id))
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the subscription")
	}
	if items[0] == nil {
		return nil, nil
	}
	return decodeRecord(items[0])
}

// change applies f to a subscription until no one else wrote in between. f
// returns false to leave it as it is.
func (s *Service) change(ctx context.Context, workspace, principal, id string,
	f func(*Subscription) (write func(context.Context, *Subscription) error, err error),
) error {
	for {
		sub, err := s.load(ctx, workspace, principal, id)
		if err != nil {
			return err
		}
		write, err := f(sub)
		if err != nil || write == nil {
			return err
		}
		err = write(ctx, sub)
		if !errors.Is(err, store.ErrConflict) {
			return fault.Wrap(fault.Unavailable, err, "write the subscription")
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// Disable ends a subscription on the server's own account (a 410, a revoked
// right). Its record stays readable for a week.
func (s *Service) Disable(ctx context.Context, workspace, principal, id, reason string) error {
	ended := false
	err := s.change(ctx, workspace, principal, id, func(sub *Subscription) (func(context.Context, *Subscription) error, error) {
		if ended = sub != nil && sub.State != Disabled; !ended {
			return nil, nil
		}
		sub.State, sub.Reason = Disabled, reason
		return func(ctx context.Context, sub *Subscription) error { return s.remove(ctx, sub, true) }, nil
	})
	if err != nil || !ended {
		return err
	}
	s.notifySubscription(ctx, workspace, id, Disabled)
	s.notifyPrincipal(ctx, workspace, principal)
	return nil
}

// Terminate ends a subscription if judge returns a [*Terminated] for its present record; any
// other error is returned. A subscription of SEP-1803 is
// disabled, one of MCP Events is gone, in one write with what also adds. The result is
// the subscription that ended, or nil.
func (s *Service) Terminate(ctx context.Context, workspace, principal, id string,
	judge func(*Subscription) error, also func(*Subscription, error) []store.Op,
) (ended *Subscription, err error) {
	err = s.change(ctx, workspace, principal, id, func(sub *Subscription) (func(context.Context, *Subscription) error, error) {
		ended = nil
		if sub == nil || sub.State == Disabled || s.lapsed(sub) {
			return nil, nil
		}
		err := judge(sub)
		end, found := errors.AsType[*Terminated](err)
		if !found {
			return nil, err
		}
		ended = sub
		if sub.Origin == MCPEvents {
			extra := also(sub, end.Reason)
			return func(ctx context.Context, sub *Subscription) error { return s.remove(ctx, sub, false, extra...) }, nil
		}
		sub.State, sub.Reason = Disabled, fault.Public(end.Reason)
		return func(ctx context.Context, sub *Subscription) error { return s.remove(ctx, sub, true) }, nil
	})
	if err != nil || ended == nil {
		return nil, err
	}
	s.notifySubscription(ctx, workspace, id, Disabled)
	s.notifyPrincipal(ctx, workspace, principal)
	return ended, nil
}

// Suspend stops the deliveries of a subscription that fail nearly all, until a
// refresh. What is published meanwhile is owed to it.
func (s *Service) Suspend(ctx context.Context, workspace, principal, id string) error {
	suspended := false
	err := s.change(ctx, workspace, principal, id, func(sub *Subscription) (func(context.Context, *Subscription) error, error) {
		if suspended = sub != nil && sub.State == Active; !suspended {
			return nil, nil
		}
		for _, p := range sub.Patterns { // so that the log has what is published from now on
			if _, err := Interested(ctx, s.DB, s.Log, workspace, p); err != nil {
				return nil, err
			}
		}
		sub.State, sub.Reason = Suspended, "nearly all deliveries of an hour failed"
		sub.Suspended = s.now().UnixMicro()
		if sub.Owed == 0 {
			sub.Owed = max(s.Log.Position(), 1) // 0 is nothing
		}
		return s.update, nil
	})
	if err == nil && suspended {
		s.notifySubscription(ctx, workspace, id, Suspended)
	}
	return err
}

// Lookup reads a subscription for a delivery; nil when it is gone or no longer
// served.
func (s *Service) Lookup(ctx context.Context, workspace, principal, id string) (*Subscription, error) {
	sub, err := s.load(ctx, workspace, principal, id)
	if err != nil || sub == nil || sub.State == Disabled {
		return nil, err
	}
	if !sub.Until.IsZero() && !s.now().Before(sub.Until) {
		return nil, nil
	}
	return sub, nil
}

func (s *Service) notifyPrincipal(ctx context.Context, workspace, principal string) {
	if s.PrincipalTopic == nil {
		return
	}
	notice, _ := json.Marshal(map[string]string{"changed": "subscriptions"})
	if err := s.Log.Notify(ctx, workspace, s.PrincipalTopic(principal), notice); err != nil {
		slog.WarnContext(ctx, "subscription change not announced", "error", err)
	}
}

func (s *Service) notifySubscription(ctx context.Context, workspace, id string, state State) {
	if s.SubscriptionTopic == nil {
		return
	}
	notice, _ := json.Marshal(map[string]any{"uri": URI(id), "state": state})
	if err := s.Log.Notify(ctx, workspace, s.SubscriptionTopic(id), notice); err != nil {
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

// Found is what a read of a pattern's subscribers brought.
type Found struct {
	List []Subscriber
	// More is true when the range holds further ones, from the place Last on.
	More bool
	Last string
	// Broken are the places of items that cannot be decoded.
	Broken []Range
}

// Subscribers returns the subscribers of a pattern within a range: one strongly
// consistent read of at most limit items. An item that cannot be decoded keeps nothing
// from the others.
func Subscribers(ctx context.Context, db store.DB, workspace, patternKey string, r Range, limit int) (Found, error) {
	after := r.From
	if after == "" {
		after = "#" // after the header
	}
	page, err := db.Query(ctx, store.Query{
		Table: store.Subscriptions, Partition: HeaderKey(workspace, patternKey).Partition,
		After: after, Until: r.To, Limit: limit,
	})
	if err != nil {
		return Found{}, fault.Wrap(fault.Unavailable, err, "read the subscribers of %s", patternKey)
	}
	f := Found{List: make([]Subscriber, 0, len(page.Items)), More: page.More, Last: page.Last}
	for _, it := range page.Items {
		sub, err := decodeSubscriber(it.Value)
		if err != nil {
			f.Broken = append(f.Broken, At(idPrefix+it.Sort))
			continue
		}
		f.List = append(f.List, sub)
	}
	return f, nil
}

// Served reports which of the subscribers are still there: one strongly
// consistent read, for a delivery whose page was read too long ago.
func Served(ctx context.Context, db store.DB, workspace, patternKey string, ids []string) (map[string]bool, error) {
	keys := make([]store.Key, len(ids))
	for i, id := range ids {
		keys[i] = subscriberKey(workspace, patternKey, id)
	}
	items, err := db.Get(ctx, keys...)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read subscribers again")
	}
	served := make(map[string]bool, len(ids))
	for i, it := range items {
		served[ids[i]] = it != nil
	}
	return served, nil
}

// Wants reports whether the subscriber is to get the event by the pattern it
// lies under: not expired, not delivered by another of its patterns, and let through by its filters.
func (s *Subscriber) Wants(p *Payload, now time.Time) bool {
	if s.Until != 0 && now.Unix() >= s.Until {
		return false
	}
	for _, key := range s.Skip {
		if Matches(key, p.Event.URI) {
			return false
		}
	}
	return p.passes(s.Filters)
}
