package eventlog

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// segment is the value of a log item. It has entries that were written together. The item's key is the key of the last entry. The other
// entries have the numbers just before it as keys or, in a partition with several writers, the same key.
type segment struct {
	V       int              `json:"v"`
	Events  []event.Event    `json:"e,omitempty"`
	Notices []noticeEnvelope `json:"n,omitempty"`
	// Before has the ids of the events that are in earlier segments of the same batch, and BeforeAt has their publication times in
	// microseconds since 1970. So if the queue redelivers the batch, its last segment tells which events the log already has. Segments of
	// earlier releases have no times.
	Before   []string `json:"b,omitempty"`
	BeforeAt []int64  `json:"bp,omitempty"`

	life  time.Duration // how long the log keeps the segment; 0 is the retention plus an hour
	stamp int64         // for a copy: the last event's key in the URI's own partition; 0 is unknown
	extra []store.Op    // writes for the same commit as the segment, if the store chooses the keys
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

// has reports whether the segment contains an event or names it in [segment.Before]. The parameter end is the key of the segment's last
// entry.
func (s segment) has(e *event.Event, end int64) bool {
	published := e.Published.UnixMicro()
	for i, id := range s.Before {
		switch {
		case id != e.ID:
		case len(s.BeforeAt) == len(s.Before):
			if s.BeforeAt[i] == published {
				return true
			}
		case published <= end: // an earlier release wrote no times, but the same id very likely means the same event
			return true
		}
	}
	return slices.ContainsFunc(s.Events, func(seen event.Event) bool {
		return seen.ID == e.ID && seen.Published.UnixMicro() == published
	})
}

func (s segment) len() int { return len(s.Events) + len(s.Notices) }

// maxSegment is the maximum size of a segment in bytes. A segment and the item's keys must fit into an item of the store.
const maxSegment = store.MaxItem - 4<<10

// pack divides events into groups, each for one segment. A group has at most maxBytes bytes and maxEvents events.
func pack(events []event.Event, maxBytes, maxEvents int) [][]event.Event {
	var out [][]event.Event
	size := 0
	for i, e := range events {
		n := e.MaxSize()
		if i == 0 || size+n > maxBytes || len(out[len(out)-1]) == maxEvents {
			out, size = append(out, nil), 0
		}
		out[len(out)-1] = append(out[len(out)-1], e)
		size += n
	}
	return out
}

// ErrLater is the error for a log item that a later release of the server wrote. Readers stop before the item, and continue with other
// partitions.
var ErrLater = fault.New(fault.Unavailable, "a segment of the log is of a later release")

func decodeSegment(item store.Item) (s segment, err error) {
	if err := json.Unmarshal(item.Value, &s); err != nil {
		return segment{}, fault.Wrap(fault.Internal, err, "decode log segment %s", item.Sort)
	}
	if s.V > segmentVersion {
		return segment{}, ErrLater
	}
	if s.V != segmentVersion {
		return segment{}, fault.New(fault.Internal, "decode log segment %s: unknown version %d", item.Sort, s.V)
	}
	return s, nil
}

// events returns the entries of an item, except entries with [Entry.Lost]. It returns no entries if a later release wrote the item.
func (l *Log) events(ctx context.Context, item store.Item) []Entry {
	entries, _ := l.decode(ctx, item)
	return slices.DeleteFunc(entries, func(e Entry) bool { return e.Lost })
}

// decode returns the entries of an item. If some events of the item cannot be decoded, it returns the others and one entry with
// [Entry.Lost] set, so that readers continue after the gap and tell their clients about it. It returns [ErrLater] if a later release of
// the server wrote the item.
func (l *Log) decode(ctx context.Context, item store.Item) ([]Entry, error) {
	last, err := parseKey(item.Sort)
	if err != nil {
		l.recordBroken(ctx, item, err)
		return nil, nil
	}
	s, err := decodeSegment(item)
	if err == ErrLater {
		if l.countBroken(item) {
			l.logger().ErrorContext(ctx, "log item of later release", "partition", item.Partition, "key", item.Sort)
		}
		return nil, err
	}
	if err != nil {
		l.recordBroken(ctx, item, err)
		return salvage(item, last), nil
	}
	first, step := keysOf(item, last, s.len())
	entries := make([]Entry, 0, s.len())
	for i := range s.Events {
		entries = append(entries, eventEntry(first+step*int64(i), &s.Events[i]))
	}
	for i, n := range s.Notices {
		entries = append(entries, Entry{Key: first + step*int64(i), NoticeID: n.ID, Notice: n.Body})
	}
	return entries, nil
}

// keysOf returns the key of the first of an item's n entries, and the distance from each key to the next. The parameter last is the key
// of the last entry. In a partition with several writers, all entries of an item have the same key (the distance is 0). So the keys of
// two items do not interleave, which readers rely on because they read one item after the other.
func keysOf(item store.Item, last int64, n int) (first, step int64) {
	if len(item.Sort) > stampSize {
		return last, 0
	}
	return last - int64(n) + 1, 1
}

func lostEntry(item store.Item, key int64) Entry {
	return Entry{Key: key, Lost: true, id: "lost#" + item.Partition + "#" + item.Sort}
}

// salvage returns the events of a broken segment that can be decoded, and one entry with [Entry.Lost] for the others.
func salvage(item store.Item, last int64) (entries []Entry) {
	lost := lostEntry(item, last)
	var s struct {
		V      int               `json:"v"`
		Events []json.RawMessage `json:"e"`
	}
	if json.Unmarshal(item.Value, &s) != nil || s.V != segmentVersion || len(s.Events) == 0 {
		return []Entry{lost}
	}
	first, step := keysOf(item, last, len(s.Events))
	added := false
	for i, raw := range s.Events {
		var e event.Event
		if json.Unmarshal(raw, &e) == nil {
			entries = append(entries, eventEntry(first+step*int64(i), &e))
		} else if !added {
			lost.Key, added = first+step*int64(i), true
			entries = append(entries, lost)
		}
	}
	return entries
}

// erasedID replaces the id of an erased event.
const erasedID = "erased"

// Erase replaces the selected events of the partition p by entries with [Entry.Lost], so that the keys of the other events stay the same.
// Readers that have not read the events yet learn that something is missing. Erase skips items that cannot be decoded.
//
// Before it writes an item, Erase calls visit with the item's selected events, and stops if visit fails. In a dry run, Erase only calls
// visit.
func (l *Log) Erase(ctx context.Context, p Partition, dry bool, selected func(*event.Event) bool, visit func([]event.Event) error) error {
	return store.Each(ctx, l.DB, store.Key{Table: store.Log, Partition: p.name}, "read the log", func(item *store.Item) error {
		for visited := false; item != nil; visited = true {
			s, err := decodeSegment(*item)
			if err != nil {
				return nil
			}
			found := s.erase(selected)
			if len(found) == 0 {
				return nil
			}
			if !visited {
				if err := visit(found); err != nil || dry {
					return err
				}
			}
			if item.Value, err = s.encode(); err != nil {
				return err
			}
			if err = l.appender().replace(ctx, *item, found); !errors.Is(err, store.ErrConflict) {
				return fault.Wrap(fault.Unavailable, err, "erase events")
			}
			// A concurrent erasure has changed the item, or the item has expired.
			if item, err = l.readAgain(ctx, item.Key); err != nil {
				return err
			}
		}
		return nil
	})
}

// readAgain returns the item with the given key, or nil if it no longer exists. It uses a query, because the function admin, which erases
// events on AWS, may read the log only with queries.
func (l *Log) readAgain(ctx context.Context, key store.Key) (*store.Item, error) {
	page, err := l.DB.Query(ctx, store.Query{Table: key.Table, Partition: key.Partition, Until: key.Sort, Reverse: true, Limit: 1})
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the log")
	}
	if len(page.Items) == 0 || page.Items[0].Sort != key.Sort {
		return nil, nil
	}
	return &page.Items[0], nil
}

// erase replaces the selected events of the segment by placeholders without a payload, and returns these events. Readers get an entry
// with [Entry.Lost] for a placeholder.
func (s *segment) erase(selected func(*event.Event) bool) (found []event.Event) {
	for i := range s.Events {
		if e := &s.Events[i]; !e.Gap && selected(e) {
			found = append(found, *e)
			*e = event.Event{Workspace: e.Workspace, ID: erasedID, URI: e.URI, Name: e.Name, Time: e.Published, Published: e.Published, Gap: true}
		}
	}
	return found
}

// putChanged returns the write that stores an item whose value the caller has changed after reading the item. The write fails with
// [store.ErrConflict] if the stored item has changed since the caller read it.
func putChanged(item store.Item) store.Op {
	read := item.Version
	item.Version++
	return store.Put(item, store.VersionIs(read))
}

// recordBroken counts and logs an item that cannot be decoded, and stores a record of it for [Log.VisitBroken]. It does so once per
// process and item. The item itself stays in the log.
func (l *Log) recordBroken(ctx context.Context, item store.Item, reason error) {
	if !l.countBroken(item) {
		return
	}
	l.logger().ErrorContext(ctx, "log item skipped", "partition", item.Partition, "key", item.Sort, "error", reason)
	value, _ := json.Marshal(brokenItem{segmentVersion, item.Partition, item.Sort}) // strings always encode
	hash := sha256.Sum256([]byte(item.Partition + "\x00" + item.Sort))
	record := store.Item{
		Key:   store.Key{Table: store.Log, Partition: brokenItems, Sort: hex.EncodeToString(hash[:])},
		Value: value, Expires: l.KeptUntil().Add(time.Hour),
	}
	if err := l.DB.Write(ctx, store.Put(record, store.Absent())); err != nil && !errors.Is(err, store.ErrConflict) {
		l.logger().WarnContext(ctx, "skipped log item not recorded", "error", err)
	}
}

type brokenItem struct {
	V         int    `json:"v"`
	Partition string `json:"p"`
	Sort      string `json:"s"`
}

const brokenItems = "x#"

// VisitBroken calls visit with each item that readers could not decode, unless visit has already succeeded for the item in an earlier
// call. If visit fails, VisitBroken stops and returns the error. It keeps its records of visited items for as long as readers may find
// the items, so that readers do not record them again.
func (l *Log) VisitBroken(ctx context.Context, visit func(*store.Item) error) error {
	partition := store.Key{Table: store.Log, Partition: brokenItems}
	return store.Each(ctx, l.DB, partition, "list undecodable items of the log", func(record *store.Item) error {
		var b brokenItem
		if record.Version != 0 || json.Unmarshal(record.Value, &b) != nil {
			return nil
		}
		item, err := store.One(ctx, l.DB, store.Key{Table: store.Log, Partition: b.Partition, Sort: b.Sort}, "read an undecodable item of the log")
		if err != nil {
			return err
		}
		if item != nil {
			if err := visit(item); err != nil {
				return err
			}
		}
		record.Version = 1
		return fault.Wrap(fault.Unavailable, l.DB.Write(ctx, store.Put(*record)), "note that an item of the log was dead-lettered")
	})
}

// countBroken counts an item that cannot be decoded, and returns false if this process has counted the item before.
func (l *Log) countBroken(item store.Item) bool {
	if _, known := l.broken.Get(item.Key); known {
		return false
	}
	l.broken.Put(item.Key, true)
	l.Broken.Add(1)
	return true
}

// Appended is the result of [Log.Append].
type Appended struct {
	// Unrecorded tells the caller to call [Log.RecordChild], because these may be the first events of the URI on this day (see dayOf).
	Unrecorded bool
	// After is a position in the log before all appended events.
	After int64

	stamps map[string]int64 // the events' keys in their own partition, by event id; not valid if the store stamps keys
}

// logEnd describes the end of a log partition before a batch of events is appended, and which events of the batch the partition already
// has.
type logEnd struct {
	key      int64         // the key of the partition's last entry, or the time of this process's last append; 0 if it is empty
	position int64         // a position before all events of the batch
	written  []event.Event // the events of the batch that the last segment contains or names in Before
	fresh    []event.Event // the events of the batch that are still to be written
}

// appendTo appends events of a URI to the partition p. It skips the events that the partition's last segment already has.
func (l *Log) appendTo(ctx context.Context, p Partition, workspace, uri string, events []event.Event) (Appended, error) {
	end, err := l.readEnd(ctx, p, uri, events)
	if err != nil {
		return Appended{}, err
	}
	return l.appendAfter(ctx, p, workspace, uri, end)
}

// readEnd reads the last segment of the partition p, and finds out which events of a batch this segment already has.
func (l *Log) readEnd(ctx context.Context, p Partition, uri string, events []event.Event) (end logEnd, err error) {
	last, err := l.DB.Query(ctx, store.Query{Table: store.Log, Partition: p.name, Reverse: true, Limit: 1})
	if err != nil {
		return end, fault.Wrap(fault.Unavailable, err, "read the end of the log of %s", uri)
	}
	end.position, end.fresh = l.Position(), events
	if len(last.Items) == 0 {
		return end, nil
	}
	if end.key, err = parseKey(last.Items[0].Sort); err != nil {
		return end, err
	}
	s, err := decodeSegment(last.Items[0])
	if err != nil && err != ErrLater {
		l.recordBroken(ctx, last.Items[0], err)
	}
	repeatable := l.isRepeatable(end.key)
	end.fresh = slices.DeleteFunc(slices.Clone(events), func(e event.Event) bool {
		found := repeatable && s.has(&e, end.key)
		if found {
			end.written = append(end.written, e)
		}
		return found
	})
	if len(end.written) > 0 { // the earlier segments of the batch are up to a minute older than its last one
		end.position = min(end.position, end.key-time.Minute.Microseconds())
	}
	return end, nil
}

// isRepeatable reports whether the log may skip the events of a redelivered batch that the partition's last segment already has. The
// parameter end is the key of that segment.
//
// If writers choose the keys, the segment must be recent. An older segment may have been committed so late that readers had already
// passed its key, and its writer may have died before it could write the segment again with a new key.
func (l *Log) isRepeatable(end int64) bool {
	return l.TotalOrder() || l.Time().UnixMicro()-end <= SlowAppend.Microseconds()
}

// appendAfter appends the events in end.fresh to p, the partition of the URI. In the same commits, it appends them to the partitions in
// the parameter copies.
//
// A large batch becomes several log items, which are called segments. Each segment also has the ids of the batch's events in earlier
// segments. So the last segment shows which events of an interrupted batch are already written.
func (l *Log) appendAfter(ctx context.Context, p Partition, workspace, uri string, end logEnd, copies ...Partition) (done Appended, err error) {
	done.After, done.stamps = end.position, map[string]int64{}
	written := end.written
	again := len(written) > 0   // the first attempt was interrupted, perhaps before the URI was recorded
	for i, e := range written { // the keys of events in earlier segments are unknown, but consecutive keys have the same order
		done.stamps[e.ID] = end.key - int64(len(written)-1-i)
	}
	const timeSize = 17 // bytes of a publication time in BeforeAt: 16 digits (until the year 2286) and a comma
	room := maxSegment
	for _, list := range [][]event.Event{written, end.fresh} {
		for _, e := range list {
			room -= len(e.ID) + 3 + timeSize
		}
	}
	done.Unrecorded = dayOf(uri, end.key) != dayOf(uri, l.Time().UnixMicro())
	most := store.MaxTransaction - 1 - len(copies)
	var parents []store.Op
	if done.Unrecorded && l.TotalOrder() {
		// Record the URI as a sub-resource of its parents in the commit of the segment. A separate commit would delay the URI's next
		// events.
		if parents = l.parentOps(workspace, uri); len(parents) < most {
			done.Unrecorded = false
			most -= len(parents)
		} else {
			parents = nil
		}
	}
	floor := end.key
	for _, part := range pack(end.fresh, room, most) {
		s := segment{V: segmentVersion, Events: part, extra: parents}
		parents = nil
		for _, e := range written {
			s.Before, s.BeforeAt = append(s.Before, e.ID), append(s.BeforeAt, e.Published.UnixMicro())
		}
		if floor, err = l.appender().putSegment(ctx, p, s, floor, copies...); err != nil {
			return done, fault.Wrap(fault.Unavailable, err, "append to the log of %s", uri)
		}
		for i, e := range part {
			done.stamps[e.ID] = floor - int64(len(part)-1-i)
		}
		written = append(written, part...)
	}
	done.Unrecorded = done.Unrecorded || again
	return done, nil
}

// dayOf returns the number of the day to which a stamp (an entry's time) belongs. The day begins at a different time for each URI, which
// depends on the URI's hash. Otherwise all URIs below a parent would be recorded in the parent's partition at midnight.
func dayOf(uri string, stamp int64) int64 {
	const day = 24 * time.Hour
	h := fnv.New32a()
	h.Write([]byte(uri))
	begins := time.Duration(h.Sum32()) * time.Second % day
	return (stamp + begins.Microseconds()) / day.Microseconds()
}

// newItem returns the item that stores a segment in the partition p. The caller must still set the item's sort key and expiry. The result
// life is how long the log keeps the item.
func (l *Log) newItem(p Partition, s segment) (item store.Item, life time.Duration, err error) {
	value, err := s.encode()
	if life = l.MinRetention() + time.Hour; s.life > 0 {
		life = min(life, s.life)
	}
	return store.Item{Key: store.Key{Table: store.Log, Partition: p.name}, Value: value, Version: int64(s.len())}, life, err
}

// Notify appends a notice of the system to the partition of a topic, for example a notice that a list has changed.
func (l *Log) Notify(ctx context.Context, workspace, topic string, notice json.RawMessage) error {
	return l.NotifyAs(ctx, workspace, topic, nonce(), notice)
}

// NotifyAs does the same as [Log.Notify] for a notice with the given id. If several notices with the same id arrive within a few seconds,
// readers get only one of them.
func (l *Log) NotifyAs(ctx context.Context, workspace, topic, id string, notice json.RawMessage) error {
	return l.notify(ctx, workspace, topic, id, notice, 0)
}

// NotifyFor does the same as [Log.Notify], but the log keeps the notice only for the duration life, which is at most the retention.
func (l *Log) NotifyFor(ctx context.Context, workspace, topic string, life time.Duration, notice json.RawMessage) error {
	return l.notify(ctx, workspace, topic, nonce(), notice, life)
}

func (l *Log) notify(ctx context.Context, workspace, topic, id string, notice json.RawMessage, life time.Duration) error {
	s := segment{V: segmentVersion, Notices: []noticeEnvelope{{ID: id, Body: notice}}, life: life}
	if _, err := l.appender().putSegment(ctx, TopicPartition(workspace, topic), s, 0); err != nil {
		return fault.Wrap(fault.Unavailable, err, "notify topic %s", topic)
	}
	return nil
}

func nonce() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read never fails (Go 1.24)
	return hex.EncodeToString(b[:])
}

// batches has the batches of events that this process's fanout is handling, and whose events the log may not have yet.
type batches struct {
	mu      sync.Mutex
	running map[chan struct{}]bool
}

// BeginBatch announces a batch of events, so that [Log.AwaitBatches] waits for it. The caller calls end when the log has the events.
func (l *Log) BeginBatch() (end func()) {
	done := make(chan struct{})
	l.batches.mu.Lock()
	defer l.batches.mu.Unlock()
	if l.batches.running == nil {
		l.batches.running = map[chan struct{}]bool{}
	}
	l.batches.running[done] = true
	return func() {
		l.batches.mu.Lock()
		defer l.batches.mu.Unlock()
		delete(l.batches.running, done)
		close(done)
	}
}

// AwaitBatches waits until the log has the events of all batches that [Log.BeginBatch] announced. Fanout may already have looked for the
// subscribers and readers of such a batch, and thus may have missed a new one. So a new subscriber or reader calls AwaitBatches before it
// reads the log or asks for the log's end.
func (l *Log) AwaitBatches(ctx context.Context) error {
	l.batches.mu.Lock()
	var running []chan struct{}
	for done := range l.batches.running {
		running = append(running, done)
	}
	l.batches.mu.Unlock()
	for _, done := range running {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
