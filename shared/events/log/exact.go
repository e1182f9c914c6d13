package eventlog

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// exact is the log on a store that chooses the keys itself, in the order of commits, such as SQLite. A reader that has seen a key has
// seen every smaller key. So the newest key in the store is a valid position in every partition, even after the clock was set back.
//
// The store writes an event, its copies in pattern partitions and an index item for its id in one commit, with the same key. So readers
// find an event at the same position in all of these partitions.
type exact struct{ log *Log }

// append writes each segment (the events of one log item) and its copies for the matching parents and wildcards in one transaction. A
// transaction has room for the segment, an index item and 98 copies. append ignores further patterns, which only a URI with more than 36
// parts between slashes can have. A URI with 36 parts has 35 parents, and up to 2^6-1 = 63 wildcards, because it has at most six
// variables.
func (x exact) append(ctx context.Context, workspace, uri string, events []event.Event, patterns []string) (Appended, error) {
	end, err := x.log.readEnd(ctx, OwnPartition(workspace, uri), uri, events)
	if err != nil {
		return Appended{}, err
	}
	return x.appendAfter(ctx, workspace, uri, end, patterns)
}

func (x exact) appendAfter(ctx context.Context, workspace, uri string, end logEnd, patterns []string) (Appended, error) {
	var copies []Partition
	for _, key := range patterns[:min(len(patterns), store.MaxTransaction-2)] {
		copies = append(copies, shardPartition(workspace, key, shardOf(uri)))
	}
	p := OwnPartition(workspace, uri)
	done, err := x.log.appendAfter(ctx, p, workspace, uri, end, copies...)
	if err == nil {
		x.log.appended.Put(p.name, x.log.Time().UnixMicro())
	}
	return done, err
}

// appendUnordered looks up the id of each event before it appends the event, so that a redelivered batch is not appended twice.
// [exact.append] only compares a batch with the partition's last segment. This is not enough for an unordered event type, because another
// writer may have written the last segment.
func (x exact) appendUnordered(ctx context.Context, workspace, uri string, events []event.Event, patterns []string) (done Appended, err error) {
	position := x.log.Position()
	absent := make([]event.Event, 0, len(events))
	for i := range events {
		written, err := x.has(ctx, &events[i])
		if err != nil {
			return done, err
		}
		if !written {
			absent = append(absent, events[i])
		}
	}
	if len(absent) > 0 {
		done, err = x.append(ctx, workspace, uri, absent, patterns)
	} else {
		done.After = position
	}
	if len(absent) < len(events) {
		done.Unrecorded, done.After = true, min(done.After, position-time.Minute.Microseconds())
	}
	return done, err
}

// putSegment writes a segment and its copies in one commit. It returns 0 instead of the segment's key, because the store chooses the key
// at the commit.
//
// The store's keys never go back, so after the clock was set back, a new key is ahead of the clock. The segment then expires later by
// this difference, because otherwise it would expire too early once the clock is corrected. The difference is limited to one retention,
// because the keys may be far ahead, for example if the clock was once a year ahead.
func (x exact) putSegment(ctx context.Context, p Partition, s segment, _ int64, copies ...Partition) (int64, error) {
	item, life, err := x.log.newItem(p, s)
	if err != nil {
		return 0, err
	}
	now := x.log.Time()
	item.Sort, item.Expires = store.AtCommit, now.Add(life)
	if ahead := time.UnixMicro(x.log.DB.End()).Sub(now); ahead > 0 && s.life == 0 {
		item.Expires = item.Expires.Add(min(ahead, x.log.MinRetention()))
	}
	op := store.Put(item)
	op.Span = s.len()
	ops := []store.Op{op}
	for _, p := range copies {
		op.Item.Partition, op.Span = p.name, store.SameStamp
		ops = append(ops, op)
	}
	return 0, x.log.DB.Write(ctx, append(addIDItems(ops, s.Events), s.extra...)...)
}

func (x exact) replace(ctx context.Context, item store.Item, erased []event.Event) error {
	var ids []store.Op
	for _, e := range erased {
		ids = append(ids, store.Delete(store.Key{Table: store.Log, Partition: idPartition(e.Workspace, e.ID), Sort: item.Sort}))
	}
	if err := x.log.DB.WriteAll(ctx, ids...); err != nil {
		return err
	}
	return x.log.DB.Write(ctx, putChanged(item))
}

// idPartition returns the partition of the index items for an event id, with which [exact.visitID] finds the event's segment (log item).
// An index item has the segment's sort key. Its value is the event's URI, which identifies the segment's partition.
func idPartition(workspace, id string) string { return "id#" + workspace + "#" + id }

// addIDItems appends the operations that write the events' index items (see idPartition) to ops. The first operation must write the
// events' segment, because the index items get the same key from the store.
func addIDItems(ops []store.Op, events []event.Event) []store.Op {
	op := ops[0]
	op.Span, op.Item.Version = store.SameStamp, 0
	seen := make(map[string]bool, len(events))
	for i := range events {
		e := &events[i]
		if seen[e.ID] {
			continue
		}
		seen[e.ID] = true
		op.Item.Partition, op.Item.Value = idPartition(e.Workspace, e.ID), []byte(e.URI)
		ops = append(ops, op)
	}
	return ops
}

// maxSameID limits how many events with the same id are checked when an event is looked up by its id. The newest ones are checked.
const maxSameID = 100

// visitID calls visit with the segments that have an event with the given id and whose keys are greater than the parameter since. It
// begins with the newest segment, and stops when visit returns true. It calls visit with nil for a segment that has just expired. If uri
// is not empty, it skips segments of other URIs.
func (x exact) visitID(ctx context.Context, workspace, id, uri string, since int64, visit func(segment *store.Item) (done bool)) error {
	page, err := x.log.DB.Query(ctx, store.Query{
		Table: store.Log, Partition: idPartition(workspace, id), After: sortKey(max(since, 0)), Reverse: true, Limit: maxSameID,
	})
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "look up an event")
	}
	for _, it := range page.Items {
		if uri != "" && string(it.Value) != uri {
			continue
		}
		key := store.Key{Table: store.Log, Partition: OwnPartition(workspace, string(it.Value)).name, Sort: it.Sort}
		segment, err := store.One(ctx, x.log.DB, key, "read an event")
		if err != nil || visit(segment) {
			return err
		}
	}
	return nil
}

// has reports whether the log has an event. If the log has no entry since the event was published, has returns false without reading the
// store.
func (x exact) has(ctx context.Context, e *event.Event) (found bool, err error) {
	since := e.Published.Add(-2 * MaxSkew).UnixMicro()
	if since > x.log.DB.End() {
		return false, nil
	}
	err = x.visitID(ctx, e.Workspace, e.ID, e.URI, since, func(segment *store.Item) bool {
		found = segment != nil && slices.ContainsFunc(x.log.events(ctx, *segment), func(had Entry) bool {
			return had.Event != nil && had.Event.ID == e.ID && had.Event.Published.UnixMicro() == e.Published.UnixMicro()
		})
		return found
	})
	return found, err
}

// stamped is the log on a store that does not order commits, such as DynamoDB. Writers choose the keys by their own clocks. The own
// partition of a URI has one writer at a time, so its keys grow. In other partitions, a smaller key may be committed after a larger one,
// so readers read the last few seconds again ([Log.LookBack]).
type stamped struct{ log *Log }

func (s stamped) append(ctx context.Context, workspace, uri string, events []event.Event, patterns []string) (Appended, error) {
	done, err := s.log.appendTo(ctx, OwnPartition(workspace, uri), workspace, uri, events)
	if err != nil {
		return done, err
	}
	return done, s.log.AppendPatterns(ctx, done, events, patterns, false)
}

// appendUnordered chooses a shard (one of [Shards] partitions) for each event by the event's id. So the events of one URI, and their
// copies for the patterns, are spread over several partitions.
func (s stamped) appendUnordered(ctx context.Context, workspace, uri string, events []event.Event, patterns []string) (done Appended, err error) {
	shards := map[int][]event.Event{}
	for _, e := range events {
		shards[shardOf(e.ID)] = append(shards[shardOf(e.ID)], e)
	}
	done.After = s.log.Position()
	var mu sync.Mutex
	write, ctx := errgroup.WithContext(ctx)
	for i, part := range shards {
		write.Go(func() (err error) {
			defer fault.Recovered(&err)
			own, err := s.log.appendTo(ctx, shardPartition(workspace, uri, i), workspace, uri, part)
			if err != nil {
				return err
			}
			mu.Lock()
			done.Unrecorded, done.After = done.Unrecorded || own.Unrecorded, min(done.After, own.After)
			mu.Unlock()
			return s.log.putPatterns(ctx, i, part, nil, patterns)
		})
	}
	return done, write.Wait()
}

// putSegment writes a segment. If the write took longer than [SlowAppend], it writes the segment again with a new key, because a reader
// may have read past the first key before the commit.
func (s stamped) putSegment(ctx context.Context, p Partition, seg segment, floor int64, _ ...Partition) (int64, error) {
	item, life, err := s.log.newItem(p, seg)
	if err != nil {
		return 0, err
	}
	for {
		started := time.Now() // measures the write with the monotonic clock, because the clock of s.log may jump
		stamp := max(s.log.Time().UnixMicro(), floor) + int64(seg.len())
		if floor == 0 && s.mayUse(seg.stamp) {
			stamp = seg.stamp
		}
		item.Sort, item.Expires = sortKey(stamp), time.UnixMicro(stamp).Add(life)
		if !p.single {
			item.Sort += "-" + nonce()
		}
		err := s.log.DB.Write(ctx, store.Put(item, store.Absent()))
		if errors.Is(err, store.ErrConflict) && p.single {
			floor = stamp // an earlier writer used the key, so choose a later one
			continue
		}
		if err != nil {
			return 0, err
		}
		if time.Since(started) <= SlowAppend && (stamp != seg.stamp || s.mayUse(stamp)) {
			return stamp, nil
		}
		s.log.Slow.Add(1)
		floor = stamp
	}
}

func (s stamped) replace(ctx context.Context, item store.Item, _ []event.Event) error {
	return s.log.DB.Write(ctx, putChanged(item))
}

// mayUse reports whether the copy of an event in a pattern partition may get the same key (stamp) as the event. The stamp must not be
// old, because a reader may already have read past it. It must not be far in the future, because readers would read the copy again and
// again.
func (s stamped) mayUse(stamp int64) bool {
	age := s.log.Time().UnixMicro() - stamp
	return age <= SlowAppend.Microseconds() && age >= -2*MaxSkew.Microseconds()
}

// AppendPatterns appends copies of the events of one URI to the partitions of the patterns with the given keys. It is only for logs whose
// writers choose the keys (see the package comment). In other logs, [Log.Append] has already written the copies.
//
// The parameter done is the result of appending the events to their own partition. The copies get the same keys as the events, so that a
// reader of a pattern gets the events of a URI in order even if two writers' clocks differ. If there are no such keys or they are
// unsuitable (see [stamped.mayUse]), the copies get keys from the clock. If unordered is true, an event's id chooses its shard (one of
// [Shards] partitions), and otherwise its URI.
//
// AppendPatterns writes to the partitions concurrently. Otherwise, on a slow store, a large batch could take longer than a Lambda
// function may run, and each retry would fail in the same way.
func (l *Log) AppendPatterns(ctx context.Context, done Appended, events []event.Event, keys []string, unordered bool) error {
	shards := map[int][]event.Event{}
	for _, e := range events {
		i := shardOf(e.URI)
		if unordered {
			i = shardOf(e.ID)
		}
		shards[i] = append(shards[i], e)
	}
	write, ctx := errgroup.WithContext(ctx)
	for i, part := range shards {
		write.Go(func() (err error) {
			defer fault.Recovered(&err)
			return l.putPatterns(ctx, i, part, done.stamps, keys)
		})
	}
	return write.Wait()
}

const maxPatterns = 8 // patterns that putPatterns writes concurrently

// putPatterns appends events to shard number i of each pattern. The parameter part has the events that belong to this shard. The
// parameter stamps has each event's key in the own partition of its URI, by event id. It is empty for an unordered event type.
func (l *Log) putPatterns(ctx context.Context, i int, part []event.Event, stamps map[string]int64, keys []string) error {
	write, ctx := errgroup.WithContext(ctx)
	write.SetLimit(maxPatterns)
	for _, key := range keys {
		write.Go(func() (err error) {
			defer fault.Recovered(&err)
			for _, events := range pack(part, maxSegment, store.MaxTransaction) {
				s := segment{V: segmentVersion, Events: events, stamp: stamps[events[len(events)-1].ID]}
				if _, err := l.appender().putSegment(ctx, shardPartition(part[0].Workspace, key, i), s, 0); err != nil {
					return fault.Wrap(fault.Unavailable, err, "append to the log of %s", key)
				}
			}
			return nil
		})
	}
	return write.Wait()
}
