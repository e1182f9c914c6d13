// Package eventlog is the event log: it stores accepted events and the system's notices in order, so that open streams, polls, replays
// and resources/read can read them later.
//
// The log has two kinds of partitions for events and one for notices:
//
//	own      one per event URI. It has one writer at a time, because the events
//	         queue never gives events of the same URI to two concurrent batches
//	         of fanout. Keys grow in commit order. On DynamoDB, a URI of an unordered
//	         event type is spread over shards instead, and has several writers.
//	pattern  several per parent (such as event://github) or wildcard (such as
//	         event://github/*) that clients read. The copies of the matching events
//	         are spread over these partitions, which have several writers.
//	topic    notices of the system itself (a list changed, the state of a
//	         subscription changed). It has several writers.
//
// The key of an entry is a time in microseconds since 1970. Either the store or the writer chooses it, so there are two kinds
// of logs:
//
//	exact    The store stamps (chooses) the keys in the order of commits, so a position in one partition is a position in
//	         all partitions. SQLite is such a store.
//	stamped  The writers stamp the keys with their clocks, because the store (DynamoDB) cannot. If a partition has several
//	         writers, a smaller key can be committed after a larger one, so readers read the last few seconds again; see
//	         [Window].
//
// [Log.TotalOrder] tells the two kinds apart. Only appending differs so much that each kind has its own implementation; see
// [appender].
//
// Webhooks are not sent from the log: fanout queues tasks for them. Continue in shared/events/stream for the readers and in
// shared/events/fanout for the writer.
package eventlog

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

const (
	// Window is how long before its position a reader starts to read again in a partition with several writers, because a smaller key may
	// be committed after larger ones. An append may take [SlowAppend] (2 s), the writer's clock may be slow by [MaxSkew] (1 s), and the
	// reader's clock may be fast by as much. The remaining second is a safety margin.
	Window = 5 * time.Second
	// SlowAppend limits the time from choosing the key of an entry to its commit. An append that takes longer is repeated with a new key.
	SlowAppend = 2 * time.Second
	// MaxSkew is how far the clocks of this system may be from the true time.
	MaxSkew = time.Second
	// Shards is the number of partitions for the events of one parent or wildcard. On DynamoDB, it is also the number of partitions for
	// one URI of an unordered event type. There are several because DynamoDB limits the writes per second to one partition.
	Shards = 8
)

// Entry is one entry of the log: an event, a notice, or a mark that events or notices are missing ([Entry.Lost]).
type Entry struct {
	// Key is the position of the entry, in microseconds since 1970. Entries of different partitions may have the same key.
	Key int64
	// Event is set if the entry is an event, in a partition of a URI or pattern.
	Event *event.Event
	// NoticeID and Notice are set if the entry is a notice, in a partition of a topic.
	NoticeID string
	Notice   json.RawMessage
	// Lost says that events or notices are missing at this position, because an item cannot be decoded or a backend has lost events.
	Lost bool

	id string // the result of [Entry.ID] for events and losses, computed once for all readers of the entry
}

func eventEntry(key int64, e *event.Event) Entry {
	// Include the publication time, because a publisher may use an id for another event a few minutes later.
	id := e.Key() + "#" + strconv.FormatInt(e.Published.UnixMicro(), 36)
	if e.Gap {
		return Entry{Key: key, Lost: true, id: id}
	}
	return Entry{Key: key, Event: e, id: id}
}

// ID returns an identifier by which readers recognize an entry that they read twice. An event has the same ID in every
// partition. Two events with the same id and URI have different IDs if they were published at different times.
func (e Entry) ID() string {
	if e.Event != nil || e.Lost {
		return e.id
	}
	return e.NoticeID
}

// Log is the event log. See the package comment.
type Log struct {
	DB store.DB
	// Retention is how long the log keeps entries; 0 is 24 hours.
	Retention time.Duration
	// Now is the clock from which this process takes the keys of entries; nil is [time.Now].
	Now func() time.Time
	// Logger logs failures; nil is [slog.Default].
	Logger *slog.Logger

	// Slow counts the appends that took longer than [SlowAppend] and were repeated.
	Slow atomic.Int64
	// Skewed counts how often another process's clock seemed to be too far ahead. This means that a time in its log keys or queue
	// messages was more than twice [MaxSkew] later than this process's clock.
	Skewed atomic.Int64
	// Late counts the entries that were committed later than [SlowAppend] and [MaxSkew] allow. Readers got them only thanks to the safety
	// margin in [Window].
	Late atomic.Int64
	// Broken counts the items that readers could not decode. If a later release of the server wrote an item, readers stop before it. For
	// other items, readers get an entry with [Entry.Lost] instead.
	Broken atomic.Int64

	broken  bounded.Map[store.Key, bool] // broken items that this process has already counted and logged
	batches batches
	// appended is the time at which this process last appended to a partition, in microseconds since 1970, by the partition's name. Only
	// [exact] uses it.
	appended bounded.Map[string, int64]
}

func (l *Log) logger() *slog.Logger { return cmp.Or(l.Logger, slog.Default()) }

// Time returns the current time of the clock from which this process takes the keys of entries.
func (l *Log) Time() time.Time { return periodic.Clock(l.Now)() }

// Oldest returns the position after which the log is guaranteed to have all entries. Older entries may have expired.
func (l *Log) Oldest() int64 { return l.Time().Add(-l.MinRetention()).UnixMicro() }

// KeptUntil returns the time until which the log is guaranteed to keep an entry that is written now.
func (l *Log) KeptUntil() time.Time { return l.Time().Add(l.MinRetention()) }

// MinRetention returns how long the log is guaranteed to keep entries.
func (l *Log) MinRetention() time.Duration { return cmp.Or(l.Retention, 24*time.Hour) }

// StartPosition returns the position after which a reader with the cursor c starts to read a partition. The parameter at is the cursor's
// position in this partition. The parameter floor is the earliest position allowed, because older entries have expired or the reader does
// not want them.
//
// The result truncated reports whether the reader may miss events, because at is before floor. It is false if c.Given is not before
// floor, because no events were written between at and the time c.Given ([Cursor.Given]).
func (l *Log) StartPosition(c Cursor, at, floor int64) (start int64, truncated bool) {
	if max(at, c.Given) >= floor {
		return at, false
	}
	if l.TotalOrder() { // floor comes from the clock, which may be ahead of the newest key
		floor = min(floor, l.DB.End())
	}
	return max(at, floor), true
}

func (l *Log) endBefore(lag time.Duration) int64 {
	if l.TotalOrder() {
		return l.DB.End()
	}
	return l.Time().Add(-lag).UnixMicro()
}

// Position returns the position after which a reader finds everything that is published from now on. If the store chooses the keys, this
// is the newest key. Otherwise it is twice [MaxSkew] before now, because the clock of the next writer may be slow and this process's
// clock fast.
func (l *Log) Position() int64 { return l.endBefore(2*MaxSkew + time.Microsecond) }

// SettledPosition returns a position at which the log is complete: no entry with this key or a smaller key will still be committed to any
// partition.
func (l *Log) SettledPosition() int64 { return l.endBefore(Window) }

// EndOf returns the position at the end of one URI's events. This is [Log.Position] or, if that is greater, the key of the URI's last
// entry. The key is greater, for example, if the clock was set back.
func (l *Log) EndOf(ctx context.Context, workspace, uri string) (int64, error) {
	at := l.Position()
	if l.TotalOrder() {
		return at, nil
	}
	last, err := l.DB.Query(ctx, store.Query{Table: store.Log, Partition: OwnPartition(workspace, uri).name, Reverse: true, Limit: 1})
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

// LookBack returns how far before its last position a reader must read the partition p again, because smaller keys may have been
// committed after larger ones. It returns 0 if the keys of p grow in the order of commits.
func (l *Log) LookBack(p Partition) time.Duration {
	if p.single || l.TotalOrder() {
		return 0
	}
	return Window
}

// GivenAt returns the [Cursor.Given] of a cursor whose position was the end of the log at the given time (in microseconds since 1970).
//
// If the store chooses the keys, the result is the given time. The end of the log then does not move while no events are published, so
// without Given, the cursor would seem to become too old. If writers choose the keys, the end of the log moves with the clock. So Given
// is not needed, and the result is 0.
func (l *Log) GivenAt(at int64) int64 {
	if l.TotalOrder() {
		return at
	}
	return 0
}

// TotalOrder reports whether the store chooses the keys. If it does, the keys of all partitions grow in the order of commits, and all
// copies of an event have the same key. Package stream needs this to choose how a feed merges partitions.
func (l *Log) TotalOrder() bool { return l.DB.Local() }

// PartitionsOf returns the partitions that hold the events of one URI. If the event type is unordered and [Log.Spreads] is true, the
// events are spread over several partitions. The result then also has the URI's own partition, which has the events from before the type
// became unordered.
func (l *Log) PartitionsOf(workspace, uri string, unordered bool) []Partition {
	own := OwnPartition(workspace, uri)
	if !unordered || !l.Spreads() {
		return []Partition{own}
	}
	own.single = false
	return append(PatternPartitions(workspace, uri), own)
}

// Spreads reports whether the log spreads the events of a URI over several partitions if their type is unordered.
func (l *Log) Spreads() bool { return !l.TotalOrder() }

// Append appends events of one URI, in order, to the URI's own partition of the log, and to the partitions of the patterns with the given
// keys. No other process may append events of this URI at the same time.
//
// If the queue redelivers a batch after an interruption, Append skips the events that the URI's partition already has. But it appends
// them again if readers may have missed them, because their first commit took too long.
func (l *Log) Append(ctx context.Context, workspace, uri string, events []event.Event, patterns []string) (Appended, error) {
	return l.appender().append(ctx, workspace, uri, events, patterns)
}

// AppendUnordered appends events like [Log.Append], for a URI of an unordered event type, which may have several writers.
func (l *Log) AppendUnordered(ctx context.Context, workspace, uri string, events []event.Event, patterns []string) (Appended, error) {
	return l.appender().appendUnordered(ctx, workspace, uri, events, patterns)
}

// AppendNew appends events like [Log.Append]. The caller must know that the log does not have the events yet and that [Log.TotalOrder] is
// true. So AppendNew reads the end of the URI's partition only before this process's first append to it. The events may be of an
// unordered type.
func (l *Log) AppendNew(ctx context.Context, workspace, uri string, events []event.Event, patterns []string) (Appended, error) {
	last, known := l.appended.Get(OwnPartition(workspace, uri).name)
	if !known {
		return l.Append(ctx, workspace, uri, events, patterns)
	}
	return exact{l}.appendAfter(ctx, workspace, uri, logEnd{key: last, position: l.Position(), fresh: events}, patterns)
}

// ByID returns the newest event with an id, or nil. If uri is not empty, it looks only for events of that URI. The result indexed reports
// whether the log has an index of ids. Without an index, ByID returns nil without a read. Only a store that chooses the keys has an
// index, because DynamoDB bills every item of an index.
func (l *Log) ByID(ctx context.Context, workspace, id, uri string) (e *event.Event, indexed bool, err error) {
	if !l.TotalOrder() {
		return nil, false, nil
	}
	err = exact{l}.visitID(ctx, workspace, id, uri, 0, func(segment *store.Item) bool {
		if segment != nil {
			e = l.findIn(ctx, *segment, id)
		}
		return true
	})
	return e, true, err
}

// appender appends to the log. Its implementations for the two kinds of logs are [exact] and [stamped].
type appender interface {
	append(ctx context.Context, workspace, uri string, events []event.Event, patterns []string) (Appended, error)
	appendUnordered(ctx context.Context, workspace, uri string, events []event.Event, patterns []string) (Appended, error)
	// putSegment writes one segment (log item) and returns the key of its last entry, which is greater than floor. If the store chooses
	// the keys, putSegment returns 0, and also writes the segment to the partitions in the parameter copies, in the same commit.
	putSegment(ctx context.Context, p Partition, s segment, floor int64, copies ...Partition) (int64, error)
	// replace overwrites the item of a segment after some of its events were erased, and removes these events from the index of ids. It
	// returns [store.ErrConflict] if the item has changed since it was read.
	replace(ctx context.Context, item store.Item, erased []event.Event) error
}

func (l *Log) appender() appender {
	if l.TotalOrder() {
		return exact{l}
	}
	return stamped{l}
}

// CheckClock increments [Log.Skewed] if this process's clock is more than twice [MaxSkew] behind another process's clock. The parameter
// past is a time that the other clock has already reached.
func (l *Log) CheckClock(past time.Time) {
	if past.Sub(l.Time()) > 2*MaxSkew {
		l.Skewed.Add(1)
	}
}

// Partition identifies a part of the log whose entries are read in the order of their keys.
type Partition struct {
	name   string
	single bool // it has one writer at a time, so its keys grow in the order of commits
}

// OwnPartition returns the partition of one event URI.
func OwnPartition(workspace, uri string) Partition {
	return Partition{name: "u#" + workspace + "#" + uri, single: true}
}

// PatternPartitions returns the [Shards] partitions that together have the events of a parent or wildcard.
func PatternPartitions(workspace, key string) []Partition {
	parts := make([]Partition, Shards)
	for i := range parts {
		parts[i] = shardPartition(workspace, key, i)
	}
	return parts
}

func shardPartition(workspace, key string, i int) Partition {
	return Partition{name: fmt.Sprintf("w#%s#%d#%s", workspace, i, key)}
}

// shardOf returns which shard (one of [Shards] partitions) has the events of a URI. All events of a URI are in one shard, so that readers
// see them in order. For an unordered event type, the caller passes the event's id instead of the URI, so that the events are spread over
// all shards.
func shardOf(uri string) int {
	h := fnv.New32a()
	h.Write([]byte(uri))
	return int(h.Sum32() % Shards)
}

// TopicPartition returns the partition of a topic's notices.
func TopicPartition(workspace, topic string) Partition {
	return Partition{name: "n#" + workspace + "#" + topic}
}

// Name returns the partition's name in the store. A [store.Watcher] needs it.
func (p Partition) Name() string { return p.name }

// stampSize is the number of digits of a key (an entry's time) in the sort key of an item.
const stampSize = 16

func sortKey(stamp int64) string { return fmt.Sprintf("%0*d", stampSize, stamp) }

// afterKey returns a sort key that follows all items with the given key (an entry's time).
func afterKey(stamp int64) string { return sortKey(max(stamp, 0)) + "~" }

func parseKey(sort string) (int64, error) {
	if len(sort) < stampSize {
		return 0, fault.New(fault.Internal, "log key %q is malformed", sort)
	}
	k, err := strconv.ParseInt(sort[:stampSize], 10, 64)
	if err != nil {
		return 0, fault.Wrap(fault.Internal, err, "parse log key")
	}
	return k, nil
}

// Interest records that clients read, or may soon read, the events of a URI pattern from the log. A pattern is a wildcard such as
// event://github/*, or a parent such as event://github, which stands for all URIs below it.
//
// While the record exists, each matching event is also written to the pattern's own partitions; see [PatternPartitions]. Patterns without
// readers do not cost these additional writes.
type Interest struct {
	// Since is the position at which fanout began to write events to the pattern's own partitions. These partitions lack earlier events
	// of the pattern.
	Since int64
	// Until is when fanout stops writing to the pattern's own partitions, unless the record is renewed.
	Until time.Time
}

// FirstPosition returns the earliest position from which a reader can resume without missing events of the pattern. It is before Since,
// because a cursor's position may be up to [Window] before the time at which the client got the cursor, and because clocks differ.
func (in Interest) FirstPosition() int64 { return in.Since - (Window + 2*MaxSkew).Microseconds() }

// InterestKey returns the key of the item that holds the [Interest] in a pattern.
func InterestKey(workspace, key string) store.Key {
	return store.Key{Table: store.Log, Partition: "i#" + workspace + "#" + key, Sort: "-"}
}

const untilCount = "until"

// RecordInterest makes fanout write to the partitions of the pattern with the given key until the given time, and for at least one
// retention from now. The field Since of the result is the position at which fanout began to write to these partitions.
//
// The caller must first record that the pattern's shape is in use (see Shape in package match), because fanout looks for interests only
// in patterns with such shapes.
func (l *Log) RecordInterest(ctx context.Context, workspace, key string, until time.Time) (Interest, error) {
	k := InterestKey(workspace, key)
	if kept := l.KeptUntil(); until.Before(kept) {
		until = kept
	}
	for {
		had, err := l.LoadInterest(ctx, workspace, key)
		if err != nil {
			return Interest{}, err
		}
		now := l.Time()
		since := l.endBefore(0)
		item := store.Item{Key: k, Version: since, Counts: map[string]int64{untilCount: until.Unix()}, Expires: until.Add(interestMargin)}
		cond := store.Absent()
		if had != (Interest{}) {
			cond = store.VersionIs(had.Since)
		}
		setBack := had.Since > since+2*MaxSkew.Microseconds()
		if had.Until.After(now) && !setBack {
			if until.Sub(had.Until) <= l.MinRetention()/16 { // a renewal is not due yet
				return had, nil
			}
			// The item's version is Since. Each renewal adds a microsecond to it, so that one of two concurrent renewals fails and is
			// repeated.
			item.Version = had.Since + 1
		}
		err = l.DB.Write(ctx, store.Put(item, cond))
		if err == nil {
			return ReadInterest(&item), nil
		}
		if !errors.Is(err, store.ErrConflict) {
			return Interest{}, fault.Wrap(fault.Unavailable, err, "record the interest in %s", key)
		}
	}
}

// interestMargin is how long the store keeps an interest's item after the interest has ended. Otherwise a store whose clock is a little
// fast could delete the item too early.
const interestMargin = time.Hour

// LoadInterest returns the interest in a pattern, or the zero value if its item does not exist or has expired.
func (l *Log) LoadInterest(ctx context.Context, workspace, key string) (Interest, error) {
	it, err := store.One(ctx, l.DB, InterestKey(workspace, key), "read the interest in a pattern")
	return ReadInterest(it), err
}

// ReadInterest decodes the item of an interest. For a nil item, it returns the zero value.
func ReadInterest(it *store.Item) Interest {
	if it == nil {
		return Interest{}
	}
	return Interest{Since: it.Version, Until: time.Unix(it.Counts[untilCount], 0)}
}

// LatestBelow returns up to n of the newest events of a parent's sub-resources, oldest first, with up to [LatestBytes] of payloads. The
// function wants reports whether the caller wants the events of a URI, and whether the URI's event type is unordered.
//
// To limit the work, LatestBelow calls wants only for the first [maxKnown] sub-resources. Of the wanted ones, it reads only the
// [maxChildren] that [Log.RecordChild] recorded last.
func (l *Log) LatestBelow(ctx context.Context, workspace, parent string, n int, wants func(uri string) (wanted, unordered bool)) ([]event.Event, error) {
	var children []store.Item
	unordered := map[string]bool{}
	err := l.eachBelow(ctx, workspace, parent, maxKnown, func(page []store.Item) {
		children = append(children, slices.DeleteFunc(page, func(it store.Item) bool {
			wanted, spread := wants(it.Sort)
			if spread {
				unordered[it.Sort] = true
			}
			return !wanted
		})...)
		slices.SortStableFunc(children, func(a, b store.Item) int { return b.Expires.Compare(a.Expires) })
		children = children[:min(len(children), maxChildren)]
	})
	if err != nil {
		return nil, err
	}
	var all []event.Event
	for _, child := range children {
		es, err := l.Latest(ctx, workspace, child.Sort, unordered[child.Sort], n)
		if err != nil {
			return nil, err
		}
		all = append(all, es...)
		slices.SortStableFunc(all, func(a, b event.Event) int { return b.Published.Compare(a.Published) })
		all = takeFitting(all, n, func(e event.Event) int { return len(e.Data) })
	}
	slices.Reverse(all)
	return all, nil
}

const (
	maxKnown    = 10_000
	maxChildren = 50
)

// ListBelow returns up to n URIs below a parent that had events within the last month, in the order of the URIs.
func (l *Log) ListBelow(ctx context.Context, workspace, parent string, n int) (uris []string, err error) {
	err = l.eachBelow(ctx, workspace, parent, n, func(page []store.Item) {
		for _, item := range page {
			uris = append(uris, item.Sort)
		}
	})
	return uris, err
}

// eachBelow calls take with pages of items for up to n sub-resources of a parent. The sort key of an item is the sub-resource's URI.
func (l *Log) eachBelow(ctx context.Context, workspace, parent string, n int, take func(page []store.Item)) error {
	q := store.Query{Table: store.Log, Partition: childrenOf(workspace, parent)}
	for more := true; more && n > 0; {
		q.Limit = min(n, 1000)
		page, err := l.DB.Query(ctx, q)
		if err != nil {
			return fault.Wrap(fault.Unavailable, err, "list the sub-resources of %s", parent)
		}
		n -= len(page.Items)
		q.After, more = page.Last, page.More
		take(page.Items)
	}
	return nil
}

func childrenOf(workspace, parent string) string { return "c#" + workspace + "#" + parent }

// RecordChild records a URI as a sub-resource of its parents for a month, so that [Log.LatestBelow] and [Log.ListBelow] find it. Fanout
// calls it if [Appended.Unrecorded] is true.
func (l *Log) RecordChild(ctx context.Context, workspace, uri string) error {
	ops := l.parentOps(workspace, uri)
	if len(ops) == 0 {
		return nil
	}
	return fault.Wrap(fault.Unavailable, l.DB.WriteAll(ctx, ops...), "record the parents of %s", uri)
}

func (l *Log) parentOps(workspace, uri string) (ops []store.Op) {
	segs := strings.Split(strings.TrimPrefix(uri, "event://"), "/")
	for depth := 1; depth < len(segs); depth++ {
		ops = append(ops, store.Put(store.Item{
			Key: store.Key{
				Table: store.Log, Sort: uri,
				Partition: childrenOf(workspace, "event://"+strings.Join(segs[:depth], "/")),
			},
			Expires: l.Time().Add(30 * 24 * time.Hour),
		}))
	}
	return ops
}
