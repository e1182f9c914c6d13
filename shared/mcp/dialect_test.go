package mcp

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/test/expect"
)

const jsonOnly = "Accept: application/json"

// dialectPath is the endpoint of the named-event dialect.
const dialectPath = "/mcp/default"

// dialectIn sends a request to /mcp/{workspace}. It has no Accept header unless headers add one.
func (f *fixture) dialectIn(workspace, method, key, body string, headers ...string) reply {
	f.t.Helper()
	req := f.request(method, key, body, append([]string{"Accept:"}, headers...)...)
	var err error
	req.URL, err = url.Parse(f.server.URL + "/mcp/" + workspace)
	expect.OK(f.t, err)
	return f.answer(req)
}

func (f *fixture) dialect(key, body string, headers ...string) reply {
	f.t.Helper()
	return f.dialectIn("default", "POST", key, body, headers...)
}

// dialectStream opens a GET stream and reads its first event. It returns the stream and its session.
func (f *fixture) dialectStream(key string, headers ...string) (o *open, session string) {
	f.t.Helper()
	req := f.request("GET", key, "", append([]string{"Accept:", "Accept: text/event-stream"}, headers...)...)
	req.URL.Path = dialectPath
	o = f.open(req)
	o.lifecycle("streamOpened", "")
	return o, o.header.Get(spec.HeaderSession)
}

// lifecycle returns the next event, which must be a lifecycle event with this method and reason.
func (o *open) lifecycle(method, reason string) frame {
	o.t.Helper()
	m := o.next()
	if m.sse.Name != "lifecycle" || m.Method != method || m.ID != nil || m.Params.Reason != reason {
		o.t.Fatalf("got %s %s, want lifecycle %s with the reason %q", m.sse.Name, m.sse.Data, method, reason)
	}
	return m
}

// answers checks that the next events are responses that contain these texts, and returns the last of them.
func (o *open) answers(texts ...string) (last sse.Event) {
	o.t.Helper()
	for _, want := range texts {
		if last = o.event(); last.Name != "response" || !strings.Contains(string(last.Data), want) {
			o.t.Fatalf("got %s %s, want a response with %s", last.Name, last.Data, want)
		}
	}
	return last
}

// notifies checks that the next events are these notifications, and returns the last of them.
func (o *open) notifies(says ...string) (last frame) {
	o.t.Helper()
	for _, want := range says {
		if last = o.brings(want); last.sse.Name != "notification" || last.ID != nil {
			o.t.Fatalf("got %s %s, want a notification", last.sse.Name, last.sse.Data)
		}
	}
	return last
}

func rpcText(id, method, params string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":{` + params + `}}`
}

func TestDialectStream(t *testing.T) {
	run(t, "SSE-01_a_session_and_the_time_in_the_first_event", nil, func(t *testing.T, f *fixture) {
		req := f.request("GET", alice, "", "Accept:", "Accept: text/event-stream")
		req.URL.Path = dialectPath
		before := time.Now().Add(-time.Second)
		o := f.open(req)
		at, err := time.Parse(time.RFC3339, o.lifecycle("streamOpened", "").Params.Timestamp)
		if id := o.header.Get(spec.HeaderSession); len(id) < 43 || err != nil || at.Before(before.Truncate(time.Second)) || time.Until(at) > time.Second {
			t.Errorf("got the session %q, opened at %v (%v), want an id of at least 43 characters and the time %v", id, at, err, before)
		}
	})
	bubble(t, "SSE-02_ping_while_quiet_and_the_reason_at_the_maximum_age", inMemory, nil, byDialect.opening(), func(t *testing.T, b *bubbled) {
		<-b.done
		b.neverQuietFor(t, 15*time.Second)
		all := b.frames(t)
		for i, m := range all {
			want := "ping"
			switch i {
			case 0:
				want = "streamOpened"
			case len(all) - 1:
				want = "streamClosed"
			}
			if m.Method != want || m.sse.Name != "lifecycle" {
				t.Errorf("event %d is %s %s, want lifecycle %s", i, m.sse.Name, m.sse.Data, want)
			}
		}
		last := all[len(all)-1].sse
		if want := `{"jsonrpc":"2.0","method":"streamClosed","params":{"reason":"maxAge"}}`; len(all) < 20 || string(last.Data) != want || last.Retry == 0 {
			t.Errorf("the last of %d events is %+v, want %s and retry after at least 20", len(all), last, want)
		}
		if strings.Contains(b.text(), "\n:") {
			t.Error("got comments next to the pings")
		}
	})
	run(t, "SSE-02_superseded_by_a_newer_stream_of_the_session_at_another_instance", nil, func(t *testing.T, f *fixture) {
		older, id := f.dialectStream(alice)
		newer, again := f.instance().dialectStream(alice, "Mcp-Session-Id: "+id)
		equal(t, "the session", again, id)
		older.lifecycle("streamClosed", "superseded")
		older.end()
		// The older stream's cleanup must not make the session look as if it had no open stream.
		f.dialect(alice, rpcText("1", "ping", ""), jsonOnly, "Mcp-Session-Id: "+id).isPlain(t, "ping", 202)
		newer.answers(`"id":1`)
	})
	run(t, "SSE-04_notifications_of_the_session's_subscriptions_and_no_other", nil, func(t *testing.T, f *fixture) {
		o, id := f.dialectStream(alice)
		other, otherID := f.dialectStream(alice)
		subscribe := func(id, uri string) {
			r := f.dialect(alice, rpcText("1", spec.MethodSubscribe, `"uri":"`+uri+`"`), "Accept: text/event-stream", "Mcp-Session-Id: "+id)
			if r.Status != 200 || r.Body != "event: response\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n" {
				t.Fatalf("got %+v, want the result as an event", r)
			}
		}
		subscribe(id, "event://github/acme")
		subscribe(otherID, "event://ci/deploy")
		ev := f.publish("event://github/acme/web/push", `{"n":1}`)
		m := o.notifies(`event://github/acme/web/push {"n":1}`)
		sameJSON(t, m.Params.Meta[spec.MetaEventID], `"`+ev.ID+`"`)
		f.publish(deploy, `{"n":2}`)
		other.notifies(deploy + ` {"n":2}`)
		f.announceCatalog()
		o.notifies(spec.NoteResourcesChange)
		other.notifies(spec.NoteResourcesChange)
		f.dialectIn("default", "GET", alice, "", "Accept: text/event-stream", "Mcp-Session-Id: "+otherID, "Last-Event-ID: "+m.sse.ID).isPlain(t, "another session's event id", 400)
	})
	run(t, "SSE-01_bad_requests", func(o *Options) { o.Leases = &oneStream{} }, func(t *testing.T, f *fixture) {
		sessionBased := f.session(alice, spec.V20251125)
		o, id := f.dialectStream(alice)
		for name, tc := range map[string]struct {
			key, method string
			headers     []string
			want        int
		}{
			"another media type":            {alice, "GET", []string{jsonOnly}, 406},
			"an unknown session":            {alice, "GET", []string{"Mcp-Session-Id: x"}, 404},
			"another principal's session":   {bob, "GET", []string{"Mcp-Session-Id: " + id}, 404},
			"a session of Streamable HTTP":  {alice, "GET", []string{"Mcp-Session-Id: " + sessionBased}, 404},
			"one more stream than there is": {alice, "GET", nil, 503},
			"nobody":                        {"", "GET", nil, 401},
			"another method":                {alice, "DELETE", nil, 405},
		} {
			f.dialectIn("default", tc.method, tc.key, "", tc.headers...).isPlain(t, name, tc.want)
		}
		f.do("POST", alice, rpcText("1", "ping", ""), "Mcp-Session-Id: "+id).isPlain(t, "a session of the dialect at /mcp", 404)
		o.cancel()
	})
}

func TestDialectWorkspaces(t *testing.T) {
	f := newFixture(t, nil)
	own := mustParse(t, "events:\n  - {name: other.thing, uri: event://other/thing}\n")
	f.catalogs.Replace(mustParse(t, testCatalog))
	known := catalog.Workspaces{Own: map[string]catalog.Source{
		"default": f.catalogs, "elsewhere": catalog.NewStatic(own),
	}}
	f = newFixture(t, func(o *Options) { o.Catalogs = known })
	t.Run("SSE-06_unknown_and_hidden_workspaces_are_the_same_404", func(t *testing.T) {
		var first reply
		for _, workspace := range []string{"elsewhere", "nowhere", "%20", "a%2Fb", "DEFAULT", strings.Repeat("x", 2000)} {
			for _, request := range [][2]string{{"GET", ""}, {"POST", rpcText("1", spec.MethodResources, "")}, {"POST", "{"}} {
				r := f.dialectIn(workspace, request[0], alice, request[1])
				if r.Header.Del("Date"); first.Status == 0 {
					first = r
				}
				if r.Status != 404 || r.Body != first.Body || fmt.Sprint(r.Header) != fmt.Sprint(first.Header) {
					t.Errorf("%s %.50s: got %+v, want 404 and all as %+v", request[0], workspace, r, first)
				}
			}
		}
		f.dialectIn("elsewhere", "POST", "", rpcText("1", spec.MethodResources, "")).isPlain(t, "nobody", 401)
	})
	t.Run("SSE-06_a_workspace_without_a_catalog_is_unknown_to_its_own", func(t *testing.T) {
		f := newFixture(t, func(o *Options) {
			o.Catalogs = catalog.Workspaces{Own: map[string]catalog.Source{"default": f.catalogs}}
		})
		a := f.dialectIn("elsewhere", "POST", foreign, rpcText("1", spec.MethodResources, ""))
		b := f.dialectIn("nowhere", "POST", foreign, rpcText("1", spec.MethodResources, ""))
		if a.Status != 404 || a.Body != b.Body {
			t.Errorf("got %+v and %+v, want the same 404", a, b)
		}
	})
	t.Run("SSE-06_each_has_its_catalog_and_its_events", func(t *testing.T) {
		names := func(workspace, key string) string {
			return f.dialectIn(workspace, "POST", key, rpcText("1", spec.MethodResources, ""), jsonOnly).Body
		}
		if a, b := names("default", alice), names("elsewhere", foreign); !strings.Contains(a, "ci.build") || strings.Contains(a, "other.thing") ||
			!strings.Contains(b, "other.thing") || strings.Contains(b, "ci.build") {
			t.Errorf("default lists %s, elsewhere %s, want ci.build and other.thing", a, b)
		}
	})
	run(t, "SSE-06_without_authentication_there_is_default", func(o *Options) { o.Auth = auth.None() }, func(t *testing.T, f *fixture) {
		f.dialectIn(auth.DefaultWorkspace, "POST", "", rpcText("1", "ping", ""), jsonOnly).isPlain(t, "default", 200)
		f.dialectIn("elsewhere", "POST", "", rpcText("1", "ping", ""), jsonOnly).isPlain(t, "elsewhere", 404)
	})
}
