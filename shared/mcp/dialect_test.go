package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

const jsonOnly = "Accept: application/json"

// dialectPath is the endpoint of the named-event dialect.
const dialectPath = "/mcp/default"

// dialect asks /mcp/{workspace}; a header "Accept:" replaces the one that lists both types.
func (f *fixture) dialectIn(workspace, method, key, body string, headers ...string) reply {
	f.t.Helper()
	req := f.request(method, key, body, append([]string{"Accept:"}, headers...)...)
	var err error
	req.URL, err = url.Parse(f.server.URL + "/mcp/" + workspace)
	must(f.t, err)
	return f.answer(req)
}

func (f *fixture) dialect(key, body string, headers ...string) reply {
	f.t.Helper()
	return f.dialectIn("default", "POST", key, body, headers...)
}

// dialectStream opens the GET stream and takes its first event.
func (f *fixture) dialectStream(key string, headers ...string) (o *open, session string) {
	f.t.Helper()
	req := f.request("GET", key, "", append([]string{"Accept:", "Accept: text/event-stream"}, headers...)...)
	req.URL.Path = dialectPath
	o = f.open(req)
	if o.status != 200 {
		f.t.Fatalf("GET: %d", o.status)
	}
	o.lifecycle("streamOpened")
	return o, o.header.Get(spec.HeaderSession)
}

// lifecycle is the next event, which must be of this kind, and its params.
func (o *open) lifecycle(method string) map[string]string {
	o.t.Helper()
	e := o.event()
	var m struct {
		JSONRPC, Method string
		ID              json.RawMessage
		Params          map[string]string
	}
	must(o.t, json.Unmarshal(e.Data, &m))
	if e.Name != "lifecycle" || m.Method != method || m.JSONRPC != "2.0" || m.ID != nil {
		o.t.Fatalf("got %s %s, want lifecycle %s", e.Name, e.Data, method)
	}
	return m.Params
}

// response is the next event, which must be a response.
func (o *open) response() string {
	o.t.Helper()
	e := o.event()
	if e.Name != "response" {
		o.t.Fatalf("got %s %s, want a response", e.Name, e.Data)
	}
	return string(e.Data)
}

// notification is the next event, which must be one.
func (o *open) notification() frame {
	o.t.Helper()
	m := o.next()
	if m.sse.Name != "notification" || m.ID != nil {
		o.t.Fatalf("got %s %s, want a notification", m.sse.Name, m.sse.Data)
	}
	return m
}

func rpcText(id, method, params string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":{` + params + `}}`
}

func TestDialectStream(t *testing.T) {
	t.Run("SSE-01_headers_and_the_first_event", func(t *testing.T) {
		f := newFixture(t, nil)
		req := f.request("GET", alice, "", "Accept:", "Accept: text/event-stream")
		req.URL.Path = dialectPath
		before := time.Now().Add(-time.Second)
		o := f.open(req)
		for name, want := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "Connection": "keep-alive"} {
			if got := o.header.Get(name); o.status != 200 || got != want {
				t.Errorf("%d, %s: %q, want %q", o.status, name, got, want)
			}
		}
		if id := o.header.Get(spec.HeaderSession); len(id) < 43 {
			t.Errorf("session %q", id)
		}
		at, err := time.Parse(time.RFC3339, o.lifecycle("streamOpened")["timestamp"])
		if err != nil || at.Before(before.Truncate(time.Second)) || time.Until(at) > time.Second {
			t.Errorf("opened at %v: %v", at, err)
		}
	})
	t.Run("SSE-01_no_connection_header_in_HTTP_2", func(t *testing.T) {
		h := http.Header{}
		streamHeaders(h, &http.Request{ProtoMajor: 2})
		if h.Get("Connection") != "" || h.Get("Content-Type") != sse.ContentType {
			t.Errorf("got %v", h)
		}
	})
	t.Run("SSE-02_ping_while_quiet_and_the_reason_at_the_maximum_age", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newEndpointOn(t, newMemory(), nil)
			defer f.tails.Close()
			w := &written{header: http.Header{}}
			req := f.request("GET", alice, "")
			req.SetPathValue(PathWorkspace, "default")
			f.endpoint.ServeHTTP(w, req)
			at := w.times()
			for i := 1; i < len(at); i++ {
				if d := at[i].Sub(at[i-1]); d > 15*time.Second {
					t.Errorf("%v of quiet", d)
				}
			}
			all := frames(t, w.text())
			for i, m := range all {
				want := "ping"
				switch i {
				case 0:
					want = "streamOpened"
				case len(all) - 1:
					want = "streamClosed"
				}
				if m.Method != want || m.sse.Name != "lifecycle" {
					t.Errorf("event %d is %s %s", i, m.sse.Name, m.sse.Data)
				}
			}
			if len(all) < 20 {
				t.Fatalf("%d events in five minutes", len(all))
			}
			last := all[len(all)-1].sse
			if string(last.Data) != `{"jsonrpc":"2.0","method":"streamClosed","params":{"reason":"maxAge"}}` || last.Retry == 0 {
				t.Errorf("the last is %+v", last)
			}
			if strings.Contains(w.text(), "\n:") {
				t.Error("comments beside pings")
			}
		})
	})
	t.Run("SSE-02_shutdown", func(t *testing.T) {
		f := newFixture(t, nil)
		o, _ := f.dialectStream(alice)
		f.close()
		if got := o.lifecycle("streamClosed"); got["reason"] != "shutdown" {
			t.Errorf("got %v", got)
		}
		o.end()
	})
	t.Run("SSE-02_superseded_by_a_newer_stream_of_the_session_at_another_instance", func(t *testing.T) {
		f := newFixture(t, nil)
		older, id := f.dialectStream(alice)
		newer, again := f.instance().dialectStream(alice, "Mcp-Session-Id: "+id)
		if again != id {
			t.Errorf("another session, %s", again)
		}
		if got := older.lifecycle("streamClosed"); got["reason"] != "superseded" {
			t.Errorf("got %v", got)
		}
		older.end()
		// What the older one did at its end must not make the newer one look closed.
		if r := f.dialect(alice, rpcText("1", "ping", ""), jsonOnly, "Mcp-Session-Id: "+id); r.Status != 202 {
			t.Errorf("%+v", r)
		}
		newer.response()
	})
	t.Run("SSE-04_notifications_of_the_session's_subscriptions_and_no_other", func(t *testing.T) {
		f := newFixture(t, nil)
		o, id := f.dialectStream(alice)
		other, otherID := f.dialectStream(alice)
		subscribe := func(id, uri string) {
			r := f.dialect(alice, rpcText("1", spec.MethodSubscribe, `"uri":"`+uri+`"`), "Accept: text/event-stream", "Mcp-Session-Id: "+id)
			if r.Status != 200 || r.Body != "event: response\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n" {
				t.Fatalf("%+v", r)
			}
		}
		subscribe(id, "event://github/acme")
		subscribe(otherID, "event://ci/deploy")
		ev := f.publish("event://github/acme/web/push", `{"n":1}`)
		m := o.notification()
		m.isEvent(t, "event://github/acme/web/push", `{"n":1}`)
		sameJSON(t, m.Params.Meta[spec.MetaEventID], `"`+ev.ID+`"`)
		f.publish("event://ci/deploy", `{"n":2}`)
		other.notification().isEvent(t, "event://ci/deploy", `{"n":2}`)
		must(t, f.log.Notify(t.Context(), "default", "catalog", json.RawMessage(`{}`)))
		for _, s := range []*open{o, other} {
			if m := s.notification(); m.Method != spec.NoteResourcesChange {
				t.Errorf("got %s", m.sse.Data)
			}
		}
	})
	t.Run("SSE-04_resumes_from_the_last_event_id_at_another_instance", func(t *testing.T) {
		f := newFixture(t, nil)
		o, id := f.dialectStream(alice)
		f.dialect(alice, rpcText("1", spec.MethodSubscribe, `"uri":"event://ci/deploy"`), "Accept: text/event-stream", "Mcp-Session-Id: "+id)
		f.waitTargets(1)
		f.publish("event://ci/deploy", `{"n":1}`)
		last := o.notification().sse.ID
		f.publish("event://ci/deploy", `{"n":2}`)
		o.notification()
		o.cancel()
		<-o.ended
		f.publish("event://ci/deploy", `{"n":3}`)
		again, _ := f.instance().dialectStream(alice, "Mcp-Session-Id: "+id, "Last-Event-ID: "+last)
		again.notification().isEvent(t, "event://ci/deploy", `{"n":2}`)
		again.notification().isEvent(t, "event://ci/deploy", `{"n":3}`)
		other, otherID := f.dialectStream(alice)
		if r := f.dialectIn("default", "GET", alice, "", "Accept: text/event-stream", "Mcp-Session-Id: "+otherID, "Last-Event-ID: "+last); r.Status != 400 {
			t.Errorf("another session's event id: %+v", r)
		}
		other.cancel()
	})
	t.Run("SSE-01_bad_requests", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Leases = &oneStream{} })
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
			if r := f.dialectIn("default", tc.method, tc.key, "", tc.headers...); r.Status != tc.want {
				t.Errorf("%s: %+v, want %d", name, r, tc.want)
			}
		}
		if r := f.do("POST", alice, rpcText("1", "ping", ""), "Mcp-Session-Id: "+id); r.Status != 404 {
			t.Errorf("a session of the dialect at /mcp: %+v", r)
		}
		o.cancel()
	})
}

// TestDialectDocumented holds the example of docs/reference/protocol.md to what is sent.
func TestDialectDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/reference/protocol.md")
	must(t, err)
	_, rest, _ := strings.Cut(string(doc), "```sse\n")
	text, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("no example")
	}
	f := newFixture(t, nil)
	req := f.request("GET", alice, "", "Accept:", "Accept: text/event-stream")
	req.URL.Path = dialectPath
	o := f.open(req)
	var got []sse.Event
	got = append(got, o.event())
	session := "Mcp-Session-Id: " + o.header.Get(spec.HeaderSession)
	f.dialect(alice, rpcText(`"1"`, spec.MethodSubscribe, `"uri":"event://ci/build-finished"`), jsonOnly, session)
	got = append(got, o.event())
	f.publish("event://ci/build-finished", `{"status":"passed"}`)
	got = append(got, o.event())
	f.close()
	got = append(got, o.event())
	r := sse.NewReader(strings.NewReader(text), 1<<20)
	for i, ev := range got {
		want, err := r.Next()
		must(t, err)
		if ev.Name != want.Name || (ev.ID == "") != (want.ID == "") || ev.Retry != want.Retry {
			t.Errorf("event %d: got %+v, want %+v", i, ev, want)
		}
		var a, b any
		must(t, json.Unmarshal(ev.Data, &a))
		must(t, json.Unmarshal(bytes.ReplaceAll(want.Data, []byte(`"…"`), []byte(`"<any>"`)), &b))
		compareJSON(t, fmt.Sprintf("event %d", i), a, b, nil)
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("the document has more: %v", err)
	}
}
