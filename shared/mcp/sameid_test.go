package mcp

import (
	"encoding/json"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// TestStreamsTellEventsOfOneIDApart publishes under one id to two URIs that a
// stream follows, each by itself and by a common parent.
func TestStreamsTellEventsOfOneIDApart(t *testing.T) {
	f := newFixture(t, nil)
	l := f.listen(alice, "1", `{"resourceSubscriptions":["event://ci/deploy","event://ci/build-finished","event://ci"]}`)
	first := l.next()
	uris := []string{"event://ci/deploy", "event://ci/build-finished"}
	for _, uri := range uris {
		f.publishEvent(event.Event{Workspace: auth.DefaultWorkspace, ID: "1", URI: uri, Data: json.RawMessage(`{}`)})
	}
	got := map[string]bool{} // the order is that of each URI
	for range uris {
		got[l.next().Params.URI] = true
	}
	if len(got) != len(uris) {
		t.Errorf("EVS-06 EVS-13: got %v", got)
	}
	l.cancel()

	l = f.listenWith(alice, "1", `{"resourceSubscriptions":["event://ci"]}`, `"`+spec.MetaCursor+`":`+string(first.Params.Meta[spec.MetaCursor]))
	l.next()
	seen := map[string]bool{}
	for range uris {
		seen[l.next().Params.URI] = true
	}
	if len(seen) != len(uris) {
		t.Errorf("SUB-08: resumed with %v", seen)
	}
}
