package eventlog_test

import (
	"slices"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// After a rollback, a partition has an item of a later release between two events.
func TestReadersThatDoNotWaitPassAnItemOfALaterRelease(t *testing.T) {
	for name, db := range map[string]store.DB{"ordered": memory(t), "writers stamp": unordered{memory(t)}} {
		t.Run("EVX-26 "+name, func(t *testing.T) {
			now := time.Now()
			log := &eventlog.Log{DB: db, Now: func() time.Time { return now }}
			parts := log.Of("default", uri, false)
			publish := func(id string) {
				t.Helper()
				now = now.Add(time.Second)
				e := event.Event{Workspace: "default", ID: id, URI: uri, Data: []byte(`{}`), Published: now}
				if _, err := log.Append(t.Context(), "default", uri, []event.Event{e}, nil); err != nil {
					t.Fatal(err)
				}
			}
			newest := func() store.Item {
				t.Helper()
				page, err := db.Query(t.Context(), store.Query{Table: store.Log, Partition: parts[0].Name(), Reverse: true, Limit: 1})
				if err != nil {
					t.Fatal(err)
				}
				return page.Items[0]
			}
			publish("before")
			publish("later")
			later := newest()
			later.Value = []byte(`{"v":2}`)
			if err := db.Write(t.Context(), store.Put(later)); err != nil {
				t.Fatal(err)
			}
			publish("after")

			want := []string{"before", "after"}
			ids := func(events []event.Event) (ids []string) {
				for _, e := range events {
					ids = append(ids, e.ID)
				}
				return ids
			}
			entries, more, _, err := log.ReadPast(t.Context(), parts[0], 0, 100)
			if lost := len(entries) == 3 && entries[1].Lost; err != nil || more || !lost {
				t.Errorf("ReadPast returned %+v, %v, %v; want two events with a lost entry between them", entries, more, err)
			}
			latest, err := log.Latest(t.Context(), "default", uri, false, 10)
			if got := ids(latest); err != nil || !slices.Equal(got, want) {
				t.Errorf("Latest returned %v, %v; want %v", got, err, want)
			}
			listed, _, err := log.Newest(t.Context(), parts, time.Time{}, time.Time{}, "", 10)
			slices.Reverse(listed)
			if got := ids(listed); err != nil || !slices.Equal(got, want) {
				t.Errorf("Newest returned %v, %v; want %v", got, err, want)
			}
			if e, err := log.Find(t.Context(), parts, "before", 10); err != nil || e == nil || e.ID != "before" {
				t.Errorf("Find returned %v, %v; want the event before the item", e, err)
			}
		})
	}
}
