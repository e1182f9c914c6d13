package publish

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// outdated is a source whose cache has only the event types of the operator.
type outdated struct{ catalog.Source }

func (o outdated) Latest(ctx context.Context, workspace string) (*catalog.Catalog, error) {
	return o.Source.Catalog(ctx, workspace)
}

func (outdated) Catalog(context.Context, string) (*catalog.Catalog, error) {
	return catalog.Parse([]byte(types))
}

// GWN-22: an event of a type that the relay stored a moment ago is not lost because the process still has the former catalog.
func TestEventsOfNewBackendTypes(t *testing.T) {
	s, q := service(t)
	db, err := sqlite.Open(sqlite.Memory, sqlite.Options{})
	expect.OK(t, err)
	t.Cleanup(func() { _ = db.Close() })
	s.Catalog = outdated{catalog.AddBackends(db, s.Catalog)}
	_, err = catalog.ReplaceBackends(t.Context(), db, "default", func(all map[string]catalog.BackendTypes) {
		all["shop"] = catalog.BackendTypes{Types: []catalog.BackendType{{Name: "shipped", PayloadSchema: json.RawMessage(`{"type":"object"}`)}}}
	})
	expect.OK(t, err)
	const uri = "event://~shop/shipped/e30"
	expect.OK(t, s.FromBackend(t.Context(), "default", Input{URI: uri, ID: "1", Data: json.RawMessage(`{}`)}))
	expect.OK(t, s.Gap(t.Context(), "default", uri))
	events := q.events(t)
	if len(events) != 2 || events[0].Name != "shipped" || !events[1].Gap {
		t.Errorf("got %+v", events)
	}
	expect.Fault(t, "a payload that does not fit", s.FromBackend(t.Context(), "default", Input{URI: uri, ID: "2", Data: json.RawMessage(`1`)}), fault.Unprocessable)
}
