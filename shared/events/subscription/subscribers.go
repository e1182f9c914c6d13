package subscription

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Found is the result of [ReadSubscribers].
type Found struct {
	List []Subscriber
	// More is true if the range has further subscribers, whose keys sort after Last.
	More bool
	Last string
	// Broken has a range for each subscriber whose item cannot be decoded.
	Broken []Range
}

// ReadSubscribers returns the subscribers of a pattern within a range of subscription ids, with one strongly consistent read of at most
// limit items.
func ReadSubscribers(ctx context.Context, db store.DB, workspace, patternKey string, r Range, limit int) (Found, error) {
	after := r.From
	if after == "" {
		after = "#" // skip the header item, which sorts before all subscribers
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
			f.Broken = append(f.Broken, RangeOf(idPrefix+it.Sort))
			continue
		}
		f.List = append(f.List, sub)
	}
	return f, nil
}

// Wants reports whether the subscriber must receive an event that matches the pattern of this item. It returns false if the subscription
// has expired, or if its filters do not accept the event's payload. It also returns false for an event that matches a pattern in s.Skip,
// because the event is delivered under that pattern instead.
func (s *Subscriber) Wants(p *match.Payload, now time.Time) bool {
	if s.Until != 0 && !now.Before(s.Until.Time()) {
		return false
	}
	if slices.ContainsFunc(s.Skip, func(key string) bool { return match.Matches(key, p.Event.URI) }) {
		return false
	}
	return p.Passes(s.Filters)
}

// decoded caches subscribers by the JSON of their items, because the same items are read for every event. A changed item has other JSON,
// so it is not found in the cache. Callers must not change the slices in a subscriber, because the cache shares them.
var (
	decoded     = bounded.NewMap[uint64, decodedSubscriber](4096)
	decodedSeed = maphash.MakeSeed()
)

type decodedSubscriber struct {
	text       []byte
	subscriber Subscriber
}

func decodeSubscriber(text []byte) (Subscriber, error) {
	key := maphash.Bytes(decodedSeed, text)
	if d, ok := decoded.Get(key); ok && bytes.Equal(d.text, text) {
		return d.subscriber, nil
	}
	var s Subscriber
	if err := json.Unmarshal(text, &s); err != nil {
		return Subscriber{}, err
	}
	if len(text) <= maxDecoded {
		decoded.Put(key, decodedSubscriber{bytes.Clone(text), s})
	}
	return s, nil
}

// maxDecoded is the largest item that is cached, in bytes of JSON. An ordinary item is ten times smaller.
const maxDecoded = 8 << 10

// When the catalog of event types changes, a recheck ends the subscriptions that the new catalog does not allow. It finds them without a
// scan by four kinds of items:
//
//	k#  the subscriptions of a workspace, with their owners, by event type or for all parent URIs (see [match.ScopeOf])
//	w#  the workspaces that have or had subscriptions
//	a#  the catalog against which a workspace's subscriptions were last rechecked
//	c#  contracts, by their hash; a contract has the parts of an event type on which subscribers rely
//
// These items are written before the subscription, so that even after a crash no subscription lacks them. But after a crash, a k# item
// may name a subscription that does not exist.

func listKey(workspace, scope, id string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "k#" + workspace + "#" + scope, Sort: id}
}

func contractKey(id string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "c#" + id, Sort: "-"}
}

const workspacesPartition = "w#"

func (s *Subscription) listKeys() []store.Key {
	var keys []store.Key
	for _, p := range s.Patterns {
		if k := listKey(s.Workspace, p.Shape.Scope, s.ID); !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys
}

// addEntries writes a subscription's index entries and the other items that a recheck needs. The version of an entry is the time when the
// subscription was created or last enabled, so that a late removal of earlier entries does not remove the new ones.
func (s *Store) addEntries(ctx context.Context, cat *catalog.Catalog, sub *Subscription) error {
	ops := []store.Op{store.Put(sub.endedEntry(time.Time{}))} // lets an erasure find the entries even if the subscription is never written
	for _, k := range sub.entryKeys() {
		ops = append(ops, store.Put(sub.listEntry(k)))
	}
	if err := s.DB.Write(ctx, ops...); err != nil {
		return fault.Wrap(fault.Unavailable, err, "list the subscription")
	}
	first := func() []byte { return RecheckState{Settled: cat.Fingerprint(), Terms: cat.HashTerms()}.encode() }
	if err := s.putOnce(ctx, recheckStateKey(sub.Workspace), first); err != nil {
		return err
	}
	workspace := store.Key{Table: store.Subscriptions, Partition: workspacesPartition, Sort: sub.Workspace}
	if err := s.putOnce(ctx, workspace, func() []byte { return nil }); err != nil {
		return err
	}
	for name, id := range sub.Contracts {
		if err := s.putOnce(ctx, contractKey(id), cat.ByName(name).EncodeContract); err != nil {
			return err
		}
	}
	return nil
}

func (s *Subscription) listEntry(k store.Key) store.Item {
	return store.Item{Key: k, Value: []byte(s.Principal), Version: s.entryVersion()}
}

// entryVersion returns the version of the subscription's index entries. It increases when a person enables the subscription again. So a
// process that is still removing the entries of the disabled subscription does not remove the new ones.
func (s *Subscription) entryVersion() int64 { return max(s.Created.UnixMicro(), int64(s.Enabled)) }

// ReadContract returns a stored contract, which has the parts of an event type on which a subscriber relies. Its type is [catalog.Entry],
// so that [catalog.FindBreakingFeature] can compare it with the current event type. ReadContract returns nil if the contract is not
// stored.
func ReadContract(ctx context.Context, db store.DB, id string) (*catalog.Entry, error) {
	it, err := store.One(ctx, db, contractKey(id), "read the contract of an event type")
	if err != nil || it == nil {
		return nil, err
	}
	return catalog.ParseContract(it.Value)
}

// putOnce writes an item if it does not exist. It skips the write if this process has already written the item.
func (s *Store) putOnce(ctx context.Context, k store.Key, value func() []byte) error {
	if _, done := s.written.Get(k); done {
		return nil
	}
	err := s.DB.Write(ctx, store.Put(store.Item{Key: k, Value: value()}, store.Absent()))
	if err != nil && !errors.Is(err, store.ErrConflict) {
		return fault.Wrap(fault.Unavailable, err, "store the contract of a subscription")
	}
	s.written.Put(k, true)
	return nil
}

// removeEntries deletes the subscription's index entries. If keep is true, the entry in the index of the workspace (i#) stays, so that
// operators can still find the subscription by its id.
func (s *Store) removeEntries(ctx context.Context, sub *Subscription, keep bool) {
	var ops []store.Op
	for _, k := range sub.entryKeys() {
		if !keep || k != indexKey(sub.Workspace, sub.ID) {
			ops = append(ops, store.Delete(k, store.VersionIs(sub.entryVersion())))
		}
	}
	if err := s.DB.Write(ctx, ops...); err != nil && !errors.Is(err, store.ErrConflict) {
		s.log().WarnContext(ctx, "subscription list entries not deleted", "error", err)
	}
}

// recordGrant records the principal's rights and the event types' contracts (see [ReadContract]), so that a later recheck can compare
// them with the current ones.
func (s *Subscription) recordGrant(cat *catalog.Catalog, g Grant) {
	s.Grant, s.Contracts = g, nil
	for _, p := range s.Patterns {
		if e := cat.ByName(p.Entry); e != nil {
			if s.Contracts == nil {
				s.Contracts = map[string]string{}
			}
			s.Contracts[p.Entry] = e.ContractID()
		}
	}
}

// Lists finds subscriptions by principal, workspace or event type. It also stores the progress of rechecks, which end subscriptions after
// a change of the catalog.
type Lists struct {
	DB  store.DB
	Now func() time.Time
}

func (l *Lists) now() time.Time { return periodic.Clock(l.Now)() }

// Owned identifies a subscription and its owner.
type Owned struct{ ID, Principal string }

// ListScope returns a page of the subscriptions to one event type or, for the scope of parents, to parent URIs (see [match.ScopeOf]).
// They are in the order of their ids, beginning after the given id. The result next is empty on the last page. Some of the subscriptions
// may have ended.
func (l *Lists) ListScope(ctx context.Context, workspace, scope, after string) (subs []Owned, next string, err error) {
	page, err := l.DB.Query(ctx, store.Query{
		Table: store.Subscriptions, Partition: listKey(workspace, scope, "-").Partition, After: after, Limit: 200,
	})
	if err != nil {
		return nil, "", fault.Wrap(fault.Unavailable, err, "list the subscriptions to an event type")
	}
	for _, it := range page.Items {
		subs = append(subs, Owned{it.Sort, string(it.Value)})
	}
	if page.More {
		next = page.Last
	}
	return subs, next, nil
}

// Workspaces lists the workspaces that have or had subscriptions.
func (l *Lists) Workspaces(ctx context.Context) (names []string, err error) {
	partition := store.Key{Table: store.Subscriptions, Partition: workspacesPartition}
	err = store.Each(ctx, l.DB, partition, "list the workspaces with subscriptions", func(it *store.Item) error {
		names = append(names, it.Sort)
		return nil
	})
	return names, err
}

// RecheckState is the progress of rechecking a workspace's subscriptions after changes of the catalog of event types. It names the
// catalog against which the subscriptions were last rechecked. Initially this is the catalog at the time of the first subscription.
type RecheckState struct {
	V int `json:"v"`
	// Settled is the fingerprint of the last catalog whose recheck is complete. Terms is the result of this catalog's
	// [catalog.Catalog.HashTerms], by which a later recheck finds changed event types.
	Settled string            `json:"f"`
	Terms   map[string]string `json:"t"`
	// Seen is the fingerprint of a newer catalog. It needs two rechecks, because other processes may still use the old catalog for some
	// seconds. The first recheck began at the time Since. After the second one, the fingerprint becomes Settled.
	Seen  string  `json:"n,omitempty"`
	Since Seconds `json:"at,omitempty"`
	// At is the position at which an incomplete recheck was interrupted.
	At RecheckPosition `json:"place,omitzero"`
}

// RecheckPosition is the progress of a recheck. The recheck has finished all scopes (event types) before Scope, and in Scope all
// subscriptions with ids up to After. Step identifies the recheck by its catalog, and by whether it is the first or the second recheck
// for this catalog.
type RecheckPosition struct {
	Step  string `json:"step"`
	Scope string `json:"scope"`
	After string `json:"after"`
}

func recheckStateKey(workspace string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "a#" + workspace, Sort: "-"}
}

func (s RecheckState) encode() []byte {
	s.V = 1
	value, _ := json.Marshal(s) // cannot fail for strings and numbers
	return value
}

// RecheckState reads how far the recheck of a workspace's subscriptions, after a change of the catalog, has come. The result is the zero
// RecheckState if no recheck is stored.
func (l *Lists) RecheckState(ctx context.Context, workspace string) (state RecheckState, err error) {
	it, err := store.One(ctx, l.DB, recheckStateKey(workspace), "read the state of the last recheck")
	if err != nil || it == nil {
		return state, err
	}
	err = json.Unmarshal(it.Value, &state)
	return state, fault.Wrap(fault.Unavailable, err, "decode the state of the last recheck")
}

// SetRecheckState writes the state of a workspace's last recheck.
func (l *Lists) SetRecheckState(ctx context.Context, workspace string, state RecheckState) error {
	err := l.DB.Write(ctx, store.Put(store.Item{Key: recheckStateKey(workspace), Value: state.encode()}))
	return fault.Wrap(fault.Unavailable, err, "write the state of a recheck")
}
