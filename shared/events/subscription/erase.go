package subscription

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// What was delivered to a subscription outlives it. So that it can be found when its owner is erased, an entry
// e# per owner names the subscriptions that ended, for as long as anything of theirs may be stored.

// EndedKept is how long that may be: a delivery waits up to 30 days for a switch, then for five of retries, and is a dead letter for
// seven.
const EndedKept = 45 * 24 * time.Hour

func endedKey(workspace, principal, id string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "e#" + workspace + "#" + principal, Sort: id}
}

// Each visits the subscriptions of a principal that have a record, also those that were disabled or whose time is over.
func (l *Lists) Each(ctx context.Context, workspace, principal string, visit func(*Subscription) error) error {
	return store.Each(ctx, l.DB, recordKey(workspace, principal, "-"), "list the subscriptions of a principal", func(it *store.Item) error {
		sub, err := decodeRecord(it)
		if err != nil {
			return err
		}
		return visit(sub)
	})
}

// EachEnded visits the ids of those that ended.
func (l *Lists) EachEnded(ctx context.Context, workspace, principal string, visit func(id string) error) error {
	return store.Each(ctx, l.DB, endedKey(workspace, principal, "-"), "list the ended subscriptions of a principal",
		func(it *store.Item) error { return visit(it.Sort) })
}

// ForgetEnded deletes the entry of one that ended, when nothing of it is left.
func (l *Lists) ForgetEnded(ctx context.Context, workspace, principal, id string) error {
	err := l.DB.Write(ctx, store.Delete(endedKey(workspace, principal, id)))
	return fault.Wrap(fault.Unavailable, err, "forget an ended subscription")
}

// Held are the partitions, by their kind, that hold something of a principal beside its subscriptions.
func Held(workspace, principal string) map[string]store.Key {
	who := workspace + "#" + principal
	return map[string]store.Key{
		"verifications":      verificationKey(workspace, principal, "-"),
		"verificationCounts": verificationCountKey(workspace, principal, "-"),
		"idempotencyKeys":    {Table: store.Subscriptions, Partition: "idem#" + who},
		"quotas":             quotaKey(workspace, principal),
	}
}

// Count is how many subscribers the patterns of an event's URI have, counted once for each pattern. It may
// say too much, never too little.
func (s *Service) Count(ctx context.Context, workspace, uri string) (n int, err error) {
	cat, err := s.Catalog.Catalog(ctx, workspace)
	if err != nil {
		return 0, fault.Wrap(fault.Unavailable, err, "read the catalog")
	}
	headers := []store.Key{HeaderKey(workspace, uri)}
	if entry, vars, ok := cat.Match(uri); ok {
		for _, scope := range match.Scopes(entry.Name) {
			shapes, err := store.One(ctx, s.Records.DB, ShapesKey(workspace, scope), "read the shapes in use")
			if err != nil {
				return 0, err
			}
			webhooks, _ := InUse(shapes, scope, s.Records.now())
			for _, shape := range webhooks {
				if key, ok := match.KeyUnder(entry, vars, uri, shape); ok && key != uri {
					headers = append(headers, HeaderKey(workspace, key))
				}
			}
		}
	}
	items, err := s.Records.DB.Get(ctx, headers...)
	if err != nil {
		return 0, fault.Wrap(fault.Unavailable, err, "count the subscribers of a URI")
	}
	for _, it := range items {
		n += max(0, HeaderCount(it))
	}
	return n, nil
}
