package stream_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// An id that is published again after the deduplication period is another event, and a stream and a chain of polls
// return both.
func TestReadersReturnAnEventWhoseIDIsPublishedAgain(t *testing.T) {
	stores := map[string]func(*testing.T) store.DB{"SQLite": embedded, "stamped by writers": slowest(20 * time.Millisecond)}
	for name, open := range stores {
		for kind, pattern := range map[string]match.Pattern{"a URI": ownPattern, "a wildcard": openPattern} {
			t.Run("EVX-05 EVX-06 "+kind+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := over(t, open(t))
					poll := stream.PollRequest{Pattern: pattern, Most: 100, Bytes: 1 << 20}
					poll.Cursor = r.poll(poll).Cursor
					f := r.open(from("", pattern))
					defer f.Close()
					var streamed []string
					publish := func(id string) {
						e := occurrence(id, ownPattern.Key)
						e.Published = time.Now()
						r.append([]event.Event{e}, openPattern.Key)
						streamed = append(streamed, next(t, f, 5*time.Second))
					}
					publish("X")
					publish("Y")
					for range 24 {
						time.Sleep(15 * time.Second)
						_ = f.Cursor() // as each heartbeat does
					}
					publish("X")
					want := []string{"X", "Y", "X"}
					if !slices.Equal(streamed, want) {
						t.Errorf("the stream returned %v, want %v", streamed, want)
					}
					time.Sleep(time.Minute)
					var polled []string
					for range 3 {
						page := r.poll(poll)
						for _, e := range page.Events {
							polled = append(polled, e.ID)
						}
						poll.Cursor = page.Cursor
					}
					if !slices.Equal(polled, want) {
						t.Errorf("the polls returned %v, want %v", polled, want)
					}
				})
			})
		}
	}
}
