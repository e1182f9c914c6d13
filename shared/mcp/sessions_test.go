package mcp

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// subscribe subscribes a session to the URIs.
func (f *fixture) subscribe(key, session string, uris ...string) {
	f.t.Helper()
	for _, uri := range uris {
		f.sessionBased(key, session, spec.MethodSubscribe, `"uri":"`+uri+`"`).is(f.t, "subscribe to "+uri, 200, 0)
	}
}

func TestSubscribe(t *testing.T) {
	f := newFixture(t, nil)
	s := f.session(alice, spec.V20251125)
	subscribe := func(uri string) reply { return f.sessionBased(alice, s, spec.MethodSubscribe, `"uri":"`+uri+`"`) }
	for _, uri := range []string{
		"event://ci/build-finished", "event://ci", "event://github/acme", "event://github/acme/web/push", "event://github/acme/*/push",
		"EVENT://ci/build-finished", "event://chat",
	} {
		t.Run("EVS-05_accepts_"+uri, func(t *testing.T) {
			for _, m := range []string{spec.MethodSubscribe, spec.MethodSubscribe, spec.MethodUnsubscribe, spec.MethodUnsubscribe} {
				r := f.sessionBased(alice, s, m, `"uri":"`+uri+`"`)
				expect.Deep(t, m, r.Body, `{"jsonrpc":"2.0","id":1,"result":{}}`)
			}
		})
	}
	for uri, names := range map[string]string{
		"event://nothing":                        "nothing",
		"event://github/UPPER/web/pull_request":  "owner",
		"event://github/acme/web/pull_request/x": "pull_request/x",
		"event://ci/build-finished?x=1":          "query",
		"event://github/{owner}/web/push":        "variable",
		"file:///x":                              "event://",
		"event://audit/entry":                    "stream",
	} {
		t.Run("EVS-05_refuses_"+uri, func(t *testing.T) { subscribe(uri).is(t, uri, 200, -32602, names) })
	}
	for _, uri := range []string{"event://billing/invoice", "event://tenant/acme/alarm", "event://billing"} {
		t.Run("AUT-04_refuses_what_the_caller_may_not_have_"+uri, func(t *testing.T) { subscribe(uri).fails(t, uri, method.CodeForbidden, "") })
	}
	run(t, "AUT-07_bounded", func(o *Options) { o.MaxStreamURIs, o.MaxStreamPatterns = 10, 3 }, func(t *testing.T, f *fixture) {
		s := f.session(alice, spec.V20251125)
		exceed := func(uri, data string) {
			t.Helper()
			f.sessionBased(alice, s, spec.MethodSubscribe, `"uri":"`+uri+`"`).fails(t, uri, method.CodeExhausted, data)
		}
		for i := range 10 {
			f.subscribe(alice, s, fmt.Sprintf("event://github/acme/%d/push", i))
		}
		exceed("event://ci", `{"limit":"streamURIs","max":10}`)
		f.sessionBased(alice, s, spec.MethodUnsubscribe, `"uri":"event://github/acme/7/push"`)
		f.subscribe(alice, s, "event://ci", "event://github/acme/8/push")

		s = f.session(alice, spec.V20251125)
		f.subscribe(alice, s, "event://ci", "event://github", "event://github/acme", "event://github/acme")
		exceed("event://chat", `{"limit":"streamPatterns","max":3}`)
		f.subscribe(alice, s, deploy)
	})
}

func TestSessionStream(t *testing.T) {
	run(t, "EVS-06_each_matching_event_and_no_other", nil, func(t *testing.T, f *fixture) {
		s := f.session(alice, spec.V20251125)
		f.subscribe(alice, s, "event://ci/build-finished")
		g := f.stream(alice, s, "")
		if e := g.event(); e.ID == "" || len(e.Data) != 0 || e.Data == nil {
			t.Errorf("SES-03: the first event is %+v, want an id and empty data", e)
		}
		f.publish(deploy, `{"n":0}`)
		ev := f.publish("event://ci/build-finished", `{"status":"ok","n":9007199254740993}`)
		m := g.brings(`event://ci/build-finished {"status":"ok","n":9007199254740993}`)
		for key, want := range map[string]string{spec.MetaEventID: ev.ID, spec.MetaTime: ev.Timestamp()} {
			sameJSON(t, m.Params.Meta[key], `"`+want+`"`)
		}
		if m.Params.Meta[spec.MetaCursor] == nil || m.Params.Meta[spec.MetaPayload] != nil || m.Params.Meta[spec.MetaSubscription] != nil || m.sse.ID == "" {
			t.Errorf("got %+v, want an id and a cursor, and no subscription or payload in _meta", m)
		}
		f.publishIn("elsewhere", "event://ci/build-finished", `{"status":"theirs"}`)
		f.publish("event://ci/build-finished", `{"status":"last"}`)
		g.brings(`event://ci/build-finished {"status":"last"}`)
	})
	run(t, "EVS-13_a_parent_and_overlapping_subscriptions_send_once", nil, func(t *testing.T, f *fixture) {
		c := f.follow(bySession, "event://github", "event://github/acme", "event://github/acme/web/push", "event://github/acme/*/push")
		got := map[string]int{}
		want := map[string]int{`event://github/acme/web/push {"n":1}`: 1, `event://github/other/web/pull_request {"n":2}`: 1, `event://github/acme/web/push {"n":3}`: 1}
		for _, event := range slices.Sorted(maps.Keys(want)) {
			uri, payload, _ := strings.Cut(event, " ")
			f.publish(uri, payload)
		}
		for range want {
			got[c.next().says()]++
		}
		expect.Deep(t, "the events", got, want)
	})
	run(t, "SES-02_subscriptions_made_at_another_instance", nil, func(t *testing.T, f *fixture) {
		s := f.session(alice, spec.V20250618)
		g := f.stream(alice, s, "")
		f.instance().subscribe(alice, s, "event://ci/build-finished", "event://github/acme")
		f.publish("event://ci/build-finished", `{"n":1}`)
		g.brings(`event://ci/build-finished {"n":1}`)
		f.publish("event://github/acme/web/push", `{"n":2}`)
		g.brings(`event://github/acme/web/push {"n":2}`)
	})
	run(t, "SES-02_EVS-12_EVS-14_list_changed_once_for_each_change", nil, func(t *testing.T, f *fixture) {
		c := f.follow(bySession)
		f.registerOne(bob, deploy, "https://b.example/") // must not notify alice
		uri := f.registerOne(alice, deploy, "https://a.example/")
		c.brings(spec.NoteResourcesChange)
		f.stateless(alice, spec.MethodDeregister, `"uri":"`+uri+`"`)
		c.brings(spec.NoteResourcesChange)
		f.announceCatalog()
		c.brings(spec.NoteResourcesChange)
		f.subscribe(alice, c.session, deploy)
		f.publish(deploy, `{}`)
		c.brings(deploy + ` {}`)
	})
	run(t, "EVS-12_a_change_of_state", nil, func(t *testing.T, f *fixture) {
		uri := f.registerOne(alice, deploy, "https://a.example/")
		c := f.follow(bySession, uri)
		f.sessionBased(bob, f.session(bob, spec.V20251125), spec.MethodSubscribe, `"uri":"`+uri+`"`).is(t, "bob's subscribe", 200, -32002)
		id, _ := subscription.ParseURI(uri)
		pause := func(on bool) func() (bool, error) {
			return func() (bool, error) { return f.service.SetPaused(t.Context(), "default", "alice", id, on) }
		}
		disable := func() (bool, error) {
			sub := expect.Value(f.service.Lookup(t.Context(), "default", "alice", id))(t)
			return f.service.Disable(t.Context(), "default", "alice", id, "gone", sub.Resumed)
		}
		for _, step := range []struct {
			change func() (bool, error)
			state  subscription.State
		}{{pause(true), subscription.Paused}, {pause(false), subscription.Active}, {pause(true), subscription.Paused}, {disable, subscription.Disabled}} {
			expect.OK(t, expect.ErrOf(step.change()))
			got := map[string]bool{c.next().says(): true, c.next().says(): true} // The order may vary.
			if !got[uri+` {"state":"`+string(step.state)+`"}`] || !got[spec.NoteResourcesChange] {
				t.Errorf("got %v, want the state %s and %s", got, step.state, spec.NoteResourcesChange)
			}
			var read struct {
				State          subscription.State
				DeliveryStatus struct{ Active bool }
			}
			f.readText(alice, uri, &read)
			expect.Equal(t, "the state in the resource", read.State, step.state)
			expect.Equal(t, "whether the server delivers", read.DeliveryStatus.Active, step.state == subscription.Active)
			f.stateless(alice, spec.MethodResources, "").is(t, "the list", 200, 0, spec.OwnPrefix+`state":"`+string(step.state)+`"`)
		}
	})
	run(t, "SES-04_the_newest_stream_takes_over", nil, func(t *testing.T, f *fixture) {
		c := f.follow(bySession, deploy)
		second := f.instance().stream(alice, c.session, "")
		second.event()
		c.end()
		f.publish(deploy, `{}`)
		second.brings(deploy + ` {}`)
	})
	run(t, "SES-01_DELETE_ends_the_stream", nil, func(t *testing.T, f *fixture) {
		c := f.follow(bySession)
		f.instance().do("DELETE", alice, "", "Mcp-Session-Id: "+c.session).isPlain(t, "DELETE", 204)
		c.end()
	})
	run(t, "SES-03_no_priming_event_before_2025-11-25", nil, func(t *testing.T, f *fixture) {
		for _, v := range []spec.Version{spec.V20250326, spec.V20250618} {
			s := f.session(alice, v)
			f.subscribe(alice, s, deploy)
			g := f.stream(alice, s, "")
			f.publish(deploy, `{}`)
			expect.Differ(t, fmt.Sprint(v, ": the id"), g.brings(deploy+` {}`).sse.ID, "")
		}
	})
	run(t, "SES-03_a_stream_that_has_ended_without_an_event_id_is_continued", func(o *Options) { o.MaxAge = 500 * time.Millisecond }, func(t *testing.T, f *fixture) {
		for _, v := range []spec.Version{spec.V20250326, spec.V20250618} {
			s := f.session(alice, v)
			f.subscribe(alice, s, deploy)
			f.stream(alice, s, "").end()
			f.publish(deploy, `{"n":1}`)
			g := f.stream(alice, s, "")
			first := g.brings(deploy + ` {"n":1}`)
			g.end()
			f.stream(alice, s, first.sse.ID).end()
			f.publish(deploy, `{"n":2}`)
			g = f.stream(alice, s, "")
			g.brings(deploy + ` {"n":2}`)
			g.end()
			g = f.stream(alice, s, "") // The client has an id, so a stream without it starts at the end of the log.
			f.publish(deploy, `{"n":3}`)
			g.brings(deploy + ` {"n":3}`)
			g.close()
		}
	})
	run(t, "payloads_in_meta_for_who_declares_the_extension", nil, func(t *testing.T, f *fixture) {
		s := f.initialize(alice, spec.V20251125, `{"experimental":{"`+spec.OwnExtension+`":{}}}`).Header.Get(spec.HeaderSession)
		f.subscribe(alice, s, deploy)
		g := f.stream(alice, s, "")
		g.event()
		f.publish(deploy, `{"n":1}`)
		sameJSON(t, g.next().Params.Meta[spec.MetaPayload], `{"n":1}`)
	})
	run(t, "SES-03_each_stream_has_ids_of_its_own_and_keeps_them_when_it_resumes", nil, func(t *testing.T, f *fixture) {
		stream := func(id string) string { nonce, _, _ := strings.Cut(id, "."); return nonce }
		c := f.follow(bySession, deploy)
		another := f.stream(alice, c.session, "").event().ID
		expect.Differ(t, "the id of another stream of the session", stream(another), stream(c.position))
		for _, id := range []string{c.position, another} {
			resumed := f.stream(alice, c.session, id).event().ID
			expect.Equal(t, "the resumed stream", stream(resumed), stream(id))
			expect.Differ(t, "the next id", resumed, id)
		}
	})
	run(t, "SES-03_an_id_of_another_session_is_refused", nil, func(t *testing.T, f *fixture) {
		one, two := f.follow(bySession), f.session(alice, spec.V20251125)
		parts := strings.Split(one.position, ".")
		for _, id := range []struct{ session, last string }{
			{two, one.position}, {one.session, "x"}, {one.session, parts[0] + "." + parts[1] + "." + strings.Repeat("A", len(parts[2]))},
		} {
			f.do("GET", alice, "", "Mcp-Session-Id: "+id.session, "Last-Event-ID: "+id.last).isPlain(t, id.last, 400)
		}
	})
	t.Run("SES-02_SES-03_when_the_first_stream_fails_the_second_sends_the_events_since_the_subscribe", func(t *testing.T) {
		catalogs := &shaky{}
		f := newFixture(t, func(o *Options) { catalogs.Source, o.Catalogs = o.Catalogs, catalogs })
		s := f.session(alice, spec.V20251125)
		f.publish(deploy, `{"n":0}`)
		f.subscribe(alice, s, deploy)
		f.publish(deploy, `{"n":1}`)
		catalogs.fails.Store(1)
		f.do("GET", alice, "", "Accept:", "Accept: text/event-stream", "Mcp-Session-Id: "+s).isPlain(t, "the first stream", 503)
		g := f.stream(alice, s, "")
		g.brings("", deploy+` {"n":1}`)
		g.cancel()
		g = f.stream(alice, s, "") // The session has had a stream, so a stream without an id now starts at the end of the log.
		g.event()
		f.publish(deploy, `{"n":2}`)
		g.brings(deploy + ` {"n":2}`)
	})
}

func TestInitialize(t *testing.T) {
	f := newFixture(t, nil)
	for asked, want := range map[string]string{
		"2025-03-26": "2025-03-26", "2025-06-18": "2025-06-18", "2025-11-25": "2025-11-25",
		"2024-11-05": "2025-11-25", "2026-07-28": "2025-11-25", "2099-01-01": "2025-11-25", "x": "2025-11-25",
	} {
		t.Run("SES-01_negotiates_"+asked, func(t *testing.T) {
			r := f.initialize(alice, spec.Version(asked), `{}`)
			var d described
			r.result(t, &d)
			id := r.Header.Get(spec.HeaderSession)
			if d.ProtocolVersion != want || len(id) < 43 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
				t.Errorf("got %s, session %q, want %s and an id of at least 43 characters of base64url", d.ProtocolVersion, id, want)
			}
		})
	}
	t.Run("SES-01_without_a_version", func(t *testing.T) {
		r := f.do("POST", alice, rpcText("1", spec.MethodInitialize, ""))
		r.fails(t, "initialize", -32602, "")
		expect.Equal(t, "the session", r.Header.Get(spec.HeaderSession), "")
	})
}

func TestSessions(t *testing.T) {
	f := newFixture(t, nil)
	s := f.session(alice, spec.V20251125)
	const ping = `{"jsonrpc":"2.0","id":7,"method":"ping"}`
	in := "Mcp-Session-Id: " + s
	for _, tc := range []struct {
		name, method, key, body string
		headers                 []string
		status                  int
	}{
		{"SES-01_ping", "POST", alice, ping, []string{in}, 200},
		{"SES-01_ping_with_its_version", "POST", alice, ping, []string{in, "Mcp-Protocol-Version: 2025-11-25"}, 200},
		{"SES-01_no_session", "POST", alice, ping, nil, 400},
		{"SES-01_no_session_for_a_notification", "POST", alice, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, nil, 400},
		{"SES-01_unknown_session", "POST", alice, ping, []string{"Mcp-Session-Id: x"}, 404},
		{"SES-04_session_of_another_principal", "POST", bob, ping, []string{in}, 404},
		{"SES-04_session_of_another_workspace", "POST", foreign, ping, []string{in}, 404},
		{"SES-01_unknown_version", "POST", alice, ping, []string{in, "Mcp-Protocol-Version: 2024-11-05"}, 400},
		{"SES-01_initialized", "POST", alice, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, []string{in}, 202},
		{"SES-05_cancelled", "POST", alice, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, []string{in}, 202},
		{"SES-01_a_response", "POST", alice, `{"jsonrpc":"2.0","id":1,"result":{}}`, []string{in}, 202},
		{"SES-01_no_stream_without_session", "GET", alice, "", nil, 400},
		{"SES-01_no_stream_of_an_unknown_session", "GET", alice, "", []string{"Mcp-Session-Id: x"}, 404},
		{"SES-04_no_stream_for_another_principal", "GET", bob, "", []string{in}, 404},
		{"SES-04_stream_with_a_wrong_Accept", "GET", alice, "", []string{in, "Accept:", "Accept: application/json"}, 406},
		{"SES-01_no_end_without_session", "DELETE", alice, "", nil, 400},
		{"SES-04_no_end_by_another_principal", "DELETE", bob, "", []string{in}, 404},
		{"SES-01_end", "DELETE", alice, "", []string{in}, 204},
		{"SES-01_ended", "POST", alice, ping, []string{in}, 404},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := f.do(tc.method, tc.key, tc.body, tc.headers...)
			r.isPlain(t, tc.method+" "+tc.body, tc.status)
			if tc.status == 400 && tc.method == "POST" && r.code(t) != -32600 && r.code(t) != -32602 {
				t.Errorf("got %s, want the error -32600 or -32602", r.Body)
			}
		})
	}
	t.Run("SES-01_another_instance_serves_it", func(t *testing.T) {
		f.instance().sessionBased(alice, f.session(alice, spec.V20251125), spec.MethodPing, "").is(t, "ping", 200, 0)
	})
	t.Run("SES-05_methods_that_are_not_there", func(t *testing.T) {
		s := f.session(alice, spec.V20251125)
		for _, m := range []string{"tools/list", "tools/call", "prompts/get", "prompts/list", spec.MethodListen, spec.MethodDiscover, "x"} {
			f.sessionBased(alice, s, m, "").is(t, m, 200, -32601)
		}
	})
}

func TestBatches(t *testing.T) {
	f := newFixture(t, nil)
	const two = `[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/initialized"},{"jsonrpc":"2.0","id":"b","method":"x"},7,{"jsonrpc":"2.0","id":2,"method":"initialize"}]`
	t.Run("SES-04_accepted_in_2025-03-26", func(t *testing.T) {
		r := f.do("POST", alice, two, "Mcp-Session-Id: "+f.session(alice, spec.V20250326))
		r.isPlain(t, two, 200)
		sameJSON(t, json.RawMessage(r.Body), `[{"jsonrpc":"2.0","id":1,"result":{}},
			{"jsonrpc":"2.0","id":"b","error":{"code":-32601,"message":"unknown method x"}},
			{"jsonrpc":"2.0","error":{"code":-32600,"message":"a message must be an object"}},
			{"jsonrpc":"2.0","id":2,"error":{"code":-32600,"message":"initialize cannot be part of a batch"}}]`)
	})
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	for name, tc := range map[string]struct {
		version spec.Version
		batch   string
		status  int
	}{
		"only notifications":    {spec.V20250326, `[{"jsonrpc":"2.0","method":"notifications/initialized"}]`, 202},
		"bounded":               {spec.V20250326, "[" + strings.Repeat(ping+",", maxBatch) + ping + "]", 400},
		"refused in 2025-06-18": {spec.V20250618, two, 400},
		"refused in 2025-11-25": {spec.V20251125, two, 400},
	} {
		t.Run("SES-04_"+name, func(t *testing.T) {
			r := f.do("POST", alice, tc.batch, "Mcp-Session-Id: "+f.session(alice, tc.version))
			if r.isPlain(t, tc.batch, tc.status); tc.status == 400 && r.code(t) != jsonrpc.InvalidRequest {
				t.Errorf("got %s, want the error %d", r.Body, jsonrpc.InvalidRequest)
			}
		})
	}
}

// A request without both headers gets the error about the version first, because clients of the stateless revision have no
// session to send.
func TestAMissingVersionIsNotAMissingSession(t *testing.T) {
	f := newFixture(t, nil)
	list := rpcText("1", spec.MethodResources, "")
	r := f.do("POST", alice, list)
	r.isPlain(t, "without any header", 400, "the header MCP-Protocol-Version is missing: send 2026-07-28")
	expect.Lacks(t, "the body", r.Body, "Mcp-Session-Id")
	f.do("POST", alice, list, "Mcp-Protocol-Version: 2025-11-25").isPlain(t, "without a session", 400, "the header Mcp-Session-Id is missing")
}

// damage makes the selected items of a session unreadable and returns their number. The function which selects them
// by their sort key.
func (f *fixture) damage(id string, which func(sort string) bool) (n int) {
	f.t.Helper()
	page := expect.Value(f.db.Query(f.t.Context(), store.Query{Table: store.Sessions, Partition: "s#" + session.Key(id), Limit: 1000}))(f.t)
	for _, it := range page.Items {
		if which(it.Sort) {
			it.Value = []byte(`{"u":5,"ver":[`)
			expect.OK(f.t, f.db.Write(f.t.Context(), store.Put(it)))
			n++
		}
	}
	return n
}

// SES-02: the endpoint treats a session that it cannot decode as unknown, so that the client starts a new one. A metric
// counts these sessions. Other sessions still work.
func TestAnUndecodableSessionIsNone(t *testing.T) {
	f := newFixture(t, nil)
	bad, good := f.session(alice, spec.V20251125), f.session(alice, spec.V20251125)
	open := f.stream(alice, bad, "")
	open.event()
	expect.Deep(t, "damaged items", f.damage(bad, func(sort string) bool { return sort == "-" }), 1)
	for range 3 {
		f.sessionBased(alice, bad, spec.MethodResources, "").isPlain(t, "the damaged session", http.StatusNotFound)
	}
	expect.Deep(t, "counted", f.endpoint.sessions.Broken.Count("session"), 3)
	for what, id := range map[string]string{"another": good, "a new one": f.session(alice, spec.V20251125)} {
		f.sessionBased(alice, id, spec.MethodResources, "").is(t, what, 200, 0)
	}
}

// SES-04: a subscription that cannot be decoded sends no events. The session's other subscriptions still work, and all of
// its subscriptions end with the session.
func TestAnUndecodableSubscriptionOfASession(t *testing.T) {
	f := newFixture(t, nil)
	id := f.session(alice, spec.V20251125)
	f.subscribe(alice, id, deploy, "event://ci/build-finished")
	h := sha256.Sum256([]byte("event://ci/build-finished"))
	bad := "u#" + base64.RawURLEncoding.EncodeToString(h[:])
	expect.Deep(t, "damaged items", f.damage(id, func(sort string) bool { return sort == bad }), 1)
	s := f.stream(alice, id, "")
	s.event()
	f.publish(deploy, `{"n":1}`)
	s.brings(deploy + ` {"n":1}`)
	expect.AtLeast(t, "the damaged subscriptions that were counted", f.endpoint.sessions.Broken.Count("subscription of a session"), 1)
	f.do("DELETE", alice, "", "Mcp-Session-Id: "+id).isPlain(t, "DELETE", http.StatusNoContent)
	expect.Deep(t, "items left behind", f.damage(id, func(string) bool { return true }), 0)
}
