// Package subscription stores webhook subscriptions and manages them from registration to end.
//
// Subscriptions of SEP-1803 and of the MCP Events extension share one model: a record that belongs to a principal, and one item per
// pattern ([match.Pattern]) that holds everything a delivery needs. The items of a pattern are stored next to each other, ordered by
// subscription id. So one query reads a range of the subscribers to whom an event is delivered.
//
// A [Registrar] creates and refreshes subscriptions, a [Service] changes and ends them one by one, and a [Sweeper] ends the expired ones.
// All of them write through [Store], which updates counters and indexes together with the record. [Lists] finds subscriptions by
// principal, workspace, event type, or an operator's [Choice].
//
// The package imports no HTTP, AWS or SQL package. Its callers pass in functions that encrypt secrets, and that check and verify
// endpoints. Read shared/events/delivery next.
package subscription

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Origin is the protocol with which a client made a subscription.
type Origin string

// The protocols with which clients make subscriptions.
const (
	// SEP1803 stands for the method resources/subscriptions/register. The server generates the secret.
	SEP1803 Origin = "sep1803"
	// MCPEvents stands for the method events/subscribe. The client supplies the secret, and the subscription expires unless it is
	// refreshed.
	MCPEvents Origin = "events"
)

// SecretType is the kind of a webhook's secret (SEP-1803 WebhookSecret).
type SecretType string

// The types of webhook secrets.
const (
	Standard SecretType = "standard" // Standard Webhooks key
	Raw      SecretType = "raw"      // any text as secret; adds X-Hub-Signature-256 to the standard headers
	None     SecretType = "none"     // unsigned; only if the operator configures it
)

// State tells whether a subscription receives deliveries.
type State string

// The states of a subscription.
const (
	Active    State = "active"
	Disabled  State = "disabled"  // ended by the server; see Reason
	Suspended State = "suspended" // too many failures; a refresh reactivates it
	Paused    State = "paused"    // paused by a person; only [Subscription.EffectiveState] returns it, while State is active
)

// Seconds and Micros are stored times: the seconds or microseconds since 1970, or 0 if there is no time.
type (
	Seconds int64
	Micros  int64
)

// SecondsOf converts a time to seconds since 1970.
func SecondsOf(t time.Time) Seconds { return Seconds(t.Unix()) }

// MicrosOf converts a time to microseconds since 1970.
func MicrosOf(t time.Time) Micros { return Micros(t.UnixMicro()) }

// Time returns the stored time as a [time.Time], or the zero time for 0.
func (s Seconds) Time() time.Time {
	if s == 0 {
		return time.Time{}
	}
	return time.Unix(int64(s), 0)
}

// Time returns the stored time as a [time.Time], or the zero time for 0.
func (m Micros) Time() time.Time {
	if m == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(m))
}

// Target is the endpoint of a subscription, with the secrets that sign its webhooks.
type Target struct {
	URL string `json:"url"`
	// Secret is the encrypted secret, and Previous is the encrypted secret that it has replaced, both of the given Type. Until
	// PreviousUntil, webhooks are signed with both.
	Type          SecretType `json:"st"`
	Secret        []byte     `json:"sec,omitempty"`
	Previous      []byte     `json:"old,omitempty"`
	PreviousUntil Seconds    `json:"oldt,omitempty"`
	// Fingerprint is a hash of the secret. With it, a refresh finds out whether the secret has changed, without decrypting the stored
	// one.
	Fingerprint []byte `json:"fp,omitempty"`
}

// Subscription is a webhook subscription in the form that is stored. Clients get a [View] of it, which leaves out the secrets.
type Subscription struct {
	V         int             `json:"v"`
	ID        string          `json:"id"`
	Workspace string          `json:"ws"`
	Principal string          `json:"pr"`
	Origin    Origin          `json:"o"`
	EventURIs []string        `json:"uris"`
	Patterns  []match.Pattern `json:"pat"`
	Target    Target          `json:"t"`
	// Name and Arguments are the parameters of events/subscribe.
	Name      string          `json:"n,omitempty"`
	Arguments json.RawMessage `json:"args,omitempty"`
	Filters   []match.Filter  `json:"f,omitempty"`
	// Redact are JSON Pointers to the members of event payloads that the subscriber does not receive.
	Redact []string `json:"red,omitempty"`
	// Grant has the principal's rights at the time of the latest registration. Contracts has the contract ids
	// ([catalog.Entry.ContractID]) of the event types at that time, by event type. With them, a recheck finds event types that have
	// changed incompatibly.
	Grant     Grant             `json:"g,omitzero"`
	Contracts map[string]string `json:"ct,omitempty"`
	// Plain is set if the client wants only events and the endpoint's challenge, but no control messages such as gap and termination
	// notices.
	Plain bool `json:"plain,omitempty"`
	// Profile is the version of the MCP Events extension that the latest events/subscribe used; empty means the default version.
	Profile spec.Profile `json:"pf,omitempty"`
	Created time.Time    `json:"c"`
	// Until is when the subscription ends unless it is refreshed. Zero means never.
	Until time.Time `json:"until,omitzero"`
	// Cursor is a position in the event log, encoded as a token for clients. The deliveries of all events up to the position are
	// acknowledged or dead-lettered, or the events are older than the subscription. Each refresh advances the position as far as
	// possible; see [Watermark].
	Cursor string `json:"cur,omitempty"`
	// Owed is the log position after which the subscriber must still get a replay, in microseconds since 1970, or 0 if there is no replay.
	Owed int64 `json:"owed,omitempty"`
	// OwedGiven is the time at which the position Owed was the end of the log, in microseconds since 1970; 0 is unknown. See
	// [eventlog.Cursor.Given].
	OwedGiven int64 `json:"owedg,omitempty"`
	// Replayed is the time of the latest replay. Cursor does not advance until the delivery of each replayed event has been attempted
	// once.
	Replayed Micros `json:"rpl,omitempty"`
	State    State  `json:"state"`
	Reason   string `json:"why,omitempty"`
	// Suspended is when deliveries were suspended. A refresh replays the events since then from the log.
	Suspended Micros `json:"susp,omitempty"`
	// Resumed is when deliveries last started: when the subscription was made (MCP Events only), reactivated, resumed or enabled. Earlier
	// failures do not count when the server decides whether to suspend or disable the subscription.
	Resumed Seconds `json:"resd,omitempty"`
	// Enabled is when a person last enabled the subscription after it had been disabled.
	Enabled Micros `json:"en,omitempty"`
	// Paused is when a person paused the deliveries.
	Paused Micros `json:"pau,omitempty"`
	// Marked is the state under which the index by state (z#) lists the subscription, or empty if the index does not list it.
	Marked   State `json:"mk,omitempty"`
	Revision int64 `json:"-"` // increases with each write of this record
}

// owe records that the subscriber must still get a replay of the events after the position c.
func (s *Subscription) owe(c eventlog.Cursor) {
	s.Owed, s.OwedGiven = max(c.At, 1), c.Given // 0 means no replay
}

// Subscriber is the part of a subscription that deliveries need. It is stored once for each pattern of the subscription. Fields without a
// comment are explained in [Subscription].
type Subscriber struct {
	V         int            `json:"v"`
	ID        string         `json:"id"`
	Principal string         `json:"pr"`
	Origin    Origin         `json:"o"`
	Target    Target         `json:"t"`
	Filters   []match.Filter `json:"f,omitempty"`
	Until     Seconds        `json:"until,omitempty"`
	Cursor    string         `json:"cur,omitempty"`
	Redact    []string       `json:"red,omitempty"`
	Profile   spec.Profile   `json:"pf,omitempty"`
	// Entry is the event type of the pattern, or empty for a parent URI, which matches all events below it. Contract is the id of the
	// event type's contract ([catalog.Entry.ContractID]).
	Entry     string  `json:"e,omitempty"`
	Contract  string  `json:"ct,omitempty"`
	Grant     Grant   `json:"g,omitzero"`
	Suspended Micros  `json:"susp,omitempty"`
	Resumed   Seconds `json:"resd,omitempty"`
	Paused    Micros  `json:"pau,omitempty"`
	// Skip has the keys of the subscription's other patterns that overlap with this one. An event that matches both is delivered under the
	// other pattern only, so that it is not sent twice.
	Skip []string `json:"skip,omitempty"`
}

const (
	recordVersion = 2
	uriPrefix     = "subscription://"
	idPrefix      = "sub_"
)

// URI returns the URI under which MCP clients read a subscription as a resource, for example "subscription://sub_0123…".
func URI(id string) string { return uriPrefix + id }

// ParseURI returns the subscription id in the URI of a subscription.
func ParseURI(uri string) (id string, ok bool) {
	id, ok = strings.CutPrefix(uri, uriPrefix)
	return id, ok && validID(id)
}

func validID(id string) bool {
	hexes, ok := strings.CutPrefix(id, idPrefix)
	if !ok || len(hexes) != 32 {
		return false
	}
	return strings.Trim(hexes, "0123456789abcdef") == ""
}

// Range selects subscribers of a pattern by their subscription ids. It compares the ids without their prefix "sub_", and selects the ids
// that sort after From and before To. An empty To means no upper end. The bounds are often prefixes: {"40", "80"} selects the ids that
// begin with the digits 40 to 7f.
type Range struct {
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

// sortKeyOf returns the sort key of a subscription's item under a pattern. Ids are distributed uniformly, so ranges of equal width hold
// about the same number of subscribers.
func sortKeyOf(id string) string { return strings.TrimPrefix(id, idPrefix) }

// RangeOf returns a range that has only the subscription with the given id. Any other id in the range would have the same first 31 of 32
// hexadecimal digits, which is practically impossible, because ids are random or hashes.
func RangeOf(id string) Range { return Range{From: sortKeyOf(id)[:31], To: sortKeyOf(id) + "!"} }

func recordKey(workspace, principal, id string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "o#" + workspace + "#" + principal, Sort: id}
}

func subscriberKey(workspace, patternKey, id string) store.Key {
	k := HeaderKey(workspace, patternKey)
	k.Sort = sortKeyOf(id)
	return k
}

func (s *Subscription) encode() store.Item {
	s.V = recordVersion
	value, _ := json.Marshal(s) // cannot fail for strings, times, and raw JSON that was parsed before
	return store.Item{Key: recordKey(s.Workspace, s.Principal, s.ID), Value: value, Version: s.Revision}
}

// ErrUndecodable is the error for a stored record that cannot be decoded. Retries cannot succeed.
var ErrUndecodable = errors.New("the item cannot be decoded")

func decodeRecord(it *store.Item) (*Subscription, error) {
	var s Subscription
	if err := json.Unmarshal(it.Value, &s); err != nil {
		return nil, fault.Wrap(fault.Internal, errors.Join(ErrUndecodable, err), "decode subscription %s", it.Sort)
	}
	s.Revision = it.Version
	return &s, nil
}

// subscriberItems returns the items that store the subscription's [Subscriber] under each of s.Patterns, in that order.
func (s *Subscription) subscriberItems() []store.Item {
	items := make([]store.Item, len(s.Patterns))
	for i, p := range s.Patterns {
		sub := s.Subscriber()
		sub.Entry, sub.Contract = p.Entry, s.Contracts[p.Entry]
		for _, earlier := range s.Patterns[:i] {
			if match.Matches(earlier.Key, p.Key) {
				sub.Skip = append(sub.Skip, earlier.Key)
			}
		}
		value, _ := json.Marshal(sub)
		items[i] = store.Item{
			Key: subscriberKey(s.Workspace, p.Key, s.ID), Value: value, Version: s.Revision, Expires: s.Until,
		}
	}
	return items
}

// Subscriber returns the part of the subscription that deliveries need, without the fields that differ between its patterns.
func (s *Subscription) Subscriber() Subscriber {
	sub := Subscriber{
		V: recordVersion, ID: s.ID, Principal: s.Principal, Origin: s.Origin,
		Target: s.Target, Filters: s.Filters, Cursor: s.Cursor, Redact: s.Redact, Grant: s.Grant, Suspended: s.Suspended, Resumed: s.Resumed,
		Paused: s.Paused, Profile: s.Profile,
	}
	if !s.Until.IsZero() {
		sub.Until = SecondsOf(s.Until)
	}
	return sub
}

// Binding identifies the owner of an encrypted secret. If an encrypted secret is copied to another subscription or target, it cannot be
// decrypted.
type Binding struct{ Workspace, Subscription, Target string }

// advancedCursor returns the subscription's cursor, moved to the position up to which all deliveries are finished.
func (g *Registrar) advancedCursor(ctx context.Context, sub *Subscription) string {
	if g.Watermark == nil || sub.State != Active || sub.Owed != 0 {
		return sub.Cursor
	}
	c, err := g.Sealer.Open(sub.Workspace, sub.Cursor)
	if err == nil {
		c, err = g.safeCursor(ctx, sub, c)
	}
	if err != nil {
		g.Service.Store.log().WarnContext(ctx, "cursor not advanced", "subscription", sub.ID, "error", err)
		return sub.Cursor
	}
	return g.Sealer.Seal(sub.Workspace, c)
}

func (g *Registrar) safeCursor(ctx context.Context, sub *Subscription, had eventlog.Cursor) (eventlog.Cursor, error) {
	now, end := g.now(), g.Service.Log.SettledPosition()
	settled, open, err := g.Watermark.SettledPosition(ctx, sub.Workspace, sub.ID)
	if err != nil || int64(sub.Replayed) > settled && sub.Replayed != 0 {
		return had, err
	}
	c := eventlog.Cursor{At: max(had.At, min(settled, end))}
	if c.At == had.At {
		c = had
	}
	if open {
		return c, nil
	}
	// All stored deliveries are finished, but later events may still wait in a queue to become deliveries. If the log has no event after
	// the cursor, we assume that no event of the subscription waits in a queue. Such an event would have waited for longer than the log
	// keeps events.
	quiet, err := g.hasNoEventAfter(ctx, sub, c)
	if err != nil || !quiet {
		return c, err
	}
	return eventlog.Cursor{At: max(c.At, end), Given: now.UnixMicro()}, nil
}

// hasNoEventAfter reports whether the log has no event after the cursor that matches the subscription. It also returns false if the log
// did not keep the events of one of the patterns since the cursor, because the log may then lack an event that still waits in a queue.
func (g *Registrar) hasNoEventAfter(ctx context.Context, sub *Subscription, c eventlog.Cursor) (bool, error) {
	for _, p := range sub.Patterns {
		if p.Kind != match.Concrete {
			in, err := g.Service.Log.LoadInterest(ctx, sub.Workspace, p.Key)
			if err != nil || in.FirstPosition() > max(c.At, c.Given) {
				return false, err
			}
		}
		for _, part := range p.Partitions(g.Service.Log, sub.Workspace) {
			after := c.At - g.Service.Log.LookBack(part).Microseconds()
			for more := true; more; {
				entries, rest, next, err := g.Service.Log.Read(ctx, part, after, 1)
				if err != nil || len(entries) > 0 {
					return false, err
				}
				more, after = rest, next
			}
		}
	}
	return true, nil
}

// Status summarizes the deliveries of a subscription. It is written on a failure, on the first success after a failure, and otherwise at
// most once per minute, or less often under high load.
type Status struct {
	LastDelivery time.Time `json:"last,omitzero"`
	// LastError is the category of the last failure, for example "timeout". It never contains text from the endpoint.
	LastError string `json:"err,omitempty"`
	// LastCode is the HTTP status of the last failure, or 0 if the endpoint did not respond. Only operators see it.
	LastCode    int       `json:"code,omitempty"`
	FailedSince time.Time `json:"since,omitzero"`
	// Failures is how many delivery attempts have failed since FailedSince. The true number may be higher, because concurrent writes can
	// lose counts.
	Failures int `json:"n,omitempty"`
	// ThrottledUntil is the end of the latest pause that the endpoint requested with Retry-After.
	ThrottledUntil time.Time `json:"wait,omitzero"`
}

// StatusKey returns the key of the item with a subscription's [Status].
func StatusKey(workspace, id string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: "s#" + workspace + "#" + id, Sort: "status"}
}

// Encode returns the item that stores the status.
func (s Status) Encode(workspace, id string) store.Item {
	value, _ := json.Marshal(s) // cannot fail for times and strings
	return store.Item{Key: StatusKey(workspace, id), Value: value}
}

// DecodeStatus decodes an item of [Status.Encode]. It returns the zero Status for a nil item, which means that there was no delivery yet.
func DecodeStatus(it *store.Item) (Status, error) {
	var s Status
	if it == nil {
		return s, nil
	}
	err := json.Unmarshal(it.Value, &s)
	return s, fault.Wrap(fault.Internal, err, "decode the status of a subscription")
}

func statusOf(ctx context.Context, db store.DB, workspace, id string) (Status, error) {
	it, err := store.One(ctx, db, StatusKey(workspace, id), "read the status of a subscription")
	if err != nil {
		return Status{}, err
	}
	return DecodeStatus(it)
}

// View is the part of a subscription that its owner may see, which excludes its secrets.
type View struct {
	ID        string
	Origin    Origin
	EventURIs []string
	Target    string
	Name      string
	Created   time.Time
	Until     time.Time
	State     State // result of [Subscription.EffectiveState]
	Reason    string
	Status    Status
}

// List returns a page of the caller's subscriptions in the order of their ids, beginning after the given id. The result next is empty on
// the last page.
func (l *Lists) List(ctx context.Context, p auth.Principal, after string, limit int) (views []View, next string, err error) {
	page, err := l.DB.Query(ctx, store.Query{
		Table: store.Subscriptions, Partition: recordKey(p.Workspace, p.ID, "-").Partition, After: after, Limit: limit,
	})
	if err != nil {
		return nil, "", fault.Wrap(fault.Unavailable, err, "list subscriptions")
	}
	for _, it := range page.Items {
		sub, err := decodeRecord(&it)
		if err != nil {
			return nil, "", err
		}
		if !sub.isExpired(l.now()) {
			views = append(views, sub.view())
		}
	}
	if page.More {
		next = page.Last
	}
	return views, next, nil
}

// Read returns one of the caller's subscriptions with its delivery status. It returns the same NotFound error for an unknown subscription
// and for another principal's subscription, so that callers cannot find out other principals' ids.
func (l *Lists) Read(ctx context.Context, p auth.Principal, uri string) (*View, error) {
	unknown := fault.New(fault.NotFound, "resource not found").With(map[string]any{"uri": uri})
	id, ok := ParseURI(uri)
	if !ok {
		return nil, unknown
	}
	items, err := l.DB.Get(ctx, recordKey(p.Workspace, p.ID, id), StatusKey(p.Workspace, id))
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the subscription")
	}
	if items[0] == nil {
		return nil, unknown
	}
	sub, err := decodeRecord(items[0])
	if err != nil {
		return nil, err
	}
	if sub.isExpired(l.now()) {
		return nil, unknown
	}
	v := sub.view()
	if v.Status, err = DecodeStatus(items[1]); err != nil {
		return nil, err
	}
	return &v, nil
}

func (s *Subscription) isExpired(now time.Time) bool {
	return !s.Until.IsZero() && !now.Before(s.Until)
}

func (s *Subscription) view() View {
	return View{
		ID: s.ID, Origin: s.Origin, EventURIs: s.EventURIs, Target: s.Target.URL, Name: s.Name,
		Created: s.Created, Until: s.Until, State: s.EffectiveState(), Reason: s.Reason,
	}
}
