package eventlog

import (
	"context"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// An ordered store has an item under the id of each event, in the commit of its segment and with the same stamp. Its
// value is the URI, so together they say where the segment is. Where every item is billed there are none.

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

// maxSameID is how many of the newest events with the same id [Log.ByID] looks at.
const maxSameID = 100

// ByID returns the newest event with an id, of the URI if that is not empty; nil if there is none. It is one query and
// one read, however many events there are. Only an ordered store can be asked.
func (l *Log) ByID(ctx context.Context, workspace, id, uri string) (*event.Event, error) {
	page, err := l.DB.Query(ctx, store.Query{Table: store.Log, Partition: ofID(workspace, id), Reverse: true, Limit: maxSameID})
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "look up an event")
	}
	for _, it := range page.Items {
		if uri != "" && string(it.Value) != uri {
			continue
		}
		items, err := l.DB.Get(ctx, store.Key{Table: store.Log, Partition: Own(workspace, string(it.Value)).name, Sort: it.Sort})
		if err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "read an event")
		}
		if items[0] == nil {
			return nil, nil // it has just expired
		}
		return l.in(ctx, *items[0], id), nil
	}
	return nil, nil
}

// Find looks for an event by its id in the partitions of a URI; nil if it finds none. It is one query of at most n
// items for each partition: those since the id was made, if [event.NewID] made it, else the newest.
func (l *Log) Find(ctx context.Context, parts []Partition, id string, n int) (*event.Event, error) {
	made, ok := event.MadeAt(id)
	if !ok {
		events, _, err := l.Newest(ctx, parts, time.Time{}, time.Time{}, "", n)
		if i := slices.IndexFunc(events, func(e event.Event) bool { return e.ID == id }); i >= 0 {
			return &events[i], nil
		}
		return nil, err
	}
	for _, p := range parts {
		page, err := l.DB.Query(ctx, store.Query{
			Table: store.Log, Partition: p.name, After: sortKey(made.Add(-2 * MaxSkew).UnixMicro()), Limit: n,
		})
		if err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "look for an event")
		}
		for _, it := range page.Items {
			if e := l.in(ctx, it, id); e != nil {
				return e, nil
			}
		}
	}
	return nil, nil
}

// in returns the newest event with the given id in a segment. It returns nil if the segment does not contain the id.
func (l *Log) in(ctx context.Context, segment store.Item, id string) *event.Event {
	for _, e := range slices.Backward(l.events(ctx, segment)) {
		if e.Event != nil && e.Event.ID == id {
			return e.Event
		}
	}
	return nil
}

// has reports whether an ordered store has an event. It needs no read if nothing was appended since the event was
// published.
func (l *Log) has(ctx context.Context, e *event.Event) (bool, error) {
	since := e.Published.Add(-2 * MaxSkew).UnixMicro()
	if since > l.DB.End() {
		return false, nil
	}
	page, err := l.DB.Query(ctx, store.Query{
		Table: store.Log, Partition: ofID(e.Workspace, e.ID), After: sortKey(max(since, 0)), Reverse: true, Limit: maxSameID,
	})
	if err != nil {
		return false, fault.Wrap(fault.Unavailable, err, "look up an event")
	}
	for _, it := range page.Items {
		if string(it.Value) != e.URI {
			continue
		}
		items, err := l.DB.Get(ctx, store.Key{Table: store.Log, Partition: Own(e.Workspace, e.URI).name, Sort: it.Sort})
		if err != nil {
			return false, fault.Wrap(fault.Unavailable, err, "read an event")
		}
		if items[0] == nil {
			continue
		}
		if slices.ContainsFunc(l.events(ctx, *items[0]), func(had Entry) bool {
			return had.Event != nil && had.Event.ID == e.ID && had.Event.Published.UnixMicro() == e.Published.UnixMicro()
		}) {
			return true, nil
		}
	}
	return false, nil
}
