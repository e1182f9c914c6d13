package stream_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/stream"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

// SUB-11: from the log to the stream, on the clock of the test: at once where the store
// tells of its writes; where it is polled within 250 ms while there is traffic, and
// within a second after a quiet minute. What else an event has to pass is measured, see
// docs/explanation/benchmarks.md.
func TestHowLongAnEventWaitsForItsStream(t *testing.T) {
	polled := func(*testing.T) store.DB {
		return &memory{items: map[string][]store.Item{}, delay: func(string) time.Duration { return 0 }}
	}
	watched := func(t *testing.T) store.DB { db, _ := embedded(t); return db }
	for name, tc := range map[string]struct {
		open        func(*testing.T) store.DB
		warm, quiet time.Duration
	}{
		"SUB-11 embedded": {watched, 0, 0},
		"SUB-11 polled":   {polled, 250 * time.Millisecond, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sealer, err := eventlog.NewSealer(make([]byte, 32))
				if err != nil {
					t.Fatal(err)
				}
				db := tc.open(t)
				log := &eventlog.Log{DB: db}
				tails := stream.New(log, db, sealer)
				defer tails.Close()
				f, err := tails.Open(t.Context(), stream.Request{Workspace: "default", Patterns: []subscription.Pattern{ownPattern, parentPattern}})
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				wait := func(n int, pause, most time.Duration) (took time.Duration) {
					time.Sleep(pause + rand.N(time.Second)) // at a time that the polls know nothing of
					e, began := occurrence(fmt.Sprint("e-", n), ownPattern.Key), time.Now()
					if n%2 == 1 {
						e.URI = "event://sim/p/x"
						err = log.AppendPattern(t.Context(), e, []string{parentPattern.Key})
					} else {
						_, err = log.Append(t.Context(), "default", e.URI, []event.Event{e}, nil)
					}
					if err != nil {
						t.Fatal(err)
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
		})
	}
}
