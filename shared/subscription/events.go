package subscription

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/store"
)

// SubscribeRequest is events/subscribe (SEP-3415).
type SubscribeRequest struct {
	Name      string
	Arguments json.RawMessage // an object; nil is an empty one
	URL       string
	Secret    string
	// Cursor is where delivery starts; "" is now.
	Cursor string
	// MaxAge bounds the replay; 0 does not.
	MaxAge time.Duration
	TTL    TTL
	// Plain keeps control envelopes from the client, but for the challenge.
	Plain bool
}

// TTL is the lifetime that a client suggests.
type TTL struct {
	// Asked is false when the member was absent: the default is granted.
	Asked bool
	// Forever is an explicit null.
	Forever bool
	For     time.Duration
}

// SubscribeResult is its answer.
type SubscribeResult struct {
	ID            string
	RefreshBefore time.Time // zero is no expiry
	Cursor        string
	Truncated     bool
	// Refreshed is true when the subscription was there before. Suspended then
	// reports that it was suspended until this refresh, and Status is what its deliveries came to.
	Refreshed, Suspended bool
	Status               Status
}

// Subscribe creates or refreshes a webhook subscription of the MCP Events
// extension. Its identity is (principal, URL, name, canonical arguments).
func (s *Service) Subscribe(ctx context.Context, p auth.Principal, r SubscribeRequest) (*SubscribeResult, error) {
	cat, err := s.permitEvents(ctx, p)
	if err != nil {
		return nil, err
	}
	if err := s.Options.Rate.Take(ctx, p, 1, s.now()); err != nil {
		return nil, err
	}
	entry := cat.ByName(r.Name)
	if entry == nil {
		return nil, unknownEvent(r.Name)
	}
	selection, err := Select(entry, r.Arguments)
	if err != nil {
		return nil, err
	}
	if err := selection.Allowed(p); err != nil {
		return nil, err
	}
	if !entry.WebhookAllowed() {
		return nil, noWebhooks(r.Name)
	}
	if err := s.checkTarget(r.URL); err != nil {
		return nil, err
	}
	key, err := s.Targets.ParseSecret(r.Secret)
	if err != nil {
		return nil, err
	}
	pattern := selection.Pattern
	from, truncated, err := s.start(ctx, p.Workspace, pattern, r)
	if err != nil {
		return nil, err
	}
	id := derivedID(p, r.URL, r.Name, selection.Arguments)
	if err := s.verify(ctx, p, r.URL, id, key); err != nil {
		return nil, err
	}
	oldest := s.Log.Oldest()
	if pattern.Kind != Concrete {
		in, err := Interested(ctx, s.DB, s.Log, p.Workspace, pattern)
		if err != nil {
			return nil, err
		}
		if reaches := in.Reaches(); r.Cursor != "" && from < reaches {
			from, truncated = reaches, true
		}
		oldest = max(oldest, in.Reaches())
	}
	now := s.now().UTC()
	want := &Subscription{
		ID: id, Workspace: p.Workspace, Principal: p.ID, Origin: MCPEvents,
		EventURIs: []string{pattern.URI()}, Patterns: []Pattern{pattern},
		Target: Target{URL: r.URL, Type: Standard, Fingerprint: fingerprint(r.Secret)},
		Name:   r.Name, Arguments: selection.Arguments, Filters: selection.Filters, Redact: selection.Redact,
		Created: now, Until: s.grant(now, r.TTL), State: Active, Plain: r.Plain,
		Resumed: now.Add(-time.Minute).Unix(), // failures count by the minute, from the next one on: from this one
		Cursor:  s.Sealer.Seal(p.Workspace, eventlog.Cursor{At: from}),
	}
	want.rely(cat, grantOf(cat, p))
	if want.Target.Secret, err = s.seal(want, key); err != nil {
		return nil, err
	}
	if r.Cursor != "" && s.Replay != nil {
		want.Owed = max(from, 1) // 0 is nothing
	}
	have, err := s.upsert(ctx, cat, want, r)
	if err != nil {
		return nil, err
	}
	out := &SubscribeResult{ID: id, RefreshBefore: want.Until, Cursor: want.Cursor, Truncated: truncated}
	switch {
	case want.Owed != 0:
		if at, gap := s.Log.Reach(eventlog.Cursor{}, want.Owed, oldest); gap && (r.Cursor == "" || want.Owed != max(from, 1)) {
			out.Truncated = true
			out.Cursor = s.Sealer.Seal(p.Workspace, eventlog.Cursor{At: at})
		}
		more, err := s.replay(ctx, want)
		if err != nil {
			return nil, err
		}
		out.Truncated = out.Truncated || more
	case have != nil:
		out.Truncated = false // delivery never stopped: nothing was skipped
	}
	if have == nil {
		s.notifyPrincipal(ctx, p.Workspace, p.ID)
		return out, nil
	}
	if out.Refreshed, out.Suspended = true, have.State == Suspended; out.Suspended {
		s.notifySubscription(ctx, p.Workspace, id, Active)
	}
	out.Status, err = s.status(ctx, p.Workspace, id)
	return out, err
}

func unknownEvent(name string) error {
	return fault.New(fault.NotFound, "unknown event type %.128q", name).With(map[string]any{"kind": "event"})
}

// permitEvents adds to permit that a principal must be known: without one, anybody
// could end anybody's subscription by guessing its key.
func (s *Service) permitEvents(ctx context.Context, p auth.Principal) (*catalog.Catalog, error) {
	if p.Anonymous && !s.Options.AllowAnonymous {
		return nil, fault.New(fault.Unauthenticated, "an authenticated principal is needed")
	}
	return s.permit(ctx, p)
}

// upsert writes the subscription, or merges it into the one that is there, which
// it returns unless its time was over.
func (s *Service) upsert(ctx context.Context, cat *catalog.Catalog, want *Subscription, r SubscribeRequest) (*Subscription, error) {
	asked := *want
	for {
		*want = asked // what an earlier round found is over
		have, err := s.load(ctx, want.Workspace, want.Principal, want.ID)
		if err != nil {
			return nil, err
		}
		if have != nil && have.State == Disabled {
			if err := s.DB.Write(ctx, store.Delete(recordKey(have.Workspace, have.Principal, have.ID), store.VersionIs(have.Revision))); err != nil && !errors.Is(err, store.ErrConflict) {
				return nil, fault.Wrap(fault.Unavailable, err, "replace the ended subscription")
			}
			have = nil
		}
		expiry := s.expiryOps(want)
		if have == nil {
			err = s.insert(ctx, cat, want, expiry...)
		} else {
			live := !s.lapsed(have)
			if have.V < recordVersion || !maps.Equal(have.Contracts, want.Contracts) {
				want.Created = have.Created
				if err := s.list(ctx, cat, want); err != nil {
					return nil, err
				}
			}
			if err = s.refresh(ctx, have, want, live, r, expiry); !live {
				have = nil
			}
		}
		if !errors.Is(err, store.ErrConflict) {
			return have, fault.Wrap(fault.Unavailable, err, "subscribe")
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// refresh carries over what a refresh keeps: the creation, the old secret for the
// rotation's grace, and the watermark while delivery was running.
func (s *Service) refresh(ctx context.Context, have, want *Subscription, live bool, r SubscribeRequest, expiry []store.Op) error {
	want.Created, want.Revision = have.Created, have.Revision+1
	same := hmac.Equal(have.Target.Fingerprint, want.Target.Fingerprint)
	if same {
		want.Target.Previous, want.Target.PreviousUntil = have.Target.Previous, have.Target.PreviousUntil
	} else {
		want.Target.Previous, want.Target.PreviousUntil = have.Target.Secret, s.now().Add(rotationGrace).Unix()
	}
	want.Replayed = have.Replayed
	have.Patterns = want.Patterns                         // the same, as the catalog has them now
	if live && (r.Cursor == "" || have.State == Active) { // deliveries go on: what a client polled elsewhere is not settled here
		want.Cursor = s.advanced(ctx, have)
	}
	want.Resumed, want.Paused, want.Marked = have.Resumed, have.Paused, have.Marked
	if have.State == Suspended {
		want.Resumed = s.now().Unix()
	}
	// While delivery runs it owes nothing that a cursor could ask for; after a
	// suspension the client may know better from where.
	if live && (have.State != Suspended || r.Cursor == "") {
		want.Owed = have.Owed
	}
	ops := append(want.mark(false, time.Time{}), store.Put(want.encode(), store.VersionIs(have.Revision)))
	for _, it := range want.subscribers() {
		ops = append(ops, store.Put(it))
	}
	if !have.Until.IsZero() && s.expiryKey(have) != s.expiryKey(want) {
		ops = append(ops, store.Delete(s.expiryKey(have)))
	}
	return s.DB.Write(ctx, append(ops, expiry...)...)
}

// replay sends what the subscription is owed and then writes that it is owed
// nothing more. Whoever is cut off in between and subscribes again gets it then.
func (s *Service) replay(ctx context.Context, sub *Subscription) (truncated bool, err error) {
	owed := sub.Owed
	if err := s.Replay.Reactivate(ctx, sub); err != nil {
		return false, err
	}
	if truncated, err = s.Replay.Replay(ctx, sub, owed); err != nil {
		return false, err
	}
	err = s.change(ctx, sub.Workspace, sub.Principal, sub.ID, func(sub *Subscription) error {
		if sub == nil || sub.Owed != owed {
			return nil
		}
		was := sub.Revision
		sub.Owed, sub.Replayed, sub.Revision = 0, s.now().UnixMicro(), was+1
		return s.DB.Write(ctx, store.Put(sub.encode(), store.VersionIs(was)))
	})
	if err != nil {
		slog.WarnContext(ctx, "replay position not saved", "subscription", sub.ID, "error", err)
	}
	return truncated, nil
}

// start finds the position to deliver from.
func (s *Service) start(ctx context.Context, workspace string, pattern Pattern, r SubscribeRequest) (from int64, truncated bool, err error) {
	own := eventlog.Own(workspace, pattern.Key)
	if r.Cursor == "" {
		from = s.Log.Position()
		if pattern.Kind == Concrete {
			from, err = s.Log.EndOf(ctx, workspace, pattern.Key)
		}
		return from, false, err
	}
	c, err := s.Sealer.Open(workspace, r.Cursor)
	if err != nil {
		return 0, false, err
	}
	floor := s.Log.Oldest()
	if r.MaxAge > 0 {
		floor = max(floor, s.now().Add(-r.MaxAge).UnixMicro())
	}
	from, truncated = s.Log.Reach(c, s.Sealer.From(c, own), floor)
	return from, truncated, nil
}

// grant decides the lifetime: never longer than asked, except for the floor.
func (s *Service) grant(now time.Time, t TTL) time.Time {
	o := s.options()
	ttl := o.DefaultTTL
	switch {
	case t.Forever && o.AllowNoExpiry:
		return time.Time{}
	case t.Forever:
		ttl = o.MaxTTL
	case t.Asked:
		ttl = min(max(t.For, o.MinTTL), o.MaxTTL)
	}
	return now.Add(ttl).Truncate(time.Second)
}

func derivedID(p auth.Principal, url, name string, args json.RawMessage) string {
	h := sha256.New()
	for _, part := range []string{p.Workspace, p.ID, url, name, string(args)} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return idPrefix + hex.EncodeToString(h.Sum(nil)[:16])
}

// Unsubscribe ends the subscription with this identity. It is idempotent.
func (s *Service) Unsubscribe(ctx context.Context, p auth.Principal, name string, arguments json.RawMessage, url string) error {
	cat, err := s.permitEvents(ctx, p)
	if err != nil {
		return err
	}
	if len(url) > MaxTargetURL {
		return fault.New(fault.Invalid, "delivery.url is longer than %d bytes", MaxTargetURL).AtLimit("targetURL", MaxTargetURL)
	}
	var args json.RawMessage
	if entry := cat.ByName(name); entry != nil {
		var selection Selection
		selection, err = Select(entry, arguments)
		args = selection.Arguments
	} else {
		// The event type may be gone from the catalog; its subscriptions can still be ended.
		args, err = rawArguments(arguments)
	}
	if err != nil {
		return err
	}
	err = s.End(ctx, p.Workspace, p.ID, derivedID(p, url, name, args))
	if fault.Is(err, fault.NotFound) && !s.Options.UnknownUnsubscribe {
		return nil
	}
	return err
}

func rawArguments(raw json.RawMessage) (json.RawMessage, error) {
	args, err := objectOf(raw)
	if err != nil {
		return nil, err
	}
	return canonicalJSON(args), nil
}
