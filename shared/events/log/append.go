package eventlog

import (
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Appended is the result of [Log.Append].
type Appended struct {
	// First reports that these may be the first events of the URI on its day, which begins at the same time each day
	// (see dayOf).
	First bool
	// After is a position before all these events.
	After int64

	keys []int64 // of the events in the own partition, if writers stamp and the URI has one writer
}

// Append appends events of one URI, in order, to its own partition and to the partitions of the pattern keys. The
// caller is the only writer of the URI. A batch that was cut off comes again: the events that it wrote a moment ago
// are not written to the own partition again.
//
// An ordered store writes the copies of an event in one commit with one stamp. So a reader of several of these
// partitions has read either all copies or none, at any position.
func (l *Log) Append(ctx context.Context, workspace, uri string, events []event.Event, keys []string) (done Appended, err error) {
	if done, err = l.appendTo(ctx, Own(workspace, uri), uri, events, l.copies(workspace, uri, keys)...); err != nil || l.DB.Ordered() {
		return done, err
	}
	return done, l.AppendPatterns(ctx, done, events, keys, false)
}

// appendTo appends the events to a partition of the URI, except those that its last segment already names.
func (l *Log) appendTo(ctx context.Context, p Partition, uri string, events []event.Event, copies ...Partition) (done Appended, err error) {
	last, err := l.DB.Query(ctx, store.Query{Table: store.Log, Partition: p.name, Reverse: true, Limit: 1})
	if err != nil {
		return done, fault.Wrap(fault.Unavailable, err, "read the end of the log of %s", uri)
	}
	done.After = l.Position()
	fresh := events
	var floor, before int64
	var written []event.Event // of the batch
	stamps := map[string]int64{}
	if len(last.Items) == 1 {
		end, err := parseKey(last.Items[0].Sort)
		if err != nil {
			return done, err
		}
		s, err := decodeSegment(last.Items[0])
		if err != nil && err != ErrLater {
			l.pass(ctx, last.Items[0], err)
		}
		floor, before = end, end
		// The writer of the segment may have died during a slow append, before it could repeat it. Then a reader
		// may be past the segment. Only of a young segment it is sure that no reader is.
		young := l.DB.Ordered() || l.Time().UnixMicro()-end <= SlowAppend.Microseconds()
		fresh = slices.DeleteFunc(slices.Clone(events), func(e event.Event) bool {
			found := young && s.has(&e, end)
			if found {
				written = append(written, e)
			}
			return found
		})
		for i, e := range written { // of an earlier segment this is not the exact key, but it is in the same order
			stamps[e.ID] = end - int64(len(written)-1-i)
		}
		if len(written) > 0 { // the earlier segments of the batch are shortly before this one
			done.After = min(done.After, end-time.Minute.Microseconds())
		}
	}
	again := len(written) > 0 // it is not known how far the batch came before
	const timeSize = 17       // of a publication time in a list, until the year 2286
	room := maxSegment
	for _, e := range events {
		room -= len(e.ID) + 3 + timeSize
	}
	for _, part := range pack(fresh, room, store.MaxTransaction-1-len(copies)) {
		s := segment{V: segmentVersion, Events: part}
		for _, e := range written {
			s.Before, s.BeforeAt = append(s.Before, e.ID), append(s.BeforeAt, e.Published.UnixMicro())
		}
		if floor, err = l.put(ctx, p, s, floor, copies...); err != nil {
			return done, fault.Wrap(fault.Unavailable, err, "append to the log of %s", uri)
		}
		for i, e := range part {
			stamps[e.ID] = floor - int64(len(part)-1-i)
		}
		written = append(written, part...)
	}
	if !l.DB.Ordered() {
		for _, e := range events {
			done.keys = append(done.keys, stamps[e.ID])
		}
	}
	done.First = again || dayOf(uri, before) != dayOf(uri, l.Time().UnixMicro())
	return done, nil
}

// copies returns the pattern partitions that are written in the same commit as the own partition of the URI. No URI
// has more patterns in use than a transaction has room for.
func (l *Log) copies(workspace, uri string, keys []string) (parts []Partition) {
	if !l.DB.Ordered() {
		return nil
	}
	for _, key := range keys[:min(len(keys), store.MaxTransaction-2)] {
		parts = append(parts, shard(workspace, key, shardOf(uri)))
	}
	return parts
}

// dayOf returns the number of the URI's day to which a stamp belongs. The URI's hash chooses when its day begins. Otherwise,
// all sub-resources of a parent would be recorded in the parent's partition within seconds after midnight.
func dayOf(uri string, stamp int64) int64 {
	const day = 24 * time.Hour
	h := fnv.New32a()
	h.Write([]byte(uri))
	begins := time.Duration(h.Sum32()) * time.Second % day
	return (stamp + begins.Microseconds()) / day.Microseconds()
}

// put writes one segment and returns the key of its last entry, or 0 when the store stamps. A slow append is written
// again with a new key, because a reader may be past the first one. An ordered store also writes the segment to the
// partitions in copies, with the same stamp.
func (l *Log) put(ctx context.Context, p Partition, s segment, floor int64, copies ...Partition) (int64, error) {
	value, err := s.encode()
	if err != nil {
		return 0, err
	}
	life := l.Reaches() + time.Hour
	if s.life > 0 {
		life = min(life, s.life)
	}
	for {
		started := time.Now() // monotonic, unlike the stamp's clock
		stamp := max(l.Time().UnixMicro(), floor) + int64(s.len())
		if floor == 0 && l.mayUse(s.stamp) {
			stamp = s.stamp
		}
		item := store.Item{
			Key:     store.Key{Table: store.Log, Partition: p.name, Sort: sortKey(stamp)},
			Value:   value,
			Version: int64(s.len()),
			Expires: time.UnixMicro(stamp).Add(life),
		}
		if l.DB.Ordered() {
			return 0, l.DB.Write(ctx, underIDs(stamped(item, s.len(), copies), s.Events)...)
		}
		if !p.single {
			item.Sort += "-" + nonce()
		}
		err := l.DB.Write(ctx, store.Put(item, store.Absent()))
		if errors.Is(err, store.ErrConflict) && p.single {
			floor = stamp // an earlier writer used the key
			continue
		}
		if err != nil {
			return 0, err
		}
		if time.Since(started) <= SlowAppend && (stamp != s.stamp || l.mayUse(stamp)) {
			return stamp, nil
		}
		l.Slow.Add(1)
		floor = stamp
	}
}

// mayUse reports whether an append may still be committed with a stamp of another append. An old stamp may be behind a
// reader already. Readers read entries with a stamp far in the future again and again.
func (l *Log) mayUse(stamp int64) bool {
	age := l.Time().UnixMicro() - stamp
	return age <= SlowAppend.Microseconds() && age >= -2*MaxSkew.Microseconds()
}

// stamped returns the writes of an item and its copies for an ordered store, which stamps them.
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
