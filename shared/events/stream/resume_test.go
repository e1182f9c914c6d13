package stream_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := over(t, slowest(20*time.Millisecond)(t))
				got := map[string]int{}
				cursor := ""
				for n := range 40 {
					f := r.open(from(cursor, patterns...))
					own, below := occurrence(fmt.Sprintf("own-%d", n), ownPattern.Key), occurrence(fmt.Sprintf("p-%d", n), "event://sim/p/x")
					r.append([]event.Event{own})
					must(t, r.log.AppendPatterns(t.Context(), eventlog.Appended{}, []event.Event{below}, []string{parentPattern.Key}, false))
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
				if len(got) != 40*len(patterns) {
					t.Errorf("%d events, want %d", len(got), 40*len(patterns))
				}
				repeated := 0
				for _, n := range got {
					repeated += n - 1
				}
				if repeated > 0 {
					t.Errorf("%d events were sent again", repeated)
				}
			})
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := over(t, slowest(20*time.Millisecond)(t))
				f := r.open(from("", patterns...))
				cursor := f.Cursor()
				f.Close()
				for n := range uris * events {
					e := occurrence(fmt.Sprintf("e-%d", n), single[n%uris].Key)
					r.append([]event.Event{e})
					must(t, r.log.AppendPatterns(t.Context(), eventlog.Appended{}, []event.Event{e}, []string{parentPattern.Key}, false))
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
		})
	}
}
