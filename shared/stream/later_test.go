package stream_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/stream"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

// TestASegmentOfALaterReleaseHoldsUpItsOwnPartitionOnly: after a rollback, a partition has a segment that this release cannot
// read. A stream brings the events before it and the events of other partitions, and the client gets the rest when it resumes
// at the later release.
func TestASegmentOfALaterReleaseHoldsUpItsOwnPartitionOnly(t *testing.T) {
	patterns := own(2)
	stuck, other := patterns[0], patterns[1]
	for kind, newDB := range bothStores() {
		for _, past := range []bool{false, true} {
			t.Run(fmt.Sprintf("EVX-26 %s, written before the stream begins: %v", kind, past), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := over(t, newDB(t))
					first := r.open(from("", patterns...))
					cursor := first.Cursor()
					if past {
						first.Close()
					}
					r.append([]event.Event{occurrence("before", stuck.Key)})
					readable := laterSegment(t, r, stuck)
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
					// Where writers stamp, a tail hands out whole polls, so the event before the segment may stay, too.
					if !slices.Contains(got, "other-2") || !slices.Contains(got, "other-0") {
						t.Errorf("the stream brings %v, want all events of the other partition", got)
					}
					page := r.poll(stream.PollRequest{Pattern: stuck, Cursor: cursor, Most: 10, Bytes: 1 << 20})
					if len(page.Events) != 1 || page.Events[0].ID != "before" {
						t.Errorf("a poll returns %d events, want the one before the segment", len(page.Events))
					}
					cursor = f.Cursor()
					f.Close()

					must(t, r.db.Write(t.Context(), store.Put(readable))) // as the later release reads it
					f = r.open(from(cursor, patterns...))
					defer f.Close()
					rest := map[string]bool{}
					for {
						id := next(t, f, 30*time.Second)
						if id == "" {
							break
						}
						rest[id] = true
					}
					for _, id := range []string{"before", "later", "after"} {
						if !rest[id] && !slices.Contains(got, id) {
							t.Errorf("EVX-26 %s was skipped: first %v, then %v", id, got, rest)
						}
					}
				})
			})
		}
	}
}

// laterSegment writes a segment with an event that this release cannot read to the partition of a pattern. It returns the
// segment as the later release reads it.
func laterSegment(t *testing.T, r *rig, p subscription.Pattern) (readable store.Item) {
	t.Helper()
	newest := func(r *rig) store.Item {
		t.Helper()
		page, err := r.db.Query(t.Context(), store.Query{
			Table: store.Log, Partition: eventlog.Own("default", p.Key).Name(), Reverse: true, Limit: 1,
		})
		must(t, err)
		return page.Items[0]
	}
	elsewhere := over(t, embedded(t))
	elsewhere.append([]event.Event{occurrence("later", p.Key)})
	later := newest(elsewhere)
	later.Value, later.Sort = []byte(`{"v":2}`), store.AtCommit
	if !r.db.Ordered() {
		later.Sort = fmt.Sprintf("%016d", time.Now().UnixMicro()+1000)
	}
	must(t, r.db.Write(t.Context(), store.Put(later)))
	readable = newest(r)
	readable.Value = newest(elsewhere).Value
	return readable
}
