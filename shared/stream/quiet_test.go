package stream_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/stream"
)

// A position does not age while nothing is published: everything after it is newer. The log was quiet for longer than it
// keeps events, and then an event is published between the start of the stream and its first cursor.
func TestAStreamCutRightAfterTheFirstEventOfDaysResumesWithoutAGap(t *testing.T) {
	for name, resumed := range map[string]bool{"a new stream": false, "EVX-26 a resumed stream": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
		})
	}
}
