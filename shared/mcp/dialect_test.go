package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/mcp/streams"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/shared/storage/store"
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
		expect.Lacks(t, "the stream, without comments next to the pings", b.text(), "\n:")
	})
	run(t, "SSE-02_superseded_by_a_newer_stream_of_the_session_at_another_instance", nil, func(t *testing.T, f *fixture) {
		older, id := f.dialectStream(alice)
		newer, again := f.instance().dialectStream(alice, "Mcp-Session-Id: "+id)
		expect.Deep(t, "the session", again, id)
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
		expect.Equal(t, "the status", a.Status, 404)
		expect.Equal(t, "the body", a.Body, b.Body)
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
	run(t, "SSE-06_without_authentication_there_is_default", func(o *Options) { o.Auth = auth.AcceptAll() }, func(t *testing.T, f *fixture) {
		f.dialectIn(auth.DefaultWorkspace, "POST", "", rpcText("1", "ping", ""), jsonOnly).isPlain(t, "default", 200)
		f.dialectIn("elsewhere", "POST", "", rpcText("1", "ping", ""), jsonOnly).isPlain(t, "elsewhere", 404)
	})
}

func TestDialectPost(t *testing.T) {
	f := newFixture(t, nil)
	list := rpcText(`"a"`, spec.MethodTemplates, "")
	plain := f.dialect(alice, list, jsonOnly).Body
	if !strings.Contains(plain, "event://github/") {
		t.Fatal(plain)
	}
	t.Run("SSE-03_the_form_follows_Accept", func(t *testing.T) {
		for _, tc := range []struct {
			accept string
			stream bool
		}{
			{"text/event-stream", true},
			{"application/json, text/event-stream", true},
			{"text/event-stream;q=0.5", true},
			{"application/json", false},
			{"*/*", false},
			{"", false},
		} {
			var headers []string
			if tc.accept != "" {
				headers = []string{"Accept: " + tc.accept}
			}
			r := f.dialect(alice, list, headers...)
			want, contentType := plain, "application/json"
			if tc.stream {
				want, contentType = "event: response\ndata: "+plain+"\n\n", "text/event-stream"
				expect.Equal(t, tc.accept+": the header Cache-Control", r.Header.Get("Cache-Control"), "no-cache")
				expect.Equal(t, tc.accept+": the header Connection", r.Header.Get("Connection"), "keep-alive")
			}
			if r.Status != 200 || r.Body != want || r.Header.Get("Content-Type") != contentType || r.Header.Get(spec.HeaderSession) != "" {
				t.Errorf("%q: got %+v, want %s as %s", tc.accept, r, want, contentType)
			}
		}
	})
	t.Run("SSE-03_on_the_open_stream_at_another_instance", func(t *testing.T) {
		o, id := f.dialectStream(alice)
		other := f.instance()
		other.dialect(alice, list, jsonOnly, "Mcp-Session-Id: "+id).isPlain(t, "a list", 202)
		o.answers(plain)
		other.dialect(alice, rpcText("2", "no/such", ""), "Mcp-Session-Id: "+id).isPlain(t, "an unknown method", 202)
		o.answers(`"id":2,"error":{"code":-32601`)
		other.dialect(alice, rpcText("3", "ping", ""), "Accept: text/event-stream", "Mcp-Session-Id: "+id).
			isPlain(t, "a ping that accepts a stream", 200, "event: response\ndata: {\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{}}\n\n")
		o.close()
		f.waitClosed(id)
		other.dialect(alice, rpcText("4", "ping", ""), jsonOnly, "Mcp-Session-Id: "+id).
			isPlain(t, "a ping after the end of the stream", 200, `{"jsonrpc":"2.0","id":4,"result":{}}`)
	})
	t.Run("SSE-03_an_answer_that_is_on_its_way_comes_after_a_resume_and_a_batch_of_them_as_a_whole", func(t *testing.T) {
		o, id := f.dialectStream(alice)
		f.dialect(alice, rpcText("1", "ping", ""), jsonOnly, "Mcp-Session-Id: "+id)
		last := o.answers(`"id":1`)
		f.dialect(alice, "["+rpcText("2", "ping", "")+","+rpcText("3", "ping", "")+"]", jsonOnly, "Mcp-Session-Id: "+id)
		within := o.answers(`"id":2`)
		o.close()
		for _, cut := range []string{within.ID, last.ID} {
			again, _ := f.dialectStream(alice, "Mcp-Session-Id: "+id, "Last-Event-ID: "+cut)
			again.answers(`"id":2`, `"id":3`)
			again.close()
		}
	})
	t.Run("SSE-03_what_does_not_fit_into_a_notice_is_the_answer_to_the_POST", func(t *testing.T) {
		src := "events:\n"
		for i := range 90 {
			src += fmt.Sprintf("  - {name: big.n%d, uri: event://big/n%d, description: %q}\n", i, i, strings.Repeat("x", 3900))
		}
		f := newFixture(t, nil)
		f.catalogs.Replace(mustParse(t, src))
		o, id := f.dialectStream(alice)
		r := f.dialect(alice, rpcText("1", spec.MethodResources, ""), jsonOnly, "Mcp-Session-Id: "+id)
		if r.Status != 200 || len(r.Body) <= maxResponse || !json.Valid([]byte(r.Body)) {
			t.Fatalf("got status %d, %d bytes, want 200 and more than %d", r.Status, len(r.Body), maxResponse)
		}
		f.catalogs.Replace(mustParse(t, testCatalog))
		r = f.dialect(alice, rpcText("2", spec.MethodResources, ""), jsonOnly, "Mcp-Session-Id: "+id)
		r.isPlain(t, "a list that fits", 202)
		o.answers(`"id":2`)
	})
	t.Run("SSE-03_the_largest_answer_fits_into_an_item", func(t *testing.T) {
		o, id := f.dialectStream(alice)
		s := expect.Value(f.endpoint.sessions.Load(t.Context(), id, f.principal(alice), true))(t)
		kept := httpjson.NewRecorder()
		_, _ = kept.Write([]byte(`"` + strings.Repeat("x", maxResponse-2) + `"`))
		c := &method.Call{Request: f.request("POST", alice, ""), Principal: f.principal(alice), Session: s}
		if !(dialect{f.endpoint}).respond(c, kept) || len(o.answers("").Data) != maxResponse {
			t.Errorf("an answer of %d bytes did not get to the stream", maxResponse)
		}
	})
	t.Run("SSE-03_secrets_on_their_way_are_sealed", func(t *testing.T) {
		o, id := f.dialectStream(alice)
		f.dialect(alice, rpcText("1", spec.MethodRegister, `"uris":["event://ci/deploy"],"targetUri":"https://a.example/"`), jsonOnly, "Mcp-Session-Id: "+id)
		e := o.event()
		for e.Name != "response" { // skips the notification that the list of resources changed
			e = o.event()
		}
		page := expect.Value(f.db.Query(t.Context(), store.Query{Table: store.Log, Partition: "n#default#session-" + session.Key(id)}))(t)
		var stored string
		for _, it := range page.Items {
			stored += string(it.Value)
		}
		if !strings.Contains(string(e.Data), "whsec_generated") || !strings.Contains(stored, `"response"`) || strings.Contains(stored, "whsec_") || strings.Contains(stored, id) {
			t.Errorf("the answer is %s, and in the log is %s, want the secret and the session id only in the answer", e.Data, stored)
		}
	})
	t.Run("SSE-03_what_HTTP_has_to_say_is_said_to_the_POST", func(t *testing.T) {
		o, id := f.dialectStream(reader)
		r := f.dialect(reader, rpcText("1", spec.MethodRegister, `"uris":["event://ci"],"targetUri":"https://a.example/"`), jsonOnly, "Mcp-Session-Id: "+id)
		r.is(t, "without the scope", 403, method.CodeForbidden)
		r.hasHeader(t, "WWW-Authenticate", "events:subscribe")
		o.cancel()
	})
	t.Run("SSE-03_notifications_and_responses_of_clients_are_accepted", func(t *testing.T) {
		for _, body := range []string{`{"jsonrpc":"2.0","method":"notifications/initialized"}`, `{"jsonrpc":"2.0","id":7,"result":{}}`, `[{"jsonrpc":"2.0","method":"x"}]`} {
			f.dialect(alice, body, "Accept: text/event-stream").isPlain(t, body, 202)
		}
	})
}

func (f *fixture) principal(key string) auth.Principal {
	f.t.Helper()
	p := expect.Value(f.endpoint.options.Auth.Authenticate(f.t.Context(), http.Header{"Authorization": {"Bearer " + key}}))(f.t)
	return p
}

// waitClosed waits until the session's streams are closed.
func (f *fixture) waitClosed(id string) {
	f.t.Helper()
	f.waitFor("the end of the stream", func() bool {
		return !expect.Value(f.endpoint.sessions.HasOpenStream(f.t.Context(), session.Key(id)))(f.t)
	})
}

func TestDialectMessages(t *testing.T) {
	f := newFixture(t, nil)
	t.Run("SSE-05_what_is_no_request", func(t *testing.T) {
		for body, want := range map[string]string{
			``:                         `{"jsonrpc":"2.0","error":{"code":-32700}}`,
			`{"jsonrpc":"2.0","id":1`:  `{"jsonrpc":"2.0","error":{"code":-32700}}`,
			`[]`:                       `{"jsonrpc":"2.0","error":{"code":-32600}}`,
			`{"id":1,"method":"ping"}`: `{"jsonrpc":"2.0","id":1,"error":{"code":-32600}}`,
			`{"jsonrpc":"2.0","id":null,"method":"ping"}`: `{"jsonrpc":"2.0","error":{"code":-32600}}`,
		} {
			for accept, before := range map[string]string{jsonOnly: "", "Accept: text/event-stream": "event: response\ndata: "} {
				r := f.dialect(alice, body, accept)
				r.isPlain(t, body, 400, before)
				sameJSON(t, json.RawMessage(bare(t, strings.TrimPrefix(r.Body, before))), want)
			}
		}
	})
	t.Run("SSE-05_ids_come_back_as_they_were_and_codes_where_they_belong", func(t *testing.T) {
		for _, id := range []string{`1`, `"1"`, `9007199254740993`, `-0`, `""`, `"\u0061"`} {
			f.dialect(alice, rpcText(id, "ping", ""), jsonOnly).isPlain(t, id, 200, `{"jsonrpc":"2.0","id":`+id+`,"result":{}}`)
		}
		for body, want := range map[string]int{
			rpcText("1", "no/such", ""):                           -32601,
			rpcText("1", spec.MethodDiscover, ""):                 -32601, // This revision does not have the method.
			rpcText("1", spec.MethodRead, ""):                     -32602,
			rpcText("1", spec.MethodRead, `"uri":"event://none"`): -32002,
			rpcText("1", spec.MethodRegister, `"uris":[]`):        -32602,
		} {
			f.dialect(alice, body, jsonOnly).is(t, body, 200, want)
		}
		broken := newFixture(t, nil)
		broken.endpoint.methods["break"] = method.Row{SessionBased: true, Handler: method.Answering{Replies: broken.endpoint.replies, Timing: broken.endpoint.streams.Timing, Answer: func(context.Context, *method.Call) (method.Result, error) { panic("oh") }}}
		broken.dialect(alice, rpcText("1", "break", ""), jsonOnly).is(t, "a method that panics", 500, -32603)
	})
	t.Run("SSE-05_a_reused_id_is_refused_in_its_session_at_any_instance", func(t *testing.T) {
		o, id := f.dialectStream(alice)
		_, second := f.dialectStream(alice)
		for _, tc := range []struct {
			on      *fixture
			session string
			id      string
			fresh   bool
		}{
			{f, id, `1`, true},
			{f, id, `1`, false},
			{f.instance(), id, `1`, false},
			{f, id, `"1"`, true},
			{f, id, `"a"`, true},
			{f, id, `"\u0061"`, false},
			{f, second, `1`, true},
			{f, "", `1`, true},
			{f, "", `1`, true},
		} {
			headers := []string{"Accept: text/event-stream"}
			if tc.session != "" {
				headers = append(headers, "Mcp-Session-Id: "+tc.session)
			}
			r := tc.on.dialect(alice, rpcText(tc.id, "ping", ""), headers...)
			if tc.fresh != (r.Status == 200) || !tc.fresh && (r.Status != 400 || !strings.Contains(r.Body, `"id":`+tc.id+`,"error":{"code":-32600`)) {
				t.Errorf("%s in %.4q: got %+v, want fresh: %v", tc.id, tc.session, r, tc.fresh)
			}
		}
		// The refusal must not be sent on the stream, where it would look like the answer to the first request.
		f.dialect(alice, rpcText("1", "ping", ""), jsonOnly, "Mcp-Session-Id: "+id).is(t, "the id again", 400, -32600)
		f.dialect(alice, rpcText("99", "ping", ""), jsonOnly, "Mcp-Session-Id: "+id)
		o.answers(`"id":99`)
	})
	t.Run("SSE-05_batches", func(t *testing.T) {
		const three = `[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"x"},{"jsonrpc":"2.0","id":1,"method":"ping"},7,{"jsonrpc":"2.0","id":2,"method":"initialize"}]`
		r := f.dialect(alice, three, jsonOnly)
		sameJSON(t, json.RawMessage(bare(t, r.Body)), `[{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","id":1,"result":{}},
			{"jsonrpc":"2.0","error":{"code":-32600}},{"jsonrpc":"2.0","id":2,"error":{"code":-32600}}]`)
		r = f.dialect(alice, three, "Accept: text/event-stream")
		expect.Deep(t, "responses", strings.Count(r.Body, "event: response\ndata: {"), 4)
		o, id := f.dialectStream(alice)
		f.dialect(alice, three, jsonOnly, "Mcp-Session-Id: "+id).isPlain(t, "a batch", 202)
		seen := map[string]bool{}
		for i, want := range []string{`{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32600}}`, `{"jsonrpc":"2.0","error":{"code":-32600}}`, `{"jsonrpc":"2.0","id":2,"error":{"code":-32600}}`} {
			e := o.answers("")
			if e.ID == "" || seen[e.ID] {
				t.Errorf("response %d is %+v, want an id of its own", i, e)
			}
			seen[e.ID] = true
			sameJSON(t, json.RawMessage(bare(t, string(e.Data))), want)
		}
		f.dialect(alice, "["+strings.Repeat("{},", maxBatch)+"{}]", jsonOnly).is(t, "a batch that is too long", 400, -32600)
	})
	t.Run("SSE-03_methods_of_a_session_need_one", func(t *testing.T) {
		f.dialect(alice, rpcText("1", spec.MethodSubscribe, `"uri":"event://ci"`), jsonOnly).is(t, "subscribe", 400, -32600)
	})
	t.Run("SSE-03_a_foreign_session_is_unknown", func(t *testing.T) {
		_, id := f.dialectStream(alice)
		for name, r := range map[string]reply{
			"another principal":          f.dialect(bob, rpcText("1", "ping", ""), "Mcp-Session-Id: "+id),
			"of another workspace":       f.dialectIn("elsewhere", "POST", foreign, rpcText("1", "ping", ""), "Mcp-Session-Id: "+id),
			"none":                       f.dialect(alice, rpcText("1", "ping", ""), "Mcp-Session-Id: x"),
			"a session of another world": f.dialect(alice, rpcText("1", "ping", ""), "Mcp-Session-Id: "+f.session(alice, spec.V20250326)),
		} {
			r.isPlain(t, name, 404, "session not found\n")
		}
	})
	t.Run("SSE-03_initialize_begins_a_session_or_tells_of_the_client", func(t *testing.T) {
		const initialize = `"protocolVersion":"2025-06-18","capabilities":{"extensions":{"` + spec.OwnExtension + `":{},"` + spec.EventsExtension + `":{}}},"clientInfo":{"name":"t","version":"1"}`
		r := f.dialect(alice, rpcText("1", spec.MethodInitialize, initialize), jsonOnly)
		id := r.Header.Get(spec.HeaderSession)
		if r.Status != 200 || id == "" || !strings.Contains(r.Body, `"protocolVersion":"2025-06-18"`) {
			t.Fatalf("got %+v, want a session at 2025-06-18", r)
		}
		f.dialect(alice, rpcText("1", "ping", ""), "Mcp-Session-Id: "+id).isPlain(t, "SSE-05: the id of initialize again", 400)
		o, again := f.dialectStream(alice, "Mcp-Session-Id: "+id)
		expect.Deep(t, "the session", again, id)
		o.cancel()

		o, id = f.dialectStream(alice)
		f.dialect(alice, rpcText("1", spec.MethodInitialize, initialize), jsonOnly, "Mcp-Session-Id: "+id).isPlain(t, "initialize", 202)
		o.answers(`"protocolVersion":"2025-06-18"`)
		f.dialect(alice, rpcText("2", spec.MethodSubscribe, `"uri":"event://ci/deploy"`), "Accept: text/event-stream", "Mcp-Session-Id: "+id)
		f.publish("event://ci/deploy", `{"n":1}`)
		sameJSON(t, o.next().Params.Meta[spec.MetaPayload], `{"n":1}`)
		f.announceCatalog()
		o.notifies(spec.NoteResourcesChange, spec.NoteEventsChange)
	})
}

// slowGateway is a gateway whose backend takes this long to answer a call.
type slowGateway struct {
	*fakeGateway
	takes time.Duration
}

func (g slowGateway) Call(ctx context.Context, c api.Call) error {
	if err := periodic.Sleep(ctx, g.takes); err != nil {
		return err
	}
	return c.Send(json.RawMessage(`{"jsonrpc":"2.0","id":`+string(c.ID)+`,"result":{"content":[]}}`), true)
}

// A call to a backend may take longer than the context of its request.
func TestAnswersOfSlowBackendsInTheDialect(t *testing.T) {
	slow := func(o *Options) { o.Gateway = slowGateway{newFakeGateway(), 2 * method.DetachedFor} }
	open := func(f *fixture) *http.Request { return byDialect.request(f, &follower{key: alice}) }
	bubble(t, "SSE-03 a late answer goes to the stream", inMemory, slow, open, func(t *testing.T, b *bubbled) {
		call := b.f.request("POST", alice, rpcText("7", spec.MethodToolsCall, `"name":"b_tool","arguments":{}`),
			"Accept:", jsonOnly, "Mcp-Session-Id: "+b.header.Get(spec.HeaderSession))
		call.URL.Path = dialectPath
		w := httptest.NewRecorder()
		routed(b.f.endpoint).ServeHTTP(w, call)
		time.Sleep(time.Second) // until the stream has read the log
		if w.Code != http.StatusAccepted || w.Body.Len() > 0 || !strings.Contains(b.text(), `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}`) {
			t.Errorf("got status %d with %q, and on the stream %s, want 202 and the result on the stream", w.Code, w.Body, b.text())
		}
	})
}

// bare returns the JSON with each error reduced to its code. It also checks that every error has a message.
func bare(t testing.TB, text string) string {
	t.Helper()
	var v any
	expect.OK(t, json.Unmarshal([]byte(text), &v))
	strip := func(v any) {
		m, _ := v.(map[string]any)
		if e, ok := m["error"].(map[string]any); ok {
			if e["message"] == "" || e["message"] == nil {
				t.Errorf("an error without a message: %s", text)
			}
			m["error"] = map[string]any{"code": e["code"]}
		}
	}
	if list, ok := v.([]any); ok {
		for _, it := range list {
			strip(it)
		}
	} else {
		strip(v)
	}
	return string(jsonrpc.Encode(v))
}

func FuzzDialectPost(f *testing.F) {
	for _, seed := range []string{
		rpcText("1", "ping", ""), `{"jsonrpc":"2.0","id":1,"method":"resources/list"}`, "[" + rpcText("1", "ping", "") + ",7]", `{`, `[]`, "",
		rpcText(`"\r\nevent: x"`, "ping", ""), rpcText("1", spec.MethodSubscribe, `"uri":"event://ci"`), `{"jsonrpc":"2.0","method":"x"}`,
		rpcText("1", spec.MethodInitialize, `"protocolVersion":"2025-06-18","capabilities":{}`),
	} {
		f.Add(seed, "text/event-stream")
		f.Add(seed, "application/json")
	}
	e := newEndpoint(f, nil)
	f.Cleanup(e.close)
	f.Fuzz(func(t *testing.T, body, accept string) {
		req := httptest.NewRequestWithContext(t.Context(), "POST", "/mcp/default", strings.NewReader(body))
		req.Header = http.Header{"Authorization": {"Bearer " + alice}, "Content-Type": {"application/json"}, "Accept": {accept}}
		req.SetPathValue(PathWorkspace, "default")
		w := httpjson.NewRecorder()
		e.endpoint.ServeHTTP(w, req)
		switch contentType := w.Header().Get("Content-Type"); {
		case w.Status == 202 && w.Body.Len() == 0:
		case contentType == "application/json":
			checkResponses(t, w.Body.Bytes())
		case contentType == sse.ContentType:
			r := sse.NewReader(&w.Body, 1<<20)
			for {
				ev, err := r.Next()
				if err != nil {
					break
				}
				if ev.Name != "response" || ev.ID != "" || ev.Retry != 0 {
					t.Fatalf("got %+v, want a response without an id and retry", ev)
				}
				checkResponses(t, ev.Data)
			}
		default:
			t.Fatalf("status %d, %v", w.Status, w.Header())
		}
	})
}

// checkResponses checks that a response, or each response of a batch, is well-formed.
func checkResponses(t *testing.T, text []byte) {
	t.Helper()
	one := func(text []byte) {
		var m struct {
			JSONRPC string
			Result  json.RawMessage
			Error   *struct {
				Code    *int
				Message string
			}
		}
		if err := json.Unmarshal(text, &m); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if m.JSONRPC != "2.0" || (m.Result == nil) == (m.Error == nil) || m.Error != nil && (m.Error.Code == nil || m.Error.Message == "") {
			t.Fatalf("no response: %s", text)
		}
	}
	var list []json.RawMessage
	if json.Unmarshal(text, &list) == nil {
		for _, it := range list {
			one(it)
		}
		return
	}
	one(text)
}

// unwell is a store that fails while down is set.
type unwell struct {
	store.DB
	down atomic.Bool
}

var errDown = fault.New(fault.Unavailable, "the store is down")

func (u *unwell) Get(ctx context.Context, keys ...store.Key) ([]*store.Item, error) {
	if u.down.Load() {
		return nil, errDown
	}
	return u.DB.Get(ctx, keys...)
}

func (u *unwell) Write(ctx context.Context, ops ...store.Op) error {
	if u.down.Load() {
		return errDown
	}
	return u.DB.Write(ctx, ops...)
}

func TestDialectFailures(t *testing.T) {
	var sessions *unwell
	f := newFixture(t, func(o *Options) {
		sessions = &unwell{DB: o.Sessions}
		o.Sessions = sessions
	})
	o, id := f.dialectStream(alice)
	t.Run("SSE-03_an_answer_that_cannot_get_to_its_stream_is_the_answer_to_the_POST", func(t *testing.T) {
		full := &unwell{DB: f.db}
		full.down.Store(true)
		feeds := f.endpoint.options.Feeds
		defer func() { f.endpoint.options.Feeds = feeds }()
		f.endpoint.options.Feeds = stream.New(&eventlog.Log{DB: full}, full, feeds.Sealer)
		f.dialect(alice, rpcText("1", "ping", ""), jsonOnly, "Mcp-Session-Id: "+id).isPlain(t, "ping", 200, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	})
	t.Run("SSE-03_without_the_store_sessions_are_unavailable_and_not_unknown", func(t *testing.T) {
		sessions.down.Store(true)
		defer sessions.down.Store(false)
		for name, r := range map[string]reply{
			"a POST in a session":   f.dialect(alice, rpcText("2", "ping", ""), "Mcp-Session-Id: "+id),
			"a GET in a session":    f.dialectIn("default", "GET", alice, "", "Mcp-Session-Id: "+id),
			"a GET that begins one": f.dialectIn("default", "GET", alice, ""),
			"an initialize":         f.dialect(alice, rpcText("1", spec.MethodInitialize, `"protocolVersion":"2025-06-18","capabilities":{}`), jsonOnly),
		} {
			r.is(t, name, 503, method.CodeUnavailable)
			r.hasHeader(t, "Retry-After", "")
		}
		f.dialectIn("nowhere", "GET", alice, "").isPlain(t, "an unknown workspace", 404)
		f.dialect(alice, rpcText("1", "ping", ""), jsonOnly).is(t, "what needs no session", 200, 0)
	})
	t.Run("SSE-03_a_notice_that_cannot_be_opened_does_not_end_the_stream", func(t *testing.T) {
		expect.OK(t, f.log.Notify(t.Context(), "default", "session-"+session.Key(id), jsonrpc.Encode(streams.ResponseNotice{Response: []byte("forged")})))
		f.dialect(alice, rpcText("3", "ping", ""), jsonOnly, "Mcp-Session-Id: "+id)
		o.answers(`{"jsonrpc":"2.0","id":3,"result":{}}`)
	})
	run(t, "SSE-06_a_catalog_that_cannot_be_read_is_no_unknown_workspace", func(o *Options) { o.Catalogs = broken{errDown} }, func(t *testing.T, f *fixture) {
		f.dialect(alice, rpcText("1", "ping", ""), jsonOnly).is(t, "ping", 503, method.CodeUnavailable)
	})
}
