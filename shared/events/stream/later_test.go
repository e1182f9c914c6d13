package stream_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestASegmentOfALaterReleaseHoldsUpItsOwnPartitionOnly: after a rollback, a partition has a segment that this release cannot
// read. A stream brings the events before it and the events of other partitions, and the client gets the rest when it resumes
// at the later release.
func TestASegmentOfALaterReleaseHoldsUpItsOwnPartitionOnly(t *testing.T) {
	patterns := own(2)
	stuck, other := patterns[0], patterns[1]
	for kind, newDB := range bothStores() {
		for _, past := range []bool{false, true} {
			bubble(t, fmt.Sprintf("EVX-26 %s, written before the stream begins: %v", kind, past), func(t *testing.T) {
				r := over(t, newDB(t))
				first := r.open(from("", patterns...))
				cursor := first.Cursor()
				if past {
					first.Close()
				}
				r.append([]event.Event{occurrence("before", stuck.Key)})
				readable := laterSegment(t, r, eventlog.OwnPartition("default", stuck.Key))
				r.append([]event.Event{occurrence("after", stuck.Key)})
				for i := range 3 {
					r.append([]event.Event{occurrence(fmt.Sprint("other-", i), other.Key)})
				}
				f := first
				if past {
					f = r.open(from(cursor, patterns...))
				}
				var got []string
				for range 4 {
					got = append(got, next(t, f, 30*time.Second))
				}
				slices.Sort(got)
				expect.List(t, "the events of the stream", got, []string{"before", "other-0", "other-1", "other-2"})
				page := r.poll(stream.PollRequest{Pattern: stuck, Cursor: cursor, Most: 10, Bytes: 1 << 20})
				expect.List(t, "the events of the poll", idsOf(page), []string{"before"})
				cursor = f.Cursor()
				f.Close()

				expect.OK(t, r.db.Write(t.Context(), store.Put(readable))) // as the later release reads it
				f = r.open(from(cursor, patterns...))
				defer f.Close()
				rest := map[string]bool{}
				for id := next(t, f, 30*time.Second); id != ""; id = next(t, f, 30*time.Second) {
					rest[id] = true
				}
				for _, id := range []string{"before", "later", "after"} {
					if !rest[id] && !slices.Contains(got, id) {
						t.Errorf("EVX-26 %s was skipped: first %v, then %v", id, got, rest)
					}
				}
			})
		}
	}
}

// A poll of a wildcard stops at a segment of a later release in one shard only. The client gets the rest of that shard when the
// later release answers its polls, or when it opens a stream there.
func TestASegmentOfALaterReleaseHoldsUpItsOwnShardOfAPolledWildcardOnly(t *testing.T) {
	for kind, newDB := range bothStores() {
		for _, most := range []int{1, 3, 500} {
			bubble(t, fmt.Sprintf("EVX-26 %s, pages of %d", kind, most), func(t *testing.T) {
				r := over(t, newDB(t))
				uris := uriPerShard()
				request := stream.PollRequest{Pattern: openPattern, Most: most, Bytes: 1 << 20}
				request.Cursor = r.poll(request).Cursor
				got := map[string]int{}
				pollAll := func() {
					t.Helper()
					for polls, quiet := 0, 0; quiet < 3; polls++ {
						expect.MustEqual(t, fmt.Sprintf("1000 polls reach the end; events: %v", got), polls <= 1000, true)
						page := r.poll(request)
						request.Cursor = page.Cursor
						for _, e := range page.Events {
							got[e.ID]++
						}
						if quiet++; len(page.Events) > 0 || page.More {
							quiet = 0
						}
						expect.MustEqual(t, "a poll is truncated", page.Truncated, false)
						if !page.More {
							time.Sleep(eventlog.Window)
						}
					}
				}
				var others, rest []string
				publish := func(rounds int) {
					for range rounds {
						for i, uri := range uris {
							e := occurrence(fmt.Sprint("e-", len(others)+len(rest)), uri)
							if i == 0 {
								rest = append(rest, e.ID)
							} else {
								others = append(others, e.ID)
							}
							r.append([]event.Event{e}, openPattern.Key)
						}
						time.Sleep(time.Millisecond)
					}
				}
				publish(1)
				before := rest
				readable := laterSegment(t, r, partitionOf(t, r, openPattern, before[0]))
				rest = []string{"later"}
				publish(2 * eventlog.MaxSent / len(uris)) // more than a cursor can name

				pollAll()
				missing := func(ids []string) (out []string) {
					for _, id := range ids {
						if got[id] == 0 || got[id] > 1 && r.db.Local() {
							out = append(out, fmt.Sprint(id, ": ", got[id], " times"))
						}
					}
					return out
				}
				if wrong := missing(append(before, others...)); wrong != nil || got["later"] > 0 {
					t.Fatalf("next to a segment of a later release, polls returned %v, want each once", wrong)
				}
				publish(3)
				expect.OK(t, r.db.Write(t.Context(), store.Put(readable))) // as the later release reads it

				f := r.open(from(request.Cursor, openPattern))
				defer f.Close()
				streamed := map[string]bool{}
				for id := next(t, f, 30*time.Second); id != ""; id = next(t, f, 30*time.Second) {
					streamed[id] = true
				}
				for _, id := range append(rest, others[len(others)-3*(len(uris)-1):]...) {
					if !streamed[id] {
						t.Errorf("EVX-26: a stream with the cursor of the poll skipped %s, which polls returned %d times before", id, got[id])
					}
				}
				pollAll()
				if wrong := missing(slices.Concat(before, rest, others)); wrong != nil {
					t.Errorf("EVX-26: after the upgrade, polls returned %v, want each once", wrong)
				}
			})
		}
	}
}

// laterSegment writes a segment with an event that this release cannot read to a partition. It returns the segment as the later
// release reads it.
func laterSegment(t *testing.T, r *rig, p eventlog.Partition) (readable store.Item) {
	t.Helper()
	newest := func(r *rig, p eventlog.Partition) store.Item {
		t.Helper()
		page := expect.Value(r.db.Query(t.Context(), store.Query{Table: store.Log, Partition: p.Name(), Reverse: true, Limit: 1}))(t)
		return page.Items[0]
	}
	elsewhere, own := over(t, embedded(t)), eventlog.OwnPartition("default", ownPattern.Key)
	elsewhere.append([]event.Event{occurrence("later", ownPattern.Key)})
	later := newest(elsewhere, own)
	later.Partition, later.Value, later.Sort = p.Name(), []byte(`{"v":2}`), store.AtCommit
	if !r.db.Local() {
		later.Sort = fmt.Sprintf("%016d", time.Now().UnixMicro()+1000)
	}
	expect.OK(t, r.db.Write(t.Context(), store.Put(later)))
	readable = newest(r, p)
	readable.Value = newest(elsewhere, own).Value
	time.Sleep(2 * time.Millisecond) // events that are appended from now on come after it
	return readable
}

// An id that is published again after the deduplication period is another event, and a stream and a chain of polls
// return both.
func TestReadersReturnAnEventWhoseIDIsPublishedAgain(t *testing.T) {
	for name, open := range bothStores() {
		for kind, pattern := range map[string]match.Pattern{"a URI": ownPattern, "a wildcard": openPattern} {
			bubble(t, "EVX-05 EVX-06 "+kind+", "+name, func(t *testing.T) {
				r := over(t, open(t))
				poll := stream.PollRequest{Pattern: pattern, Most: 100, Bytes: 1 << 20}
				poll.Cursor = r.poll(poll).Cursor
				f := r.open(from("", pattern))
				defer f.Close()
				var streamed []string
				publish := func(id string) {
					e := occurrence(id, ownPattern.Key)
					e.Published = time.Now()
					r.append([]event.Event{e}, openPattern.Key)
					streamed = append(streamed, next(t, f, 5*time.Second))
				}
				publish("X")
				publish("Y")
				for range 24 {
					time.Sleep(15 * time.Second)
					_ = f.Cursor() // as each heartbeat does
				}
				publish("X")
				want := []string{"X", "Y", "X"}
				expect.List(t, "the events of the stream", streamed, want)
				time.Sleep(time.Minute)
				var polled []string
				for range 3 {
					page := r.poll(poll)
					for _, e := range page.Events {
						polled = append(polled, e.ID)
					}
					poll.Cursor = page.Cursor
				}
				expect.List(t, "the events of the polls", polled, want)
			})
		}
	}
}

// Two instances of fanout, whose clocks differ by as much as they may, write the events of one URI in turn. Readers of its
// parent must get the events in their order.
func TestAParentHasTheEventsOfAURIInOrderIfClocksDiffer(t *testing.T) {
	for name, repeated := range map[string]bool{"batches": false, "batches that are handled twice": true} {
		bubble(t, "EVX-05 EVX-06 "+name, func(t *testing.T) {
			db := slowest(5 * time.Millisecond)(t)
			r := over(t, db)
			ahead := &eventlog.Log{DB: db, Now: func() time.Time { return time.Now().Add(eventlog.MaxSkew) }}
			behind := &eventlog.Log{DB: db, Now: func() time.Time { return time.Now().Add(-eventlog.MaxSkew) }}
			poll := stream.PollRequest{Pattern: parentPattern, Most: 100, Bytes: 1 << 20}
			poll.Cursor = r.poll(poll).Cursor
			f := r.open(from("", parentPattern))
			defer f.Close()
			var want []string
			for i, log := range []*eventlog.Log{ahead, behind, behind, ahead, behind} {
				batch := occurrences(fmt.Sprint(i), own(1)[0].Key, 3)
				for _, e := range batch {
					want = append(want, e.ID)
				}
				if repeated { // the first instance died before it wrote the parent
					expect.OK(t, expect.ErrOf(r.log.Append(t.Context(), "default", batch[0].URI, batch, nil)))
				}
				expect.OK(t, expect.ErrOf(log.Append(t.Context(), "default", batch[0].URI, slices.Clone(batch), []string{parentPattern.Key})))
				time.Sleep(20 * time.Millisecond)
			}
			var streamed, polled []string
			for range want {
				streamed = append(streamed, next(t, f, 10*time.Second))
			}
			for _, e := range r.poll(poll).Events {
				polled = append(polled, e.ID)
			}
			expect.List(t, "the streamed events", streamed, want)
			expect.List(t, "the polled events", polled, want)
		})
	}
}
