// Package subscription keeps who gets which events, and at which endpoint.
//
// Both kinds of webhook subscriptions, SEP-1803's and the MCP Events
// extension's, are one model: a record that belongs to a principal, and one item
// per pattern that holds all a delivery needs. A pattern's items lie side by side, ordered by
// subscription id, so that a range of them is one read. Open streams use the
// patterns too, but leave no item, only interest.
//
// A [Registrar] makes subscriptions, a [Service] changes and ends them one by one, and a [Sweeper] ends those that
// expired: all by way of [Records]. [Lists] find many: those of a principal, a workspace, an
// event type, or an operator's [Choice].
//
// No HTTP, no AWS, no SQL enters here; what a subscription needs of the outside
// (sealing, checking and verifying a target) are functions given by the wiring.
// Go on in shared/events/delivery.
package subscription

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Origin says by which protocol a subscription came.
type Origin string

// The origins.
const (
	// SEP1803 is resources/subscriptions/register: the server makes the secret.
	SEP1803 Origin = "sep1803"
	// MCPEvents is events/subscribe: the client brings the secret, and a TTL runs.
	MCPEvents Origin = "events"
)

// SecretType is the kind of a webhook's secret (SEP-1803 WebhookSecret).
type SecretType string

// The secret types.
const (
	Standard SecretType = "standard" // Standard Webhooks key
	Raw      SecretType = "raw"      // a shared secret: X-Hub-Signature-256 beside the standard headers
	None     SecretType = "none"     // unsigned; only when the operator switched it on by name
)

// State says whether a subscription is served.
type State string

// The states.
const (
	Active    State = "active"
	Disabled  State = "disabled"  // ended by the server; see Reason
	Suspended State = "suspended" // too many failures; a refresh resumes it
	Paused    State = "paused"    // by a person; of [Subscription.Effective] only
)

// Target is where and how a subscription's events are sent.
type Target struct {
	URL string `json:"url"`
	// Type is the secret's type; Secret is sealed, and so is Previous, which
	// signs beside it until PreviousUntil (seconds since 1970).
	Type          SecretType `json:"st"`
	Secret        []byte     `json:"sec,omitempty"`
	Previous      []byte     `json:"old,omitempty"`
	PreviousUntil int64      `json:"oldt,omitempty"`
	// Fingerprint distinguishes a client's secret from another without opening it.
	Fingerprint []byte `json:"fp,omitempty"`
}

// Subscription is a record. It never leaves the server as it is: [View] does.
type Subscription struct {
	V         int             `json:"v"`
	ID        string          `json:"id"`
	Workspace string          `json:"ws"`
	Principal string          `json:"pr"`
	Origin    Origin          `json:"o"`
	EventURIs []string        `json:"uris"`
	Patterns  []match.Pattern `json:"pat"`
	Target    Target          `json:"t"`
	// Name and Arguments are those of events/subscribe.
	Name      string          `json:"n,omitempty"`
	Arguments json.RawMessage `json:"args,omitempty"`
	Filters   []match.Filter  `json:"f,omitempty"`
	// Redact are JSON pointers of payload members that it does not get.
	Redact []string `json:"red,omitempty"`
	// Grant is what the principal held, Contracts what the event types were that it
	// relies on: ids by name ([catalog.Entry.ContractID]).
	Grant     Grant             `json:"g,omitzero"`
	Contracts map[string]string `json:"ct,omitempty"`
	// Plain says that the client takes no control envelopes but the challenge.
	Plain bool `json:"plain,omitempty"`
	// Profile is the profile of the latest events/subscribe; empty is the default profile.
	Profile spec.Profile `json:"pf,omitempty"`
	Created time.Time    `json:"c"`
	// Until is when it ends unless it is refreshed; zero is never.
	Until time.Time `json:"until,omitzero"`
	// Cursor is the safe watermark in clear: nothing at or before it is still to be delivered.
	Cursor string `json:"cur,omitempty"`
	// Owed is the position after which the log is still to be replayed to it;
	// 0 when it has been, or was never asked.
	Owed int64 `json:"owed,omitempty"`
	// Replayed is when it was, in microseconds since 1970: the watermark waits until that has been attempted.
	Replayed int64  `json:"rpl,omitempty"`
	State    State  `json:"state"`
	Reason   string `json:"why,omitempty"`
	// Suspended is when delivery was suspended, in microseconds since 1970; 0 when
	// it is not. The log has what is published after it.
	Suspended int64 `json:"susp,omitempty"`
	// Resumed is when it began, of MCP Events, or was last suspended, paused or disabled no more, in seconds
	// since 1970; failures before it count no more.
	Resumed int64 `json:"resd,omitempty"`
	// Paused is when a person paused its deliveries, in microseconds since 1970; 0 when they are not.
	Paused int64 `json:"pau,omitempty"`
	// Marked is the state under which it is listed; see [Lists.Select].
	Marked State `json:"mk,omitempty"`
	// Revision counts the writes of this record.
	Revision int64 `json:"-"`
}

// Subscriber is a subscription as it lies under one of its patterns.
type Subscriber struct {
	V         int            `json:"v"`
	ID        string         `json:"id"`
	Principal string         `json:"pr"`
	Origin    Origin         `json:"o"`
	Target    Target         `json:"t"`
	Filters   []match.Filter `json:"f,omitempty"`
	Until     int64          `json:"until,omitempty"` // seconds since 1970
	Cursor    string         `json:"cur,omitempty"`
	Redact    []string       `json:"red,omitempty"`
	// Profile is as in [Subscription].
	Profile spec.Profile `json:"pf,omitempty"`
	// Entry is the event type of the pattern, "" for a parent, and Contract what it
	// was; Grant is as in [Subscription].
	Entry    string `json:"e,omitempty"`
	Contract string `json:"ct,omitempty"`
	Grant    Grant  `json:"g,omitzero"`
	// Suspended, Resumed and Paused are as in [Subscription].
	Suspended int64 `json:"susp,omitempty"`
	Resumed   int64 `json:"resd,omitempty"`
	Paused    int64 `json:"pau,omitempty"`
	// Skip are the keys of the subscription's other patterns that also match
	// some events of this one; those deliver them.
	Skip []string `json:"skip,omitempty"`
}

const (
	// recordVersion 1 had neither grants nor contracts, and was in no list.
	recordVersion = 2
	uriPrefix     = "subscription://"
	idPrefix      = "sub_"
)

// URI is the subscription as a resource.
func URI(id string) string { return uriPrefix + id }

// ParseURI finds the id in a subscription URI.
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

// Range bounds subscribers by their place under a pattern: hexadecimal digits,
// From inclusive, To exclusive and "" without end.
type Range struct {
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

// place is where a subscription lies within a pattern: ids are uniform, so ranges of equal
// width hold about equally many.
func place(id string) string { return strings.TrimPrefix(id, idPrefix) }

// At is the range that holds just one subscription.
func At(id string) Range { return Range{From: place(id)[:31], To: place(id) + "!"} }

func recordKey(workspace, principal, id string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "o#" + workspace + "#" + principal, Sort: id}
}

func subscriberKey(workspace, patternKey, id string) store.Key {
	k := HeaderKey(workspace, patternKey)
	k.Sort = place(id)
	return k
}

func (s *Subscription) encode() store.Item {
	s.V = recordVersion
	value, _ := json.Marshal(s) // strings, times and raw JSON that was parsed before
	return store.Item{Key: recordKey(s.Workspace, s.Principal, s.ID), Value: value, Version: s.Revision}
}

// ErrUndecodable is in the chain of an error about a record that cannot be read, now or later.
var ErrUndecodable = errors.New("the item cannot be decoded")

func decodeRecord(it *store.Item) (*Subscription, error) {
	var s Subscription
	if err := json.Unmarshal(it.Value, &s); err != nil {
		return nil, fault.Wrap(fault.Internal, errors.Join(ErrUndecodable, err), "decode subscription %s", it.Sort)
	}
	s.Revision = it.Version
	return &s, nil
}

// subscribers are the pattern items of the subscription, in the order of its
// patterns.
func (s *Subscription) subscribers() []store.Item {
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

// Subscriber is the subscription as a delivery needs it, but for what differs
// between its patterns.
func (s *Subscription) Subscriber() Subscriber {
	sub := Subscriber{
		V: recordVersion, ID: s.ID, Principal: s.Principal, Origin: s.Origin,
		Target: s.Target, Filters: s.Filters, Cursor: s.Cursor, Redact: s.Redact, Grant: s.Grant, Suspended: s.Suspended, Resumed: s.Resumed,
		Paused: s.Paused, Profile: s.Profile,
	}
	if !s.Until.IsZero() {
		sub.Until = s.Until.Unix()
	}
	return sub
}

// Binding names what a sealed secret belongs to, so that one moved to another
// subscription or target does not open.
type Binding struct{ Workspace, Subscription, Target string }
