package subscription

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// What an operator asks for is found by further entries, written and deleted with those of
// listed.go:
//
//	i#  per workspace, by subscription: its owner
//	t#  per origin of targets, likewise
//	z#  per state but active, likewise; written with the record
//
// The records decide: an entry of a subscription that is not there, or has another state by
// now, is passed over.

func indexKey(workspace, id string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "i#" + workspace, Sort: id}
}

func originKey(workspace, origin, id string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "t#" + workspace + "#" + origin, Sort: id}
}

func stateKey(workspace string, state State, id string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "z#" + workspace + "#" + string(state), Sort: id}
}

// OriginOf is scheme, host and port of a URL.
func OriginOf(target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return target
	}
	return u.Scheme + "://" + u.Host
}

// SameOrigin is an origin in the form of [OriginOf], whose targets have a host in small letters and no default port. What is no
// origin stays as it is.
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

func (s *Subscription) indexed() []store.Key {
	return []store.Key{indexKey(s.Workspace, s.ID), originKey(s.Workspace, OriginOf(s.Target.URL), s.ID)}
}

// Effective is the state as a person sees it.
func (s *Subscription) Effective() State {
	if s.State == Active && s.Paused != 0 {
		return Paused
	}
	return s.State
}

// mark returns what lists the subscription under its state, and no longer under the one before. It
// belongs into the write of the record, which keeps what was marked. The entry ends with the record; zero is
// never.
func (s *Subscription) mark(gone bool, until time.Time) (ops []store.Op) {
	now := s.Effective()
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
		ops = append(ops, store.Put(store.Item{Key: stateKey(s.Workspace, now, s.ID), Value: []byte(s.Principal), Expires: until}))
	}
	s.Marked = now
	return ops
}

// Choice says which subscriptions of a workspace are meant: those that have all that is given.
type Choice struct {
	Principal string
	Event     string // name of the event type
	Origin    string // of the target
	State     State  // that of [Subscription.Effective]
	URI       string // of an event that it is to get, see also [Lists.Covering]
	parents   bool   // only those to a parent
}

// MaxSelected is how many subscriptions a page of [Lists.Select] looks at.
const MaxSelected = 100

// Selected is a subscription with what its deliveries came to.
type Selected struct {
	*Subscription
	Status Status
}

// Select returns the subscriptions of a choice in the order of their ids, those that follow after; next
// is "" at the end. A page is one query, by what narrows the most, and one read of what it named: at
// most limit subscriptions, which it may look at in vain.
func (l *Lists) Select(ctx context.Context, workspace string, c Choice, after string, limit int) (subs []Selected, next string, err error) {
	q := store.Query{Table: store.Subscriptions, After: after, Limit: min(limit, MaxSelected)}
	records := false
	switch {
	case c.Principal != "":
		q.Partition, records = recordKey(workspace, c.Principal, "-").Partition, true
	case c.State != "" && c.State != Active:
		q.Partition = stateKey(workspace, c.State, "-").Partition
	case c.Origin != "":
		q.Partition = originKey(workspace, c.Origin, "-").Partition
	case c.parents:
		q.Partition = listKey(workspace, match.Scope(""), "-").Partition
	case c.Event != "":
		q.Partition = listKey(workspace, match.Scope(c.Event), "-").Partition
	default:
		q.Partition = indexKey(workspace, "-").Partition
	}
	page, err := l.DB.Query(ctx, q)
	if err != nil {
		return nil, "", fault.Wrap(fault.Unavailable, err, "list subscriptions")
	}
	found := make([]*store.Item, len(page.Items))
	for i := range page.Items {
		found[i] = &page.Items[i]
	}
	if !records {
		keys := make([]store.Key, len(found))
		for i, it := range found {
			keys[i] = recordKey(workspace, string(it.Value), it.Sort)
		}
		if found, err = l.get(ctx, keys); err != nil {
			return nil, "", err
		}
	}
	for _, it := range found {
		if it == nil {
			continue
		}
		sub, err := decodeRecord(it)
		if err != nil {
			return nil, "", err
		}
		if !sub.lapsed(l.now()) && c.takes(sub) {
			subs = append(subs, Selected{Subscription: sub})
		}
	}
	if err := l.addStatuses(ctx, workspace, subs); err != nil {
		return nil, "", err
	}
	if page.More {
		next = page.Last
	}
	return subs, next, nil
}

// parentsAfter begins the place of a page of [Lists.Covering] that is among those to parents.
const parentsAfter = "~"

// Covering returns the subscriptions that are to get an event of a type with a URI, as [Lists.Select] does: first those to
// the type, then those to a parent of the URI alone.
func (l *Lists) Covering(ctx context.Context, workspace, entry, uri, after string, limit int) (subs []Selected, next string, err error) {
	after, parents := strings.CutPrefix(after, parentsAfter)
	if !parents {
		if subs, next, err = l.Select(ctx, workspace, Choice{Event: entry, URI: uri}, after, limit); err != nil || next != "" {
			return subs, next, err
		}
		if after = ""; len(subs) >= limit {
			return subs, parentsAfter, nil
		}
	}
	more, next, err := l.Select(ctx, workspace, Choice{URI: uri, parents: true}, after, limit-len(subs))
	for _, sub := range more {
		if !(Choice{Event: entry}).takes(sub.Subscription) {
			subs = append(subs, sub)
		}
	}
	if next != "" {
		next = parentsAfter + next
	}
	return subs, next, err
}

func (c Choice) takes(s *Subscription) bool {
	return (c.Principal == "" || c.Principal == s.Principal) &&
		(c.Origin == "" || c.Origin == OriginOf(s.Target.URL)) &&
		(c.State == "" || c.State == s.Effective()) &&
		(c.URI == "" || s.Covers(c.URI)) &&
		(c.Event == "" || c.Event == s.Name || slices.ContainsFunc(s.Patterns, func(p match.Pattern) bool { return p.Entry == c.Event }))
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

func (l *Lists) get(ctx context.Context, keys []store.Key) ([]*store.Item, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	items, err := l.DB.Get(ctx, keys...)
	return items, fault.Wrap(fault.Unavailable, err, "read subscriptions")
}

// CountStates counts the subscriptions of a workspace by their state, each up to most. Entries of
// subscriptions that are gone may be among them.
func (l *Lists) CountStates(ctx context.Context, workspace string, most int) (map[State]int, error) {
	counts := map[State]int{}
	all := 0
	for _, state := range []State{Paused, Suspended, Disabled, ""} {
		q := store.Query{Table: store.Subscriptions, Partition: stateKey(workspace, state, "-").Partition, Limit: most, Eventual: true}
		if state == "" {
			q.Partition = indexKey(workspace, "-").Partition
		}
		n := 0
		for more := true; more && n < most; {
			page, err := l.DB.Query(ctx, q)
			if err != nil {
				return nil, fault.Wrap(fault.Unavailable, err, "count the subscriptions")
			}
			n += len(page.Items)
			q.After, more = page.Last, page.More
		}
		if n = min(n, most); state == "" {
			all = n
			continue
		}
		counts[state] = n
	}
	counts[Active] = max(0, all-counts[Paused]-counts[Suspended]-counts[Disabled])
	return counts, nil
}

// Covers reports whether the subscription is for a URI, by one of its patterns.
func (s *Subscription) Covers(uri string) bool {
	return slices.ContainsFunc(s.Patterns, func(p match.Pattern) bool { return match.Matches(p.Key, uri) })
}
