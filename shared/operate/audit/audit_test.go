package audit

import (
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// OPS-08: entries are kept for 400 days, whatever the retention of the log is, and an erasure does not change that.
func TestEntriesAreKeptFor400Days(t *testing.T) {
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	trail := &Trail{DB: db}
	began := time.Now()
	expect.OK(t, trail.Do(t.Context(), "default", Entry{By: "op", Action: "subscription.pause", Target: "sub_1"}, func() error { return nil }))
	expect.OK(t, trail.Redact(t.Context(), "default", "op", "erased:1", nil, false, func() error { return nil }))
	page := expect.Value(db.Query(t.Context(), store.Query{Table: store.Settings, Partition: partition("default")}))(t)
	expect.MustEqual(t, "the number of entries", len(page.Items), 1)
	expect.Contains(t, "the entry", string(page.Items[0].Value), `"by":"erased:1"`)
	if kept := page.Items[0].Expires.Sub(began); kept < 400*24*time.Hour-time.Second || kept > 400*24*time.Hour+time.Minute {
		t.Errorf("the entry is kept for %v, want 400 days", kept)
	}
}
