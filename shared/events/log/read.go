package eventlog

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Read returns a page of the entries of p with keys greater than after, oldest first. The read is strongly
// consistent. If more is true, the next page begins after next. If the first item is of a later release, Read fails with
// [ErrLater]. An item that cannot be decoded is an entry with [Entry.Lost].
//
// If more is false, the caller has every entry that was committed up to next before Read was called.
func (l *Log) Read(ctx context.Context, p Partition, after int64, limit int) (entries []Entry, more bool, next int64, err error) {
	return l.ReadUntil(ctx, p, after, l.DB.End(), limit)
}

// ReadUntil is like [Log.Read], but it reads only up to the position end if positions are exact. The caller got end from
// [Log.Settled]. Readers of several partitions pass the same end to all reads, so that they see all partitions at one
// moment although they read one after the other. If writers stamp keys, ReadUntil ignores end, because readers drop events
// that they have seen.
func (l *Log) ReadUntil(ctx context.Context, p Partition, after, end int64, limit int) (entries []Entry, more bool, next int64, err error) {
	return l.read(ctx, p, after, end, limit, false)
}

// ReadPast is like [Log.Read], but an item of a later release is an entry with [Entry.Lost]. It is for readers that cannot wait
// for that release.
func (l *Log) ReadPast(ctx context.Context, p Partition, after int64, limit int) (entries []Entry, more bool, next int64, err error) {
	return l.read(ctx, p, after, l.DB.End(), limit, true)
}

func (l *Log) read(ctx context.Context, p Partition, after, end int64, limit int, past bool) (entries []Entry, more bool, next int64, err error) {
	q := store.Query{Table: store.Log, Partition: p.name, After: afterKey(after), Limit: limit}
	end = l.keys().bound(&q, end)
	page, err := l.DB.Query(ctx, q)
	if err != nil {
		return nil, false, after, fault.Wrap(fault.Unavailable, err, "read the log")
	}
	if err := l.keys().completeStamp(ctx, p, &page); err != nil {
		return nil, false, after, fault.Wrap(fault.Unavailable, err, "read the log")
	}
	next = after
	horizon := l.Time().Add(2 * MaxSkew).UnixMicro()
	for _, item := range page.Items {
		es, err := l.decode(ctx, item)
		key, keyErr := parseKey(item.Sort)
		if err == ErrLater && past {
			es, err = []Entry{lostEntry(item, key)}, nil
		}
		if err == ErrLater && next > after && key > next {
			return entries, true, next, nil // the next read fails
		}
		if err != nil {
			return nil, false, after, err
		}
		if keyErr == nil {
			next = max(next, key)
		}
		for _, e := range es {
			if e.Key > after {
				entries = append(entries, e)
			}
			if e.Key > horizon {
				l.Skewed.Add(1)
			}
		}
	}
	if page.More && page.Last != "" {
		if k, err := parseKey(page.Last); err == nil {
			next = max(next, k)
		}
	}
	if !page.More {
		next = max(next, end)
	}
	return entries, page.More, next, nil
}

// LatestBytes limits the payloads of the events that [Log.Latest] and [Log.LatestBelow] return, and the memory that they use while
// they read.
const LatestBytes = 1 << 20

// Latest returns up to n of the newest events of a URI, oldest first, with up to [LatestBytes] of payloads.
func (l *Log) Latest(ctx context.Context, workspace, uri string, unordered bool, n int) ([]event.Event, error) {
	var found []positioned
	for _, p := range l.Of(workspace, uri, unordered) {
		page, err := l.DB.Query(ctx, store.Query{Table: store.Log, Partition: p.name, Reverse: true, Limit: n})
		if err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "read the latest events of %s", uri)
		}
		for _, item := range page.Items {
			for i, e := range l.events(ctx, item) {
				found = append(found, positioned{item.Sort, i, e.ID(), *e.Event})
			}
		}
		slices.SortStableFunc(found, func(a, b positioned) int {
			return cmp.Or(strings.Compare(b.segment, a.segment), b.position-a.position)
		})
		seen := map[string]bool{} // a repeated batch may be in the log twice
		found = slices.DeleteFunc(found, func(e positioned) bool {
			again := seen[e.id]
			seen[e.id] = true
			return again
		})
		found = takeFitting(found, n, func(e positioned) int { return len(e.event.Data) })
	}
	events := make([]event.Event, len(found))
	for i, e := range found {
		events[len(found)-1-i] = e.event
	}
	return events, nil
}

// positioned is an event and its position in the log.
type positioned struct {
	segment  string // sort key
	position int    // in the segment
	id       string
	event    event.Event
}

// takeFitting returns the first events, at most n, that fit into [LatestBytes]. At least one fits. It clears the others, so that their
// memory is freed.
func takeFitting[T any](events []T, n int, size func(T) int) []T {
	fit, bytes := 0, 0
	for fit < min(n, len(events)) {
		if bytes += size(events[fit]); bytes > LatestBytes && fit > 0 {
			break
		}
		fit++
	}
	clear(events[fit:])
	return events[:fit]
}
