package eventlog_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// Given two URIs with batches of events, some written at the same time, a page has at most as many events as the limit, and all pages
// together have each event once.
func TestALimitCountsEvents(t *testing.T) {
	const batches, size = 5, 7
	for name, db := range map[string]store.DB{"ordered": memory(t), "writers stamp": unordered{memory(t)}} {
		t.Run("OPS-19 "+name, func(t *testing.T) {
			now := time.Now()
			log := &eventlog.Log{DB: db, Now: func() time.Time { return now }}
			var parts []eventlog.Partition
			for i := range batches {
				now = now.Add(time.Second)
				for _, uri := range []string{"event://a/x", "event://a/y"} {
					batch := make([]event.Event, size)
					for k := range batch {
						batch[k] = event.Event{Workspace: "default", ID: fmt.Sprintf("%s/%d/%d", uri, i, k), URI: uri, Data: []byte(`{}`), Published: now}
					}
					expect.OK(t, expect.ErrOf(log.Append(t.Context(), "default", uri, batch, nil)))
					if i == 0 {
						parts = append(parts, log.Of("default", uri, false)...)
					}
				}
			}
			for _, n := range []int{1, 2, size, 10, 2*size + 1, 100} {
				seen, last := map[string]int{}, now
				next, pages := "", 0
				for pages == 0 || next != "" {
					var page []event.Event
					var err error
					page, next, err = log.Newest(t.Context(), parts, time.Time{}, time.Time{}, next, n)
					expect.OK(t, err)
					if pages++; len(page) > n || pages > 2*batches*size+2 {
						t.Fatalf("OPS-19 limit %d: page %d has %d events", n, pages, len(page))
					}
					for _, e := range page {
						if e.Published.After(last) {
							t.Errorf("OPS-19 limit %d: %s comes after an older event", n, e.ID)
						}
						last = e.Published
						seen[e.ID]++
					}
				}
				expect.Equal(t, fmt.Sprintf("OPS-19 limit %d: events", n), len(seen), 2*batches*size)
				for id, times := range seen {
					expect.Equal(t, fmt.Sprintf("OPS-19 limit %d: how often %s is listed", n, id), times, 1)
				}
			}
		})
	}
}
