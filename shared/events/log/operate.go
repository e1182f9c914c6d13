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

// Newest returns events of partitions, newest first, that were written from since until until, those
// before a place that an earlier page ended at; next is where the next one goes on, "" at the end. It is one query
// of at most n items for each partition. What was written together comes in one page.
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
