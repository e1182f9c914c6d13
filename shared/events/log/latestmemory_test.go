package eventlog

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
)

// measured is a store that notes the largest heap at the beginning of a query.
type measured struct {
	store.DB
	largest uint64
}

func (m *measured) Query(ctx context.Context, q store.Query) (store.Page, error) {
	m.largest = max(m.largest, heap())
	return m.DB.Query(ctx, q)
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func TestReadingAParentWithLargeEvents(t *testing.T) {
	db, err := sqlite.Open(":memory:", sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	m := &measured{DB: db}
	log := &Log{DB: m, Retention: 1e12}
	payload := append(append([]byte(`"`), bytes.Repeat([]byte("x"), 200<<10)...), '"')
	for i := range maxChildren {
		uri := fmt.Sprintf("event://large/%02d", i)
		var events []event.Event
		for n := range 5 {
			at := log.Time()
			events = append(events, event.Event{Workspace: "default", ID: fmt.Sprintf("%d_%d", i, n), URI: uri, Data: payload, Published: at})
		}
		if err := log.RecordChild(t.Context(), "default", uri); err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if _, err := log.Append(t.Context(), "default", uri, []event.Event{e}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := heap()
	m.largest = 0
	latest, err := log.LatestBelow(t.Context(), "default", "event://large", 20, func(string) (bool, bool) { return true, false })
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for _, e := range latest {
		size += len(e.Data)
	}
	if size > LatestBytes || size < LatestBytes-len(payload) {
		t.Errorf("AUT-06 it returns %d bytes, want as many as fit into %d", size, LatestBytes)
	}
	if last := latest[len(latest)-1]; last.URI != "event://large/49" {
		t.Errorf("the newest event is of %s, want the last URI", last.URI)
	}
	if held := m.largest - before; held > 8*LatestBytes {
		t.Errorf("AUT-06 it held %d bytes while it read, want at most %d", held, 8*LatestBytes)
	}
}
