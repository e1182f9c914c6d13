package subscription

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Two kinds of items tell fanout where to look for subscribers, so that it never scans:
//
//	shapes  one per event type, and one for parents: how many subscriptions use
//	        each shape ("w_" counts), and until when a stream or poll reads it ("i_" times)
//	header  one per pattern: how many subscribers it has
//
// The counts are raised before a subscription is written and lowered after it is removed. After a crash they may therefore be too high,
// which costs a look-up, but never too low, which would lose an event. A header expires shortly after it has reached zero, so that unused
// patterns leave no items.

// ShapesKey returns the key of the item that counts the shapes of a scope.
func ShapesKey(workspace, scope string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "shapes#" + workspace + "#" + scope, Sort: "-"}
}

// HeaderKey returns the key of the item that counts the subscribers of a pattern.
func HeaderKey(workspace, key string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "p#" + workspace + "#" + key, Sort: "#"}
}

const headerCount = "n"

// HeaderCount returns the number of subscribers in a header, which may be nil.
func HeaderCount(header *store.Item) int {
	if header == nil {
		return 0
	}
	return int(header.Counts[headerCount])
}

// InUse returns the shapes of a scope that webhooks use, and the shapes that streams or polls use at the given time. The item may be
// nil.
func InUse(item *store.Item, scope string, now time.Time) (webhooks, inBand []match.Shape) {
	if item == nil {
		return nil, nil
	}
	for name, n := range item.Counts {
		switch {
		case strings.HasPrefix(name, "w_") && n > 0:
			webhooks = append(webhooks, match.Shape{Scope: scope, Name: name[2:]})
		case strings.HasPrefix(name, "i_") && n > now.Unix():
			inBand = append(inBand, match.Shape{Scope: scope, Name: name[2:]})
		}
	}
	return webhooks, inBand
}

// count adds n to the counters of a subscription's patterns. Every counter is a write of its own, because all subscribers of
// a workspace share the shape counters, and transactions on them would conflict.
func (r *Records) count(ctx context.Context, workspace string, patterns []match.Pattern, n int64) error {
	shapes := map[match.Shape]int64{}
	for _, p := range patterns {
		shapes[p.Shape] += n
	}
	if n > 0 {
		if err := r.healShapes(ctx, workspace, shapes); err != nil {
			return err
		}
	}
	for shape, d := range shapes {
		op := store.Add(ShapesKey(workspace, shape.Scope), map[string]int64{"w_" + shape.Name: d}, nil)
		if err := r.DB.Write(ctx, op); err != nil {
			return fault.Wrap(fault.Unavailable, err, "count the shapes of a subscription")
		}
	}
	for _, p := range patterns {
		op := store.Add(HeaderKey(workspace, p.Key), map[string]int64{headerCount: n}, nil)
		if n > 0 {
			op.Item.Expires = headerStays
		}
		if err := r.DB.Write(ctx, op); err != nil {
			return fault.Wrap(fault.Unavailable, err, "count the subscribers of a pattern")
		}
		if n > 0 {
			continue
		}
		// The write has no effect if another subscription has raised the header again, which also removes its expiry.
		empty := store.Add(op.Item.Key, map[string]int64{headerCount: 0}, map[string]int64{headerCount: 0})
		empty.Item.Expires = r.now().Add(headerLasts)
		if err := r.DB.Write(ctx, empty); err != nil && !errors.Is(err, store.ErrConflict) {
			return fault.Wrap(fault.Unavailable, err, "let the header of an empty pattern expire")
		}
	}
	return nil
}

// healShapes sets shape counters below zero to zero. Earlier releases left such counters, and the next subscription with the
// shape would not be found.
func (r *Records) healShapes(ctx context.Context, workspace string, shapes map[match.Shape]int64) error {
	byKey := map[store.Key][]string{}
	for shape := range shapes {
		key := ShapesKey(workspace, shape.Scope)
		byKey[key] = append(byKey[key], "w_"+shape.Name)
	}
	items, err := r.DB.Get(ctx, slices.Collect(maps.Keys(byKey))...)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "read the shapes in use")
	}
	for _, it := range items {
		if it == nil {
			continue
		}
		for _, name := range byKey[it.Key] {
			if it.Counts[name] >= 0 {
				continue
			}
			if err := r.DB.Write(ctx, store.Raise(it.Key, name, 0)); err != nil {
				return fault.Wrap(fault.Unavailable, err, "heal the shapes in use")
			}
		}
	}
	return nil
}

// headerLasts is how long an empty header stays. headerStays is the expiry of any other header. It stands for never, because an addition
// without an expiry would keep the old one.
const headerLasts = time.Minute

var headerStays = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// Interested records that a client reads the pattern in band and may come back during the retention: first the
// pattern's shape, then the pattern itself. The log then has events that are published after Interested returns in the
// pattern's partitions. A concrete pattern needs no interest. An interest that lasts long enough is not written again.
func Interested(ctx context.Context, db store.DB, log *eventlog.Log, workspace string, p match.Pattern) (eventlog.Interest, error) {
	return recordInterestUntil(ctx, db, log, workspace, p, log.KeptUntil())
}

// recordInterest records the interest of a webhook subscription of MCP Events in a pattern. It lasts for the subscription
// and for one retention after it, because the cursors in deliveries and gap notices must lead to its events even if the
// client refreshes the subscription seldom. A subscription that never expires has an interest that never ends.
func (s *Subscription) recordInterest(ctx context.Context, db store.DB, log *eventlog.Log, p match.Pattern) (eventlog.Interest, error) {
	until := headerStays
	if !s.Until.IsZero() {
		until = s.Until.Add(log.Reaches())
	}
	return recordInterestUntil(ctx, db, log, s.Workspace, p, until)
}

func recordInterestUntil(ctx context.Context, db store.DB, log *eventlog.Log, workspace string, p match.Pattern, until time.Time) (eventlog.Interest, error) {
	if p.Kind == match.Concrete {
		return eventlog.Interest{}, nil
	}
	// The shape's time is later than the interest's time, because the interest's renewal may be written first.
	least := until.Unix()
	shapes, name := ShapesKey(workspace, p.Shape.Scope), "i_"+p.Shape.Name
	it, err := store.One(ctx, db, shapes, "read the interest in a shape")
	if err != nil {
		return eventlog.Interest{}, err
	}
	if it == nil || it.Counts[name] <= least {
		if err := db.Write(ctx, store.Raise(shapes, name, least+int64(time.Hour/time.Second))); err != nil {
			return eventlog.Interest{}, fault.Wrap(fault.Unavailable, err, "record the interest in a shape")
		}
	}
	return log.Interested(ctx, workspace, p.Key, until)
}
