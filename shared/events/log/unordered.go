package eventlog

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Of returns the partitions that hold the events of one URI. That is its own partition. An unordered event type has as
// many as a pattern, with several writers, which are written without interest. The own partition stays among them, for
// events from before the type gave up its order. An ordered store always has one writer.
func (l *Log) Of(workspace, uri string, unordered bool) []Partition {
	own := Own(workspace, uri)
	if !unordered || l.DB.Ordered() {
		return []Partition{own}
	}
	own.single = false
	return append(Pattern(workspace, uri), own)
}

// AppendUnordered is [Log.Append] for a URI of an unordered event type, which may have several writers. The id of an
// event chooses its shard, for the URI and for the pattern keys, so that neither is written to one partition alone.
func (l *Log) AppendUnordered(ctx context.Context, workspace, uri string, events []event.Event, keys []string) (done Appended, err error) {
	if l.DB.Ordered() {
		return l.appendAbsent(ctx, workspace, uri, events, keys)
	}
	shards := map[int][]event.Event{}
	for _, e := range events {
		shards[shardOf(e.ID)] = append(shards[shardOf(e.ID)], e)
	}
	done.After = l.Position()
	var mu sync.Mutex
	write, ctx := errgroup.WithContext(ctx)
	for i, part := range shards {
		write.Go(func() (err error) {
			defer fault.Recovered(&err)
			own, err := l.appendTo(ctx, shard(workspace, uri, i), uri, part)
			if err != nil {
				return err
			}
			mu.Lock()
			done.First, done.After = done.First || own.First, min(done.After, own.After)
			mu.Unlock()
			return l.putPatterns(ctx, i, part, nil, keys)
		})
	}
	return done, write.Wait()
}

// appendAbsent is [Log.Append] for a URI with several writers to an ordered store. If a batch comes again, another writer
// may have appended since, so the last segment does not tell which of its events are written. Their ids do.
func (l *Log) appendAbsent(ctx context.Context, workspace, uri string, events []event.Event, keys []string) (done Appended, err error) {
	position := l.Position()
	absent := make([]event.Event, 0, len(events))
	for i := range events {
		written, err := l.has(ctx, &events[i])
		if err != nil {
			return done, err
		}
		if !written {
			absent = append(absent, events[i])
		}
	}
	if len(absent) > 0 {
		done, err = l.Append(ctx, workspace, uri, absent, keys)
	} else {
		done.After = position
	}
	if len(absent) < len(events) {
		done.First, done.After = true, min(done.After, position-time.Minute.Microseconds())
	}
	return done, err
}

// AppendPatterns appends events of one URI to the partitions of the pattern keys. done is the result of appending them
// to their own partition, or empty. It is for a store that is not ordered.
//
// The own partition has one writer at a time, and its keys grow. The copies get the same keys, so that a pattern has the
// events of a URI in the same order, even if the clocks of two writers differ.
//
// The events that go to the same partition share a segment, and the partitions are written concurrently. So a batch of many
// events takes hardly longer than a single event. Otherwise, when the store is slow, a batch could take longer than its
// function may run, and as each attempt starts from the beginning, the URI would never get past it.
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
		stamps := done.keys
		if unordered || len(stamps) != len(part) {
			stamps = nil
		}
		write.Go(func() (err error) {
			defer fault.Recovered(&err)
			return l.putPatterns(ctx, i, part, stamps, keys)
		})
	}
	return write.Wait()
}

// maxPatterns is how many pattern keys putPatterns writes concurrently.
const maxPatterns = 8

// putPatterns appends events to one shard of each pattern key. stamps are the keys of the events in their own partition,
// or nil.
func (l *Log) putPatterns(ctx context.Context, i int, part []event.Event, stamps []int64, keys []string) error {
	write, ctx := errgroup.WithContext(ctx)
	write.SetLimit(maxPatterns)
	for _, key := range keys {
		write.Go(func() (err error) {
			defer fault.Recovered(&err)
			written := 0
			for _, events := range pack(part, maxSegment, store.MaxTransaction) {
				s := segment{V: segmentVersion, Events: events}
				if written += len(events); stamps != nil {
					s.stamp = stamps[written-1]
				}
				if _, err := l.put(ctx, shard(part[0].Workspace, key, i), s, 0); err != nil {
					return fault.Wrap(fault.Unavailable, err, "append to the log of %s", key)
				}
			}
			return nil
		})
	}
	return write.Wait()
}
