package stream_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/stream"
)

// Two instances of fanout, whose clocks differ by as much as they may, write the events of one URI in turn. Readers of its
// parent must get the events in their order.
func TestAParentHasTheEventsOfAURIInOrderIfClocksDiffer(t *testing.T) {
	for name, repeated := range map[string]bool{"batches": false, "batches that are handled twice": true} {
		t.Run("EVX-05 EVX-06 "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
						_, err := r.log.Append(t.Context(), "default", batch[0].URI, batch, nil)
						must(t, err)
					}
					_, err := log.Append(t.Context(), "default", batch[0].URI, slices.Clone(batch), []string{parentPattern.Key})
					must(t, err)
					time.Sleep(20 * time.Millisecond)
				}
				var streamed, polled []string
				for range want {
					streamed = append(streamed, next(t, f, 10*time.Second))
				}
				for _, e := range r.poll(poll).Events {
					polled = append(polled, e.ID)
				}
				if !slices.Equal(streamed, want) || !slices.Equal(polled, want) {
					t.Errorf("streamed %v\npolled   %v\nwant     %v", streamed, polled, want)
				}
			})
		})
	}
}
