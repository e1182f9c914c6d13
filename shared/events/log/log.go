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
// A key is a time in microseconds since 1970. The writer stamps it; an ordered store stamps at the commit instead.
// With several writers a smaller key can be committed after a larger one. [Window] says how readers handle that.
//
// Webhooks do not appear here. Go on in shared/events/stream for the readers and in shared/events/delivery for the writer.
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
	"github.com/mcp-events/mcpevents/shared/platform/fault"
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
	// Key is the position of the entry: microseconds since 1970. Entries of different partitions may have the same.
	Key int64
	// Event is set in event partitions.
	Event *event.Event
	// NoticeID and Notice are set in topics.
	NoticeID string
	Notice   json.RawMessage
	// Lost says that an item of the log cannot be decoded. The entry is at the position of the events or notices that were in it.
	Lost bool

	id string // of the event or of the loss, made once for all readers of the entry
}

// eventEntry returns the entry of an event.
func eventEntry(key int64, e *event.Event) Entry {
	// Publishers choose ids. If one uses an id again after the deduplication period, that is another event.
	id := e.Key() + "#" + strconv.FormatInt(e.Published.UnixMicro(), 36)
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

// Time is that of the clock of the stamps.
func (l *Log) Time() time.Time {
	if l.Now != nil {
		return l.Now()
	}
	return time.Now()
}

// Oldest is the oldest key that the log surely still has.
func (l *Log) Oldest() int64 { return l.Time().Add(-l.Reaches()).UnixMicro() }

// KeptUntil is until when what is written now surely stays.
func (l *Log) KeptUntil() time.Time { return l.Time().Add(l.Reaches()) }

// Reaches is how far back the log surely goes.
func (l *Log) Reaches() time.Duration { return cmp.Or(l.Retention, 24*time.Hour) }

// Reach returns where a reader starts whose cursor c has the position at in a partition. The log, or what the reader
// wants of it, begins at floor; truncated reports that events before it are missing.
func (l *Log) Reach(c Cursor, at, floor int64) (start int64, truncated bool) {
	if max(at, c.Given) >= floor {
		return at, false
	}
	if l.DB.Ordered() {
		floor = min(floor, l.DB.End()) // the clock may be later than every stamp
	}
	return max(at, floor), true
}

// Position is where a reader starts to find everything that is published from now on. An ordered store knows its end,
// whatever the clock says. Where writers stamp, the next stamp may be earlier than now by the skew of two clocks.
func (l *Log) Position() int64 {
	if l.DB.Ordered() {
		return l.DB.End()
	}
	return l.Time().Add(-2*MaxSkew).UnixMicro() - 1
}

// EndOf is [Log.Position] for one event URI. It is not before the last entry of the URI, even if the clock was set
// back since.
func (l *Log) EndOf(ctx context.Context, workspace, uri string) (int64, error) {
	at := l.Position()
	if l.DB.Ordered() {
		return at, nil
	}
	last, err := l.DB.Query(ctx, store.Query{Table: store.Log, Partition: Own(workspace, uri).name, Reverse: true, Limit: 1})
	if err != nil {
		return 0, fault.Wrap(fault.Unavailable, err, "read the end of the log of %s", uri)
	}
	if len(last.Items) == 1 {
		if key, err := parseKey(last.Items[0].Sort); err == nil {
			at = max(at, key)
		}
	}
	return at, nil
}

// LookBack is how far before its position a reader must read p again.
func (l *Log) LookBack(p Partition) time.Duration {
	if p.single || l.DB.Ordered() {
		return 0
	}
	return Window
}

// CheckClock counts a time as skewed that another clock stamped in the past and that lies in our future.
func (l *Log) CheckClock(past time.Time) {
	if past.Sub(l.Time()) > 2*MaxSkew {
		l.Skewed.Add(1)
	}
}
