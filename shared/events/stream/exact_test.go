package stream_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
	"github.com/mcp-events/mcpevents/test/expect"
)

// own returns the patterns of n single URIs below the parent of [parentPattern].
func own(n int) (patterns []match.Pattern) {
	for i := range n {
		patterns = append(patterns, match.Pattern{Kind: match.Concrete, Key: fmt.Sprintf("event://sim/p/%d", i)})
	}
	return patterns
}

// SUB-08, SES-03: where positions can be exact, a stream that is cut off after any event and resumed
// brings every event once, however many there are: over an ordered store any patterns, also such
// as match the same events; where writers stamp up to sixteen URIs.
func TestAResumeRepeatsNothingWherePositionsAreExact(t *testing.T) {
	dynamo := slowest(20 * time.Millisecond)
	for _, tc := range []struct {
		name     string
		open     func(*testing.T) store.DB
		patterns []match.Pattern
		topics   []string
	}{
		{"SES-03 one URI and topics, embedded", embedded, own(1), []string{"a", "b"}},
		{"SUB-08 forty URIs and their parent, embedded", embedded, append(own(40), parentPattern), []string{"a"}},
		{"SUB-08 a parent, embedded", embedded, []match.Pattern{parentPattern}, nil},
		{"SES-03 one URI and topics, stamped by writers", dynamo, own(1), []string{"a", "b"}},
		{"SUB-08 sixteen URIs, stamped by writers", dynamo, own(16), []string{"a"}},
	} {
		bubble(t, tc.name, func(t *testing.T) {
			r := over(t, tc.open(t))
			request := stream.Request{Patterns: tc.patterns, Topics: tc.topics}
			f := r.open(request)
			const total = 600
			published := make(chan struct{})
			var writing sync.WaitGroup
			uris := max(1, len(tc.patterns)/4*4)
			writing.Go(func() {
				for n := 0; n < total; {
					uri := fmt.Sprintf("event://sim/p/%d", n%uris)
					var batch []event.Event
					for range min(1+rand.IntN(90), total-n) {
						batch = append(batch, occurrence(fmt.Sprint("e-", n), uri))
						n++
					}
					if _, err := r.log.Append(t.Context(), "default", uri, batch, []string{parentPattern.Key}); err != nil {
						t.Error(err)
					}
					if len(tc.topics) > 0 && rand.IntN(3) == 0 {
						if err := r.log.Notify(t.Context(), "default", tc.topics[0], json.RawMessage(`{}`)); err != nil {
							t.Error(err)
						}
					}
					time.Sleep(upTo(100 * time.Millisecond))
				}
				close(published)
			})
			got, resumes := map[string]int{}, 0
			for done := false; ; resumes++ {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				for range 1 + rand.IntN(150) {
					d, err := await(ctx, f)
					if err != nil {
						done = true
						break
					}
					if d.Event != nil {
						got[d.Event.ID]++
					}
					request.Cursor = d.Cursor
				}
				cancel()
				f.Close()
				if done {
					break
				}
				f = r.open(request)
			}
			<-published
			writing.Wait()
			repeated := 0
			for _, n := range got {
				repeated += n - 1
			}
			if len(got) != total || repeated > 0 || resumes < 4 {
				t.Errorf("%d of %d events, %d repeated, after %d resumes", len(got), total, repeated, resumes)
			}
		})
	}
}

// clock is a clock that a test sets back.
type clock struct{ behind atomic.Int64 }

func (c *clock) now() time.Time { return time.Now().Add(-time.Duration(c.behind.Load())) }

// Positions do not depend on a clock that never goes back: what is opened after it was set back
// by a day begins at the end of the log.
func TestWhatIsOpenedAfterTheClockWentBackBeginsAtTheEnd(t *testing.T) {
	stores := map[string]func(*testing.T, *clock) store.DB{
		"embedded": func(t *testing.T, c *clock) store.DB {
			db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{SweepEvery: -1, Engine: engine.Options{Now: c.now}}))(t)
			t.Cleanup(func() { _ = db.Close() })
			return db
		},
		"stamped by writers": func(t *testing.T, _ *clock) store.DB { return slowest(1)(t) },
	}
	for name, open := range stores {
		for kind, pattern := range map[string]match.Pattern{"a URI": own(1)[0], "a wildcard": openPattern} {
			bubble(t, "EVX-07 SUB-08 "+kind+", "+name, func(t *testing.T) {
				var c clock
				db := open(t, &c)
				r := reading(t, db, &eventlog.Log{DB: db, Now: c.now})
				publish := func(first, n int) {
					t.Helper()
					for i := range n {
						r.append([]event.Event{occurrence(fmt.Sprint(first+i), own(1)[0].Key)}, openPattern.Key)
						time.Sleep(10 * time.Millisecond)
					}
				}
				r.open(from("", pattern)).Close() // there is interest
				publish(0, 40)
				c.behind.Store(int64(24 * time.Hour))
				poll := stream.PollRequest{Pattern: pattern, Most: 100, Bytes: 1 << 20}
				poll.Cursor = r.poll(poll).Cursor
				f := r.open(from("", pattern))
				publish(100, 5)
				var streamed []string
				for range 5 {
					streamed = append(streamed, next(t, f, 10*time.Second))
				}
				expect.Equal(t, fmt.Sprintf("an event after %v", streamed), next(t, f, 10*time.Second), "")
				cursor := f.Cursor()
				f.Close()
				time.Sleep(time.Minute)
				page := r.poll(poll)
				var polled []string
				for _, e := range page.Events {
					polled = append(polled, e.ID)
				}
				if want := "[100 101 102 103 104]"; fmt.Sprint(streamed) != want || fmt.Sprint(polled) != want || page.Truncated {
					t.Errorf("streamed %v, polled %v, truncated %v, want %s of both", streamed, polled, page.Truncated, want)
				}
				again := r.open(from(cursor, pattern))
				defer again.Close()
				expect.Equal(t, "an event of the resumed stream", next(t, again, 10*time.Second), "")
			})
		}
	}
}

// An item that cannot be decoded does not stop streams and polls. They notify their clients of the gap once, and the item is
// recorded for operators once.
func TestReadersPassAnItemThatCannotBeDecodedAndReportTheGap(t *testing.T) {
	patterns := map[string]match.Pattern{"a URI": ownPattern, "a wildcard": openPattern}
	for kind, newDB := range bothStores() {
		for which, pattern := range patterns {
			for name, value := range map[string]string{
				"no JSON": "{", "an unknown version": `{"v":0}`, "an event that is none": `{"v":1,"e":[{"v":0}]}`,
			} {
				bubble(t, fmt.Sprintf("EVX-07 EVX-26 %s, %s, %s", kind, which, name), func(t *testing.T) {
					r := over(t, newDB(t))
					poll := stream.PollRequest{Pattern: pattern, Most: 10, Bytes: 1 << 20}
					poll.Cursor = r.poll(poll).Cursor
					f := r.open(from("", pattern))
					r.append([]event.Event{occurrence("before", ownPattern.Key)}, openPattern.Key)
					time.Sleep(time.Second)
					breakItem(t, r, partitionOf(t, r, pattern, "before"), value)
					time.Sleep(time.Second)
					r.append([]event.Event{occurrence("after", ownPattern.Key)}, openPattern.Key)

					cursors := map[string]string{}
					var got []string
					for range 3 {
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						d, err := await(ctx, f)
						cancel()
						id := ""
						switch {
						case err != nil:
							t.Fatalf("after %v: %v", got, err)
						case d.Event != nil:
							id = d.Event.ID
						case d.Lost == pattern.Key:
							id = "lost"
						}
						got, cursors[id] = append(got, id), d.Cursor
					}
					f.Close()
					expect.List(t, "the events of the stream", got, []string{"before", "lost", "after"})
					page := r.poll(poll)
					if len(page.Events) != 2 || !page.Truncated || page.More {
						t.Errorf("the poll returns %d events, truncated %v, more %v; want 2, true, false", len(page.Events), page.Truncated, page.More)
					}
					for at, cursor := range map[string]string{"the poll": page.Cursor, "the gap in the stream": cursors["lost"]} {
						poll.Cursor = cursor
						if page := r.poll(poll); page.Truncated {
							t.Errorf("a poll from %s is truncated again", at)
						}
					}
					poll.Cursor = cursors["before"]
					if page := r.poll(poll); !page.Truncated || len(page.Events) != 1 {
						t.Errorf("a poll from before the gap returns %d events, truncated %v, want 1 and true", len(page.Events), page.Truncated)
					}
					latest, err := r.log.Latest(t.Context(), "default", ownPattern.Key, false, 5)
					if err != nil || len(latest) != 2 {
						t.Errorf("the latest events are %v, %v, want 2", latest, err)
					}
					expect.Equal(t, "broken items that were counted", r.log.Broken.Load(), 1)
					another := &eventlog.Log{DB: r.db} // of another process
					if _, _, _, err := another.Read(t.Context(), partitionOf(t, r, pattern, "before"), 0, 100); err != nil {
						t.Error(err)
					}
					recorded := func() (bodies []string) {
						expect.OK(t, r.log.BrokenItems(t.Context(), func(it *store.Item) error {
							bodies = append(bodies, string(it.Value))
							return nil
						}))
						return bodies
					}
					expect.List(t, "the recorded items", recorded(), []string{value})
					if got := recorded(); got != nil {
						t.Errorf("the items %q are recorded again", got)
					}
				})
			}
		}
	}
}

// partitionOf returns the partition of a pattern that holds an event.
func partitionOf(t *testing.T, r *rig, pattern match.Pattern, id string) eventlog.Partition {
	t.Helper()
	parts := pattern.Partitions(r.log, "default")
	i := slices.IndexFunc(parts, func(p eventlog.Partition) bool {
		page := expect.Value(r.db.Query(t.Context(), store.Query{Table: store.Log, Partition: p.Name(), Limit: 1}))(t)
		return len(page.Items) > 0 && strings.Contains(string(page.Items[0].Value), strconv.Quote(id))
	})
	if i < 0 {
		t.Fatalf("no partition of %s holds the event %s", pattern.Key, id)
	}
	return parts[i]
}

// breakItem writes an item that cannot be decoded to a partition.
func breakItem(t *testing.T, r *rig, p eventlog.Partition, value string) {
	t.Helper()
	broken := store.Item{Key: store.Key{Table: store.Log, Partition: p.Name(), Sort: store.AtCommit}, Value: []byte(value)}
	if !r.db.Stamps() {
		broken.Sort = fmt.Sprintf("%016d", time.Now().UnixMicro())
	}
	expect.OK(t, r.db.Write(t.Context(), store.Put(broken)))
}

// A stream tells its client its position in each heartbeat, also while an entry is written that the stream has not read yet.
// An ordered store has a position after everything that was returned, so the client that resumes there gets nothing twice.
func TestAStreamCutWhileItCannotReadTheNextEventResumesWithoutRepeatingOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &stumbling{DB: embedded(t).(*sqlite.DB)}
		r := over(t, db)
		publisher := &eventlog.Log{DB: db.DB}
		f := r.open(from("", openPattern))
		var want []string
		for i := range 2 * eventlog.MaxSent { // more than a cursor can name
			id := fmt.Sprint("e-", i)
			r.append([]event.Event{occurrence(id, "event://sim/busy")}, openPattern.Key)
			if got := next(t, f, time.Second); got != id {
				t.Fatalf("the stream brings %q, want %q", got, id)
			}
		}
		for i, p := range own(8) { // in several shards
			id := fmt.Sprint("later-", i)
			want = append(want, id)
			db.fails.Store(1000) // the stream cannot read
			_, err := publisher.Append(t.Context(), "default", p.Key, []event.Event{occurrence(id, p.Key)}, []string{openPattern.Key})
			expect.OK(t, err)
			synctest.Wait()
			cursor := f.Cursor()
			db.fails.Store(0)
			page := r.poll(stream.PollRequest{Pattern: openPattern, Cursor: cursor, Most: 100, Bytes: 1 << 20})
			var got []string
			for _, e := range page.Events {
				got = append(got, e.ID)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("EVX-26: with the cursor of the stream, a poll returns %v, want %v", got, want)
			}
		}
		f.Close()
	})
}

// bothStores returns a store that orders all partitions and a store whose writers stamp keys.
func bothStores() map[string]func(*testing.T) store.DB {
	return map[string]func(*testing.T) store.DB{"SQLite": embedded, "stamped by writers": slowest(20 * time.Millisecond)}
}

// occurrences returns n events of a URI.
func occurrences(prefix, uri string, n int) []event.Event {
	events := make([]event.Event, n)
	for i := range events {
		events[i] = occurrence(fmt.Sprint(prefix, "-", i), uri)
	}
	return events
}
