// Package eventlog keeps events and notices in order. Open streams, polls, replays and resources/read read it later.
//
// The log has two kinds of partitions for events and one for notices:
//
//	own      one per event URI. It has one writer at a time: the events queue
//	         hands the group of a URI to one batch of fanout at a time. Keys grow
//	         in commit order. An unordered URI has pattern partitions instead.
//	pattern  one per parent or wildcard that a reader has interest in, spread
//	         over shards. It has several writers.
//	topic    notices of the system itself (a list changed, the state of a
//	         subscription changed). It has several writers.
//
// A key is a time in microseconds since 1970. Where it comes from depends on the store, and two types know about that:
//
//	exact    The store stamps keys in the order of commits (SQLite), so a position in one partition is a position in all.
//	stamped  The writers stamp keys (DynamoDB). With several writers a smaller key can be committed after a larger one,
//	         so readers look back; see [Window].
//
// [Log] chooses between them, so that its callers need not know.
//
// Webhooks do not appear here. Continue in shared/events/stream for the readers and in shared/events/fanout for the writer.
package eventlog

import (
	"cmp"
	"context"
	"encoding/json"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Bounds of clocks and appends.
const (
	// Window is how far back a reader looks in a partition with several writers. It covers an append of up to
	// [SlowAppend] by a writer whose clock is [MaxSkew] slow, a reader whose clock is [MaxSkew] fast, and a reserve.
	Window = 5 * time.Second
	// SlowAppend is the longest time from the stamp of an append to its commit. A slower append is repeated with a
	// new key.
	SlowAppend = 2 * time.Second
	// MaxSkew is how far a clock may be from the true time.
	MaxSkew = time.Second
	// Shards is the number of partitions that a pattern is spread over.
	Shards = 8
)

// Entry is an event, or a notice of a topic, in the log.
type Entry struct {
	// Key is the position of the entry, in microseconds since 1970. Entries of different partitions may have the same key.
	Key int64
	// Event is set in event partitions.
	Event *event.Event
	// NoticeID and Notice are set in topics.
	NoticeID string
	Notice   json.RawMessage
	// Lost says that events or notices are missing at this position: an item of the log cannot be decoded, or the backend that sends
	// the events has lost some.
	Lost bool

	id string // of the event or of the loss, made once for all readers of the entry
}

// eventEntry returns the entry of an event.
func eventEntry(key int64, e *event.Event) Entry {
	// Publishers choose ids. If one uses an id again after the deduplication period, that is another event.
	id := e.Key() + "#" + strconv.FormatInt(e.Published.UnixMicro(), 36)
	if e.Gap {
		return Entry{Key: key, Lost: true, id: id}
	}
	return Entry{Key: key, Event: e, id: id}
}

// ID identifies the entry. An event has the same ID in every partition. Two events with the same id and URI have
// different IDs if they were published at different times.
func (e Entry) ID() string {
	if e.Event != nil || e.Lost {
		return e.id
	}
	return e.NoticeID
}

// Log is the event log.
type Log struct {
	DB store.DB
	// Retention is how long entries stay; 0 is 24 hours.
	Retention time.Duration
	// Now is the clock of the stamps; nil is [time.Now].
	Now func() time.Time

	// Slow counts appends that took longer than [SlowAppend].
	Slow atomic.Int64
	// Skewed counts keys and messages whose time is more than twice [MaxSkew] in the future of this process.
	Skewed atomic.Int64
	// Late counts entries that a reader met for the first time further back than slow appends and skew explain.
	Late atomic.Int64
	// Broken counts items that cannot be decoded. Readers get an entry that says so, or stay before items of a later release.
	Broken atomic.Int64

	broken  bounded.Map[store.Key, bool] // items that are counted and logged already
	batches batches
}

// Time returns the time of the clock that makes stamps.
func (l *Log) Time() time.Time {
	if l.Now != nil {
		return l.Now()
	}
	return time.Now()
}

// Oldest returns the oldest key whose entry the log is guaranteed to have still.
func (l *Log) Oldest() int64 { return l.Time().Add(-l.Reaches()).UnixMicro() }

// KeptUntil returns the time until which the log is guaranteed to keep an entry that is written now.
func (l *Log) KeptUntil() time.Time { return l.Time().Add(l.Reaches()) }

// Reaches returns how long the log is guaranteed to keep entries.
func (l *Log) Reaches() time.Duration { return cmp.Or(l.Retention, 24*time.Hour) }

// Reach returns where a reader starts whose cursor c has the position at in a partition. It does not read before floor,
// because the log no longer has older entries or the reader does not want them. truncated reports whether the reader misses
// events because of that.
func (l *Log) Reach(c Cursor, at, floor int64) (start int64, truncated bool) {
	if max(at, c.Given) >= floor {
		return at, false
	}
	return max(at, min(floor, l.keys().upperBound())), true
}

// Position returns where a reader starts to find everything that is published from now on.
func (l *Log) Position() int64 { return l.keys().position() }

// Settled returns a position up to which no further key will be committed to any partition.
func (l *Log) Settled() int64 { return l.keys().settled() }

// EndOf returns [Log.Position] for one event URI. The result is not before the last entry of the URI, even if the clock
// was set back since.
func (l *Log) EndOf(ctx context.Context, workspace, uri string) (int64, error) {
	return l.keys().endOf(ctx, workspace, uri)
}

// LookBack returns how far before its position a reader must read p again. It is 0 if keys of p grow in the order of
// commits.
func (l *Log) LookBack(p Partition) time.Duration {
	if p.single {
		return 0
	}
	return l.keys().lookBack()
}

// Given returns [Cursor.Given] for a cursor whose position was the end of the log at a time. It is 0 if positions are times
// themselves.
func (l *Log) Given(at int64) int64 { return l.keys().given(at) }

// TotalOrder reports whether the keys of all partitions grow in one order, the order of commits, and all copies of an
// event have the same key. Package stream chooses by it how a feed merges partitions.
func (l *Log) TotalOrder() bool { return l.keys().totalOrder() }

// Of returns the partitions that hold the events of one URI. That is its own partition, unless the event type is unordered
// and [Log.Spreads] is true. The own partition is one of them even then, for events from before the type gave up its order.
func (l *Log) Of(workspace, uri string, unordered bool) []Partition {
	own := Own(workspace, uri)
	if !unordered || !l.Spreads() {
		return []Partition{own}
	}
	own.single = false
	return append(Pattern(workspace, uri), own)
}

// Spreads reports whether the log spreads the events of an unordered type over several partitions with several writers.
func (l *Log) Spreads() bool { return l.keys().spreads() }

// Append appends events of one URI, in order, to its own partition and to the partitions of the pattern keys. The
// caller is the only writer of the URI. If a batch was interrupted and arrives again, Append does not write the events that
// it wrote a moment ago to the own partition again.
func (l *Log) Append(ctx context.Context, workspace, uri string, events []event.Event, patterns []string) (Appended, error) {
	return l.keys().append(ctx, workspace, uri, events, patterns)
}

// AppendUnordered appends events like [Log.Append], for a URI of an unordered event type, which may have several writers.
func (l *Log) AppendUnordered(ctx context.Context, workspace, uri string, events []event.Event, patterns []string) (Appended, error) {
	return l.keys().appendUnordered(ctx, workspace, uri, events, patterns)
}

// ByID returns the newest event with an id, of the URI if that is not empty, or nil if there is no such event. It is one query and
// one read, however many events there are. indexed reports whether the log has an index of ids. Without an index, ByID returns nil
// without a read.
func (l *Log) ByID(ctx context.Context, workspace, id, uri string) (e *event.Event, indexed bool, err error) {
	return l.keys().byID(ctx, workspace, id, uri)
}

// keys is the part of the log that depends on where keys come from.
type keys interface {
	position() int64
	settled() int64
	// upperBound returns an upper bound of the keys in the log.
	upperBound() int64
	// interestBegins returns the position from which patterns are written if the interest in them is recorded now.
	interestBegins() int64
	endOf(ctx context.Context, workspace, uri string) (int64, error)
	lookBack() time.Duration
	given(at int64) int64
	totalOrder() bool
	spreads() bool

	append(ctx context.Context, workspace, uri string, events []event.Event, patterns []string) (Appended, error)
	appendUnordered(ctx context.Context, workspace, uri string, events []event.Event, patterns []string) (Appended, error)
	// put writes one segment and returns the key of its last entry, or 0 if it does not know the key. The key is greater
	// than floor.
	put(ctx context.Context, p Partition, s segment, floor int64, copies ...Partition) (int64, error)
	// repeatable reports whether the events of a segment with the last key end need not be written again because no
	// reader can have passed them.
	repeatable(end int64) bool

	// bound limits a query to the position end, and returns the position up to which the last page is complete.
	bound(q *store.Query, end int64) int64
	// completeStamp adds the items to a page that have the same key as its last item.
	completeStamp(ctx context.Context, p Partition, page *store.Page) error
	byID(ctx context.Context, workspace, id, uri string) (e *event.Event, indexed bool, err error)
}

// keys chooses the implementation for the store.
func (l *Log) keys() keys {
	if l.DB.Stamps() {
		return exact{l}
	}
	return stamped{l}
}

// CheckClock counts a skewed clock if a time that another process stamped in the past is in this process's future.
func (l *Log) CheckClock(past time.Time) {
	if past.Sub(l.Time()) > 2*MaxSkew {
		l.Skewed.Add(1)
	}
}
