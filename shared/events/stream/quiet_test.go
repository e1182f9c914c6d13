package stream_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// A position does not age while the log is quiet, because everything after it is newer. Here the log was quiet for longer than it
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
			f, err := r.tails.Open(r.t.Context(), request)
			must(r.t, err)
			defer f.Close()
			return f.Truncated
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
		})
	}
}
