package stream_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/storage/store"
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
					readable := laterSegment(t, r, eventlog.Own("default", stuck.Key))
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
					if want := []string{"before", "other-0", "other-1", "other-2"}; !slices.Equal(got, want) {
						t.Errorf("the stream returns %v, want %v", got, want)
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

// A poll of a wildcard stops at a segment of a later release in one shard only. The client gets the rest of that shard when the
// later release answers its polls, or when it opens a stream there.
func TestASegmentOfALaterReleaseHoldsUpItsOwnShardOfAPolledWildcardOnly(t *testing.T) {
	for kind, newDB := range bothStores() {
		for _, most := range []int{1, 3, 500} {
			t.Run(fmt.Sprintf("EVX-26 %s, pages of %d", kind, most), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := over(t, newDB(t))
					uris := uriPerShard()
					request := stream.PollRequest{Pattern: openPattern, Most: most, Bytes: 1 << 20}
					request.Cursor = r.poll(request).Cursor
					got := map[string]int{}
					pollAll := func() {
						t.Helper()
						for polls, quiet := 0, 0; quiet < 3; polls++ {
							if polls > 1000 {
								t.Fatalf("1000 polls did not reach the end; events: %v", got)
							}
							page := r.poll(request)
							request.Cursor = page.Cursor
							for _, e := range page.Events {
								got[e.ID]++
							}
							if quiet++; len(page.Events) > 0 || page.More {
								quiet = 0
							}
							if page.Truncated {
								t.Fatal("a poll is truncated, want no gap")
							}
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
							if got[id] == 0 || got[id] > 1 && r.db.Stamps() {
								out = append(out, fmt.Sprint(id, ": ", got[id], " times"))
							}
						}
						return out
					}
					if wrong := missing(append(before, others...)); wrong != nil || got["later"] > 0 {
						t.Fatalf("next to a segment of a later release, polls returned %v, want each once", wrong)
					}
					publish(3)
					must(t, r.db.Write(t.Context(), store.Put(readable))) // as the later release reads it

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
		page, err := r.db.Query(t.Context(), store.Query{Table: store.Log, Partition: p.Name(), Reverse: true, Limit: 1})
		must(t, err)
		return page.Items[0]
	}
	elsewhere, own := over(t, embedded(t)), eventlog.Own("default", ownPattern.Key)
	elsewhere.append([]event.Event{occurrence("later", ownPattern.Key)})
	later := newest(elsewhere, own)
	later.Partition, later.Value, later.Sort = p.Name(), []byte(`{"v":2}`), store.AtCommit
	if !r.db.Stamps() {
		later.Sort = fmt.Sprintf("%016d", time.Now().UnixMicro()+1000)
	}
	must(t, r.db.Write(t.Context(), store.Put(later)))
	readable = newest(r, p)
	readable.Value = newest(elsewhere, own).Value
	time.Sleep(2 * time.Millisecond) // events that are appended from now on come after it
	return readable
}
