package eventlog_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
)

const uri = "event://ci/build-finished"

func memory(t *testing.T) *sqlite.DB {
	t.Helper()
	db, err := sqlite.Open(sqlite.Memory, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// cut is a store that takes so many writes and then no more.
type cut struct {
	store.DB
	left int
}

func (c *cut) Write(ctx context.Context, ops ...store.Op) error {
	if c.left--; c.left < 0 {
		return fault.New(fault.Unavailable, "cut off")
	}
	return c.DB.Write(ctx, ops...)
}

// Wherever a batch is interrupted, and however it is divided when it is redelivered, each
// of its events is in the log once.
func TestABatchThatComesAgainIsInTheLogOnce(t *testing.T) {
	var events []event.Event
	for i := range 8 { // of which a segment holds two
		data, _ := json.Marshal(fmt.Sprintf("%0*d", 180<<10, i))
		events = append(events, event.Event{Workspace: "default", ID: fmt.Sprintf("e%d", i), URI: uri, Data: data})
	}
	for writes := range 5 {
		for _, first := range []int{8, 3, 1} {
			t.Run(fmt.Sprintf("%d_writes_then_%d_events", writes, first), func(t *testing.T) {
				db := memory(t)
				_, err := (&eventlog.Log{DB: &cut{DB: db, left: writes}}).Append(t.Context(), "default", uri, events[:7], nil)
				if (err != nil) != (writes < 4) {
					t.Fatalf("%d writes: %v", writes, err)
				}
				log := &eventlog.Log{DB: db}
				for _, batch := range [][]event.Event{events[:first], events[first:], events[first:]} {
					if len(batch) == 0 {
						continue
					}
					known, err := log.Append(t.Context(), "default", uri, batch, nil)
					if err != nil {
						t.Fatal(err)
					}
					if !known.First && writes > 0 && &batch[0] == &events[0] {
						t.Error("what follows the first append of a URI would be left out")
					}
				}
				var got []string
				after := int64(0)
				for more := true; more; {
					var entries []eventlog.Entry
					if entries, more, after, err = log.Read(t.Context(), eventlog.Own("default", uri), after, 100); err != nil {
						t.Fatal(err)
					}
					for _, e := range entries {
						got = append(got, e.Event.ID)
					}
				}
				if want := []string{"e0", "e1", "e2", "e3", "e4", "e5", "e6", "e7"}; !slices.Equal(got, want) {
					t.Errorf("the log holds %v", got)
				}
			})
		}
	}
}
