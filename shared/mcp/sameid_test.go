package mcp

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/queue"
)

// TestStreamsTellEventsOfOneIDApart publishes under one id to two URIs that a
// stream follows, each by itself and by a common parent.
func TestStreamsTellEventsOfOneIDApart(t *testing.T) {
	f := newFixture(t, nil)
	l := f.listen(alice, "1", `{"resourceSubscriptions":["event://ci/deploy","event://ci/build-finished","event://ci"]}`)
	first := l.next()
	uris := []string{"event://ci/deploy", "event://ci/build-finished"}
	for _, uri := range uris {
		f.publishAs("1", uri)
	}
	got := map[string]bool{} // the order is that of each URI
	for range uris {
		got[l.next().Params.URI] = true
	}
	if len(got) != len(uris) {
		t.Errorf("EVS-06 EVS-13: got %v", got)
	}
	l.cancel()

	l = f.listenWith(alice, "1", `{"resourceSubscriptions":["event://ci"]}`, `"`+MetaCursor+`":`+string(first.Params.Meta[MetaCursor]))
	l.next()
	seen := map[string]bool{}
	for range uris {
		seen[l.next().Params.URI] = true
	}
	if len(seen) != len(uris) {
		t.Errorf("SUB-08: resumed with %v", seen)
	}
}

// publishAs takes an event with the id given through fanout.
func (f *fixture) publishAs(id, uri string) {
	f.t.Helper()
	cat, err := f.catalogs.Catalog(f.t.Context(), "default")
	must(f.t, err)
	entry, _, _ := cat.Match(uri)
	now := time.Now().UTC()
	body, err := json.Marshal(event.Event{
		Workspace: "default", ID: id, URI: uri, Name: entry.Name,
		Time: now, Published: now, Data: json.RawMessage(`{}`),
	})
	must(f.t, err)
	failed, err := f.fanout.Handle(f.t.Context(), []queue.Message{{ID: uri, Outgoing: queue.Outgoing{Body: body}, Sent: now}})
	if err != nil || len(failed) > 0 {
		f.t.Fatalf("fanout: %v, failed %v", err, failed)
	}
}
