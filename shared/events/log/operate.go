package eventlog

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Newest returns a page of the events of partitions that were written from since to until, newest first. before is the next
// of the previous page, or "" for the first page; next is "" after the last page. Newest makes one query of at most n items
// for each partition. Events that were written together are on the same page.
func (l *Log) Newest(ctx context.Context, parts []Partition, since, until time.Time, before string, n int) (events []event.Event, next string, err error) {
	var items []store.Item
	more := false
	for _, p := range parts {
		q := store.Query{Table: store.Log, Partition: p.name, Reverse: true, Before: before, Limit: n}
		if !since.IsZero() {
			q.After = sortKey(max(since.UnixMicro()-1, 0))
		}
		if !until.IsZero() {
			q.Until = afterKey(until.UnixMicro())
		}
		page, err := l.DB.Query(ctx, q)
		if err != nil {
			return nil, "", fault.Wrap(fault.Unavailable, err, "read the newest events")
		}
		items, more = append(items, page.Items...), more || page.More
	}
	slices.SortStableFunc(items, func(a, b store.Item) int { return strings.Compare(b.Sort, a.Sort) })
	if len(items) > n {
		items, more = items[:n], true
	}
	for _, it := range items {
		for _, e := range slices.Backward(l.events(ctx, it)) {
			if e.Event != nil {
				events = append(events, *e.Event)
			}
		}
	}
	if more && len(items) > 0 {
		next = items[len(items)-1].Sort
	}
	return events, next, nil
}

// Find returns the event with an id in the partitions of a URI, or nil if it does not find one. It makes one query of at most
// n items for each partition. If [event.NewID] made the id, the query begins when the id was made. Otherwise it reads the
// newest items.
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
