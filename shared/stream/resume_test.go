package stream_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/stream"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

var (
	parentPattern = subscription.Pattern{
		Kind: subscription.Parent, Key: "event://sim/p/**", Shape: subscription.Shape{Scope: "parents", Name: "d2"},
	}
	ownPattern       = subscription.Pattern{Kind: subscription.Concrete, Key: "event://sim/own"}
	unorderedPattern = subscription.Pattern{Kind: subscription.Concrete, Key: "event://sim/unordered", Unordered: true}
)

func occurrence(id, uri string) event.Event {
	return event.Event{Workspace: "default", ID: id, URI: uri, Data: []byte(`{}`), Time: time.Now()}
}

// A stream of few events that is resumed repeats none (design: the log and its cursor).
func TestAResumeRepeatsNothingInTheOrdinaryCase(t *testing.T) {
	for name, patterns := range map[string][]subscription.Pattern{
		"SUB-08 own": {ownPattern}, "SUB-08 parent": {parentPattern}, "SUB-08 both": {ownPattern, parentPattern},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := &memory{items: map[string][]store.Item{}, delay: func(string) time.Duration { return 10 * time.Millisecond }}
				sealer, err := eventlog.NewSealer(make([]byte, 32))
				if err != nil {
					t.Fatal(err)
				}
				log := &eventlog.Log{DB: db}
				tails := stream.New(log, db, sealer)
				defer tails.Close()
				got := map[string]int{}
				cursor := ""
				for n := range 40 {
					f, err := tails.Open(t.Context(), stream.Request{Workspace: "default", Patterns: patterns, Cursor: cursor})
					if err != nil {
						t.Fatal(err)
					}
					own, below := occurrence(fmt.Sprintf("own-%d", n), ownPattern.Key), occurrence(fmt.Sprintf("p-%d", n), "event://sim/p/x")
					if _, err := log.Append(t.Context(), "default", own.URI, []event.Event{own}, nil); err != nil {
						t.Fatal(err)
					}
					if err := log.AppendPattern(t.Context(), below, []string{parentPattern.Key}); err != nil {
						t.Fatal(err)
					}
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
	var single []subscription.Pattern
	uri := func(n int) string { return fmt.Sprintf("event://sim/p/%d", n%uris) }
	for n := range uris {
		single = append(single, subscription.Pattern{Kind: subscription.Concrete, Key: uri(n)})
	}
	for name, patterns := range map[string][]subscription.Pattern{
		"single URIs": single, "a parent": {parentPattern}, "both": append([]subscription.Pattern{parentPattern}, single...),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := &memory{items: map[string][]store.Item{}, delay: func(string) time.Duration { return 10 * time.Millisecond }}
				sealer, err := eventlog.NewSealer(make([]byte, 32))
				if err != nil {
					t.Fatal(err)
				}
				log := &eventlog.Log{DB: db}
				tails := stream.New(log, db, sealer)
				defer tails.Close()
				f, err := tails.Open(t.Context(), stream.Request{Workspace: "default", Patterns: patterns})
				if err != nil {
					t.Fatal(err)
				}
				cursor := f.Cursor()
				f.Close()
				for n := range uris * events {
					e := occurrence(fmt.Sprintf("e-%d", n), uri(n))
					if _, err := log.Append(t.Context(), "default", e.URI, []event.Event{e}, nil); err != nil {
						t.Fatal(err)
					}
					if err := log.AppendPattern(t.Context(), e, []string{parentPattern.Key}); err != nil {
						t.Fatal(err)
					}
					time.Sleep(100 * time.Millisecond)
				}
				time.Sleep(time.Minute)
				got, times, cuts := map[string]bool{}, 0, 0
				for ; len(got) < uris*events && cuts < patience; cuts++ {
					f, err := tails.Open(t.Context(), stream.Request{Workspace: "default", Patterns: patterns, Cursor: cursor})
					if err != nil || f.Truncated {
						t.Fatal(f.Truncated, err)
					}
					for range 80 {
						d, ok, err := f.Poll(t.Context())
						if err != nil {
							t.Fatal(err)
						}
						if !ok {
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
