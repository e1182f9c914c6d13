package subscription

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription/challenge"
	"github.com/mcp-events/mcpevents/shared/events/subscription/tally"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Operators find subscriptions by three indexes. Each index has one entry per subscription, whose value is the subscription's owner:
//
//	i#  all subscriptions of a workspace
//	t#  subscriptions of a workspace by the origin of their endpoints, for example "https://example.com"
//	z#  subscriptions of a workspace by state, except active ones
//
// The transaction that writes a subscription also writes its z# entry. The i# and t# entries are written before this transaction. So a
// reader of an index skips an entry if its subscription does not exist or has another state.

func indexKey(workspace, id string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "i#" + workspace, Sort: id}
}

func originKey(workspace, origin, id string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "t#" + workspace + "#" + origin, Sort: id}
}

func stateKey(workspace string, state State, id string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "z#" + workspace + "#" + string(state), Sort: id}
}

// OriginOf returns scheme, host and port of a URL, or the whole URL if it cannot be parsed.
func OriginOf(target string) string {
	// Each attempt to deliver an event needs the origin several times, so avoid the slower parser for simple URLs like
	// https://example.com/hook.
	if scheme, rest, ok := strings.Cut(target, "://"); ok && (scheme == "https" || scheme == "http") {
		host, path, _ := strings.Cut(rest, "/")
		name, port, _ := strings.Cut(host, ":")
		if isPlain(name, "-.") && isDigits(port) && isPlain(path, "-._~/") {
			return target[:len(scheme)+len("://")+len(host)]
		}
	}
	u, err := url.Parse(target)
	if err != nil {
		return target
	}
	return u.Scheme + "://" + u.Host
}

// isPlain reports whether a text has only ASCII letters, digits and characters of the string others.
func isPlain(text, others string) bool {
	for _, c := range []byte(text) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte(others, c) < 0 {
			return false
		}
	}
	return true
}

func isDigits(text string) bool { return strings.Trim(text, "0123456789") == "" }

// SameOrigin returns an origin in the form that [OriginOf] returns for an endpoint: with a host in lower case and without a default port.
// For example, it returns "https://example.com" for "https://Example.com:443". It returns any other text unchanged.
func SameOrigin(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return text
	}
	host := strings.ToLower(u.Host)
	if port := map[string]string{"http": ":80", "https": ":443"}[u.Scheme]; port != "" {
		host = strings.TrimSuffix(host, port)
	}
	return u.Scheme + "://" + host
}

// entryKeys returns the keys of the subscription's index entries, except its entry in the index by state (z#).
func (s *Subscription) entryKeys() []store.Key { return append(s.listKeys(), s.indexKeys()...) }

func (s *Subscription) indexKeys() []store.Key {
	return []store.Key{indexKey(s.Workspace, s.ID), originKey(s.Workspace, OriginOf(s.Target.URL), s.ID)}
}

// EffectiveState returns the subscription's state, or [Paused] for an active subscription that a person has paused.
func (s *Subscription) EffectiveState() State {
	if s.State == Active && s.Paused != 0 {
		return Paused
	}
	return s.State
}

// moveStateEntry returns the writes that move the subscription's entry in the index by state (z#) to its current state, and sets s.Marked
// to that state. The caller makes these writes in the transaction that writes the subscription or, if gone is true, deletes it. The
// parameter expires is when the subscription's record expires; the zero time means never.
func (s *Subscription) moveStateEntry(gone bool, expires time.Time) (ops []store.Op) {
	now := s.EffectiveState()
	if gone || now == Active {
		now = ""
	}
	if s.Marked == now {
		return nil
	}
	if s.Marked != "" {
		ops = append(ops, store.Delete(stateKey(s.Workspace, s.Marked, s.ID)))
	}
	if now != "" {
		ops = append(ops, store.Put(store.Item{Key: stateKey(s.Workspace, now, s.ID), Value: []byte(s.Principal), Expires: expires}))
	}
	s.Marked = now
	return ops
}

// Choice selects subscriptions of a workspace. An empty field matches every subscription.
type Choice struct {
	Principal string
	Event     string // name of the event type
	Origin    string // origin of the endpoint, e.g. "https://example.com"
	State     State  // result of [Subscription.EffectiveState]
	URI       string // URI of an event that one of the subscription's patterns matches
	parents   bool   // only subscriptions to a parent URI, such as event://github/acme
	other     string // not subscriptions to this event type
}

const (
	maxSelected = 100  // the maximum number of subscriptions on a page of [Lists.Select]
	maxRead     = 1000 // the number of subscriptions after which Lists.Select reads no more for one page
)

// Selected is a subscription with the status of its deliveries.
type Selected struct {
	*Subscription
	Status Status
}

// Select returns a page of the chosen subscriptions in the order of their ids, beginning after the given id. The result next is empty on
// the last page. Select searches one index and reads at most about [maxRead] subscriptions, so a page can be short or empty although more
// pages follow.
func (l *Lists) Select(ctx context.Context, workspace string, c Choice, after string, limit int) (subs []Selected, next string, err error) {
	limit = min(limit, maxSelected)
	q := store.Query{Table: store.Subscriptions, After: after, Limit: limit}
	records := false
	switch {
	case c.Principal != "":
		q.Partition, records = recordKey(workspace, c.Principal, "-").Partition, true
	case c.State != "" && c.State != Active:
		q.Partition = stateKey(workspace, c.State, "-").Partition
	case c.Origin != "":
		q.Partition = originKey(workspace, c.Origin, "-").Partition
	case c.parents:
		q.Partition = listKey(workspace, match.ScopeOf(""), "-").Partition
	case c.Event != "":
		q.Partition = listKey(workspace, match.ScopeOf(c.Event), "-").Partition
	default:
		q.Partition = indexKey(workspace, "-").Partition
	}
	for read := 0; ; {
		page, err := l.DB.Query(ctx, q)
		if err != nil {
			return nil, "", fault.Wrap(fault.Unavailable, err, "list subscriptions")
		}
		more, err := l.readPage(ctx, workspace, page.Items, records)
		if err != nil {
			return nil, "", err
		}
		q.After, next = page.Last, ""
		if page.More {
			next = page.Last
		}
		for i, sub := range more {
			if sub == nil || sub.isExpired(l.now()) || !c.matches(sub) {
				continue
			}
			if subs = append(subs, Selected{Subscription: sub}); len(subs) == limit && i < len(more)-1 {
				next = page.Items[i].Sort
				break
			}
		}
		read += q.Limit
		q.Limit = min(2*q.Limit, maxSelected) // twice as many as before, because few of them match
		if next == "" || len(subs) == limit || read >= maxRead {
			return subs, next, l.addStatuses(ctx, workspace, subs)
		}
	}
}

// readPage returns the subscriptions of a page of index entries, in the same order. If records is true, the parameter items has the
// stored subscriptions themselves instead of index entries. The result has nil for a subscription that has ended.
func (l *Lists) readPage(ctx context.Context, workspace string, items []store.Item, records bool) (subs []*Subscription, err error) {
	found := make([]*store.Item, len(items))
	keys := make([]store.Key, len(items))
	for i := range items {
		found[i], keys[i] = &items[i], recordKey(workspace, string(items[i].Value), items[i].Sort)
	}
	if !records {
		if found, err = l.get(ctx, keys); err != nil {
			return nil, err
		}
	}
	subs = make([]*Subscription, len(found))
	for i, it := range found {
		if it == nil {
			continue
		}
		if subs[i], err = decodeRecord(it); err != nil {
			return nil, err
		}
	}
	return subs, nil
}

// parentsAfter begins each page position of [Lists.SelectCovering] that is among the subscriptions to parent URIs.
const parentsAfter = "~"

// SelectCovering returns a page of the subscriptions to the events with the given URI. The parameter entry is the name of their event
// type. The list begins with the subscriptions to this event type, and then has the subscriptions to a parent of the URI. It has pages
// like [Lists.Select].
func (l *Lists) SelectCovering(ctx context.Context, workspace, entry, uri, after string, limit int) (subs []Selected, next string, err error) {
	after, parents := strings.CutPrefix(after, parentsAfter)
	if !parents {
		if subs, next, err = l.Select(ctx, workspace, Choice{Event: entry, URI: uri}, after, limit); err != nil || next != "" {
			return subs, next, err
		}
		if after = ""; len(subs) >= limit {
			return subs, parentsAfter, nil
		}
	}
	more, next, err := l.Select(ctx, workspace, Choice{URI: uri, parents: true, other: entry}, after, limit-len(subs))
	if next != "" {
		next = parentsAfter + next
	}
	return append(subs, more...), next, err
}

func (c Choice) matches(s *Subscription) bool {
	return (c.Principal == "" || c.Principal == s.Principal) &&
		(c.Origin == "" || c.Origin == OriginOf(s.Target.URL)) &&
		(c.State == "" || c.State == s.EffectiveState()) &&
		(c.URI == "" || s.Covers(c.URI)) &&
		(c.Event == "" || s.asksFor(c.Event)) &&
		(c.other == "" || !s.asksFor(c.other))
}

func (s *Subscription) asksFor(event string) bool {
	return event == s.Name || slices.ContainsFunc(s.Patterns, func(p match.Pattern) bool { return p.Entry == event })
}

func (l *Lists) addStatuses(ctx context.Context, workspace string, subs []Selected) error {
	keys := make([]store.Key, len(subs))
	for i, sub := range subs {
		keys[i] = StatusKey(workspace, sub.ID)
	}
	items, err := l.get(ctx, keys)
	if err != nil {
		return err
	}
	for i, it := range items {
		if subs[i].Status, err = DecodeStatus(it); err != nil {
			return err
		}
	}
	return nil
}

// TargetURLs returns the endpoint URL of each subscription, by subscription id. It leaves out subscriptions that have ended.
func (l *Lists) TargetURLs(ctx context.Context, workspace string, subs []Owned) (map[string]string, error) {
	targets := make(map[string]string, len(subs))
	keys := make([]store.Key, len(subs))
	for i, s := range subs {
		keys[i] = recordKey(workspace, s.Principal, s.ID)
	}
	for part := range slices.Chunk(keys, store.MaxGet) {
		items, err := l.get(ctx, part)
		if err != nil {
			return nil, err
		}
		for _, it := range items {
			if it == nil {
				continue
			}
			sub, err := decodeRecord(it)
			if err != nil {
				return nil, err
			}
			targets[sub.ID] = sub.Target.URL
		}
	}
	return targets, nil
}

func (l *Lists) get(ctx context.Context, keys []store.Key) ([]*store.Item, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	items, err := l.DB.Get(ctx, keys...)
	return items, fault.Wrap(fault.Unavailable, err, "read subscriptions")
}

// CountStates counts a workspace's subscriptions by state, up to maxCount for each state. No index lists active subscriptions, so
// CountStates counts all and subtracts the other states. If there are more than maxCount in another state, the number of active ones may
// be too high. The counts may include subscriptions that have ended.
func (l *Lists) CountStates(ctx context.Context, workspace string, maxCount int) (map[State]int, error) {
	counts := map[State]int{}
	others := 0
	for _, state := range []State{Paused, Suspended, Disabled, Active} {
		q := store.Query{Table: store.Subscriptions, Partition: stateKey(workspace, state, "-").Partition, Limit: maxCount, Eventual: true}
		limit, subtract := maxCount, 0
		if state == Active {
			q.Partition = indexKey(workspace, "-").Partition
			limit, subtract = maxCount+others, others
		}
		n := 0
		for more := true; more && n < limit; {
			page, err := l.DB.Query(ctx, q)
			if err != nil {
				return nil, fault.Wrap(fault.Unavailable, err, "count the subscriptions")
			}
			n += len(page.Items)
			q.After, more = page.Last, page.More
		}
		counts[state] = max(0, min(n, limit)-subtract)
		others += counts[state]
	}
	return counts, nil
}

// Covers reports whether one of the subscription's patterns matches a URI.
func (s *Subscription) Covers(uri string) bool {
	return slices.ContainsFunc(s.Patterns, func(p match.Pattern) bool { return match.Matches(p.Key, uri) })
}

// After a subscription has ended, the store may still have its deliveries and, if a process died before it removed them, its index
// entries. The erasure of a principal's data must find both. So each subscription has an e# entry, stored by its principal, which names
// the partitions of the index entries. It is written together with the index entries, and kept for [EndedKept] after the subscription has
// ended.

// EndedKept is how long the e# entry of an ended subscription is kept. It is longer than the store keeps any delivery, which is up to 42
// days: 30 days while deliveries are paused, then five days of retries, and seven days as a dead letter.
const EndedKept = 45 * 24 * time.Hour

func endedKey(workspace, principal, id string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "e#" + workspace + "#" + principal, Sort: id}
}

func (s *Subscription) endedEntry(until time.Time) store.Item {
	it := store.Item{Key: endedKey(s.Workspace, s.Principal, s.ID), Version: s.entryVersion(), Expires: until}
	for _, k := range s.entryKeys() {
		it.Value = append(append(it.Value, k.Partition...), '\n') // partition names have no line breaks
	}
	return it
}

// Each calls visit with all stored subscriptions of a principal, including disabled and expired ones.
func (l *Lists) Each(ctx context.Context, workspace, principal string, visit func(*Subscription) error) error {
	return store.Each(ctx, l.DB, recordKey(workspace, principal, "-"), "list the subscriptions of a principal", func(it *store.Item) error {
		sub, err := decodeRecord(it)
		if err != nil {
			return err
		}
		return visit(sub)
	})
}

// EachEnded calls visit with the subscription id of each e# entry of the principal. Some of these subscriptions may not have ended, and
// others may never have existed, because an e# entry is written before its subscription.
func (l *Lists) EachEnded(ctx context.Context, workspace, principal string, visit func(id string) error) error {
	return store.Each(ctx, l.DB, endedKey(workspace, principal, "-"), "list the ended subscriptions of a principal",
		func(it *store.Item) error { return visit(it.Sort) })
}

// ForgetEnded deletes the index entries that an ended subscription still has, and then its e# entry. It must run after all deliveries of
// the subscription have been erased. If the principal has subscribed again meanwhile, ForgetEnded keeps the new subscription's entries.
func (l *Lists) ForgetEnded(ctx context.Context, workspace, principal, id string) error {
	items, err := l.get(ctx, []store.Key{endedKey(workspace, principal, id), recordKey(workspace, principal, id)})
	if err != nil || items[0] == nil || items[1] != nil {
		return err
	}
	ended := items[0]
	var keys []store.Key // empty if an earlier release wrote the e# entry
	for line := range strings.Lines(string(ended.Value)) {
		keys = append(keys, store.Key{Table: store.Subscriptions, Partition: strings.TrimSpace(line), Sort: id})
	}
	entries, err := l.get(ctx, keys)
	if err != nil {
		return err
	}
	for _, it := range append(entries, ended) {
		if it == nil || it.Version > ended.Version { // keep newer entries; entries of earlier releases have version 0
			continue
		}
		if err := l.DB.Write(ctx, store.Delete(it.Key, store.VersionIs(it.Version))); err != nil && !errors.Is(err, store.ErrConflict) {
			return fault.Wrap(fault.Unavailable, err, "forget an ended subscription")
		}
	}
	return nil
}

// DataPartitions returns the partitions with a principal's other data, which is not in its subscriptions. The keys of the map are the
// kinds of data, for example "quotas".
func DataPartitions(workspace, principal string) map[string]store.Key {
	held := challenge.Partitions(workspace, principal)
	held["idempotencyKeys"] = store.Key{Table: store.Subscriptions, Partition: "idem#" + workspace + "#" + principal}
	held["quotas"] = tally.Key(workspace, principal)
	return held
}

// CountSubscribers returns how many subscribers an event with this URI has. The result may be too high, but never too low. For example,
// it counts a subscriber twice if two of its patterns match.
func (s *Service) CountSubscribers(ctx context.Context, workspace, uri string) (n int, err error) {
	cat, err := s.Catalog.Catalog(ctx, workspace)
	if err != nil {
		return 0, fault.Wrap(fault.Unavailable, err, "read the catalog")
	}
	headers := []store.Key{HeaderKey(workspace, uri)}
	if entry, vars, ok := cat.Match(uri); ok {
		for _, scope := range match.ScopesOf(entry.Name) {
			shapes, err := store.One(ctx, s.Store.DB, ShapesKey(workspace, scope), "read the shapes in use")
			if err != nil {
				return 0, err
			}
			webhooks, _ := InUse(shapes, scope, s.Store.now())
			for _, shape := range webhooks {
				if key, ok := match.KeyUnder(entry, vars, uri, shape); ok && key != uri {
					headers = append(headers, HeaderKey(workspace, key))
				}
			}
		}
	}
	items, err := s.Store.DB.Get(ctx, headers...)
	if err != nil {
		return 0, fault.Wrap(fault.Unavailable, err, "count the subscribers of a URI")
	}
	for _, it := range items {
		n += max(0, HeaderCount(it))
	}
	return n, nil
}
