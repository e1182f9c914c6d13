package eventlog

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Newest returns a page of up to n events of partitions that were written from since to until, newest first. before is the next of
// the previous page, or "" for the first page; next is "" after the last page. Newest makes one query of at most n+1 items for each
// partition, because an item has the events that were written together, often only one.
func (l *Log) Newest(ctx context.Context, parts []Partition, since, until time.Time, before string, n int) (events []event.Event, next string, err error) {
	at, skip := parsePosition(before)
	if before = at; skip > 0 {
		before += "!" // includes the items with this key, whose other events are still to come
	}
	items, floor, err := l.newestItems(ctx, parts, since, until, before, n+1)
	if err != nil {
		return nil, "", err
	}
	sort, index := "", 0 // the current event: its item's key, and its number among the events with this key
	end, last := "", 0   // the key and the number of the last event of the page
	for _, it := range items {
		if it.Sort < floor {
			break
		}
		if it.Sort != sort {
			sort, index = it.Sort, 0
		}
		for _, e := range slices.Backward(l.events(ctx, it)) {
			if e.Event == nil || it.Sort == at && index < skip {
				index++
				continue
			}
			if len(events) == n {
				return events, position(end, last), nil
			}
			events = append(events, *e.Event)
			index++
			end, last = sort, index
		}
	}
	if floor != "" && sort != "" {
		next = position(sort, index)
	}
	return events, next, nil
}

// newestItems returns up to n items of each partition that precede a key, newest first. If a partition has more, the items are complete
// only down to the key floor, which is otherwise empty.
func (l *Log) newestItems(ctx context.Context, parts []Partition, since, until time.Time, before string, n int) (items []store.Item, floor string, err error) {
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
		if items = append(items, page.Items...); page.More {
			floor = max(floor, page.Last)
		}
	}
	slices.SortStableFunc(items, func(a, b store.Item) int { return strings.Compare(b.Sort, a.Sort) })
	return items, floor, nil
}

// position returns the position after a number of events with a sort key. Items of several partitions may have the same key.
func position(sort string, n int) string { return fmt.Sprintf("%s/%d", sort, n) }

// parsePosition reads a result of position. The version before wrote only the key of an item that was listed completely.
func parsePosition(text string) (sort string, n int) {
	sort, number, _ := strings.Cut(text, "/")
	n, _ = strconv.Atoi(number) // 0 if it is made up
	return sort, n
}

// NewestBatches returns the events in the newest n items of partitions that were written since a time, newest first. It returns all
// events of an item.
func (l *Log) NewestBatches(ctx context.Context, parts []Partition, since time.Time, n int) (events []event.Event, err error) {
	items, _, err := l.newestItems(ctx, parts, since, time.Time{}, "", n)
	if err != nil {
		return nil, err
	}
	for _, it := range items[:min(n, len(items))] {
		for _, e := range slices.Backward(l.events(ctx, it)) {
			if e.Event != nil {
				events = append(events, *e.Event)
			}
		}
	}
	return events, nil
}

// Find returns the event with an id in the partitions of a URI, or nil if it does not find one. It makes one query of at most
// n items for each partition. If [event.NewID] made the id, the query begins when the id was made. Otherwise it reads the
// newest items.
func (l *Log) Find(ctx context.Context, parts []Partition, id string, n int) (*event.Event, error) {
	made, ok := event.MadeAt(id)
	if !ok {
		events, err := l.NewestBatches(ctx, parts, time.Time{}, n)
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
			if e := l.findIn(ctx, it, id); e != nil {
				return e, nil
			}
		}
	}
	return nil, nil
}

// findIn returns the newest event with the given id in a segment. It returns nil if the segment does not contain the id.
func (l *Log) findIn(ctx context.Context, segment store.Item, id string) *event.Event {
	for _, e := range slices.Backward(l.events(ctx, segment)) {
		if e.Event != nil && e.Event.ID == id {
			return e.Event
		}
	}
	return nil
}
