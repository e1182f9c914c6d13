package mcp

import (
	"context"
	"encoding/json"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// GWN-01, GWN-04: streams of all three kinds that were opened while there was no backend are notified of the lists of one
// that comes and of what it notifies of then, and that it is gone; where the principal may not see it any
// longer, they bring nothing of it. Who asked for no lists, and another workspace, is notified of nothing.
func TestStreamsFollowWhichBackendsThereAre(t *testing.T) {
	l := startLister(t, "b", true, "t0")
	var now atomic.Pointer[[]api.Backend]
	now.Store(new([]api.Backend))
	gw, err := gateway.New(gateway.Options{
		Server: json.RawMessage(`{}`), Key: make([]byte, 32),
		Source: func(context.Context) ([]api.Backend, error) { return *now.Load(), nil },
	})
	must(t, err)
	f := newFixture(t, func(o *Options) { o.Gateway = gw })
	reopen := func(cursor string) *open {
		return f.listenWith(billing, "1", `{"toolsListChanged":true}`, `"`+spec.MetaCursor+`":`+cursor)
	}
	following, ack := f.allKinds(billing)
	sameJSON(t, ack.Params.Notifications, `{"resourcesListChanged":true}`) // what there is now
	before := string(ack.Params.Meta[spec.MetaCursor])
	quiet := map[string]*open{
		"events only": f.listen(billing, "1", `{"eventsListChanged":true}`), "another workspace": f.listen(foreign, "1", `{"toolsListChanged":true}`),
	}
	for _, o := range quiet {
		o.next()
	}

	all := []string{spec.NoteToolsChange, spec.NotePromptsChange, spec.NoteResourcesChange}
	notified := func(o *open, revision string, want ...string) {
		t.Helper()
		var got []string
		for range want {
			got = append(got, o.next().Method)
		}
		if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Fatalf("%s: notified of %q, want %q", revision, got, want)
		}
	}
	areNotified := func(want ...string) {
		t.Helper()
		for revision, o := range following {
			notified(o, revision, want...)
		}
	}
	workspace := f.principal(billing).Workspace
	use := func(version string, backends ...api.Backend) {
		t.Helper()
		now.Store(&backends)
		must(t, stream.AnnounceBackends(t.Context(), f.log, workspace, version))
	}
	notify := func(method string) {
		t.Helper()
		notice, _ := json.Marshal(api.Notice{Method: method})
		must(t, f.log.Notify(t.Context(), workspace, stream.TopicBackend("b"), notice))
	}
	b := api.Backend{Name: "b", URL: l.URL, Workspace: workspace, ProtocolVersion: api.AutoVersion, Scopes: []string{"billing"}}

	use("1", b)
	areNotified(all...)
	notify(spec.NoteToolsChange)
	areNotified(spec.NoteToolsChange)
	// Whoever was away learns of it too, and follows the new one.
	back := reopen(before)
	back.next()
	notified(back, "resumed", spec.NoteToolsChange)

	hidden := b
	hidden.Scopes = []string{"never"}
	use("2", hidden)
	areNotified(all...)
	notify(spec.NoteToolsChange)
	use("3")
	areNotified(all...)
	for who, o := range quiet {
		select {
		case e := <-o.events:
			t.Errorf("%s: notified of %s", who, e.Data)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
