package subscription

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription/challenge"
	"github.com/mcp-events/mcpevents/shared/events/subscription/tally"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Deliveries outlive their subscription. To find them when a principal's data is erased, e# entries list the ended subscriptions of each
// principal for as long as any of their deliveries may be stored.

// EndedKept is the longest time that a delivery can be stored: up to 30 days while a switch is paused, then five days of retries, and seven
// days as a dead letter.
const EndedKept = 45 * 24 * time.Hour

func endedKey(workspace, principal, id string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "e#" + workspace + "#" + principal, Sort: id}
}

// Each visits all subscriptions of a principal that have a record, including disabled and expired ones.
func (l *Lists) Each(ctx context.Context, workspace, principal string, visit func(*Subscription) error) error {
	return store.Each(ctx, l.DB, recordKey(workspace, principal, "-"), "list the subscriptions of a principal", func(it *store.Item) error {
		sub, err := decodeRecord(it)
		if err != nil {
			return err
		}
		return visit(sub)
	})
}

// EachEnded visits the ids of a principal's ended subscriptions.
func (l *Lists) EachEnded(ctx context.Context, workspace, principal string, visit func(id string) error) error {
	return store.Each(ctx, l.DB, endedKey(workspace, principal, "-"), "list the ended subscriptions of a principal",
		func(it *store.Item) error { return visit(it.Sort) })
}

// ForgetEnded deletes the entry of an ended subscription after all its deliveries have been erased.
func (l *Lists) ForgetEnded(ctx context.Context, workspace, principal, id string) error {
	err := l.DB.Write(ctx, store.Delete(endedKey(workspace, principal, id)))
	return fault.Wrap(fault.Unavailable, err, "forget an ended subscription")
}

// Held returns the partitions that hold a principal's data other than its subscriptions, by the kind of their items.
func Held(workspace, principal string) map[string]store.Key {
	held := challenge.Partitions(workspace, principal)
	held["idempotencyKeys"] = store.Key{Table: store.Subscriptions, Partition: "idem#" + workspace + "#" + principal}
	held["quotas"] = tally.Key(workspace, principal)
	return held
}

// Count returns the number of subscribers of an event's URI. It counts a subscriber once per matching pattern, and may count too many, but
// never too few.
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
