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
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
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
				r.start(pattern) // there is interest
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
				page, want := r.poll(poll), []string{"100", "101", "102", "103", "104"}
				expect.List(t, "the events of the stream", streamed, want)
				expect.List(t, "the events of the poll", idsOf(page), want)
				expect.True(t, "the poll is not truncated", !page.Truncated)
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
						expect.True(t, fmt.Sprintf("a poll from %s is not truncated again", at), !r.poll(poll).Truncated)
					}
					poll.Cursor = cursors["before"]
					if page := r.poll(poll); !page.Truncated || len(page.Events) != 1 {
						t.Errorf("a poll from before the gap returns %d events, truncated %v, want 1 and true", len(page.Events), page.Truncated)
					}
					latest := expect.Value(r.log.Latest(t.Context(), "default", ownPattern.Key, false, 5))(t)
					expect.Len(t, "the latest events", latest, 2)
					expect.Equal(t, "broken items that were counted", r.log.Broken.Load(), 1)
					another := &eventlog.Log{DB: r.db} // of another process
					_, _, _, err := another.Read(t.Context(), partitionOf(t, r, pattern, "before"), 0, 100)
					expect.OK(t, err)
					recorded := func() (bodies []string) {
						expect.OK(t, r.log.VisitBroken(t.Context(), func(it *store.Item) error {
							bodies = append(bodies, string(it.Value))
							return nil
						}))
						return bodies
					}
					expect.List(t, "the recorded items", recorded(), []string{value})
					expect.List(t, "the items that are recorded again", recorded(), nil)
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
	if !r.db.Local() {
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
			expect.MustEqual(t, "the event on the stream", next(t, f, time.Second), id)
		}
		for i, p := range own(8) { // in several shards
			id := fmt.Sprint("later-", i)
			want = append(want, id)
			db.fails.Store(1000) // the stream cannot read
			expect.OK(t, expect.ErrOf(publisher.Append(t.Context(), "default", p.Key, []event.Event{occurrence(id, p.Key)}, []string{openPattern.Key})))
			synctest.Wait()
			cursor := f.Cursor()
			db.fails.Store(0)
			page := r.poll(stream.PollRequest{Pattern: openPattern, Cursor: cursor, Most: 100, Bytes: 1 << 20})
			expect.List(t, "EVX-26: the events of a poll with the cursor of the stream", idsOf(page), want)
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

var (
	parentPattern = match.Pattern{
		Kind: match.Parent, Key: "event://sim/p/**", Shape: match.Shape{Scope: "parents", Name: "d2"},
	}
	ownPattern       = match.Pattern{Kind: match.Concrete, Key: "event://sim/own"}
	unorderedPattern = match.Pattern{Kind: match.Concrete, Key: "event://sim/unordered", Unordered: true}
)

func occurrence(id, uri string) event.Event {
	return event.Event{Workspace: "default", ID: id, URI: uri, Data: []byte(`{}`), Time: time.Now()}
}

// A stream of few events that is resumed repeats none (design: the log and its cursor).
func TestAResumeRepeatsNothingInTheOrdinaryCase(t *testing.T) {
	for name, patterns := range map[string][]match.Pattern{
		"SUB-08 own": {ownPattern}, "SUB-08 parent": {parentPattern}, "SUB-08 both": {ownPattern, parentPattern},
	} {
		bubble(t, name, func(t *testing.T) {
			r := over(t, slowest(20*time.Millisecond)(t))
			got := map[string]int{}
			cursor := ""
			for n := range 40 {
				f := r.open(from(cursor, patterns...))
				own, below := occurrence(fmt.Sprintf("own-%d", n), ownPattern.Key), occurrence(fmt.Sprintf("p-%d", n), "event://sim/p/x")
				r.append([]event.Event{own})
				expect.OK(t, r.log.AppendPatterns(t.Context(), eventlog.Appended{}, []event.Event{below}, []string{parentPattern.Key}, false))
				for end := time.Now().Add(1300 * time.Millisecond); time.Now().Before(end); {
					if id := next(t, f, time.Until(end)); id != "" {
						got[id]++
					}
				}
				cursor = f.Cursor()
				f.Close()
			}
			expect.Equal(t, "events", len(got), 40*len(patterns))
			for id, n := range got {
				expect.Equal(t, "how often the streams had "+id, n, 1)
			}
		})
	}
}

// SUB-08, SES-03: a stream of many URIs whose connection never lasts until it has
// caught up comes further each time. Otherwise it would read the same again for ever.
func TestAStreamThatIsCutOffWhileItCatchesUpComesFurther(t *testing.T) {
	const uris, events, patience = 10, 40, 60
	single := own(uris)
	for name, patterns := range map[string][]match.Pattern{
		"single URIs": single, "a parent": {parentPattern}, "both": append([]match.Pattern{parentPattern}, single...),
	} {
		bubble(t, name, func(t *testing.T) {
			r := over(t, slowest(20*time.Millisecond)(t))
			cursor := r.start(patterns...)
			for n := range uris * events {
				e := occurrence(fmt.Sprintf("e-%d", n), single[n%uris].Key)
				r.append([]event.Event{e})
				expect.OK(t, r.log.AppendPatterns(t.Context(), eventlog.Appended{}, []event.Event{e}, []string{parentPattern.Key}, false))
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(time.Minute)
			got, times, cuts := map[string]bool{}, 0, 0
			for ; len(got) < uris*events && cuts < patience; cuts++ {
				f := r.open(from(cursor, patterns...))
				for range 80 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					d, err := await(ctx, f)
					cancel()
					if err != nil {
						break
					}
					got[d.Event.ID], cursor, times = true, d.Cursor, times+1
				}
				f.Close()
			}
			t.Logf("%d events, %d times, %d connections", len(got), times, cuts)
			expect.Equal(t, fmt.Sprintf("the events after %d connections", cuts), len(got), uris*events)
		})
	}
}

// A position does not age while the log is quiet, because everything after it is newer. Here the log was quiet for longer than it
// keeps events, and then an event is published between the start of the stream and its first cursor.
func TestAStreamCutRightAfterTheFirstEventOfDaysResumesWithoutAGap(t *testing.T) {
	for name, resumed := range map[string]bool{"a new stream": false, "EVX-26 a resumed stream": true} {
		bubble(t, name, func(t *testing.T) {
			r := over(t, embedded(t))
			r.append([]event.Event{occurrence("old", ownPattern.Key)})
			cursor := ""
			if resumed {
				cursor = r.start(ownPattern)
			}
			time.Sleep(2 * r.log.MinRetention())
			if resumed { // a quiet stream gives its client a young cursor
				cursor = r.poll(stream.PollRequest{Pattern: ownPattern, Cursor: cursor, Most: 10, Bytes: 1 << 20}).Cursor
			}
			f := r.open(from(cursor, ownPattern))
			r.append([]event.Event{occurrence("new", ownPattern.Key)})
			cursor = f.Cursor()
			f.Close()
			page := r.poll(stream.PollRequest{Pattern: ownPattern, Cursor: cursor, Most: 10, Bytes: 1 << 20})
			expect.List(t, "the events of a poll with the cursor of the stream", idsOf(page), []string{"new"})
			expect.True(t, "the poll is not truncated", !page.Truncated)
		})
	}
}

// The partitions of a template are written as soon as a client is interested in it. An event that is published between the
// position at which a client begins and its interest is no gap, even if the log was quiet before.
func TestAnEventPublishedWhileAStreamOfATemplateBeginsOnAQuietLogLeavesNoGap(t *testing.T) {
	for name, resume := range map[string]func(r *rig, cursor string) bool{
		"EVX-26 a poll resumes": func(r *rig, cursor string) bool {
			return r.poll(stream.PollRequest{Pattern: parentPattern, Cursor: cursor, Most: 10, Bytes: 1 << 20}).Truncated
		},
		"EVX-26 a stream resumes": func(r *rig, cursor string) bool {
			request := from(cursor, parentPattern)
			request.Workspace = "default"
			f := expect.Value(r.tails.Open(r.t.Context(), request))(r.t)
			defer f.Close()
			return f.Truncated
		},
	} {
		bubble(t, name, func(t *testing.T) {
			db := embedded(t)
			publish := sync.OnceFunc(func() { over(t, db).append([]event.Event{occurrence("early", ownPattern.Key)}) })
			r := over(t, storetest.Hooked{DB: db, OnWrite: func(context.Context, []store.Op) error { publish(); return nil }}) // before its first write
			over(t, db).append([]event.Event{occurrence("old", ownPattern.Key)})
			time.Sleep(time.Hour)
			expect.True(t, "the reader is told of no gap", !resume(r, r.start(parentPattern)))
		})
	}
}

// SUB-11: how long an event takes from the log to the stream, on the clock of the test. A store that notifies of its writes sends it
// immediately. A polled store sends it within 250 ms while there is traffic, and within a second after a quiet minute. Tests of
// package e2e measure the whole way.
func TestHowLongAnEventWaitsForItsStream(t *testing.T) {
	for name, tc := range map[string]struct {
		open        func(*testing.T) store.DB
		warm, quiet time.Duration
	}{
		"SUB-11 embedded": {embedded, 0, 0},
		"SUB-11 polled":   {slowest(1), 250 * time.Millisecond, time.Second},
	} {
		bubble(t, name, func(t *testing.T) {
			r := over(t, tc.open(t))
			f := r.open(from("", ownPattern, parentPattern))
			defer f.Close()
			wait := func(n int, pause, most time.Duration) (took time.Duration) {
				time.Sleep(pause + rand.N(time.Second)) // at a random time between polls
				e, began := occurrence(fmt.Sprint("e-", n), ownPattern.Key), time.Now()
				if n%2 == 1 {
					e.URI = "event://sim/p/x"
					expect.OK(t, r.log.AppendPatterns(t.Context(), eventlog.Appended{}, []event.Event{e}, []string{parentPattern.Key}, false))
				} else {
					r.append([]event.Event{e})
				}
				expect.MustEqual(t, "the event", next(t, f, time.Minute), e.ID)
				took = time.Since(began)
				expect.AtMost(t, "the time that "+e.ID+" waited", took, most)
				return took
			}
			var warm, quiet time.Duration
			for n := range 40 {
				warm = max(warm, wait(n, 0, tc.warm))
			}
			for n := range 40 {
				quiet = max(quiet, wait(100+n, 2*time.Minute, tc.quiet))
			}
			if tc.quiet > 0 { // a quiet log is not polled as often as a busy one
				expect.AtLeast(t, "the longest time in a quiet log", quiet, tc.warm+1)
			}
			t.Logf("at most %v, and %v after two quiet minutes", warm, quiet)
		})
	}
}
