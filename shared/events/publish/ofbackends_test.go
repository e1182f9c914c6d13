package publish

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// outdated is a source whose cache has only the event types of the operator. It counts the reads past the cache.
type outdated struct {
	catalog.Source
	reads *atomic.Int32
}

func (o outdated) Latest(ctx context.Context, workspace string) (*catalog.Catalog, error) {
	o.reads.Add(1)
	return o.Source.Catalog(ctx, workspace)
}

func (outdated) Catalog(context.Context, string) (*catalog.Catalog, error) {
	return catalog.Parse([]byte(types))
}

// ofBackends returns an OfBackends whose cached catalog lacks the event types of backend shop, with the database that has them.
func ofBackends(t *testing.T) (o OfBackends, q *sent, reads *atomic.Int32) {
	t.Helper()
	s, q := service(t)
	db, err := sqlite.Open(sqlite.Memory, sqlite.Options{})
	expect.OK(t, err)
	t.Cleanup(func() { _ = db.Close() })
	reads = &atomic.Int32{}
	s.Catalog = outdated{catalog.AddBackends(db, s.Catalog), reads}
	_, err = catalog.ReplaceBackends(t.Context(), db, "default", func(all map[string]catalog.BackendTypes) {
		all["shop"] = catalog.BackendTypes{Types: []catalog.BackendType{{Name: "shipped", PayloadSchema: json.RawMessage(`{"type":"object"}`)}}}
	})
	expect.OK(t, err)
	return NewOfBackends(s), q, reads
}

const shipped = "event://~shop/shipped/e30"

// GWN-22: an event of a type that the relay stored a moment ago is not lost because the process still has the former catalog.
func TestEventsOfNewBackendTypes(t *testing.T) {
	o, q, _ := ofBackends(t)
	expect.OK(t, o.Publish(t.Context(), "default", Input{URI: shipped, ID: "1", Data: json.RawMessage(`{}`)}))
	expect.OK(t, o.Gap(t.Context(), "default", shipped))
	events := q.events(t)
	if len(events) != 2 || events[0].Name != "shipped" || !events[1].Gap {
		t.Errorf("got %+v", events)
	}
	expect.Fault(t, "a payload that does not fit", o.Publish(t.Context(), "default", Input{URI: shipped, ID: "2", Data: json.RawMessage(`1`)}), fault.Unprocessable)
	expect.Fault(t, "a gap of an unknown type", o.Gap(t.Context(), "default", "event://~shop/unknown/e30"), fault.NotFound)
}

// GWN-22: given a backend that sends many events that do not fit their schema, then they share the reads of the latest catalog.
func TestMisfitsShareReadsOfTheCatalog(t *testing.T) {
	o, _, reads := ofBackends(t)
	const senders, each = 50, 2
	var all sync.WaitGroup
	for range senders {
		all.Go(func() {
			for range each {
				err := o.Publish(t.Context(), "default", Input{URI: shipped, Data: json.RawMessage(`1`)})
				expect.Fault(t, "a misfit", err, fault.Unprocessable)
			}
		})
	}
	all.Wait()
	if n := reads.Load(); n < each || n > senders*each/10 {
		t.Errorf("%d misfits caused %d reads, want about %d", senders*each, n, each)
	}
}
