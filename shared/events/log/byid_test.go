package eventlog_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// asked is a store that counts what it is asked.
type asked struct {
	store.DB
	queries, gets int
}

func (a *asked) Query(ctx context.Context, q store.Query) (store.Page, error) {
	a.queries++
	return a.DB.Query(ctx, q)
}

func (a *asked) Get(ctx context.Context, keys ...store.Key) ([]*store.Item, error) {
	a.gets += len(keys)
	return a.DB.Get(ctx, keys...)
}

// TestAnEventIsFoundByItsID: OPS-05.
func TestAnEventIsFoundByItsID(t *testing.T) {
	db := memory(t)
	counts := &asked{DB: db}
	log := &eventlog.Log{DB: counts}
	write := func(uri string, keys []string, ids ...string) {
		t.Helper()
		var events []event.Event
		for i, id := range ids {
			events = append(events, event.Event{Workspace: "default", ID: id, URI: uri, Data: fmt.Append(nil, i)})
		}
		expect.OK(t, expect.ErrOf(log.Append(t.Context(), "default", uri, events, keys)))
	}
	find := func(workspace, id, uri string) *event.Event {
		t.Helper()
		counts.queries, counts.gets = 0, 0
		e, indexed, err := log.ByID(t.Context(), workspace, id, uri)
		if err != nil || !indexed {
			t.Fatalf("the log has an index of ids: %v, want true (error: %v)", indexed, err)
		}
		return e
	}
	for i := range 300 {
		write(fmt.Sprintf("event://ci/%d", i), nil, fmt.Sprintf("e%d", i), fmt.Sprintf("f%d", i))
	}
	t.Run("OPS-05 by one query and one read, among any number of URIs", func(t *testing.T) {
		if e := find("default", "f123", ""); e == nil || e.URI != "event://ci/123" || e.ID != "f123" || string(e.Data) != "1" {
			t.Errorf("got %+v", e)
		}
		if counts.queries != 1 || counts.gets != 1 {
			t.Errorf("%d queries, %d reads", counts.queries, counts.gets)
		}
		if e := find("default", "e999", ""); e != nil || counts.queries != 1 || counts.gets != 0 {
			t.Errorf("got %+v by %d queries, %d reads", e, counts.queries, counts.gets)
		}
		if e := find("other", "e1", ""); e != nil {
			t.Errorf("another workspace finds %+v", e)
		}
	})
	t.Run("OPS-05 the newest of an id, or that of a URI", func(t *testing.T) {
		write("event://ci/1", nil, "same", "same")
		write("event://ci/2", nil, "same")
		for uri, want := range map[string]string{"": "event://ci/2", "event://ci/1": "event://ci/1", "event://ci/2": "event://ci/2"} {
			if e := find("default", "same", uri); e == nil || e.URI != want {
				t.Errorf("of %q got %+v", uri, e)
			}
		}
		if e := find("default", "same", "event://ci/3"); e != nil {
			t.Errorf("got %+v", e)
		}
	})
	t.Run("OPS-05 of a batch and patterns that fill more than a transaction", func(t *testing.T) {
		var ids, keys []string
		for i := range 150 {
			ids = append(ids, fmt.Sprintf("b%d", i))
		}
		for i := range 120 {
			keys = append(keys, fmt.Sprintf("event://ci/*/%d", i))
		}
		write("event://ci/batch", keys[:30], ids...)
		write("event://ci/patterns", keys, "p1", "p2")
		for _, id := range append(ids, "p1", "p2") {
			if e := find("default", id, ""); e == nil || e.ID != id {
				t.Fatalf("%s: got %+v", id, e)
			}
		}
	})
}

// TestAnEventIsLookedFor: OPS-05, where writers stamp.
func TestAnEventIsLookedFor(t *testing.T) {
	counts, log := logOf(t)
	var ours string
	for i := range 60 {
		e := event.Event{Workspace: "default", ID: fmt.Sprintf("e%d", i), URI: uri, Data: []byte(`{}`)}
		if i == 30 {
			e.ID = event.NewID()
			ours = e.ID
		}
		expect.OK(t, expect.ErrOf(log.Append(t.Context(), "default", uri, []event.Event{e}, nil)))
	}
	for id, want := range map[string]bool{"e59": true, "e51": true, ours: true, "e1": false} {
		counts.reads = 0
		e, err := log.Find(t.Context(), log.Of("default", uri, false), id, 40)
		if err != nil || (e != nil) != want || e != nil && e.ID != id {
			t.Errorf("OPS-05 %s: got %+v, %v", id, e, err)
		}
		expect.Equal(t, fmt.Sprintf("OPS-05 queries for %s", id), counts.reads, 1)
	}
	expect.Equal(t, "OPS-05: items of its id", counts.partitions["id#default#e1"], 0)
}
