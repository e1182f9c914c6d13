package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// push opens an events/stream, and returns it and its first message.
func (f *fixture) push(key, id, name, arguments, cursor string) (*open, frame) {
	f.t.Helper()
	o := f.open(f.request("POST", key, statelessBody(id, spec.MethodEventsStream, pollParams(name, arguments, cursor)), statelessHeaders(spec.MethodEventsStream, "")...))
	first := o.next()
	if o.status != 200 || first.Method != spec.NoteEventsActive || first.Params.Cursor == "" || first.Params.Truncated == nil {
		f.t.Fatalf("EVX-06: got status %d, %+v, want 200 and %s with its members", o.status, first, spec.NoteEventsActive)
	}
	return o, first
}

func TestPush(t *testing.T) {
	run(t, "EVX-24_each_event_says_which_thing_it_is_about", nil, func(t *testing.T, f *fixture) {
		o, _ := f.push(alice, "1", "github.push", `{"owner":"acme"}`, "")
		f.publish("event://github/acme/a%20b/push", `{"n":1}`)
		isAbout(t, o.next().Params.Meta, `"event://github/acme/a%20b/push"`, `{"owner":"acme","repo":"a b"}`)
		fixed, _ := f.push(alice, "2", "ci.deploy", `{}`, "")
		f.publish("event://ci/deploy", `{"n":2}`)
		isAbout(t, fixed.next().Params.Meta, `"event://ci/deploy"`, `{}`)
	})
	run(t, "EVX-06_many_streams_of_a_client_one_subscription_each", nil, func(t *testing.T, f *fixture) {
		a, _ := f.push(alice, "1", "ci.deploy", `{}`, "")
		b, _ := f.push(alice, "2", "github.push", `{"owner":"acme"}`, "")
		f.publish("event://github/other/web/push", `{"n":0}`)
		f.publish("event://ci/deploy", `{"n":1}`)
		f.publish("event://github/acme/web/push", `{"n":2}`)
		a.brings(deploy + ` {"n":1}`)
		a.cancel()
		b.brings(`event://github/acme/web/push {"n":2}`)
		f.publish("event://github/acme/api/push", `{"n":3}`)
		m := b.brings(`event://github/acme/api/push {"n":3}`)
		expect.Deep(t, "the subscription id", string(m.Params.Meta[spec.MetaSubscription]), "2")
	})
	run(t, "EVX-07_resumes_in_any_mode_at_any_instance", nil, func(t *testing.T, f *fixture) {
		for _, args := range []string{`{"owner":"acme","repo":"web"}`, `{"owner":"acme"}`} {
			at, read := f, 0
			bring := func(data json.RawMessage) {
				t.Helper()
				expect.Deep(t, args, string(data), fmt.Sprintf(`{"n":%d}`, read))
				read++
			}
			cursor := f.poll(alice, "github.push", args, "", "").Cursor
			for round := range 3 {
				for i := range 4 {
					f.publish("event://github/acme/web/push", fmt.Sprintf(`{"n":%d}`, 4*round+i))
				}
				at = at.instance()
				o, first := at.push(alice, "1", "github.push", args, cursor)
				expect.Deep(t, args+": truncated", *first.Params.Truncated, false)
				for range 2 { // leaves two events unread
					m := o.next()
					bring(m.Params.Data)
					cursor = m.Params.Cursor
				}
				o.cancel()
				at = at.instance()
				p := at.poll(alice, "github.push", args, cursor, `,"maxEvents":1`)
				bring(p.Events[0].Data)
				var made struct{ Cursor string }
				at.stateless(alice, spec.MethodEventsSub, `"name":"github.push","arguments":`+args+`,"cursor":"`+p.Cursor+`",`+callback).result(t, &made)
				p = at.poll(alice, "github.push", args, made.Cursor, "")
				bring(p.Events[len(p.Events)-1].Data)
				cursor = p.Cursor
			}
		}
	})
	run(t, "EVX-07_older_than_maxAgeMs_is_truncated_in_active", nil, func(t *testing.T, f *fixture) {
		old := f.poll(alice, "ci.deploy", `{}`, "", "").Cursor
		f.log.Now = func() time.Time { return time.Now().Add(time.Hour) }
		f.open(f.statelessRequest(alice, spec.MethodEventsStream, pollParams("ci.deploy", `{}`, old)+`,"maxAgeMs":60000`)).brings("gap")
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
			f.changeCatalog(tc.from, tc.to)
			f.announceCatalog()
			if tc.code == 0 {
				f.publish(deploy, `{"n":1}`)
				o.brings(deploy + ` {"n":1}`) // EVX-18: no list_changed arrives before it.
				continue
			}
			p := o.brings(spec.NoteEventsTerminated)
			if p.Params.Error == nil || p.Params.Error.Code != tc.code || string(p.Params.Meta[spec.MetaSubscription]) != "7" {
				t.Fatalf("%s: got %s, want the error %d and the id 7", tc.name, p.sse.Data, tc.code)
			}
			sameJSON(t, p.Params.Error.Data, tc.data)
			expect.Deep(t, tc.name+": the id", string(o.brings("complete").ID), "7")
			o.end()
		}
	})
	run(t, "EVX-17_the_change_is_seen_with_the_next_event_too", nil, func(t *testing.T, f *fixture) {
		o, _ := f.push(alice, "1", "ci.deploy", `{}`, "")
		f.changeCatalog("payloadSchema: {type: object}", "payloadSchema: {type: object, required: [n]}")
		f.publish(deploy, `{"n":1}`)
		o.brings(spec.NoteEventsTerminated)
	})
	t.Run("EVX-06_who_does_not_read_is_ended_and_can_come_back", func(t *testing.T) {
		f := newEndpoint(t, func(o *Options) { o.WriteTimeout = time.Second })
		f.server = httptest.NewUnstartedServer(f.endpoint)
		f.server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
			_ = c.(*net.TCPConn).SetWriteBuffer(64 << 10) // keeps the number of sent but unread bytes small
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
		close(slow.hold) // stops reading
		const n = 10
		for i := range n {
			f.publish("event://ci/deploy", fmt.Sprintf(`{"n":%d,"x":"%s"}`, i, strings.Repeat("x", 200<<10)))
			if p := fast.next(); !strings.HasPrefix(string(p.Params.Data), fmt.Sprintf(`{"n":%d,`, i)) {
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

// TestPushClock checks heartbeats and retries on an events/stream, with a fake clock.
func TestPushClock(t *testing.T) {
	serve := func(t *testing.T, change func(*Options), params string, during func(b *bubbled)) (out []frame) {
		t.Helper()
		inBubble(t, inMemory, change, func(f *fixture) *http.Request {
			return f.statelessRequest(alice, spec.MethodEventsStream, params)
		}, func(b *bubbled) {
			during(b)
			b.cancel()
			<-b.done
			out = b.frames(t)
		})
		return out
	}
	t.Run("EVX-06_heartbeats_with_the_cursor_whether_or_not_events_come", func(t *testing.T) {
		got := serve(t, nil, `"name":"ci.build","arguments":{"status":"passed"}`, func(b *bubbled) {
			for i := range 200 {
				status := "passed"
				if i >= 100 { // The stream's filter drops these events.
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
					t.Errorf("heartbeat %d: got %+v, want a new cursor and the id 1", beats, p)
				}
				cursors[p.Params.Cursor] = true
			}
			expect.AtMost(t, "the time between heartbeats", p.at.Sub(last), 25*time.Second)
			last = p.at
		}
		if events != 100 || beats < 6 || beats > 12 {
			t.Errorf("got %d events and %d heartbeats in 200 s, want 100 and 6 to 12", events, beats)
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
			expect.OK(f.t, err)
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
				for _, m := range b.frames(t) {
					cursors[m.Params.Cursor] = true
				}
				expect.AtLeast(t, "the cursors within a second", len(cursors), 4)
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
			expect.AtMost(t, fmt.Sprintf("the time since heartbeat %d", beats), p.at.Sub(last), 30*time.Second)
		}
		expect.AtLeast(t, "the number of messages", len(got), 1000)
		expect.AtLeast(t, "the heartbeats", beats, 3)
	})
	t.Run("EVX-06_a_failure_that_passes_is_announced_and_loses_nothing", func(t *testing.T) {
		var catalogs *shaky
		var id string
		got := serve(t, func(o *Options) { catalogs = &shaky{Source: o.Catalogs}; o.Catalogs = catalogs }, `"name":"ci.deploy"`, func(b *bubbled) {
			catalogs.fails.Store(2)
			id = b.f.publish("event://ci/deploy", `{}`).ID
			time.Sleep(3 * time.Second)
		})
		if len(got) != 4 || got[3].Method != spec.NoteEventsEvent || got[3].Params.EventID != id {
			t.Fatalf("got %+v, want active, two errors, and the event %s", got, id)
		}
		for _, p := range got[1:3] {
			if p.Method != spec.NoteEventsError || p.Params.Error == nil || p.Params.Error.Code != method.CodeUnavailable || string(p.Params.Meta[spec.MetaSubscription]) != "1" {
				t.Errorf("got %+v, want an error %d with the id 1", p, method.CodeUnavailable)
			}
		}
	})
	t.Run("EVX-17_access_that_ended_is_not_forgotten_when_the_catalog_fails", func(t *testing.T) {
		var catalogs *shaky
		caller := &revocable{}
		change := func(o *Options) {
			catalogs = &shaky{Source: o.Catalogs}
			caller.Authenticator = o.Auth
			o.Catalogs, o.Auth = catalogs, caller
		}
		var got []frame
		inBubble(t, inMemory, change, func(f *fixture) *http.Request {
			return f.statelessRequest(billing, spec.MethodEventsStream, `"name":"billing.invoice"`)
		}, func(b *bubbled) {
			time.Sleep(time.Second)
			caller.say(auth.Principal{ID: "billing", Workspace: auth.DefaultWorkspace, Scopes: []string{auth.ScopeRead}}, nil)
			catalogs.fails.Store(1)
			time.Sleep(27 * time.Second) // the check before a heartbeat fails
			b.f.publish("event://billing/invoice", `{}`)
			time.Sleep(time.Second)
			b.cancel()
			<-b.done
			got = b.frames(t)
		})
		for _, p := range got {
			expect.Differ(t, "the message "+p.Params.EventID+" after the caller had lost the scope", p.Method, spec.NoteEventsEvent)
		}
	})
}

// numbers are the codes of one error, by their set in [codeSets].
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

// TestWhatCannotBeFollowed checks requests that must fail, in all three delivery modes.
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
			{"EVX-03 a required variable is missing", alice, `"name":"github.pull_request","arguments":{"owner":"acme"}`, invalid, `repo`},
			{"EVX-03 a filter that is an object", alice, `"name":"ci.build","arguments":{"status":{}}`, invalid, ``},
			{"EVX-03 nothing to redact", alice, `"name":"ci.build","arguments":{"redact":true}`, invalid, `redact`},
			{"EVX-03 arguments are no object", alice, `"name":"ci.deploy","arguments":[]`, invalid, ``},
			{"EVX-08 no name", alice, `"arguments":{}`, invalid, ``},
			{"maxAgeMs below 0", alice, `"name":"ci.deploy","maxAgeMs":-1`, invalid, `maxAgeMs`},
			{"EVX-16 no such event type", alice, `"name":"no.such"`, unknown, `"data":{"kind":"event"}`},
			{"EVX-16 not for this caller", alice, `"name":"billing.invoice"`, forbidden, ``},
			{"EVX-16 a claim that the caller has not", alice, `"name":"tenant.alarm","arguments":{"org":"acme"}`, forbidden, ``},
			{"EVX-03 a variable of a claim is left out", acme, `"name":"tenant.alarm"`, forbidden, ``},
			{"EVX-03 a variable that is not the claim", acme, `"name":"tenant.alarm","arguments":{"org":"other"}`, forbidden, ``},
		} {
			t.Run(tc.name+", "+set, func(t *testing.T) {
				for _, m := range methods {
					r := f.stateless(tc.key, m.method, tc.params+m.more)
					r.fails(t, m.method, tc.code[set], "")
					expect.Contains(t, m.method, r.Body, tc.says)
				}
			})
		}
		t.Run("EVX-02 EVX-16 by another mode only, "+set, func(t *testing.T) {
			for _, m := range methods {
				r := f.stateless(alice, m.method, `"name":"`+m.not+`"`+m.more)
				r.fails(t, m.method, unsupported[set], `{"feature":"deliveryMode","value":"`+m.mode+`"}`)
				if !strings.HasPrefix(r.rpc(t).Error.Message, "Unsupported") {
					t.Errorf("%s: got %s, want a message that begins with Unsupported", m.method, r.Body)
				}
			}
		})
	}
}

func TestMaxEvents(t *testing.T) {
	f := newFixture(t, nil)
	for maxEvents, code := range map[string]int{
		"0": -32602, "-1": -32602, "1.5": -32602, `"5"`: -32602, "[]": -32602, "1e999": -32602, "1": 0, "1e1": 0, "500": 0, "1000000000000": 0,
	} {
		expect.Deep(t, "EVX-05: the code of maxEvents "+maxEvents, f.stateless(alice, spec.MethodEventsPoll, `"name":"ci.deploy","maxEvents":`+maxEvents).code(t), code)
	}
}

// polled is the result of events/poll.
type polled struct {
	ResultType string
	Events     []struct {
		EventID, Name, Timestamp string
		Data                     json.RawMessage
		Cursor                   json.RawMessage
		Meta                     map[string]json.RawMessage `json:"_meta"`
	}
	Cursor     string
	Truncated  *bool
	HasMore    *bool
	NextPollMs *int64
}

func (p *polled) data() (out []string) {
	for _, e := range p.Events {
		out = append(out, string(e.Data))
	}
	return out
}

// poll calls events/poll. The text more adds members to its params, e.g. `,"maxEvents":1`.
func (f *fixture) poll(key, name, arguments, cursor, more string) polled {
	f.t.Helper()
	var p polled
	f.stateless(key, spec.MethodEventsPoll, pollParams(name, arguments, cursor)+more).result(f.t, &p)
	if p.ResultType != "complete" || p.Cursor == "" || p.Truncated == nil || p.HasMore == nil || p.NextPollMs == nil {
		f.t.Fatalf("EVX-05 EVX-18: got %+v, want all members", p)
	}
	return p
}

func pollParams(name, arguments, cursor string) string {
	if cursor == "" {
		cursor = "null"
	} else {
		cursor = `"` + cursor + `"`
	}
	return `"name":"` + name + `","arguments":` + arguments + `,"cursor":` + cursor
}

// isAbout checks the URI and the arguments in the _meta of an EventOccurrence.
func isAbout(t *testing.T, meta map[string]json.RawMessage, uri, arguments string) {
	t.Helper()
	expect.Deep(t, "the uri in _meta", string(meta[spec.MetaURI]), uri)
	expect.Deep(t, "the arguments in _meta", string(meta[spec.MetaArguments]), arguments)
}

func TestPoll(t *testing.T) {
	run(t, "EVX-05_null_bootstraps_and_brings_no_history", nil, func(t *testing.T, f *fixture) {
		f.publish("event://ci/deploy", `{"n":1}`)
		first := f.poll(alice, "ci.deploy", `{}`, "", "")
		if len(first.Events) != 0 || *first.Truncated || *first.HasMore {
			t.Errorf("got %+v, want no events, not truncated and no more", first)
		}
		var absent polled // EVX-04: an absent cursor means null.
		f.stateless(alice, spec.MethodEventsPoll, `"name":"ci.deploy"`).result(t, &absent)
		ev := f.publish("event://ci/deploy", `{"n":2}`)
		for _, cursor := range []string{first.Cursor, absent.Cursor} {
			p := f.poll(alice, "ci.deploy", `null`, cursor, `,"maxAgeMs":null,"maxEvents":null`)
			if len(p.Events) != 1 || p.Events[0].EventID != ev.ID || p.Events[0].Name != "ci.deploy" ||
				string(p.Events[0].Data) != `{"n":2}` || p.Events[0].Timestamp != ev.Timestamp() || p.Events[0].Cursor != nil {
				t.Errorf("EVX-04: got %+v, want the event %+v alone", p, ev)
			}
			expect.Deep(t, "events of the next poll", len(f.poll(alice, "ci.deploy", `{}`, p.Cursor, "").Events), 0)
		}
	})
	run(t, "EVX-05_pages", nil, func(t *testing.T, f *fixture) {
		concrete := f.poll(alice, "github.push", `{"owner":"acme","repo":"web"}`, "", "")
		open := f.poll(alice, "github.push", `{}`, "", "")
		var want []string
		for i := range 25 {
			want = append(want, fmt.Sprintf(`{"n":%d}`, i))
			f.publish("event://github/acme/web/push", want[i])
		}
		for args, cursor := range map[string]string{`{"owner":"acme","repo":"web"}`: concrete.Cursor, `{}`: open.Cursor} {
			var got []string
			for {
				p := f.poll(alice, "github.push", args, cursor, `,"maxEvents":10`)
				got = append(got, p.data()...)
				cursor = p.Cursor
				expect.Deep(t, fmt.Sprintf("%s: hasMore after %d", args, len(got)), *p.HasMore, len(got) < 25)
				if !*p.HasMore {
					break
				}
			}
			expect.Deep(t, args, got, want)
		}
	})
	run(t, "EVX-05_a_page_has_50_events_by_default_and_at_most_500", nil, func(t *testing.T, f *fixture) {
		cursor := f.poll(alice, "ci.deploy", `{}`, "", "").Cursor
		var batch []event.Event
		for i := range 501 {
			batch = append(batch, event.Event{
				Workspace: auth.DefaultWorkspace, ID: fmt.Sprint(i), URI: deploy, Name: "ci.deploy", Data: json.RawMessage(`{}`), Time: time.Now(), Published: time.Now(),
			})
		}
		expect.OK(t, expect.ErrOf(f.log.Append(t.Context(), auth.DefaultWorkspace, deploy, batch, nil)))
		for more, want := range map[string]int{"": 50, `,"maxEvents":501`: 500} {
			p := f.poll(alice, "ci.deploy", `{}`, cursor, more)
			expect.Len(t, "the events"+more, p.Events, want)
			expect.True(t, "there are more events", *p.HasMore)
		}
	})
	run(t, "EVX-05_a_page_is_bounded_by_bytes", nil, func(t *testing.T, f *fixture) {
		cursor := f.poll(alice, "ci.deploy", `{}`, "", "").Cursor
		large := `{"x":"` + strings.Repeat("x", 200<<10) + `"}`
		for range 8 {
			f.publish("event://ci/deploy", large)
		}
		p := f.poll(alice, "ci.deploy", `{}`, cursor, "")
		rest := f.poll(alice, "ci.deploy", `{}`, p.Cursor, "")
		expect.Deep(t, "the events of two polls", []int{len(p.Events), len(rest.Events)}, []int{5, 3})
		expect.Deep(t, "hasMore of two polls", []bool{*p.HasMore, *rest.HasMore}, []bool{true, false})
	})
	run(t, "EVX-07_too_old_is_truncated_with_a_fresh_cursor", nil, func(t *testing.T, f *fixture) {
		old := f.poll(alice, "ci.deploy", `{}`, "", "").Cursor
		f.log.Now = func() time.Time { return time.Now().Add(time.Hour) }
		truncated := func(what, cursor, more string, want bool) (next string) {
			t.Helper()
			p := f.poll(alice, "ci.deploy", `{}`, cursor, more)
			if *p.Truncated != want || len(p.Events) != 0 || want && p.Cursor == cursor {
				t.Errorf("%s: got %+v, want truncated %v, no events, and a fresh cursor if truncated", what, p, want)
			}
			return p.Cursor
		}
		fresh := truncated("older than maxAgeMs", old, `,"maxAgeMs":60000`, true)
		truncated("the fresh one", fresh, `,"maxAgeMs":60000`, false)
		truncated("within the retention", old, "", false)
		truncated("without a cursor maxAgeMs means nothing", "", `,"maxAgeMs":0`, false)
		f.log.Retention = time.Minute
		truncated("older than the retention", old, "", true)
	})
	run(t, "SUB-08_EVX-07_a_forged_or_foreign_cursor_is_refused_wherever_one_is_taken", nil, func(t *testing.T, f *fixture) {
		theirs := f.poll(foreign, "ci.deploy", `{}`, "", "").Cursor
		own := f.poll(alice, "ci.deploy", `{}`, "", "").Cursor
		for _, cursor := range []string{`"x"`, `7`, `""`, `{}`, `"` + theirs + `"`, `"` + strings.ToUpper(own) + `"`, `"` + strings.Repeat("A", 5000) + `"`} {
			listen := strings.Replace(statelessBody("1", spec.MethodListen, `"notifications":{}`), `"_meta":{`, `"_meta":{"`+spec.MetaCursor+`":`+cursor+`,`, 1)
			for method, r := range map[string]reply{
				spec.MethodEventsPoll:   f.stateless(alice, spec.MethodEventsPoll, `"name":"ci.deploy","cursor":`+cursor),
				spec.MethodEventsStream: f.stateless(alice, spec.MethodEventsStream, `"name":"ci.deploy","cursor":`+cursor),
				spec.MethodEventsSub:    f.stateless(alice, spec.MethodEventsSub, `"name":"ci.deploy",`+callback+`,"cursor":`+cursor),
				spec.MethodListen:       f.do("POST", alice, listen, statelessHeaders(spec.MethodListen, "")...),
			} {
				if method == spec.MethodEventsSub && cursor == `""` {
					continue // Here an empty cursor stands for no cursor.
				}
				r.is(t, method+" with the cursor "+cursor, 400, -32602)
			}
		}
	})
	run(t, "EVX-05_comes_later_the_longer_it_was_quiet", func(o *Options) { o.PollMin, o.PollMax = 2*time.Second, 20*time.Second }, func(t *testing.T, f *fixture) {
		now := time.Now().Add(-5 * time.Minute) // in the past, because the store stamps events with its own clock
		f.log.Now = func() time.Time { return now }
		cursor := f.poll(alice, "ci.deploy", `{}`, "", "").Cursor
		var got []int64
		for range 6 {
			p := f.poll(alice, "ci.deploy", `{}`, cursor, "")
			got = append(got, *p.NextPollMs)
			now, cursor = now.Add(20*time.Second), p.Cursor
		}
		expect.Deep(t, "nextPollMs", got, []int64{2000, 5000, 10000, 15000, 20000, 20000})
		f.publish("event://ci/deploy", `{}`)
		now = now.Add(time.Second)
		if p := f.poll(alice, "ci.deploy", `{}`, cursor, ""); *p.NextPollMs != 2000 || len(p.Events) != 1 {
			t.Errorf("after traffic: got %+v, want one event and 2000 ms", p)
		}
	})
	run(t, "EVX-05_in_a_session_too", nil, func(t *testing.T, f *fixture) {
		for _, v := range []spec.Version{spec.V20250326, spec.V20250618, spec.V20251125} {
			s := f.session(alice, v)
			var p polled
			f.sessionBased(alice, s, spec.MethodEventsPoll, `"name":"ci.deploy"`).result(t, &p)
			f.publish("event://ci/deploy", `{"n":1}`)
			f.sessionBased(alice, s, spec.MethodEventsPoll, pollParams("ci.deploy", `{}`, p.Cursor)).result(t, &p)
			expect.Equal(t, string(v)+": the number of events", len(p.Events), 1)
			expect.Equal(t, string(v)+": the result type", p.ResultType, "")
			f.sessionBased(alice, s, spec.MethodEventsStream, `"name":"ci.deploy"`).is(t, "EVX-06: events/stream", 200, -32601)
		}
	})
	run(t, "EVX-17_access_is_checked_each_time", nil, func(t *testing.T, f *fixture) {
		cursor := f.poll(alice, "ci.deploy", `{}`, "", "").Cursor
		poll := func() reply { return f.stateless(alice, spec.MethodEventsPoll, pollParams("ci.deploy", `{}`, cursor)) }
		f.catalogs.Replace(mustParse(t, withoutDeploy))
		poll().is(t, "without access", http.StatusForbidden, -32012)
		f.changeCatalog("name: ci.deploy", "name: ci.rollout")
		poll().fails(t, "removed", -32011, `{"kind":"event"}`)
	})
}

// FuzzFollow sends arbitrary params to events/poll and events/stream. The answers must be well-formed and never internal
// errors, and the first message on an opened stream must say that it is active.
func FuzzFollow(f *testing.F) {
	for _, seed := range []string{
		`{"name":"ci.deploy"}`,
		`{"name":"ci.build","arguments":{"status":["a","b*"]},"cursor":null,"maxAgeMs":1e3,"maxEvents":5}`,
		`{"name":"github.push","arguments":{"owner":"a/b","repo":"*"},"cursor":"AQ"}`,
		`{"name":"github.pull_request","arguments":{"owner":"acme","repo":"\u0000"},"maxAgeMs":0,"maxEvents":0.5}`,
		`{"name":"tenant.alarm","arguments":null,"cursor":"","maxAgeMs":-1}`,
		`{"name":7,"arguments":[],"maxEvents":99999999999999999999}`,
		`[]`, `null`, `{`,
	} {
		f.Add(seed)
	}
	x := newEndpoint(f, nil)
	f.Fuzz(func(t *testing.T, params string) {
		if len(params) > 1<<16 {
			return
		}
		if rest, ok := strings.CutPrefix(params, "{"); ok {
			if strings.TrimSpace(rest) != "}" {
				rest = "," + rest
			}
			params = "{" + meta2026 + rest
		}
		for _, method := range []string{spec.MethodEventsPoll, spec.MethodEventsStream} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			w := &written{header: http.Header{}}
			body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`
			x := *x
			x.t = t
			x.endpoint.ServeHTTP(w, x.request("POST", acme, body, statelessHeaders(method, "")...).WithContext(ctx))
			cancel()
			text := w.text()
			if first, ok := strings.CutPrefix(text, "data: "); ok {
				text, _, _ = strings.Cut(first, "\n")
			}
			var m struct {
				Method string
				Result json.RawMessage
				Error  *struct{ Code int }
			}
			expect.OK(t, json.Unmarshal([]byte(text), &m), method, params, text)
			switch {
			case m.Error != nil && (m.Error.Code == -32603 || m.Error.Code == 0):
				t.Errorf("%s %s: %s", method, params, text)
			case m.Error == nil && m.Result == nil && m.Method != spec.NoteEventsActive:
				t.Errorf("%s %s: %s", method, params, text)
			}
		}
	})
}
