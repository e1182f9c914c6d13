package eventlog

import (
	"context"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// exact is a log whose store stamps keys in the order of commits, such as SQLite. A reader that has seen a key has seen
// every smaller one, so the store's end is a position in all partitions, whatever the clock says.
//
// The store writes an event, its copies in pattern partitions and an index item for its id in one commit, with one stamp.
// So a reader of several of these partitions has read either all copies or none, at any position.
type exact struct{ log *Log }

func (x exact) position() int64 { return x.log.DB.End() }

func (x exact) settled() int64 { return x.log.DB.End() }

// upperBound returns the end of the log, because the clock may be later than every stamp.
func (x exact) upperBound() int64 { return x.log.DB.End() }

func (x exact) interestBegins() int64 { return x.log.DB.End() }

func (x exact) endOf(context.Context, string, string) (int64, error) { return x.log.DB.End(), nil }

func (exact) lookBack() time.Duration { return 0 }

// given returns the time, because the position of a quiet log does not grow with the clock.
func (exact) given(at int64) int64 { return at }

func (exact) totalOrder() bool { return true }

// spreads reports false, because all writers of a URI share the store's one writer.
func (exact) spreads() bool { return false }

func (exact) repeatable(int64) bool { return true }

func (exact) bound(q *store.Query, end int64) int64 {
	q.Until = sortKey(end)
	return end
}

func (exact) completeStamp(context.Context, Partition, *store.Page) error { return nil }

// append writes the copies with the events. No URI has more patterns in use than a transaction has room for.
func (x exact) append(ctx context.Context, workspace, uri string, events []event.Event, patterns []string) (Appended, error) {
	var copies []Partition
	for _, key := range patterns[:min(len(patterns), store.MaxTransaction-2)] {
		copies = append(copies, shard(workspace, key, shardOf(uri)))
	}
	return x.log.appendTo(ctx, Own(workspace, uri), uri, events, copies...)
}

// appendUnordered looks up the ids of the events before it appends them, because the URI has several writers. If a batch
// arrives again, another writer may have appended since, and then the last segment does not name the events of the batch.
func (x exact) appendUnordered(ctx context.Context, workspace, uri string, events []event.Event, patterns []string) (done Appended, err error) {
	position := x.position()
	absent := make([]event.Event, 0, len(events))
	for i := range events {
		written, err := x.has(ctx, &events[i])
		if err != nil {
			return done, err
		}
		if !written {
			absent = append(absent, events[i])
		}
	}
	if len(absent) > 0 {
		done, err = x.append(ctx, workspace, uri, absent, patterns)
	} else {
		done.After = position
	}
	if len(absent) < len(events) {
		done.First, done.After = true, min(done.After, position-time.Minute.Microseconds())
	}
	return done, err
}

// put returns 0, because the store stamps the key at the commit.
func (x exact) put(ctx context.Context, p Partition, s segment, floor int64, copies ...Partition) (int64, error) {
	item, life, err := x.log.item(p, s)
	if err != nil {
		return 0, err
	}
	item.Sort = store.AtCommit
	item.Expires = time.UnixMicro(max(x.log.Time().UnixMicro(), floor) + int64(s.len())).Add(life)
	op := store.Put(item)
	op.Span = s.len()
	ops := []store.Op{op}
	for _, p := range copies {
		op.Item.Partition, op.Span = p.name, store.SameStamp
		ops = append(ops, op)
	}
	return 0, x.log.DB.Write(ctx, underIDs(ops, s.Events)...)
}

// ofID returns the partition with an item for each event with an id. The item has the same stamp as the segment of the event,
// and its value is the URI, so together they are the key of the segment.
func ofID(workspace, id string) string { return "id#" + workspace + "#" + id }

// underIDs adds the items under the ids of events to ops, the first of which writes their segment.
func underIDs(ops []store.Op, events []event.Event) []store.Op {
	op := ops[0]
	op.Span, op.Item.Version = store.SameStamp, 0
	seen := make(map[string]bool, len(events))
	for i := range events {
		e := &events[i]
		if seen[e.ID] {
			continue
		}
		seen[e.ID] = true
		op.Item.Partition, op.Item.Value = ofID(e.Workspace, e.ID), []byte(e.URI)
		ops = append(ops, op)
	}
	return ops
}

// maxSameID is how many of the newest events with the same id [exact] looks at.
const maxSameID = 100

// visitID calls visit with the segments of events with an id, newest first, until visit returns true. It leaves out keys up
// to since, and other URIs than uri unless that is empty. A segment is nil if it has just expired.
func (x exact) visitID(ctx context.Context, workspace, id, uri string, since int64, visit func(segment *store.Item) (done bool)) error {
	page, err := x.log.DB.Query(ctx, store.Query{
		Table: store.Log, Partition: ofID(workspace, id), After: sortKey(max(since, 0)), Reverse: true, Limit: maxSameID,
	})
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "look up an event")
	}
	for _, it := range page.Items {
		if uri != "" && string(it.Value) != uri {
			continue
		}
		key := store.Key{Table: store.Log, Partition: Own(workspace, string(it.Value)).name, Sort: it.Sort}
		segment, err := store.One(ctx, x.log.DB, key, "read an event")
		if err != nil || visit(segment) {
			return err
		}
	}
	return nil
}

func (x exact) byID(ctx context.Context, workspace, id, uri string) (e *event.Event, indexed bool, err error) {
	err = x.visitID(ctx, workspace, id, uri, 0, func(segment *store.Item) bool {
		if segment != nil {
			e = x.log.findIn(ctx, *segment, id)
		}
		return true
	})
	return e, true, err
}

// has reports whether the log has an event. It needs no read if the log has not grown since the event was published.
func (x exact) has(ctx context.Context, e *event.Event) (found bool, err error) {
	since := e.Published.Add(-2 * MaxSkew).UnixMicro()
	if since > x.log.DB.End() {
		return false, nil
	}
	err = x.visitID(ctx, e.Workspace, e.ID, e.URI, since, func(segment *store.Item) bool {
		found = segment != nil && slices.ContainsFunc(x.log.events(ctx, *segment), func(had Entry) bool {
			return had.Event != nil && had.Event.ID == e.ID && had.Event.Published.UnixMicro() == e.Published.UnixMicro()
		})
		return found
	})
	return found, err
}
