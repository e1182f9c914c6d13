package mcp

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// allKinds opens one stream of each kind: a listen that subscribes to changes of all lists, a session's GET stream and a
// stream of the named-event dialect. It also returns the acknowledgment of the listen.
func (f *fixture) allKinds(key string) (streams map[string]*open, ack frame) {
	f.t.Helper()
	listen := f.listen(key, "1", `{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true}`)
	ack = listen.next()
	get := f.stream(key, f.session(key, spec.V20251125), "")
	get.event() // The first event has only an id.
	req := f.request("GET", key, "", "Accept:", "Accept: text/event-stream")
	req.URL.Path = "/mcp/" + f.principal(key).Workspace
	dialect := f.open(req)
	dialect.lifecycle("streamOpened", "")
	return map[string]*open{"2026": listen, "2025": get, "named events": dialect}, ack
}

// GWN-01, GWN-04: the streams of all three kinds are opened before any backend is configured. They are notified that lists
// changed when a backend is added, when it sends a notification itself, and when it is removed. After the principal loses
// access to the backend, they no longer pass on its notifications. SUB-03: a listen for one kind of change gets only that
// kind. A listen that did not subscribe to lists and a stream in another workspace stay silent throughout.
func TestStreamsFollowWhichBackendsThereAre(t *testing.T) {
	l := startLister(t, "b", true, "t0")
	var now atomic.Pointer[[]api.Backend]
	now.Store(new([]api.Backend))
	gw := expect.Value(gateway.New(gateway.Options{
		Server: json.RawMessage(`{}`), Key: make([]byte, 32),
		Source: func(context.Context) ([]api.Backend, error) { return *now.Load(), nil },
	}))(t)
	f := newFixture(t, func(o *Options) { o.Gateway = gw })
	following, ack := f.allKinds(billing)
	sameJSON(t, ack.Params.Notifications, `{"resourcesListChanged":true}`) // the only list so far
	before := string(ack.Params.Meta[spec.MetaCursor])
	quiet := map[string]*open{
		"events only": f.listening(billing, "1", `{"eventsListChanged":true}`), "another workspace": f.listening(foreign, "1", `{"toolsListChanged":true}`),
	}

	alone := map[string]*open{ // by the only kind of change that they listen for
		spec.NoteToolsChange:     f.listening(billing, "1", `{"toolsListChanged":true}`),
		spec.NotePromptsChange:   f.listening(billing, "1", `{"promptsListChanged":true}`),
		spec.NoteResourcesChange: f.listening(billing, "1", `{"resourcesListChanged":true}`),
	}

	all := []string{spec.NoteToolsChange, spec.NotePromptsChange, spec.NoteResourcesChange}
	notified := func(o *open, revision string, want ...string) {
		t.Helper()
		var got []string
		for range want {
			got = append(got, o.next().Method)
		}
		expect.Deep(t, revision, slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want)))
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
		expect.OK(t, stream.AnnounceBackends(t.Context(), f.log, workspace, version))
	}
	notify := func(method string) { t.Helper(); f.notifyBackend(t, method, "null") }
	b := l.backend()
	b.Scopes = []string{"billing"}

	use("1", b)
	areNotified(all...)
	for kind, o := range alone {
		o.brings(kind)
		notify(kind)
		areNotified(kind)
		o.brings(kind)
	}
	notify(spec.NoteRootsChange) // reaches only the streams of sessions
	following["2025"].brings(spec.NoteRootsChange)
	// A client that resumes learns of the missed change and is notified of the new backend's changes.
	back := f.open(f.listenRequest(billing, "1", `{"toolsListChanged":true}`, `"`+spec.MetaCursor+`":`+before))
	back.brings(spec.NoteAcknowledged)
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
			t.Errorf("%s: notified of %s, want nothing", who, e.Data)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// backendStreams opens a GET stream and a listen, both subscribed to URIs that backend b serves.
func backendStreams(t *testing.T, uris ...string) (f *fixture, streams []*follower) {
	t.Helper()
	f = newFixture(t, func(o *Options) { o.Gateway = newFakeGateway(uris...) })
	return f, []*follower{f.follow(bySession, uris...), f.follow(byListen, uris...)}
}

// The endpoint must drop these members. Otherwise a backend could pass its notification off as one of our events, and move
// or end the client's stream.
func TestBackendUpdateCannotForgeOurMembers(t *testing.T) {
	const forged = `{"uri":"x://1","payload":{"forged":true},"Uri":"event://ci/deploy","extra":1,"_Meta":{"io.github.mcp-events/cursor":"forged"},"_meta":{
		"io.github.mcp-events/cursor":"forged","io.github.mcp-events/eventId":"forged","Io.Github.Mcp-Events/time":"forged",
		"io.modelcontextprotocol/subscriptionId":"forged","dev.mcp/x":"forged","mcp.dev/x":"forged","com.mcp.tools/x":"forged",
		"com.example.mcp/kept":9007199254740993,"traceparent":"00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01","plain":"kept"}}`
	const kept = `"com.example.mcp/kept":9007199254740993,"traceparent":"00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01","plain":"kept"`
	f, streams := backendStreams(t, "x://1")
	f.notifyBackend(t, spec.NoteUpdated, forged)
	f.notifyBackend(t, spec.NoteUpdated, `{"uri":"x://1","_meta":5}`)
	f.notifyBackend(t, spec.NoteUpdated, `{"_meta":{},"uri":"x://1"}`)
	for _, o := range streams {
		first := o.next()
		if text := string(first.sse.Data); strings.Contains(text, "forged") || strings.Contains(text, "extra") || !strings.Contains(text, kept) || first.Params.URI != "x://1" {
			t.Errorf("%s: got %s, want x://1, no member that is ours or the protocol's, and %s", o.name, text, kept)
		}
		o.open.brings("x://1 ", "x://1 ")
	}
}

// According to the MCP schema, the URI of an update "might be a sub-resource of the one that the client actually
// subscribed to". GWN-25: the backend's rules may deny the sub-resource although they allow the one above it.
func TestUpdateOfASubResourceReachesTheSubscriberOfTheOneAbove(t *testing.T) {
	f, streams := backendStreams(t, "file:///dir", "x://1")
	for _, uri := range []string{"file:///dir2", "x://10", "file:///", "file:///dir/denied", "file:///dir/a.txt", "x://1?page=2", "x://1"} {
		f.notifyBackend(t, spec.NoteUpdated, `{"uri":"`+uri+`"}`)
	}
	for _, o := range streams {
		o.open.brings("file:///dir/a.txt ", "x://1?page=2 ", "x://1 ")
	}
}

// Clients may subscribe before they open the session's stream, and before a backend changes a resource. The later subscription must not hide
// the update of the first one.
func TestFirstStreamBringsUpdatesSinceTheSubscription(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Gateway = newFakeGateway("x://1", "x://2") })
	id := f.session(alice, spec.V20251125)
	f.notifyBackend(t, spec.NoteUpdated, `{"uri":"x://1","_meta":{"early":true}}`)
	f.subscribe(alice, id, "x://1")
	f.notifyBackend(t, spec.NoteUpdated, `{"uri":"x://1"}`)
	f.subscribe(alice, id, "x://2")
	f.notifyBackend(t, spec.NoteUpdated, `{"uri":"x://2"}`)
	get := f.stream(alice, id, "")
	get.event() // The first event has only an id.
	get.brings("x://1 ", "x://2 ")
	f.notifyBackend(t, spec.NoteUpdated, `{"uri":"x://1"}`)
	get.brings("x://1 ")
}

// Each use of a session can prolong it. Its subscriptions at the backend must be prolonged with it, because the relay
// unsubscribes once they expire.
func TestSubscriptionAtABackendLivesAsLongAsItsSession(t *testing.T) {
	g := newFakeGateway("x://1")
	f := newFixture(t, func(o *Options) { o.Gateway = g })
	id := f.session(alice, spec.V20251125)
	f.subscribe(alice, id, "x://1")
	holder := "x://1 " + session.Key(id)
	expect.AtLeast(t, "the rest of the subscription at the backend", time.Until(g.subscribed()[holder]), session.TTL)
	// A session is prolonged once less than half of its lifetime is left.
	items := expect.Value(f.db.Get(t.Context(), session.Partition(session.Key(id))))(t)
	items[0].Expires = time.Now().Add(session.TTL/2 - time.Minute)
	expect.OK(t, f.db.Write(t.Context(), store.Put(*items[0])))
	g.forget(holder)
	f.sessionBased(alice, id, "ping", "").is(t, "ping", 200, 0)
	expect.AtLeast(t, "the rest of the subscription at the backend after the session was prolonged", time.Until(g.subscribed()[holder]), session.TTL)
}

func TestResourceThatItsBackendDoesNotListAnyMore(t *testing.T) {
	g := newFakeGateway("x://1")
	f := newFixture(t, func(o *Options) { o.Gateway = g })
	id := f.session(alice, spec.V20251125)
	f.subscribe(alice, id, "x://1")
	g.list()
	t.Run("a reopened stream brings its updates", func(t *testing.T) {
		get := f.stream(alice, id, "")
		get.event() // The first event has only an id.
		f.notifyBackend(t, spec.NoteUpdated, `{"uri":"x://1"}`)
		get.brings("x://1 ")
	})
	t.Run("a client can unsubscribe", func(t *testing.T) {
		f.sessionBased(alice, id, spec.MethodUnsubscribe, `"uri":"x://1"`).is(t, "unsubscribe", 200, 0)
		expect.Deep(t, "the subscriptions at the backend", g.subscribed(), map[string]time.Time{})
	})
}

// After an operator has renamed a backend, a client that subscribes to its resource again gets the updates, on the open stream and on the
// next one. The subscription under the old name ends.
func TestSubscribeAgainAfterABackendWasRenamed(t *testing.T) {
	g := newFakeGateway("x://1", "x://2")
	f := newFixture(t, func(o *Options) { o.Gateway = g })
	id := f.session(alice, spec.V20251125)
	f.subscribe(alice, id, "x://1", "x://2")
	get := f.stream(alice, id, "")
	get.event() // The first event has only an id.
	g.name.Store(new("c"))
	f.subscribe(alice, id, "x://1")
	expect.Deep(t, "the subscriptions at the backends", slices.Sorted(maps.Keys(g.subscribed())), []string{"c x://1 " + session.Key(id), "x://2 " + session.Key(id)})
	for range 2 {
		for _, uri := range []string{"x://2", "x://1"} { // the client has not subscribed to x://2 again
			f.notifyNamed(t, "c", spec.NoteUpdated, `{"uri":"`+uri+`"}`)
		}
		get.brings("x://1 ")
		get = f.stream(alice, id, "")
		get.event()
	}
	f.sessionBased(alice, id, spec.MethodUnsubscribe, `"uri":"x://1"`).is(t, "unsubscribe", 200, 0)
	expect.Deep(t, "the subscriptions afterwards", slices.Sorted(maps.Keys(g.subscribed())), []string{"x://2 " + session.Key(id)})
}

// Clients often close the connection right after sending a cancellation, an answer or the end of their session.
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

// fakeGateway has one backend "b", which every principal may see and which serves the resources in listed. It records the
// subscriptions at the backend. A test may give the backend another name.
type fakeGateway struct {
	Gateway
	name   atomic.Pointer[string]
	mu     sync.Mutex
	listed map[string]bool
	wanted map[string]time.Time // the expiry of each subscription, by "uri holder", for other backends than "b" with its name before
	calls  []string             // the methods that reached it, see reached
}

func newFakeGateway(uris ...string) *fakeGateway {
	g := &fakeGateway{wanted: map[string]time.Time{}}
	g.name.Store(new("b"))
	g.list(uris...)
	return g
}

// list sets the resources that the backend lists.
func (g *fakeGateway) list(uris ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listed = map[string]bool{}
	for _, uri := range uris {
		g.listed[uri] = true
	}
}

// subscribed returns the subscriptions at the backend, by "uri holder".
func (g *fakeGateway) subscribed() map[string]time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.wanted)
}

func (g *fakeGateway) Has(context.Context, api.Client, api.Kind, string) bool { return false }

func (g *fakeGateway) NotifyExtension(context.Context, api.Client, string, json.RawMessage) error {
	return nil
}

func (g *fakeGateway) Any(context.Context) bool { return true }

func (g *fakeGateway) Backends(context.Context, auth.Principal) []string {
	return []string{*g.name.Load()}
}

func (g *fakeGateway) Capabilities(context.Context, api.Client) api.Capabilities {
	return api.Capabilities{Resources: true, Subscribe: true, Instructions: "Read first."}
}

func (g *fakeGateway) End(ctx context.Context, _ api.Client) error { return g.reached(ctx, "End") }

func (g *fakeGateway) Cancel(ctx context.Context, _ api.Client, _ json.RawMessage) error {
	return g.reached(ctx, "Cancel")
}

func (g *fakeGateway) Answer(ctx context.Context, _ api.Client, _ string, _ json.RawMessage) error {
	return g.reached(ctx, "Answer")
}

func (g *fakeGateway) Progress(ctx context.Context, _ api.Client, _ json.RawMessage) error {
	return g.reached(ctx, "Progress")
}

// reached records that a request reached the gateway, unless the context has already ended.
func (g *fakeGateway) reached(ctx context.Context, method string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if ctx.Err() == nil {
		g.calls = append(g.calls, method)
	}
	return ctx.Err()
}

func (g *fakeGateway) Subscribable(_ context.Context, _ auth.Principal, uri string) (string, bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return *g.name.Load(), g.listed[uri], nil
}

func (g *fakeGateway) Permits(_ context.Context, _ auth.Principal, _, uri string) bool {
	return !strings.HasSuffix(uri, "/denied")
}

func (g *fakeGateway) Subscribe(_ context.Context, s api.Subscription) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wanted[wantedAt(s)] = s.Until
	return nil
}

func (g *fakeGateway) Unsubscribe(_ context.Context, s api.Subscription) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.wanted, wantedAt(s))
	return nil
}

func wantedAt(s api.Subscription) string {
	return strings.TrimPrefix(s.Backend+" "+s.URI+" "+s.Holder, "b ")
}

// notifyBackend writes a notification of backend b to the log.
func (f *fixture) notifyBackend(t testing.TB, method, params string) {
	t.Helper()
	f.notifyNamed(t, "b", method, params)
}

func (f *fixture) notifyNamed(t testing.TB, backend, method, params string) {
	t.Helper()
	notice := expect.Value(json.Marshal(api.Notice{Method: method, Params: json.RawMessage(params)}))(t)
	expect.OK(t, f.log.Notify(t.Context(), f.principal(alice).Workspace, stream.TopicBackend(backend), notice))
}

// forget removes the record of a subscription so that a test can see whether the endpoint subscribes again.
func (g *fakeGateway) forget(at string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.wanted, at)
}
