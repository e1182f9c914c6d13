package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// pushed are the params of a notification of events/stream.
type pushed struct {
	at     time.Time // in a bubble
	Method string
	Params struct {
		EventID, Name, Timestamp string
		Data                     json.RawMessage
		Cursor                   string
		Truncated                *bool
		Error                    *struct {
			Code    int
			Message string
			Data    json.RawMessage
		}
		Meta map[string]json.RawMessage `json:"_meta"`
	}
}

func (o *open) pushed() pushed {
	o.t.Helper()
	var p pushed
	must(o.t, json.Unmarshal(o.event().Data, &p))
	return p
}

// push opens an events/stream and reads its first message.
func (f *fixture) push(key, id, name, arguments, cursor string) (*open, pushed) {
	f.t.Helper()
	o := f.open(f.request("POST", key, statelessBody(id, spec.MethodEventsStream, pollParams(name, arguments, cursor)), statelessHeaders(spec.MethodEventsStream, "")...))
	first := o.pushed()
	if o.status != 200 || first.Method != spec.NoteEventsActive || first.Params.Cursor == "" || first.Params.Truncated == nil {
		f.t.Fatalf("EVX-06: %d %+v", o.status, first)
	}
	return o, first
}

func TestPush(t *testing.T) {
	t.Run("EVX-06_active_events_and_the_id_on_each", func(t *testing.T) {
		f := newFixture(t, nil)
		for _, id := range []string{`1`, `"1"`, `9007199254740993`, `"a\"b\u0041"`} {
			o, first := f.push(alice, id, "ci.deploy", `{}`, "")
			if *first.Params.Truncated {
				t.Errorf("truncated: %+v", first)
			}
			members := map[string]int{spec.NoteEventsActive: 1, spec.NoteEventsEvent: 3}
			frames := []pushed{first}
			for i := range 3 {
				ev := f.publish("event://ci/deploy", fmt.Sprintf(`{"n":%d}`, i))
				p := o.pushed()
				if p.Method != spec.NoteEventsEvent || p.Params.EventID != ev.ID || p.Params.Name != "ci.deploy" || p.Params.Cursor == "" ||
					string(p.Params.Data) != fmt.Sprintf(`{"n":%d}`, i) || p.Params.Timestamp != ev.Timestamp() {
					t.Errorf("EVX-04: got %+v", p)
				}
				frames = append(frames, p)
			}
			for _, p := range frames {
				if got := string(p.Params.Meta[spec.MetaSubscription]); got != id || len(p.Params.Meta) != members[p.Method] {
					t.Errorf("%s: _meta is %v, want the id %s", p.Method, p.Params.Meta, id)
				}
			}
			o.cancel()
		}
	})
	t.Run("EVX-24_each_event_says_which_thing_it_is_about", func(t *testing.T) {
		f := newFixture(t, nil)
		o, _ := f.push(alice, "1", "github.push", `{"owner":"acme"}`, "")
		f.publish("event://github/acme/a%20b/push", `{"n":1}`)
		isAbout(t, o.pushed().Params.Meta, `"event://github/acme/a%20b/push"`, `{"owner":"acme","repo":"a b"}`)
		fixed, _ := f.push(alice, "2", "ci.deploy", `{}`, "")
		f.publish("event://ci/deploy", `{"n":2}`)
		isAbout(t, fixed.pushed().Params.Meta, `"event://ci/deploy"`, `{}`)
	})
	t.Run("EVX-06_the_server's_end_is_a_result_with_the_id", func(t *testing.T) {
		f := newFixture(t, nil)
		o, _ := f.push(alice, `"x"`, "ci.deploy", `{}`, "")
		must(t, f.endpoint.Close(t.Context()))
		m := o.next()
		if string(m.ID) != `"x"` || m.Result.ResultType != "complete" || string(m.Result.Meta[spec.MetaSubscription]) != `"x"` || m.Result.Meta[spec.MetaCursor] != nil {
			t.Errorf("got %s", m.sse.Data)
		}
		o.end()
	})
	t.Run("EVX-06_many_streams_of_a_client_one_subscription_each", func(t *testing.T) {
		f := newFixture(t, nil)
		a, _ := f.push(alice, "1", "ci.deploy", `{}`, "")
		b, _ := f.push(alice, "2", "github.push", `{"owner":"acme"}`, "")
		f.publish("event://github/other/web/push", `{"n":0}`)
		f.publish("event://ci/deploy", `{"n":1}`)
		f.publish("event://github/acme/web/push", `{"n":2}`)
		if p := a.pushed(); string(p.Params.Data) != `{"n":1}` {
			t.Errorf("got %+v", p)
		}
		a.cancel()
		for i, want := range []string{`{"n":2}`, `{"n":3}`} {
			if i == 1 { // events of two URIs have no order
				f.publish("event://github/acme/api/push", want)
			}
			if p := b.pushed(); string(p.Params.Data) != want || string(p.Params.Meta[spec.MetaSubscription]) != "2" {
				t.Errorf("got %+v", p)
			}
		}
	})
	t.Run("EVX-07_resumes_in_any_mode_at_any_instance", func(t *testing.T) {
		f := newFixture(t, nil)
		for _, args := range []string{`{"owner":"acme","repo":"web"}`, `{"owner":"acme"}`} {
			at, n, cursor := f, 0, ""
			publish := func() { f.publish("event://github/acme/web/push", fmt.Sprintf(`{"n":%d}`, n)); n++ }
			expect := func(got string, i int) {
				t.Helper()
				if got != fmt.Sprintf(`{"n":%d}`, i) {
					t.Errorf("%s: got %s, want number %d", args, got, i)
				}
			}
			read := 0
			cursor = f.poll(alice, "github.push", args, "", "").Cursor
			for range 3 {
				for range 4 {
					publish()
				}
				at = at.instance()
				o, first := at.push(alice, "1", "github.push", args, cursor)
				if *first.Params.Truncated {
					t.Errorf("%s: a gap", args)
				}
				for range 2 { // and two stay unread
					p := o.pushed()
					expect(string(p.Params.Data), read)
					cursor = p.Params.Cursor
					read++
				}
				o.cancel()
				at = at.instance()
				p := at.poll(alice, "github.push", args, cursor, `,"maxEvents":1`)
				expect(string(p.Events[0].Data), read)
				read++
				cursor = p.Cursor
				var made struct{ Cursor string }
				at.stateless(alice, spec.MethodEventsSub, `"name":"github.push","arguments":`+args+`,"cursor":"`+cursor+`",`+callback).result(t, &made)
				if made.Cursor == "" {
					t.Fatal("no cursor of a webhook")
				}
				p = at.poll(alice, "github.push", args, made.Cursor, "")
				expect(string(p.Events[len(p.Events)-1].Data), read)
				read++
				cursor = p.Cursor
			}
		}
	})
	t.Run("EVX-07_too_old_is_truncated_in_active", func(t *testing.T) {
		f := newFixture(t, nil)
		old := f.poll(alice, "ci.deploy", `{}`, "", "").Cursor
		short := f.instance()
		short.log.Retention = time.Nanosecond
		_, first := short.push(alice, "1", "ci.deploy", `{}`, old)
		if !*first.Params.Truncated || first.Params.Cursor == old {
			t.Errorf("got %+v", first)
		}
		late := f.instance()
		late.log.Now = func() time.Time { return time.Now().Add(time.Hour) }
		o := late.open(late.statelessRequest(alice, spec.MethodEventsStream, pollParams("ci.deploy", `{}`, old)+`,"maxAgeMs":60000`))
		if first = o.pushed(); !*first.Params.Truncated {
			t.Errorf("older than maxAgeMs: %+v", first)
		}
	})
	t.Run("EVX-17_what_ends_a_subscription_is_said_and_additions_end_nothing", func(t *testing.T) {
		const had = "description: Something was deployed.\n    payloadSchema: {type: object}"
		for _, tc := range []struct {
			name, from, to string
			code           int
			data           string
		}{
			{"removed", "name: ci.deploy", "name: ci.rollout", -32011, `{"kind":"event"}`},
			{"another payload", had, "description: Something was deployed.\n    payloadSchema: {type: object, required: [n]}", -32014, `{"feature":"payloadSchema","reason":"schema_changed"}`},
			{"another URI", "uri: event://ci/deploy", "uri: event://ci/deployed", -32014, `{"feature":"inputSchema","reason":"schema_changed"}`},
			{"no streams", had, had + "\n    delivery: [webhook]", -32014, `{"feature":"deliveryMode","value":"push"}`},
			{"access", had, had + "\n    access: {scopes: [deployers]}", -32012, `{"reason":"Access revoked"}`},
			{"an addition", had, "description: Something.\n    payloadSchema: {type: object, properties: {n: {type: integer}}}\n    filters: {n: /n}", 0, ``},
		} {
			f := newFixture(t, nil)
			o, _ := f.push(alice, "7", "ci.deploy", `{}`, "")
			f.catalogs.Replace(mustParse(t, strings.Replace(testCatalog, tc.from, tc.to, 1)))
			must(t, f.log.Notify(t.Context(), "default", stream.TopicCatalog, json.RawMessage(`{}`)))
			if tc.code == 0 {
				f.publish("event://ci/deploy", `{"n":1}`)
				if p := o.pushed(); p.Method != spec.NoteEventsEvent { // nor is there a list_changed: EVX-18
					t.Errorf("%s: got %+v", tc.name, p)
				}
				o.cancel()
				continue
			}
			p := o.pushed()
			if p.Method != spec.NoteEventsTerminated || p.Params.Error == nil || p.Params.Error.Code != tc.code || string(p.Params.Meta[spec.MetaSubscription]) != "7" {
				t.Fatalf("%s: got %+v", tc.name, p)
			}
			sameJSON(t, p.Params.Error.Data, tc.data)
			if m := o.next(); m.Result.ResultType != "complete" || string(m.ID) != "7" {
				t.Errorf("%s: then %s", tc.name, m.sse.Data)
			}
			o.end()
		}
	})
	t.Run("EVX-17_the_change_is_seen_with_the_next_event_too", func(t *testing.T) {
		f := newFixture(t, nil)
		o, _ := f.push(alice, "1", "ci.deploy", `{}`, "")
		f.catalogs.Replace(mustParse(t, strings.Replace(testCatalog, "payloadSchema: {type: object}", "payloadSchema: {type: object, required: [n]}", 1)))
		f.publish("event://ci/deploy", `{"n":1}`)
		if p := o.pushed(); p.Method != spec.NoteEventsTerminated {
			t.Errorf("got %+v", p)
		}
	})
	t.Run("EVX-06_who_does_not_read_is_ended_and_can_come_back", func(t *testing.T) {
		f := newEndpoint(t, func(o *Options) { o.WriteTimeout = time.Second })
		f.server = httptest.NewUnstartedServer(f.endpoint)
		f.server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
			_ = c.(*net.TCPConn).SetWriteBuffer(64 << 10) // so that little is under way unread
			return ctx
		}
		f.server.Start()
		t.Cleanup(func() {
			f.close()
			f.server.Close()
		})
		f.server.Client().Transport.(*http.Transport).DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err == nil {
				_ = c.(*net.TCPConn).SetReadBuffer(64 << 10)
			}
			return c, err
		}
		slow, first := f.push(alice, "1", "ci.deploy", `{}`, "")
		fast, _ := f.push(bob, "1", "ci.deploy", `{}`, "")
		slow.stop() // reads no more
		const n = 10
		for i := range n {
			f.publish("event://ci/deploy", fmt.Sprintf(`{"n":%d,"x":"%s"}`, i, strings.Repeat("x", 200<<10)))
			if p := fast.pushed(); !strings.HasPrefix(string(p.Params.Data), fmt.Sprintf(`{"n":%d,`, i)) {
				t.Fatalf("the other got %.60s, want number %d", p.Params.Data, i)
			}
		}
		f.waitFor("the end of the slow stream", func() bool { return f.endpoint.OpenStreams() == 1 })
		cursor, got := first.Params.Cursor, 0
		for got < n {
			p := f.poll(alice, "ci.deploy", `{}`, cursor, "")
			for _, e := range p.Events {
				if !strings.HasPrefix(string(e.Data), fmt.Sprintf(`{"n":%d,`, got)) {
					t.Fatalf("got %.60s, want number %d", e.Data, got)
				}
				got++
			}
			cursor = p.Cursor
		}
	})
}

// TestPushClock shows heartbeats, and what is tried again.
func TestPushClock(t *testing.T) {
	serve := func(t *testing.T, change func(*Options), params string, during func(b *bubbled)) (out []pushed) {
		t.Helper()
		inBubble(t, inMemory, change, func(f *fixture) *http.Request {
			return f.statelessRequest(alice, spec.MethodEventsStream, params)
		}, func(b *bubbled) {
			during(b)
			b.cancel()
			<-b.done
			at := b.times()
			for i, m := range frames(t, b.text()) {
				p := pushed{at: at[i]}
				must(b.f.t, json.Unmarshal(m.sse.Data, &p))
				out = append(out, p)
			}
		})
		return out
	}
	t.Run("EVX-06_heartbeats_with_the_cursor_whether_or_not_events_come", func(t *testing.T) {
		got := serve(t, nil, `"name":"ci.build","arguments":{"status":"passed"}`, func(b *bubbled) {
			for i := range 200 {
				status := "passed"
				if i >= 100 { // its filter drops these
					status = "failed"
				}
				b.f.publish("event://ci/build-finished", `{"status":"`+status+`"}`)
				time.Sleep(time.Second)
			}
		})
		last, beats, events := got[0].at, 0, 0
		cursors := map[string]bool{}
		for _, p := range got {
			switch p.Method {
			case spec.NoteEventsEvent:
				events++
				continue
			case spec.NoteEventsHeartbeat:
				beats++
				if p.Params.Cursor == "" || cursors[p.Params.Cursor] || string(p.Params.Meta[spec.MetaSubscription]) != "1" {
					t.Errorf("heartbeat %d: %+v", beats, p)
				}
				cursors[p.Params.Cursor] = true
			}
			if d := p.at.Sub(last); d > 25*time.Second {
				t.Errorf("%v between heartbeats", d)
			}
			last = p.at
		}
		if events != 100 || beats < 6 || beats > 12 {
			t.Errorf("%d events and %d heartbeats in 200 s", events, beats)
		}
	})
	// publishMany appends 3,000 events with "status":"passed" to the log.
	publishMany := func(f *fixture) {
		f.t.Helper()
		const uri = "event://ci/build-finished"
		for i := range 30 {
			var batch []event.Event
			for k := range 100 {
				batch = append(batch, event.Event{
					Workspace: auth.DefaultWorkspace, ID: fmt.Sprint(i, "-", k), URI: uri, Name: "ci.build",
					Data: json.RawMessage(`{"status":"passed"}`), Time: time.Now(), Published: time.Now(),
				})
			}
			_, err := f.log.Append(context.Background(), auth.DefaultWorkspace, uri, batch, nil)
			must(f.t, err)
		}
	}
	for name, db := range map[string]func() store.DB{"SQLite": inMemory, "DynamoDB": several} {
		t.Run("EVX-06_the_cursor_moves_while_a_filter_drops_many_old_events_"+name, func(t *testing.T) {
			inBubble(t, db, nil, func(f *fixture) *http.Request {
				cursor := f.tails.Sealer.Seal(auth.DefaultWorkspace, eventlog.Cursor{At: f.log.Position()})
				publishMany(f)
				time.Sleep(time.Minute)
				return f.statelessRequest(alice, spec.MethodEventsStream, pollParams("ci.build", `{"status":"failed"}`, cursor))
			}, func(b *bubbled) {
				time.Sleep(time.Second)
				cursors := map[string]bool{}
				for _, m := range frames(t, b.text()) {
					var p pushed
					must(t, json.Unmarshal(m.sse.Data, &p))
					cursors[p.Params.Cursor] = true
				}
				if n := len(cursors); n < 4 {
					t.Errorf("within a second the client got %d cursors, want one after each 1,000 of 3,000 events", n)
				}
			})
		})
	}
	t.Run("EVX-06_heartbeats_between_events_that_take_minutes_to_send", func(t *testing.T) {
		got := serve(t, nil, `"name":"ci.build"`, func(b *bubbled) {
			b.slowDown(100 * time.Millisecond)
			publishMany(b.f)
			time.Sleep(2 * time.Minute)
		})
		last, beats := got[0].at, 0
		for _, p := range got {
			if p.Method == spec.NoteEventsHeartbeat {
				last, beats = p.at, beats+1
			}
			if d := p.at.Sub(last); d > 30*time.Second {
				t.Fatalf("after %d heartbeats none for %v, want one at least every 30 s", beats, d)
			}
		}
		if len(got) < 1000 || beats < 3 {
			t.Errorf("%d messages and %d heartbeats in two minutes", len(got), beats)
		}
	})
	t.Run("EVX-06_a_failure_that_passes_is_announced_and_loses_nothing", func(t *testing.T) {
		var catalogs *shaky
		var id string
		got := serve(t, func(o *Options) { catalogs = &shaky{Source: o.Catalogs}; o.Catalogs = catalogs }, `"name":"ci.deploy"`, func(b *bubbled) {
			catalogs.fails.Store(2)
			id = b.f.publish("event://ci/deploy", `{}`).ID
			time.Sleep(3 * time.Second)
		})
		if len(got) != 4 {
			t.Fatalf("got %+v", got)
		}
		for _, p := range got[1:3] {
			if p.Method != spec.NoteEventsError || p.Params.Error == nil || p.Params.Error.Code != method.CodeUnavailable || string(p.Params.Meta[spec.MetaSubscription]) != "1" {
				t.Errorf("got %+v", p)
			}
		}
		if p := got[3]; p.Method != spec.NoteEventsEvent || p.Params.EventID != id {
			t.Errorf("got %+v", p)
		}
	})
}

// revocable is an authenticator that changes its mind.
type revocable struct {
	auth.Authenticator
	mind atomic.Pointer[func() (auth.Principal, error)]
}

func (r *revocable) Authenticate(ctx context.Context, h http.Header) (auth.Principal, error) {
	if says := r.mind.Load(); says != nil {
		return (*says)()
	}
	return r.Authenticator.Authenticate(ctx, h)
}

func (r *revocable) say(p auth.Principal, err error) {
	says := func() (auth.Principal, error) { return p, err }
	r.mind.Store(&says)
}

// numbers are an error's, by the set of [codeSets].
type numbers map[string]int

var (
	codeSets    = map[string]spec.Profile{"sketch": spec.Released, "SEP-3415": spec.Final}
	invalid     = numbers{"sketch": -32602, "SEP-3415": -32602}
	unknown     = numbers{"sketch": -32011, "SEP-3415": -32023}
	forbidden   = numbers{"sketch": -32012, "SEP-3415": -32024}
	exhausted   = numbers{"sketch": -32013, "SEP-3415": -32025}
	unsupported = numbers{"sketch": -32014, "SEP-3415": -32026}
	badEndpoint = numbers{"sketch": -32015, "SEP-3415": -32027}
)

// TestWhatCannotBeFollowed holds for all three modes.
func TestWhatCannotBeFollowed(t *testing.T) {
	methods := []struct{ method, more, mode, not string }{
		{spec.MethodEventsPoll, "", "poll", "audit.entry"}, {spec.MethodEventsStream, "", "push", "audit.entry"}, {spec.MethodEventsSub, "," + callback, "webhook", "chat.typing"},
	}
	for set, profile := range codeSets {
		f := newFixture(t, func(o *Options) { o.Profile = always(profile) })
		for _, tc := range []struct {
			name, key, params string
			code              numbers
			says              string
		}{
			{"EVX-03 unknown argument", alice, `"name":"ci.deploy","arguments":{"color":"red"}`, invalid, `"color"`},
			{"EVX-03 a variable that breaks its schema", alice, `"name":"github.pull_request","arguments":{"owner":"ACME","repo":"x"}`, invalid, `owner`},
			{"EVX-03 a variable of another type", alice, `"name":"github.push","arguments":{"owner":7}`, invalid, `owner`},
			{"EVX-03 an empty variable", alice, `"name":"github.push","arguments":{"owner":""}`, invalid, `owner`},
			{"EVX-03 a required variable is missing", alice, `"name":"github.pull_request","arguments":{"owner":"acme"}`, invalid, `repo`},
			{"EVX-03 a filter that is an object", alice, `"name":"ci.build","arguments":{"status":{}}`, invalid, ``},
			{"EVX-03 a filter that is an empty list", alice, `"name":"ci.build","arguments":{"status":[]}`, invalid, ``},
			{"EVX-03 nothing to redact", alice, `"name":"ci.build","arguments":{"redact":true}`, invalid, `redact`},
			{"EVX-03 arguments are no object", alice, `"name":"ci.deploy","arguments":[]`, invalid, ``},
			{"EVX-08 no name", alice, `"arguments":{}`, invalid, ``},
			{"EVX-08 a name that is no text", alice, `"name":7`, invalid, ``},
			{"maxAgeMs below 0", alice, `"name":"ci.deploy","maxAgeMs":-1`, invalid, `maxAgeMs`},
			{"EVX-16 no such event type", alice, `"name":"no.such"`, unknown, `"data":{"kind":"event"}`},
			{"EVX-16 not for this caller", alice, `"name":"billing.invoice"`, forbidden, ``},
			{"EVX-16 a claim that the caller has not", alice, `"name":"tenant.alarm","arguments":{"org":"acme"}`, forbidden, ``},
			{"EVX-03 a variable of a claim is left out", acme, `"name":"tenant.alarm"`, forbidden, ``},
			{"EVX-03 a variable that is not the claim", acme, `"name":"tenant.alarm","arguments":{"org":"other"}`, forbidden, ``},
		} {
			t.Run(tc.name+", "+set, func(t *testing.T) {
				for _, m := range methods {
					if r := f.stateless(tc.key, m.method, tc.params+m.more); r.code(t) != tc.code[set] || !strings.Contains(r.Body, tc.says) {
						t.Errorf("%s: %d %s", m.method, r.Status, r.Body)
					}
				}
			})
		}
		t.Run("EVX-02 EVX-16 by another mode only, "+set, func(t *testing.T) {
			for _, m := range methods {
				got := f.stateless(alice, m.method, `"name":"`+m.not+`"`+m.more).rpc(t)
				if got.Error == nil || got.Error.Code != unsupported[set] || !strings.HasPrefix(got.Error.Message, "Unsupported") {
					t.Fatalf("%s: %+v", m.method, got.Error)
				}
				sameJSON(t, got.Error.Data, `{"feature":"deliveryMode","value":"`+m.mode+`"}`)
			}
		})
	}
}

func TestMaxEvents(t *testing.T) {
	f := newFixture(t, nil)
	for maxEvents, code := range map[string]int{
		"0": -32602, "-1": -32602, "1.5": -32602, `"5"`: -32602, "[]": -32602, "1e999": -32602, "1": 0, "1e1": 0, "500": 0, "1000000000000": 0,
	} {
		if r := f.stateless(alice, spec.MethodEventsPoll, `"name":"ci.deploy","maxEvents":`+maxEvents); r.code(t) != code {
			t.Errorf("EVX-05: maxEvents %s: %s", maxEvents, r.Body)
		}
	}
}
