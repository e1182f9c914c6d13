package stream_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

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
				ctx, cancel := context.WithTimeout(t.Context(), 1300*time.Millisecond)
				for {
					d, err := await(ctx, f)
					if err != nil {
						break
					}
					got[d.Event.ID]++
				}
				cancel()
				cursor = f.Cursor()
				f.Close()
			}
			expect.Equal(t, "events", len(got), 40*len(patterns))
			repeated := 0
			for _, n := range got {
				repeated += n - 1
			}
			if repeated > 0 {
				t.Errorf("%d events were sent again", repeated)
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
			f := r.open(from("", patterns...))
			cursor := f.Cursor()
			f.Close()
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
			if len(got) < uris*events {
				t.Errorf("only %d of %d events after %d connections", len(got), uris*events, cuts)
			}
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
				f := r.open(from("", ownPattern))
				cursor = f.Cursor()
				f.Close()
			}
			time.Sleep(2 * r.log.Reaches())
			if resumed { // a quiet stream gives its client a young cursor
				cursor = r.poll(stream.PollRequest{Pattern: ownPattern, Cursor: cursor, Most: 10, Bytes: 1 << 20}).Cursor
			}
			f := r.open(from(cursor, ownPattern))
			r.append([]event.Event{occurrence("new", ownPattern.Key)})
			cursor = f.Cursor()
			f.Close()
			page := r.poll(stream.PollRequest{Pattern: ownPattern, Cursor: cursor, Most: 10, Bytes: 1 << 20})
			if page.Truncated || len(page.Events) != 1 || page.Events[0].ID != "new" {
				t.Errorf("a poll with the cursor of the stream returned %d events, truncated %v; want the new event and no gap", len(page.Events), page.Truncated)
			}
		})
	}
}

// beforeFirstWrite is an ordered store that runs a function right before its first write.
type beforeFirstWrite struct {
	store.DB
	once sync.Once
	run  func()
}

func (s *beforeFirstWrite) Write(ctx context.Context, ops ...store.Op) error {
	s.once.Do(s.run)
	return s.DB.Write(ctx, ops...)
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
			r := over(t, &beforeFirstWrite{DB: db, run: func() { over(t, db).append([]event.Event{occurrence("early", ownPattern.Key)}) }})
			over(t, db).append([]event.Event{occurrence("old", ownPattern.Key)})
			time.Sleep(time.Hour)
			f := r.open(from("", parentPattern))
			cursor := f.Cursor()
			f.Close()
			if resume(r, cursor) {
				t.Error("the reader is told of a gap, want none")
			}
		})
	}
}

// SUB-11: how long an event takes from the log to the stream, on the clock of the test. A store that notifies of its writes sends it
// immediately. A polled store sends it within 250 ms while there is traffic, and within a second after a quiet minute. For the rest
// of the way, see docs/internals/benchmarks.md.
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
				if id := next(t, f, time.Minute); id != e.ID {
					t.Fatalf("got %q, want %s", id, e.ID)
				}
				if took = time.Since(began); took > most {
					t.Errorf("%s waited %v, want at most %v", e.ID, took, most)
				}
				return took
			}
			var warm, quiet time.Duration
			for n := range 40 {
				warm = max(warm, wait(n, 0, tc.warm))
			}
			for n := range 40 {
				quiet = max(quiet, wait(100+n, 2*time.Minute, tc.quiet))
			}
			if tc.quiet > 0 && quiet <= tc.warm {
				t.Errorf("a quiet log is polled as often as a busy one: %v", quiet)
			}
			t.Logf("at most %v, and %v after two quiet minutes", warm, quiet)
		})
	}
}
