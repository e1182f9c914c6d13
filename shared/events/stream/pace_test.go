package stream_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// SUB-11: how long an event takes from the log to the stream, on the clock of the test. A store that notifies of its writes sends it
// immediately. A polled store sends it within 250 ms while there is traffic, and within a second after a quiet minute. For the rest
// of the way, see docs/explanation/benchmarks.md.
func TestHowLongAnEventWaitsForItsStream(t *testing.T) {
	for name, tc := range map[string]struct {
		open        func(*testing.T) store.DB
		warm, quiet time.Duration
	}{
		"SUB-11 embedded": {embedded, 0, 0},
		"SUB-11 polled":   {slowest(1), 250 * time.Millisecond, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := over(t, tc.open(t))
				f := r.open(from("", ownPattern, parentPattern))
				defer f.Close()
				wait := func(n int, pause, most time.Duration) (took time.Duration) {
					time.Sleep(pause + rand.N(time.Second)) // at a random time between polls
					e, began := occurrence(fmt.Sprint("e-", n), ownPattern.Key), time.Now()
					if n%2 == 1 {
						e.URI = "event://sim/p/x"
						must(t, r.log.AppendPatterns(t.Context(), eventlog.Appended{}, []event.Event{e}, []string{parentPattern.Key}, false))
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
		})
	}
}
