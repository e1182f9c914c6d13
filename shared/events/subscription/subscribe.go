package subscription

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// SubscribeRequest is the request of events/subscribe (SEP-3415).
type SubscribeRequest struct {
	Name      string
	Arguments json.RawMessage // an object; nil is an empty one
	URL       string
	Secret    string
	Cursor    string        // delivery starts after this position of the log; empty means now
	MaxAge    time.Duration // maximum age of replayed events; 0 means no limit
	TTL       TTL
	// Plain is set if the client wants only events and the endpoint's challenge, but no control messages such as gap and termination
	// notices.
	Plain bool
	// Profile is the version of the MCP Events extension that the deliveries follow (see [spec.Profile]).
	Profile spec.Profile
}

// TTL is the lifetime that a client suggests for its subscription.
type TTL struct {
	Asked   bool // the client sent ttlMs; otherwise the server's default applies
	Forever bool // ttlMs is null, so that the subscription should not expire
	For     time.Duration
}

// SubscribeResult is the response to a [SubscribeRequest].
type SubscribeResult struct {
	ID            string
	RefreshBefore time.Time // zero if the subscription does not expire
	Cursor        string
	Truncated     bool
	// Refreshed reports whether the subscription existed before this request. Resumed and Status are set only in this case. Resumed
	// reports whether the request has resumed a suspended subscription, and Status summarizes the deliveries so far.
	Refreshed, Resumed bool
	Status             Status
}

// beginning is the log position from which a subscription receives events.
type beginning struct {
	at        eventlog.Cursor
	truncated bool  // the client misses events, because its cursor is too old
	oldest    int64 // since this position, in microseconds since 1970, the log has all events of the pattern
}

// Subscribe creates an MCP Events subscription, or refreshes the one with the same principal, URL, event type and canonical arguments.
func (g *Registrar) Subscribe(ctx context.Context, p auth.Principal, r SubscribeRequest) (*SubscribeResult, error) {
	cat, err := g.Service.permitEvents(ctx, p)
	if err != nil {
		return nil, err
	}
	if err := g.Options.Rate.Take(ctx, p, 1, g.now()); err != nil {
		return nil, err
	}
	selection, key, err := g.checkRequest(cat, p, r)
	if err != nil {
		return nil, err
	}
	pattern := selection.Pattern
	var from beginning
	if r.Cursor != "" { // refuse a bad cursor before sending a challenge
		if from.at, from.truncated, err = g.findStart(ctx, p.Workspace, pattern, r); err != nil {
			return nil, err
		}
	}
	id := derivedID(p, r.URL, r.Name, selection.Arguments)
	if err := g.verify(ctx, p, r.URL, id, key); err != nil {
		return nil, err
	}
	if g.Demand != nil {
		if err := g.Demand(ctx, p.Workspace, p.ID, pattern.Key); err != nil {
			return nil, err
		}
	}
	now := g.now().UTC()
	until := g.expiryFor(now, r.TTL)
	if expires := auth.TokenOf(ctx).Expires; selection.Entry.PerCaller() && !expires.IsZero() && (until.IsZero() || expires.Before(until)) {
		until = expires.UTC() // the subscription lasts as long as the client's token; the client refreshes it with the next token
	}
	from.oldest = g.Service.Log.Oldest()
	if pattern.Kind != match.Concrete {
		granted := Subscription{Workspace: p.Workspace, Until: until}
		in, err := granted.recordInterest(ctx, g.Service.Store.DB, g.Service.Log, pattern)
		if err != nil {
			return nil, err
		}
		if reaches := in.FirstPosition(); r.Cursor != "" && max(from.at.At, from.at.Given) < reaches {
			from.at, from.truncated = eventlog.Cursor{At: reaches}, true
		}
		from.oldest = max(from.oldest, in.FirstPosition())
	}
	if r.Cursor == "" { // the verification took some time, and the log has the events of the pattern since then
		if from.at, _, err = g.findStart(ctx, p.Workspace, pattern, r); err != nil {
			return nil, err
		}
	}
	want := &Subscription{
		ID: id, Workspace: p.Workspace, Principal: p.ID, Origin: MCPEvents,
		EventURIs: []string{pattern.URI()}, Patterns: []match.Pattern{pattern},
		Target: Target{URL: r.URL, Type: Standard, Fingerprint: fingerprint(r.Secret)},
		Name:   r.Name, Arguments: selection.Arguments, Filters: selection.Filters, Redact: selection.Redact,
		Created: now, Until: until, State: Active, Plain: r.Plain, Profile: r.Profile,
		Resumed: SecondsOf(now.Add(-time.Minute)), // the previous minute, because only failures in later minutes count
		Cursor:  g.Sealer.Seal(p.Workspace, eventlog.Cursor{At: from.at.At, Given: from.at.Given}),
	}
	want.recordGrant(cat, grantOf(cat, p))
	if want.Target.Secret, err = g.seal(ctx, want, key); err != nil {
		return nil, err
	}
	if r.Cursor != "" && g.Replay != nil {
		want.owe(from.at)
	}
	have, err := g.upsert(ctx, cat, want, from.at, r)
	if err != nil {
		return nil, err
	}
	return g.announce(ctx, want, have, from, r.Cursor != "")
}

// announce completes a request: it replays the events that the subscriber still needs, notifies open streams, and returns the response.
// The parameter want is the subscription as it was written. The parameter have is the subscription before a refresh, or nil for a new
// one. The parameter resumed reports whether the client sent a cursor.
func (g *Registrar) announce(ctx context.Context, want, have *Subscription, from beginning, resumed bool) (out *SubscribeResult, err error) {
	out = &SubscribeResult{ID: want.ID, RefreshBefore: want.Until, Cursor: want.Cursor, Truncated: from.truncated}
	switch {
	case want.Owed != 0:
		begin, gap := g.Service.Log.StartPosition(eventlog.Cursor{Given: want.OwedGiven}, want.Owed, from.oldest)
		if gap && (!resumed || want.Owed != max(from.at.At, 1)) {
			out.Truncated = true
			out.Cursor = g.Sealer.Seal(want.Workspace, eventlog.Cursor{At: begin})
		}
		more, err := g.replay(ctx, want)
		if err != nil {
			return nil, err
		}
		// The delivery queue may still have events for the subscribers of the old pattern, to which this subscription no longer belongs.
		// So tell the client that it may have missed events.
		moved := have != nil && !samePatterns(have.Patterns, want.Patterns)
		out.Truncated = out.Truncated || more || moved
	case have != nil:
		out.Truncated = false // delivery never stopped, so no event was skipped
	}
	if have == nil {
		g.Service.notifyPrincipal(ctx, want.Workspace, want.Principal)
		return out, nil
	}
	if out.Refreshed, out.Resumed = true, have.State == Suspended; out.Resumed {
		g.Service.notifySubscription(ctx, want.Workspace, want.ID, want.EffectiveState())
	}
	out.Status, err = statusOf(ctx, g.Service.Store.DB, want.Workspace, want.ID)
	return out, err
}

// checkRequest checks a request without access to the store. It returns the pattern and filters that the request's arguments select, and
// the secret's signing key.
func (g *Registrar) checkRequest(cat *catalog.Catalog, p auth.Principal, r SubscribeRequest) (selection match.Selection, key []byte, err error) {
	entry := cat.ByName(r.Name)
	if entry == nil {
		return selection, nil, unknownEvent(r.Name)
	}
	selection, err = match.Select(entry, r.Arguments, p)
	if err != nil {
		return selection, nil, err
	}
	if err := selection.CheckAccess(p); err != nil {
		return selection, nil, err
	}
	if !entry.WebhookAllowed() {
		return selection, nil, NoWebhooks(r.Name)
	}
	if err := g.checkTarget(r.URL); err != nil {
		return selection, nil, err
	}
	key, err = g.Targets.ParseSecret(r.Secret)
	return selection, key, err
}

func unknownEvent(name string) error {
	return fault.New(fault.NotFound, "unknown event type %.128q", name).With(map[string]any{"kind": "event"})
}

// upsert inserts the subscription want, or refreshes the existing subscription with the same id. It returns the existing subscription, or
// nil if it did not exist, had expired or was disabled. If want replaces a disabled subscription, its replay begins at the position from.
func (g *Registrar) upsert(ctx context.Context, cat *catalog.Catalog, want *Subscription, from eventlog.Cursor, r SubscribeRequest) (*Subscription, error) {
	asked, replaces := *want, false
	for range maxConflicts {
		*want = asked // discard the changes of the previous try
		have, err := g.Service.Store.load(ctx, want.Workspace, want.Principal, want.ID)
		if err != nil {
			return nil, err
		}
		if have != nil && have.State == Disabled { // insert replaces the disabled record in one write, so that a crash cannot lose one of them
			want.Revision, want.Marked, want.Paused = have.Revision, have.Marked, have.Paused
			have, replaces = nil, true
		}
		if replaces && have == nil && g.Replay != nil {
			want.owe(from) // a replay also resumes deliveries that waited while the ended subscription was suspended
		}
		expiry := want.expiryOps()
		if have == nil {
			if err := g.keepPause(ctx, want); err != nil {
				return nil, err
			}
			err = g.Service.Store.insert(ctx, cat, want, expiry...)
		} else {
			live := !have.isExpired(g.now())
			want.Created, want.Enabled = have.Created, have.Enabled
			if !maps.Equal(have.Contracts, want.Contracts) || !samePatterns(have.Patterns, want.Patterns) {
				if err := g.Service.Store.addEntries(ctx, cat, want); err != nil {
					return nil, err
				}
			}
			if err = g.refresh(ctx, have, want, live, r, expiry); !live {
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
	return nil, errContested
}

// keepPause pauses a new subscription if an operator had paused an earlier one with the same id.
func (g *Registrar) keepPause(ctx context.Context, sub *Subscription) error {
	if g.Switches == nil || sub.Paused != 0 {
		return nil
	}
	since, err := g.Switches.OperatorPausedAt(ctx, sub.Workspace, sub.ID)
	if err == nil && !since.IsZero() {
		sub.Paused = MicrosOf(since)
	}
	return err
}

// refresh overwrites the stored subscription have with want. If the client sent another secret, the old secret stays valid for the
// [rotationGrace].
//
// The parameter live is false if the stored subscription has expired. Otherwise, want keeps the stored cursor, advanced to the position
// up to which all deliveries are finished. But if deliveries are suspended and the client sent a cursor, want keeps the client's cursor.
//
// If the event type's URI template has changed, refresh moves the subscription to the new pattern, and replays that pattern's events
// since the stored cursor.
func (g *Registrar) refresh(ctx context.Context, have, want *Subscription, live bool, r SubscribeRequest, expiry []store.Op) error {
	want.Revision = have.Revision
	same := hmac.Equal(have.Target.Fingerprint, want.Target.Fingerprint)
	if same {
		want.Target.Previous, want.Target.PreviousUntil = have.Target.Previous, have.Target.PreviousUntil
	} else {
		want.Target.Previous, want.Target.PreviousUntil = have.Target.Secret, SecondsOf(g.now().Add(rotationGrace))
	}
	want.Replayed = have.Replayed
	old, cursor := have.Patterns, have.Cursor
	if live && (r.Cursor == "" || have.State == Active) { // the client's cursor does not count while deliveries run
		now := *have
		now.Patterns = want.Patterns // the patterns in the current catalog
		want.Cursor = g.advancedCursor(ctx, &now)
	}
	want.Resumed, want.Paused, want.Marked = have.Resumed, have.Paused, have.Marked
	if have.State == Suspended {
		want.Resumed = SecondsOf(g.now())
	}
	// While deliveries run, the server knows which events the subscriber still needs, and ignores the client's cursor. After a suspension
	// or a move to another pattern, deliveries start at the client's cursor if it sent one.
	moved := !samePatterns(old, want.Patterns)
	if live && (have.State != Suspended || r.Cursor == "") && !(moved && r.Cursor != "") {
		want.Owed, want.OwedGiven = have.Owed, have.OwedGiven
	}
	if moved && want.Owed == 0 && g.Replay != nil {
		c, err := g.Sealer.Open(want.Workspace, cursor)
		if err != nil {
			return err
		}
		want.owe(c)
	}
	if !have.Until.IsZero() && have.expiryKey() != want.expiryKey() {
		expiry = append(expiry, store.Delete(have.expiryKey()))
	}
	if moved {
		return g.Service.Store.updatePatterns(ctx, want, old, expiry...)
	}
	return g.Service.Store.update(ctx, want, expiry...)
}

// samePatterns reports whether the lists a and b have the same patterns, with the same keys and the same shapes.
func samePatterns(a, b []match.Pattern) bool {
	return slices.EqualFunc(a, b, func(a, b match.Pattern) bool { return a.Key == b.Key && a.Shape == b.Shape })
}

// replay enqueues the events after the log position sub.Owed for the subscriber, and then clears sub.Owed. If the process dies before
// that, the next refresh repeats the replay.
func (g *Registrar) replay(ctx context.Context, sub *Subscription) (truncated bool, err error) {
	owed := sub.Owed
	if err := g.Replay.Reactivate(ctx, sub); err != nil {
		return false, err
	}
	if truncated, err = g.Replay.Replay(ctx, sub, owed); err != nil {
		return false, err
	}
	err = g.Service.Store.change(ctx, sub.Workspace, sub.Principal, sub.ID, func(sub *Subscription) error {
		if sub == nil || sub.Owed != owed {
			return nil
		}
		was := sub.Revision
		sub.Owed, sub.Replayed, sub.Revision = 0, MicrosOf(g.now()), was+1
		return g.Service.Store.DB.Write(ctx, store.Put(sub.encode(), store.VersionIs(was)))
	})
	if err != nil {
		g.Service.Store.log().WarnContext(ctx, "replay position not saved", "subscription", sub.ID, "error", err)
	}
	return truncated, nil
}

// findStart returns the log position after which to deliver events: the client's cursor or, without a cursor, the end of the log. The
// result truncated reports whether the client misses events because its cursor is too old.
func (g *Registrar) findStart(ctx context.Context, workspace string, pattern match.Pattern, r SubscribeRequest) (from eventlog.Cursor, truncated bool, err error) {
	if r.Cursor == "" {
		// Call GivenAt before Position, because all events after the position must also be later than from.Given.
		from.Given = g.Service.Log.GivenAt(g.Service.Log.Time().UnixMicro())
		from.At = g.Service.Log.Position()
		if pattern.Kind == match.Concrete {
			from.At, err = g.Service.Log.EndOf(ctx, workspace, pattern.Key)
		}
		return from, false, err
	}
	c, err := g.Sealer.Open(workspace, r.Cursor)
	if err != nil {
		return from, false, err
	}
	floor := g.Service.Log.Oldest()
	if r.MaxAge > 0 {
		floor = max(floor, g.now().Add(-r.MaxAge).UnixMicro())
	}
	from.Given = c.Given
	at := int64(math.MaxInt64)
	for _, part := range pattern.Partitions(g.Service.Log, workspace) {
		at = min(at, g.Sealer.PositionIn(c, part)) // start at the earliest: a poll may have read some partitions further than others
	}
	from.At, truncated = g.Service.Log.StartPosition(c, at, floor)
	return from, truncated, nil
}

// expiryFor returns when a subscription that is made or refreshed now expires. The zero time means never. The client's suggested lifetime
// is limited to the configured range.
func (g *Registrar) expiryFor(now time.Time, t TTL) time.Time {
	o := g.Options.withDefaults()
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

// fingerprint returns a hash of a secret. By comparing hashes, a refresh finds out whether the secret has changed, without decrypting the
// stored one.
func fingerprint(secret string) []byte {
	h := sha256.Sum256([]byte("fingerprint\x00" + secret))
	return h[:8]
}

func derivedID(p auth.Principal, url, name string, args json.RawMessage) string {
	h := sha256.New()
	for _, part := range []string{p.Workspace, p.ID, url, name, string(args)} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return idPrefix + hex.EncodeToString(h.Sum(nil)[:16])
}
