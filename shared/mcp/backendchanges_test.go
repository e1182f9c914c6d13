package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/relay"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// relayed is an instance that holds the connection to a backend, and another one over the same store.
func relayed(t *testing.T, backend api.Backend) (holder, other *fixture) {
	t.Helper()
	reach := func(o *Options) {
		g, err := gateway.New(gateway.Options{
			Backends: []api.Backend{backend}, DB: o.Sessions, Server: json.RawMessage(`{}`),
			Key: bytes.Repeat([]byte{7}, 32), ListTTL: time.Hour, Log: slog.New(slog.DiscardHandler),
		})
		must(t, err)
		o.Gateway = g
	}
	var held api.Gateway
	holder = newFixture(t, func(o *Options) { reach(o); held = o.Gateway })
	other = holder.instance(reach)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	r := &relay.Relay{
		Backends: func(ctx context.Context) (all []relay.Backend) {
			for _, b := range held.(*gateway.Gateway).Followed(ctx) {
				all = append(all, b)
			}
			return all
		},
		Announce: func(ctx context.Context, workspace, backend string, notice json.RawMessage) error {
			return holder.log.Notify(ctx, workspace, stream.TopicBackend(backend), notice)
		},
		DB: holder.db, Log: slog.New(slog.DiscardHandler),
	}
	go func() { r.Run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	return holder, other
}

// allKinds are streams of all three kinds that follow the lists, and the acknowledgment of the listen.
func (f *fixture) allKinds(key string) (streams map[string]*open, ack frame) {
	f.t.Helper()
	listen := f.listen(key, "1", `{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true}`)
	ack = listen.next()
	get := f.stream(key, f.session(key, spec.V20251125), "")
	get.event() // only an id
	req := f.request("GET", key, "", "Accept:", "Accept: text/event-stream")
	req.URL.Path = "/mcp/" + f.principal(key).Workspace
	dialect := f.open(req)
	dialect.lifecycle("streamOpened")
	return map[string]*open{"2026": listen, "2025": get, "named events": dialect}, ack
}

// GWN-01, GWN-04: a change of a backend's list reaches the streams of all three kinds once, at an
// instance that has no connection to the backend, and none of those that may not see the
// backend; whoever asks then gets the new list, every time. SUB-03: a listen that asked for one kind gets that alone.
func TestChangesReachWhoMaySeeTheBackend(t *testing.T) {
	l := startLister(t, "b", true, "t0")
	l.notified, l.hints = make(chan string), `"ttlMs":3600000,"cacheScope":"private"`
	_, f := relayed(t, api.Backend{
		Name: l.name, URL: l.URL, Workspace: auth.DefaultWorkspace, ProtocolVersion: api.AutoVersion, Scopes: []string{"billing"},
	})
	session := f.session(billing, spec.V20251125)
	allowed, _ := f.allKinds(billing)
	// alice has not the scope, foreign is in another workspace.
	refused := map[string]map[string]*open{}
	for _, key := range []string{alice, foreign} {
		refused[key], _ = f.allKinds(key)
	}
	kinds := []struct{ note, list string }{
		{spec.NoteToolsChange, spec.MethodToolsList}, {spec.NotePromptsChange, spec.MethodPromptsList}, {spec.NoteResourcesChange, spec.MethodResources},
	}
	alone := map[string]*open{}
	for kind, filter := range map[string]string{
		spec.NoteToolsChange: `{"toolsListChanged":true}`, spec.NotePromptsChange: `{"promptsListChanged":true}`, spec.NoteResourcesChange: `{"resourcesListChanged":true}`,
	} {
		alone[kind] = f.listen(billing, "1", filter)
		alone[kind].next()
	}
	for i := range 3 {
		for _, kind := range kinds {
			name := fmt.Sprintf("t%d%s", i, kind.list[:1])
			l.set(func() { l.names = []string{name} })
			l.notified <- kind.note
			if m := alone[kind.note].next(); m.Method != kind.note {
				t.Fatalf("the listen for %s alone got %s", kind.note, m.sse.Data)
			}
			for revision, s := range allowed {
				if m := s.next(); m.Method != kind.note {
					t.Fatalf("%s: got %s, want %s", revision, m.sse.Data, kind.note)
				}
				for asked, r := range map[string]reply{
					"2026": f.stateless(billing, kind.list, ""), "2025": f.sessionBased(billing, session, kind.list, ""),
				} {
					var p backendPage
					r.result(t, &p)
					var got []string
					for _, x := range slices.Concat(p.Tools, p.Prompts, p.Resources) {
						got = append(got, x.Name)
					}
					if !slices.Contains(got, name) {
						t.Fatalf("notified by %s, the list of %s is %q, and not of %s", revision, asked, got, name)
					}
				}
			}
		}
	}
	// GWN-04: what a backend says of roots is for the streams of sessions only.
	l.notified <- spec.NoteRootsChange
	if m := allowed["2025"].next(); m.Method != spec.NoteRootsChange {
		t.Fatalf("got %s, want %s", m.sse.Data, spec.NoteRootsChange)
	}
	l.notified <- spec.NoteToolsChange
	for revision, s := range allowed {
		if m := s.next(); m.Method != spec.NoteToolsChange {
			t.Errorf("%s: got %s, want %s", revision, m.sse.Data, spec.NoteToolsChange)
		}
	}
	for _, workspace := range []string{auth.DefaultWorkspace, "elsewhere"} {
		must(t, f.log.Notify(t.Context(), workspace, stream.TopicCatalog, json.RawMessage(`{}`)))
	}
	for who, theirs := range refused {
		for revision, s := range theirs {
			if m := s.next(); m.Method != spec.NoteResourcesChange {
				t.Errorf("%s, %s: got %s", who, revision, m.sse.Data)
			}
			select {
			case e := <-s.events:
				if m := (frame{}); json.Unmarshal(e.Data, &m) == nil && m.Method != spec.NoteEventsChange {
					t.Errorf("%s, %s: then got %s", who, revision, e.Data)
				}
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
}
