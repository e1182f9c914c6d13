package mcp

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// backendStreams opens a GET stream and a listen that are subscribed to the URIs, which backend b serves.
func backendStreams(t *testing.T, f *fixture, uris ...string) map[string]*open {
	t.Helper()
	session := f.session(alice, spec.V20251125)
	f.follow(alice, session, uris...)
	get := f.stream(alice, session, "")
	get.event() // only an id
	quoted, _ := json.Marshal(uris)
	listen := f.listen(alice, "1", `{"resourceSubscriptions":`+string(quoted)+`}`)
	listen.next() // the acknowledgment
	return map[string]*open{"2025-11-25": get, "2026-07-28": listen}
}

// A backend could otherwise make its notification look like an event of ours, and move or end the client's stream.
func TestBackendUpdateCannotForgeOurMembers(t *testing.T) {
	const forged = `{"uri":"x://1","payload":{"forged":true},"Uri":"event://ci/deploy","extra":1,"_Meta":{"io.github.mcp-events/cursor":"forged"},"_meta":{
		"io.github.mcp-events/cursor":"forged","io.github.mcp-events/eventId":"forged","Io.Github.Mcp-Events/time":"forged",
		"io.modelcontextprotocol/subscriptionId":"forged","dev.mcp/x":"forged","mcp.dev/x":"forged","com.mcp.tools/x":"forged",
		"com.example.mcp/kept":9007199254740993,"traceparent":"00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01","plain":"kept"}}`
	const kept = `"com.example.mcp/kept":9007199254740993,"traceparent":"00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01","plain":"kept"`
	f := newFixture(t, func(o *Options) { o.Gateway = newFakeGateway("x://1") })
	streams := backendStreams(t, f, "x://1")
	f.notifyBackend(t, spec.NoteUpdated, forged)
	f.notifyBackend(t, spec.NoteUpdated, `{"uri":"x://1","_meta":5}`)
	f.notifyBackend(t, spec.NoteUpdated, `{"_meta":{},"uri":"x://1"}`)
	for revision, o := range streams {
		first := o.next()
		text := string(first.sse.Data)
		if strings.Contains(text, "forged") || strings.Contains(text, "extra") || !strings.Contains(text, kept) {
			t.Errorf("%s: got %s, want no member that is ours or the protocol's, and %s", revision, text, kept)
		}
		if first.Params.URI != "x://1" {
			t.Errorf("%s: got the URI %q, want x://1", revision, first.Params.URI)
		}
		for _, sent := range []string{`"_meta":5`, `"_meta":{}`} {
			if m := o.next(); m.Method != spec.NoteUpdated || m.Params.URI != "x://1" {
				t.Errorf("%s: after a backend sent %s got %s, want an update of x://1", revision, sent, m.sse.Data)
			}
		}
	}
}

// The schema says of an update that it "might be a sub-resource of the one that the client actually subscribed to".
func TestUpdateOfASubResourceReachesTheSubscriberOfTheOneAbove(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Gateway = newFakeGateway("file:///dir", "x://1") })
	streams := backendStreams(t, f, "file:///dir", "x://1")
	for _, uri := range []string{"file:///dir2", "x://10", "file:///", "file:///dir/a.txt", "x://1?page=2", "x://1"} {
		f.notifyBackend(t, spec.NoteUpdated, `{"uri":"`+uri+`"}`)
	}
	for revision, o := range streams {
		for _, want := range []string{"file:///dir/a.txt", "x://1?page=2", "x://1"} {
			if m := o.next(); m.Params.URI != want {
				t.Errorf("%s: got an update of %s, want %s", revision, m.Params.URI, want)
			}
		}
	}
}

// A session that is used lives on, and the relay unsubscribes when the subscription at the backend has expired.
func TestSubscriptionAtABackendLivesAsLongAsItsSession(t *testing.T) {
	g := newFakeGateway("x://1")
	f := newFixture(t, func(o *Options) { o.Gateway = g })
	id := f.session(alice, spec.V20251125)
	f.follow(alice, id, "x://1")
	holder := "x://1 " + session.Key(id)
	if until := g.subscribed()[holder]; time.Until(until) < session.TTL {
		t.Errorf("subscribed at the backend for %s, want the session's %s at least", time.Until(until), session.TTL)
	}
	// Half of the session's life is over when less of it is left.
	items, err := f.db.Get(t.Context(), session.Partition(session.Key(id)))
	must(t, err)
	items[0].Expires = time.Now().Add(session.TTL/2 - time.Minute)
	must(t, f.db.Write(t.Context(), store.Put(*items[0])))
	g.forget(holder)
	if r := f.sessionBased(alice, id, "ping", ""); r.Status != 200 {
		t.Fatalf("ping: %+v", r)
	}
	if until := g.subscribed()[holder]; time.Until(until) < session.TTL {
		t.Errorf("after the session was prolonged it is subscribed at the backend for %s more, want %s at least", time.Until(until), session.TTL)
	}
}

func TestResourceThatItsBackendDoesNotListAnyMore(t *testing.T) {
	t.Run("a client can unsubscribe", func(t *testing.T) {
		g := newFakeGateway("x://1")
		f := newFixture(t, func(o *Options) { o.Gateway = g })
		id := f.session(alice, spec.V20251125)
		f.follow(alice, id, "x://1")
		g.list()
		if r := f.sessionBased(alice, id, spec.MethodUnsubscribe, `"uri":"x://1"`); r.Status != 200 || strings.Contains(r.Body, "error") {
			t.Errorf("unsubscribe was answered with %d %s, want a result", r.Status, r.Body)
		}
		if left := g.subscribed(); len(left) > 0 {
			t.Errorf("after it unsubscribed the client is subscribed at the backend to %v, want nothing", left)
		}
	})
	t.Run("a reopened stream brings its updates", func(t *testing.T) {
		g := newFakeGateway("x://1")
		f := newFixture(t, func(o *Options) { o.Gateway = g })
		id := f.session(alice, spec.V20251125)
		f.follow(alice, id, "x://1")
		g.list()
		get := f.stream(alice, id, "")
		get.event() // only an id
		f.notifyBackend(t, spec.NoteUpdated, `{"uri":"x://1"}`)
		if m := get.next(); m.Method != spec.NoteUpdated || m.Params.URI != "x://1" {
			t.Errorf("got %s, want an update of x://1", m.sse.Data)
		}
	})
}

// Clients often close the connection right after they have cancelled, answered or ended their session.
func TestWhatAClientSendsBeforeItLeavesReachesTheBackend(t *testing.T) {
	for method, send := range map[string]func(f *fixture, session string) *http.Request{
		"Cancel": func(f *fixture, session string) *http.Request {
			return f.request("POST", alice, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, session)
		},
		"Answer": func(f *fixture, session string) *http.Request {
			return f.request("POST", alice, `{"jsonrpc":"2.0","id":"gw_1","result":{}}`, session)
		},
		"Progress": func(f *fixture, session string) *http.Request {
			return f.request("POST", alice, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"gw_1","progress":1}}`, session)
		},
		"End": func(f *fixture, session string) *http.Request { return f.request("DELETE", alice, "", session) },
	} {
		t.Run("GWN-13 "+method, func(t *testing.T) {
			g := newFakeGateway()
			f := newFixture(t, func(o *Options) { o.Gateway = g })
			id := f.session(alice, spec.V20251125)
			left, cancel := context.WithCancel(t.Context())
			cancel()
			w := httptest.NewRecorder()
			f.endpoint.ServeHTTP(w, send(f, "Mcp-Session-Id: "+id).WithContext(left))
			if w.Code >= 300 || !slices.Contains(g.calls, method) {
				t.Errorf("it was answered with %d, and the gateway got %q, want %s", w.Code, g.calls, method)
			}
		})
	}
}
