// Package eventlog keeps what happened, in order, for everyone who reads later:
// open streams, polls, replays and resources/read.
//
// The log has two kinds of event partitions and one for notices:
//
//	own      one per event URI. Fanout is the only writer at a time, because the
//	         events queue hands out a URI's group to one batch at a time. Keys
//	         grow in commit order. An unordered URI has pattern partitions in place of it.
//	pattern  one per parent or wildcard that somebody has interest in, spread
//	         over shards, several writers at once.
//	topic    notices of the system itself (a list changed, a subscription's
//	         state changed), several writers at once.
//
// A key is a time in microseconds since 1970. Writers stamp it, unless the store
// is ordered and stamps at the commit. With several writers a smaller key can be
// committed after a larger one; how a reader stays safe is told in [Window].
//
// Nothing of webhooks enters here. Go on in shared/stream for the readers and
// shared/delivery for the writer.
package eventlog

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/bounded"
	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/store"
)

// Bounds of the log's clockwork (design: the log and its cursor).
const (
	// Window is how far a reader of a partition with several writers looks
	// back. It covers an append of up to [SlowAppend] by a writer whose clock
	// is up to [MaxSkew] behind, read by one whose clock is as much ahead, and a reserve.
	Window = 5 * time.Second
	// SlowAppend is the longest that an append may take between its stamp and
	// its commit; one that took longer is appended again with a new key.
	SlowAppend = 2 * time.Second
	// MaxSkew is how far a clock may be from the true time.
	MaxSkew = time.Second
	// Shards is the number of partitions that a pattern is spread over.
	Shards = 8
)

// Entry is one thing in the log: an event, or a notice of a topic.
type Entry struct {
	// Key is the entry's place: microseconds since 1970. Several entries of
	// different partitions may share one.
	Key int64
	// Event is set in event partitions.
	Event *event.Event
	// NoticeID and Notice are set in topics.
	NoticeID string
	Notice   json.RawMessage

	id string // of the event, made once for all who read the entry
}

// ID tells entries apart: the same event has the same ID in every partition.
func (e Entry) ID() string {
	if e.Event != nil {
		return e.id
	}
	return e.NoticeID
}

// Partition names a part of the log.
type Partition struct {
	name   string
	single bool // one writer at a time, and no two writers' keys interleave
}

// Own is the partition of one event URI.
func Own(workspace, uri string) Partition {
	return Partition{name: "u#" + workspace + "#" + uri, single: true}
}

// Pattern lists the partitions of a parent or wildcard pattern.
func Pattern(workspace, key string) []Partition {
	parts := make([]Partition, Shards)
	for i := range parts {
		parts[i] = shard(workspace, key, i)
	}
	return parts
}

func shard(workspace, key string, i int) Partition {
	return Partition{name: fmt.Sprintf("w#%s#%d#%s", workspace, i, key)}
}

// shardOf keeps the events of a URI in one shard, so that a reader, which reads
// shards one by one, sees them in their order.
func shardOf(uri string) int {
	h := fnv.New32a()
	h.Write([]byte(uri))
	return int(h.Sum32() % Shards)
}

// Topic is the partition of a topic's notices.
func Topic(workspace, topic string) Partition {
	return Partition{name: "n#" + workspace + "#" + topic}
}

func (p Partition) String() string { return p.name }

// Name is the partition's name in the store, as a [store.Watcher] knows it.
func (p Partition) Name() string { return p.name }

// Log is the event log. Its zero values of options are the defaults of design.md.
type Log struct {
	DB store.DB
	// Retention is how long entries stay; 0 is 24 hours.
	Retention time.Duration
	// Now is the clock of the stamps; nil is [time.Now].
	Now func() time.Time

	// What would otherwise be silent when a bound is broken: Slow counts appends
	// over [SlowAppend]; Skewed keys or messages from this process's future by
	// more than twice [MaxSkew]; Late entries that a reader saw for the first
	// time although they lay further back than append time and skew explain.
	Slow, Skewed, Late atomic.Int64
	// Broken counts items that no reader can decode. They are passed over.
	Broken atomic.Int64

	broken bounded.Map[store.Key, bool] // items that were counted and logged
}

func (l *Log) now() time.Time {
	if l.Now != nil {
		return l.Now()
	}
	return time.Now()
}

func (l *Log) retention() time.Duration {
	if l.Retention > 0 {
		return l.Retention
	}
	return 24 * time.Hour
}

// Oldest is the oldest key that is still certain to be there.
func (l *Log) Oldest() int64 { return l.now().Add(-l.retention()).UnixMicro() }

// Reach is where a reader with a cursor starts that has a position in a partition, and whether that
// is a gap: the log, or what the reader wants of it, reaches back to the floor only.
func (l *Log) Reach(c Cursor, at, floor int64) (start int64, truncated bool) {
	if max(at, c.Given) >= floor {
		return at, false
	}
	if l.DB.Ordered() {
		floor = min(floor, l.DB.End()) // the clock may be ahead of all stamps
	}
	return max(at, floor), true
}

// Position is from where a reader finds all that is published from now on. An ordered store
// knows its end, whatever the clock does. Where writers stamp, one whose clock is behind
// may stamp what comes next as much earlier.
func (l *Log) Position() int64 {
	if l.DB.Ordered() {
		return l.DB.End()
	}
	return l.now().Add(-2*MaxSkew).UnixMicro() - 1
}

// EndOf is [Log.Position] for one event URI: not before the last that was written of it, even
// if the clock has gone back since.
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

// LookBack is how far before its position a reader of p must read again.
func (l *Log) LookBack(p Partition) time.Duration {
	if p.single || l.DB.Ordered() {
		return 0
	}
	return Window
}

// CheckClock compares a time that another clock stamped in the past with ours.
func (l *Log) CheckClock(past time.Time) {
	if past.Sub(l.now()) > 2*MaxSkew {
		l.Skewed.Add(1)
	}
}

// segment is the value of a log item: entries written together. Its key is that
// of the last; the others have the keys just before.
type segment struct {
	V       int              `json:"v"`
	Events  []event.Event    `json:"e,omitempty"`
	Notices []noticeEnvelope `json:"n,omitempty"`
	// Before are the ids of the events of the same batch that lie in earlier
	// segments, so that the last segment tells all that a repeated batch has here.
	Before []string `json:"b,omitempty"`

	life time.Duration // 0 is the retention and an hour
}

type noticeEnvelope struct {
	ID   string          `json:"id"`
	Body json.RawMessage `json:"b"`
}

const segmentVersion = 1

func (s segment) encode() ([]byte, error) {
	events := s.Events
	s.Events = nil
	value, err := json.Marshal(s)
	if err == nil && len(events) > 0 {
		value = event.AppendMember(value, "e", events)
	}
	return value, err
}

func (s segment) len() int { return len(s.Events) + len(s.Notices) }

// maxSegment keeps a segment below the item limit with room for keys.
const maxSegment = store.MaxItem - 4<<10

// Appended tells what [Log.Append] found and did.
type Appended struct {
	// First says that these may be the first events of the URI on this day (UTC).
	First bool
	// After is a position before all of these events.
	After int64
}

// AppendOwn is [Log.Append] for a URI that no pattern in use matches.
func (l *Log) AppendOwn(ctx context.Context, workspace, uri string, events []event.Event) (first bool, err error) {
	done, err := l.Append(ctx, workspace, uri, events, nil)
	return done.First, err
}

// Append appends events of one URI to its own partition, in order, and to those of the
// pattern keys given. The caller is the URI's only writer at a time. Events that the batch
// before wrote a moment ago (it was cut off, and comes again) are left out of the partition of the
// URI.
//
// An ordered store takes an event's copies in one commit and under one stamp: wherever a reader
// of several of these partitions stands, it has had all of the copies, or none.
func (l *Log) Append(ctx context.Context, workspace, uri string, events []event.Event, keys []string) (done Appended, err error) {
	if done, err = l.appendTo(ctx, Own(workspace, uri), uri, events, l.copies(workspace, uri, keys)...); err != nil || l.DB.Ordered() {
		return done, err
	}
	for _, e := range events {
		if err := l.AppendPattern(ctx, e, keys); err != nil {
			return done, err
		}
	}
	return done, nil
}

// appendTo appends those events of a URI to one of its partitions that the batch before did not.
func (l *Log) appendTo(ctx context.Context, p Partition, uri string, events []event.Event, copies ...Partition) (done Appended, err error) {
	last, err := l.DB.Query(ctx, store.Query{Table: store.Log, Partition: p.name, Reverse: true, Limit: 1})
	if err != nil {
		return done, fault.Wrap(fault.Unavailable, err, "read the end of the log of %s", uri)
	}
	done.After = l.Position()
	fresh := events
	var floor, before int64
	var written []string // of the batch
	if len(last.Items) == 1 {
		end, err := parseKey(last.Items[0].Sort)
		if err != nil {
			return done, err
		}
		s, err := decodeSegment(last.Items[0])
		if err != nil && err != errLater {
			l.pass(ctx, last.Items[0], err)
		}
		floor, before = end, end
		// Whoever appended the segment may have died over an append that took too
		// long, before it could append again: then a reader may have passed it. Only
		// a young segment is certain to lie in front of all readers.
		young := l.DB.Ordered() || l.now().UnixMicro()-end <= SlowAppend.Microseconds()
		fresh = slices.DeleteFunc(slices.Clone(events), func(e event.Event) bool {
			found := young && (slices.Contains(s.Before, e.ID) ||
				slices.ContainsFunc(s.Events, func(seen event.Event) bool { return seen.ID == e.ID }))
			if found {
				written = append(written, e.ID)
			}
			return found
		})
		if len(written) > 0 { // the earlier segments of the batch lie close before this one
			done.After = min(done.After, end-time.Minute.Microseconds())
		}
	}
	again := len(written) > 0 // nobody knows how far it came the first time
	room := maxSegment
	for _, id := range written {
		room -= len(id) + 3
	}
	for _, e := range fresh {
		room -= len(e.ID) + 3
	}
	for _, part := range pack(fresh, room) {
		s := segment{V: segmentVersion, Events: part, Before: written}
		if floor, err = l.put(ctx, p, s, floor, copies...); err != nil {
			return done, fault.Wrap(fault.Unavailable, err, "append to the log of %s", uri)
		}
		for _, e := range part {
			written = append(written, e.ID)
		}
	}
	done.First = again || day(before) != day(l.now().UnixMicro())
	return done, nil
}

// copies are the partitions that take the events of a URI in the commit of its own. More than a
// transaction holds are not used by anyone.
func (l *Log) copies(workspace, uri string, keys []string) (parts []Partition) {
	if !l.DB.Ordered() {
		return nil
	}
	for _, key := range keys[:min(len(keys), store.MaxTransaction-1)] {
		parts = append(parts, shard(workspace, key, shardOf(uri)))
	}
	return parts
}

func day(stamp int64) int64 { return stamp / (24 * time.Hour).Microseconds() }

// AppendPattern appends one event to the partitions of the pattern keys given.
func (l *Log) AppendPattern(ctx context.Context, e event.Event, keys []string) error {
	for _, key := range keys {
		p := shard(e.Workspace, key, shardOf(e.URI))
		if _, err := l.put(ctx, p, segment{V: segmentVersion, Events: []event.Event{e}}, 0); err != nil {
			return fault.Wrap(fault.Unavailable, err, "append to the log of %s", key)
		}
	}
	return nil
}

// Notify appends a notice to a topic.
func (l *Log) Notify(ctx context.Context, workspace, topic string, notice json.RawMessage) error {
	return l.NotifyAs(ctx, workspace, topic, nonce(), notice)
}

// NotifyAs is [Log.Notify] for a notice that more than one may append: readers take
// those of one id that are a few seconds apart for one.
func (l *Log) NotifyAs(ctx context.Context, workspace, topic, id string, notice json.RawMessage) error {
	return l.notify(ctx, workspace, topic, id, notice, 0)
}

// NotifyFor is [Log.Notify] for a notice that is of use to nobody after a while: it is
// gone for readers then, or after the retention if that is shorter.
func (l *Log) NotifyFor(ctx context.Context, workspace, topic string, life time.Duration, notice json.RawMessage) error {
	return l.notify(ctx, workspace, topic, nonce(), notice, life)
}

func (l *Log) notify(ctx context.Context, workspace, topic, id string, notice json.RawMessage, life time.Duration) error {
	s := segment{V: segmentVersion, Notices: []noticeEnvelope{{ID: id, Body: notice}}, life: life}
	if _, err := l.put(ctx, Topic(workspace, topic), s, 0); err != nil {
		return fault.Wrap(fault.Unavailable, err, "notify topic %s", topic)
	}
	return nil
}

// put writes one segment and returns the key of its last entry (0 when the store
// stamped it). An append that took too long is written again under a new key:
// a reader may have passed the first one. copies are partitions that take the segment's events
// under the same stamp, in an ordered store.
func (l *Log) put(ctx context.Context, p Partition, s segment, floor int64, copies ...Partition) (int64, error) {
	value, err := s.encode()
	if err != nil {
		return 0, err
	}
	life := l.retention() + time.Hour
	if s.life > 0 {
		life = min(life, s.life)
	}
	for {
		started := time.Now() // monotonic, unlike the stamp's clock
		stamp := max(l.now().UnixMicro(), floor) + int64(s.len())
		item := store.Item{
			Key:     store.Key{Table: store.Log, Partition: p.name, Sort: sortKey(stamp)},
			Value:   value,
			Version: int64(s.len()),
			Expires: time.UnixMicro(stamp).Add(life),
		}
		if l.DB.Ordered() {
			return 0, l.DB.Write(ctx, stamped(item, s.len(), copies)...)
		}
		if !p.single {
			item.Sort += "-" + nonce()
		}
		err := l.DB.Write(ctx, store.Put(item, store.Absent()))
		if errors.Is(err, store.ErrConflict) && p.single {
			floor = stamp // somebody of the past holds the key; go beyond
			continue
		}
		if err != nil {
			return 0, err
		}
		if time.Since(started) <= SlowAppend {
			return stamp, nil
		}
		l.Slow.Add(1)
		floor = stamp
	}
}

// stamped puts an item and its copies where an ordered store stamps them.
func stamped(item store.Item, n int, copies []Partition) []store.Op {
	item.Sort = store.AtCommit
	op := store.Put(item)
	op.Span = n
	ops := []store.Op{op}
	for _, p := range copies {
		op.Item.Partition, op.Span = p.name, store.SameStamp
		ops = append(ops, op)
	}
	return ops
}

// Read returns entries of p with keys greater than after, oldest first. It reads
// strongly consistent, one page; next is where to go on when more is true. An ordered store is
// read to its end as it was before: all that has a key up to next was read then.
func (l *Log) Read(ctx context.Context, p Partition, after int64, limit int) (entries []Entry, more bool, next int64, err error) {
	q := store.Query{Table: store.Log, Partition: p.name, After: afterKey(after), Limit: limit}
	var end int64
	if l.DB.Ordered() {
		end = l.DB.End()
		q.Until = sortKey(end)
	}
	page, err := l.DB.Query(ctx, q)
	if err != nil {
		return nil, false, after, fault.Wrap(fault.Unavailable, err, "read the log")
	}
	if err := l.wholeStamp(ctx, p, &page); err != nil {
		return nil, false, after, fault.Wrap(fault.Unavailable, err, "read the log")
	}
	next = after
	horizon := l.now().Add(2 * MaxSkew).UnixMicro()
	for _, item := range page.Items {
		es, err := l.decode(ctx, item)
		if err != nil {
			return nil, false, after, err
		}
		if key, err := parseKey(item.Sort); err == nil {
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

// wholeStamp adds to a page the items that have the stamp of its last one: several
// writers may have stamped the same microsecond, and the next page begins behind it.
func (l *Log) wholeStamp(ctx context.Context, p Partition, page *store.Page) error {
	if p.single || l.DB.Ordered() || len(page.Last) < stampSize {
		return nil
	}
	stamp := page.Last[:stampSize]
	for rest := page.More; rest; {
		more, err := l.DB.Query(ctx, store.Query{Table: store.Log, Partition: p.name, After: page.Last, Until: stamp + "~", Limit: 100})
		if err != nil {
			return err
		}
		page.Items = append(page.Items, more.Items...)
		if rest = more.More; rest {
			page.Last = more.Last
		}
	}
	return nil
}

// Latest returns up to n of the newest events of a URI, oldest first.
func (l *Log) Latest(ctx context.Context, workspace, uri string, unordered bool, n int) ([]event.Event, error) {
	var items []store.Item
	for _, p := range l.Of(workspace, uri, unordered) {
		page, err := l.DB.Query(ctx, store.Query{Table: store.Log, Partition: p.name, Reverse: true, Limit: n})
		if err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "read the latest events of %s", uri)
		}
		items = append(items, page.Items...)
	}
	slices.SortStableFunc(items, func(a, b store.Item) int { return strings.Compare(b.Sort, a.Sort) })
	var out []event.Event
	seen := map[string]bool{}    // a batch that came again may be there twice
	for _, item := range items { // newest segment first
		es, err := l.decode(ctx, item)
		if err != nil {
			return nil, err
		}
		for i := len(es) - 1; i >= 0 && len(out) < n; i-- {
			if e := es[i].Event; !seen[e.ID] {
				seen[e.ID] = true
				out = append(out, *e)
			}
		}
	}
	slices.Reverse(out)
	return out, nil
}

// LatestBelow returns up to n of the newest events of those sub-resources of a
// parent that wants takes, oldest first; it also says which are unordered. Of [maxKnown] sub-resources
// that are looked at, it reads the [maxChildren] that had a first event of the day last.
func (l *Log) LatestBelow(ctx context.Context, workspace, parent string, n int, wants func(uri string) (wanted, unordered bool)) ([]event.Event, error) {
	var children []store.Item
	unordered := map[string]bool{}
	err := l.below(ctx, workspace, parent, maxKnown, func(page []store.Item) {
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
	}
	slices.SortStableFunc(all, func(a, b event.Event) int { return a.Published.Compare(b.Published) })
	return all[max(0, len(all)-n):], nil
}

const (
	maxKnown    = 10_000
	maxChildren = 50
)

// Below lists up to n URIs below a parent, of those that had events within a
// month, in their order.
func (l *Log) Below(ctx context.Context, workspace, parent string, n int) (uris []string, err error) {
	err = l.below(ctx, workspace, parent, n, func(page []store.Item) {
		for _, item := range page {
			uris = append(uris, item.Sort)
		}
	})
	return uris, err
}

// below hands on, page by page, up to n of the items by which a parent knows its sub-resources.
func (l *Log) below(ctx context.Context, workspace, parent string, n int, take func(page []store.Item)) error {
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

// RecordChild makes a URI known to [Log.LatestBelow] of its parents for a month.
// Fanout calls it for the first event of a URI on a day.
func (l *Log) RecordChild(ctx context.Context, workspace, uri string) error {
	segs := strings.Split(strings.TrimPrefix(uri, "event://"), "/")
	var ops []store.Op
	for depth := 1; depth < len(segs); depth++ {
		ops = append(ops, store.Put(store.Item{
			Key: store.Key{
				Table: store.Log, Sort: uri,
				Partition: childrenOf(workspace, "event://"+strings.Join(segs[:depth], "/")),
			},
			Expires: l.now().Add(30 * 24 * time.Hour),
		}))
	}
	if len(ops) == 0 {
		return nil
	}
	return fault.Wrap(fault.Unavailable, l.DB.WriteAll(ctx, ops...), "record the parents of %s", uri)
}

// pack divides events into segments of at most room bytes.
func pack(events []event.Event, room int) [][]event.Event {
	var out [][]event.Event
	size := 0
	for i, e := range events {
		n := len(e.Data) + len(e.URI) + 512
		if i == 0 || size+n > room {
			out, size = append(out, nil), 0
		}
		out[len(out)-1] = append(out[len(out)-1], e)
		size += n
	}
	return out
}

// stampSize is the number of digits of a stamp in a sort key.
const stampSize = 16

func sortKey(stamp int64) string { return fmt.Sprintf("%0*d", stampSize, stamp) }

// afterKey is the sort key behind every item stamped at the given time.
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

func nonce() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read never fails (Go 1.24)
	return hex.EncodeToString(b[:])
}
