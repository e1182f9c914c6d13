package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

func (f *fixture) follow(key, session string, uris ...string) {
	f.t.Helper()
	for _, uri := range uris {
		if r := f.sessionBased(key, session, spec.MethodSubscribe, `"uri":"`+uri+`"`); r.code(f.t) != 0 {
			f.t.Fatalf("subscribe to %s: %s", uri, r.Body)
		}
	}
}

// following opens the stream of a new session of alice's that is subscribed to the URIs.
func (f *fixture) following(uris ...string) (session string, g *open) {
	f.t.Helper()
	session = f.session(alice, spec.V20251125)
	f.follow(alice, session, uris...)
	g = f.stream(alice, session, "")
	g.event() // only an id
	return session, g
}

// isEvent checks that the message is the event.
func (m frame) isEvent(t testing.TB, uri, payload string) {
	t.Helper()
	if m.Method != spec.NoteUpdated || m.Params.URI != uri || string(m.Params.Payload) != payload {
		t.Fatalf("got %s %s %s, want %s %s", m.Method, m.Params.URI, m.Params.Payload, uri, payload)
	}
}

func TestSubscribe(t *testing.T) {
	f := newFixture(t, nil)
	s := f.session(alice, spec.V20251125)
	for _, uri := range []string{
		"event://ci/build-finished", "event://ci", "event://github/acme", "event://github/acme/web/push", "event://github/acme/*/push",
		"EVENT://ci/build-finished", "event://chat",
	} {
		t.Run("EVS-05_accepts_"+uri, func(t *testing.T) {
			for _, m := range []string{spec.MethodSubscribe, spec.MethodSubscribe, spec.MethodUnsubscribe, spec.MethodUnsubscribe} {
				r := f.sessionBased(alice, s, m, `"uri":"`+uri+`"`)
				if r.Body != `{"jsonrpc":"2.0","id":1,"result":{}}` {
					t.Errorf("%s: %s", m, r.Body)
				}
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
		t.Run("EVS-05_refuses_"+uri, func(t *testing.T) {
			m := f.sessionBased(alice, s, spec.MethodSubscribe, `"uri":"`+uri+`"`).rpc(t)
			if m.Error == nil || m.Error.Code != -32602 || !strings.Contains(m.Error.Message, names) {
				t.Errorf("got %+v, want the fault named (%q)", m.Error, names)
			}
		})
	}
	t.Run("AUT-04_refuses_what_the_caller_may_not_have", func(t *testing.T) {
		for _, uri := range []string{"event://billing/invoice", "event://tenant/acme/alarm", "event://billing"} {
			if r := f.sessionBased(alice, s, spec.MethodSubscribe, `"uri":"`+uri+`"`); r.code(t) != method.CodeForbidden {
				t.Errorf("%s: %s", uri, r.Body)
			}
		}
	})
	t.Run("AUT-07_bounded", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.MaxStreamURIs, o.MaxStreamPatterns = 10, 3 })
		s := f.session(alice, spec.V20251125)
		for i := range 10 {
			f.follow(alice, s, fmt.Sprintf("event://github/acme/%d/push", i))
		}
		m := f.sessionBased(alice, s, spec.MethodSubscribe, `"uri":"event://ci"`).rpc(t)
		if m.Error == nil || m.Error.Code != method.CodeExhausted {
			t.Fatalf("got %+v", m.Error)
		}
		sameJSON(t, m.Error.Data, `{"limit":"streamURIs","max":10}`)
		f.sessionBased(alice, s, spec.MethodUnsubscribe, `"uri":"event://github/acme/7/push"`)
		f.follow(alice, s, "event://ci", "event://github/acme/8/push")

		s = f.session(alice, spec.V20251125)
		f.follow(alice, s, "event://ci", "event://github", "event://github/acme", "event://github/acme")
		m = f.sessionBased(alice, s, spec.MethodSubscribe, `"uri":"event://chat"`).rpc(t)
		if m.Error == nil || m.Error.Code != method.CodeExhausted {
			t.Fatalf("got %+v", m.Error)
		}
		sameJSON(t, m.Error.Data, `{"limit":"streamPatterns","max":3}`)
		f.follow(alice, s, "event://ci/deploy")
	})
}

func TestSessionStream(t *testing.T) {
	t.Run("EVS-06_each_matching_event_and_no_other", func(t *testing.T) {
		f := newFixture(t, nil)
		s := f.session(alice, spec.V20251125)
		f.follow(alice, s, "event://ci/build-finished")
		g := f.stream(alice, s, "")
		if g.status != 200 || g.header.Get("Content-Type") != "text/event-stream" || g.header.Get("X-Accel-Buffering") != "no" || g.header.Get("Cache-Control") != "no-cache" {
			t.Errorf("%d %v", g.status, g.header)
		}
		if e := g.event(); e.ID == "" || len(e.Data) != 0 || e.Data == nil {
			t.Errorf("SES-03: the first event is %+v", e)
		}
		f.publish("event://ci/deploy", `{"n":0}`)
		ev := f.publish("event://ci/build-finished", `{"status":"ok","n":9007199254740993}`)
		m := g.next()
		m.isEvent(t, "event://ci/build-finished", `{"status":"ok","n":9007199254740993}`)
		for key, want := range map[string]string{spec.MetaEventID: ev.ID, spec.MetaTime: ev.Timestamp()} {
			sameJSON(t, m.Params.Meta[key], `"`+want+`"`)
		}
		if m.Params.Meta[spec.MetaCursor] == nil || m.Params.Meta[spec.MetaPayload] != nil || m.Params.Meta[spec.MetaSubscription] != nil || m.sse.ID == "" {
			t.Errorf("got %s", m.sse.Data)
		}
		f.publishIn("elsewhere", "event://ci/build-finished", `{"status":"theirs"}`)
		f.publish("event://ci/build-finished", `{"status":"last"}`)
		g.next().isEvent(t, "event://ci/build-finished", `{"status":"last"}`)
	})
	t.Run("EVS-13_a_parent_and_overlapping_subscriptions_send_once", func(t *testing.T) {
		f := newFixture(t, nil)
		s, g := f.following()
		f.follow(alice, s, "event://github", "event://github/acme", "event://github/acme/web/push", "event://github/acme/*/push")
		f.publish("event://github/acme/web/push", `{"n":1}`)
		f.publish("event://github/other/web/pull_request", `{"n":2}`)
		f.publish("event://github/acme/web/push", `{"n":3}`)
		got := map[string]string{}
		for range 3 {
			m := g.next()
			if got[string(m.Params.Payload)] != "" {
				t.Errorf("twice: %s", m.Params.Payload)
			}
			got[string(m.Params.Payload)] = m.Params.URI
		}
		if got[`{"n":1}`] != "event://github/acme/web/push" || got[`{"n":2}`] != "event://github/other/web/pull_request" {
			t.Errorf("got %v", got)
		}
	})
	t.Run("SES-02_subscriptions_made_at_another_instance", func(t *testing.T) {
		f := newFixture(t, nil)
		s := f.session(alice, spec.V20250618)
		g := f.stream(alice, s, "")
		other := f.instance()
		other.follow(alice, s, "event://ci/build-finished", "event://github/acme")
		f.publish("event://ci/build-finished", `{"n":1}`)
		g.next().isEvent(t, "event://ci/build-finished", `{"n":1}`)
		f.publish("event://github/acme/web/push", `{"n":2}`)
		g.next().isEvent(t, "event://github/acme/web/push", `{"n":2}`)
	})
	t.Run("SES-02_what_was_published_before_the_first_stream", func(t *testing.T) {
		f := newFixture(t, nil)
		s := f.session(alice, spec.V20251125)
		f.publish("event://ci/deploy", `{"n":0}`)
		f.follow(alice, s, "event://ci/deploy")
		f.publish("event://ci/deploy", `{"n":1}`)
		g := f.stream(alice, s, "")
		g.event()
		g.next().isEvent(t, "event://ci/deploy", `{"n":1}`)
	})
	t.Run("SES-02_list_changed", func(t *testing.T) {
		f := newFixture(t, nil)
		s, g := f.following()
		f.registerOne(bob, "event://ci/deploy", "https://b.example/") // bob's own business
		uri := f.registerOne(alice, "event://ci/deploy", "https://a.example/")
		if m := g.next(); m.Method != spec.NoteResourcesChange {
			t.Errorf("EVS-12: got %s", m.sse.Data)
		}
		f.stateless(alice, spec.MethodDeregister, `"uri":"`+uri+`"`)
		if m := g.next(); m.Method != spec.NoteResourcesChange {
			t.Errorf("EVS-12: got %s", m.sse.Data)
		}
		must(t, f.log.Notify(t.Context(), "default", stream.TopicCatalog, json.RawMessage(`{}`)))
		if m := g.next(); m.Method != spec.NoteResourcesChange {
			t.Errorf("EVS-14: got %s", m.sse.Data)
		}
		f.follow(alice, s, "event://ci/deploy")
		f.publish("event://ci/deploy", `{}`)
		g.next().isEvent(t, "event://ci/deploy", `{}`) // and once each
	})
	t.Run("EVX-01_events_list_changed_for_who_declares_the_extension", func(t *testing.T) {
		f := newFixture(t, nil)
		r := f.initialize(alice, spec.V20251125, `{"extensions":{"`+spec.EventsExtension+`":{}}}`)
		g := f.stream(alice, r.Header.Get(spec.HeaderSession), "")
		g.event()
		must(t, f.log.Notify(t.Context(), "default", stream.TopicCatalog, json.RawMessage(`{}`)))
		if a, b := g.next(), g.next(); a.Method != spec.NoteResourcesChange || b.Method != spec.NoteEventsChange {
			t.Errorf("got %s, %s", a.Method, b.Method)
		}
	})
	t.Run("EVS-12_a_change_of_state", func(t *testing.T) {
		f := newFixture(t, nil)
		uri := f.registerOne(alice, "event://ci/deploy", "https://a.example/")
		s, g := f.following()
		f.follow(alice, s, uri)
		if r := f.sessionBased(bob, f.session(bob, spec.V20251125), spec.MethodSubscribe, `"uri":"`+uri+`"`); r.code(t) != -32002 {
			t.Errorf("bob: %s", r.Body)
		}
		id, _ := subscription.ParseURI(uri)
		_, err := f.service.Disable(t.Context(), "default", "alice", id, "gone", 0)
		must(t, err)
		for range 2 { // the list changed, too; either may come first
			if m := g.next(); m.Method == spec.NoteUpdated {
				m.isEvent(t, uri, `{"state":"disabled"}`)
			} else if m.Method != spec.NoteResourcesChange {
				t.Errorf("got %s", m.sse.Data)
			}
		}
	})
	t.Run("SES-04_the_newest_stream_takes_over", func(t *testing.T) {
		f := newFixture(t, nil)
		s, first := f.following("event://ci/deploy")
		second := f.instance().stream(alice, s, "")
		second.event()
		first.end()
		f.publish("event://ci/deploy", `{}`)
		second.next().isEvent(t, "event://ci/deploy", `{}`)
	})
	t.Run("SES-01_DELETE_ends_the_stream", func(t *testing.T) {
		f := newFixture(t, nil)
		s, g := f.following()
		if r := f.instance().do("DELETE", alice, "", "Mcp-Session-Id: "+s); r.Status != 204 {
			t.Fatalf("%+v", r)
		}
		g.end()
	})
	t.Run("SES-03_no_priming_event_before_2025-11-25", func(t *testing.T) {
		f := newFixture(t, nil)
		for _, v := range []spec.Version{spec.V20250326, spec.V20250618} {
			s := f.session(alice, v)
			f.follow(alice, s, "event://ci/deploy")
			g := f.stream(alice, s, "")
			f.publish("event://ci/deploy", `{}`)
			m := g.next() // it would not be JSON
			m.isEvent(t, "event://ci/deploy", `{}`)
			if m.sse.ID == "" {
				t.Error("no id")
			}
		}
	})
	t.Run("payloads_in_meta_for_who_declares_the_extension", func(t *testing.T) {
		f := newFixture(t, nil)
		r := f.initialize(alice, spec.V20251125, `{"experimental":{"`+spec.OwnExtension+`":{}}}`)
		s := r.Header.Get(spec.HeaderSession)
		f.follow(alice, s, "event://ci/deploy")
		g := f.stream(alice, s, "")
		g.event()
		f.publish("event://ci/deploy", `{"n":1}`)
		sameJSON(t, g.next().Params.Meta[spec.MetaPayload], `{"n":1}`)
	})
}

func TestResume(t *testing.T) {
	t.Run("SES-03_at_another_instance_with_nothing_lost_or_repeated", func(t *testing.T) {
		f := newFixture(t, nil)
		s := f.session(alice, spec.V20251125)
		f.follow(alice, s, "event://ci/deploy", "event://github/acme")
		at, g := f, f.stream(alice, s, "")
		last := g.event().ID
		seen := map[string]bool{last: true} // ids and payloads
		read := func() {
			t.Helper()
			m := g.next()
			if last = m.sse.ID; seen[last] || seen[string(m.Params.Payload)] {
				t.Fatalf("repeated: %s %s", last, m.Params.Payload)
			}
			seen[last], seen[string(m.Params.Payload)] = true, true
		}
		for round := range 4 {
			for n := range 5 {
				f.publish("event://ci/deploy", fmt.Sprintf(`{"round":%d,"n":%d}`, round, n))
				f.publish("event://github/acme/web/push", fmt.Sprintf(`{"round":%d,"push":%d}`, round, n))
			}
			lost := round * 2 // the last ones of each round get lost on the way
			for range 10 - lost {
				read()
			}
			g.cancel()
			at = at.instance()
			g = at.stream(alice, s, last)
			if e := g.event(); len(e.Data) != 0 || seen[e.ID] || nonceOf(e.ID) != nonceOf(last) {
				t.Fatalf("the stream is another: %s after %s", e.ID, last)
			}
			for range lost {
				read()
			}
		}
	})
	t.Run("SES-03_an_id_of_another_session_is_refused", func(t *testing.T) {
		f := newFixture(t, nil)
		one, two := f.session(alice, spec.V20251125), f.session(alice, spec.V20251125)
		id := f.stream(alice, one, "").event().ID
		if r := f.do("GET", alice, "", "Mcp-Session-Id: "+two, "Last-Event-ID: "+id); r.Status != 400 {
			t.Errorf("%+v", r)
		}
		parts := strings.Split(id, ".")
		for _, forged := range []string{"x", parts[0] + "." + parts[1] + "." + strings.Repeat("A", len(parts[2]))} {
			if r := f.do("GET", alice, "", "Mcp-Session-Id: "+one, "Last-Event-ID: "+forged); r.Status != 400 {
				t.Errorf("%s: %+v", forged, r)
			}
		}
	})
	t.Run("SES-03_a_gap_is_said", func(t *testing.T) {
		f := newFixture(t, nil)
		s := f.session(alice, spec.V20251125)
		f.follow(alice, s, "event://ci/deploy")
		g := f.stream(alice, s, "")
		last := g.event().ID
		g.cancel()
		f.log.Retention = time.Nanosecond // the log forgot what was then
		g = f.stream(alice, s, last)
		g.event()
		m := g.next()
		if m.Method != spec.NoteUpdated || m.Params.URI != "event://ci/deploy" || string(m.Params.Meta[spec.MetaTruncated]) != "true" || m.Params.Payload != nil {
			t.Errorf("got %s", m.sse.Data)
		}
		if m := g.next(); m.Method != spec.NoteResourcesChange {
			t.Errorf("got %s", m.sse.Data)
		}
	})
	t.Run("SES-03_a_client_that_is_cut_off_before_it_knows_of_the_whole_gap_is_told_again", func(t *testing.T) {
		f := newFixture(t, nil)
		s := f.session(alice, spec.V20251125)
		f.follow(alice, s, "event://ci", "event://github")
		g := f.stream(alice, s, "") // the log has the events of parents from now on
		parts := strings.SplitN(g.event().ID, ".", 3)
		g.cancel()
		last := parts[0] + "." + parts[1] + "." + f.tails.Sealer.Seal(auth.DefaultWorkspace, eventlog.Cursor{At: f.log.Position() - time.Hour.Microseconds()})
		for read := range 3 { // frames before it is cut off; the first frame is only an id
			g := f.stream(alice, s, last)
			ids, uris := []string{last, g.event().ID}, map[string]bool{}
			for range 2 {
				m := g.next()
				if string(m.Params.Meta[spec.MetaTruncated]) != "true" {
					t.Fatalf("cut off after %d frames: got %s", read, m.sse.Data)
				}
				ids, uris[m.Params.URI] = append(ids, m.sse.ID), true
			}
			if len(uris) != 2 {
				t.Errorf("cut off after %d frames: got %v, want both URIs", read, uris)
			}
			last = ids[read]
			g.cancel()
		}
	})
	t.Run("SES-03_a_client_that_is_cut_off_between_two_notifications_of_a_change_gets_both", func(t *testing.T) {
		f := newFixture(t, nil)
		s := f.initialize(alice, spec.V20250618, `{"extensions":{"`+spec.EventsExtension+`":{}}}`).Header.Get(spec.HeaderSession)
		g := f.stream(alice, s, "")
		must(t, f.log.Notify(t.Context(), "default", stream.TopicCatalog, json.RawMessage(`{}`)))
		first := g.next()
		if first.Method != spec.NoteResourcesChange {
			t.Fatalf("got %s", first.sse.Data)
		}
		g.cancel()
		g = f.stream(alice, s, first.sse.ID)
		for _, want := range []string{spec.NoteResourcesChange, spec.NoteEventsChange} {
			if m := g.next(); m.Method != want {
				t.Errorf("after the resume: got %s, want %s", m.sse.Data, want)
			}
		}
	})
	t.Run("SES-03_when_the_first_stream_fails_the_second_sends_the_events_since_the_subscribe", func(t *testing.T) {
		catalogs := &shaky{}
		f := newFixture(t, func(o *Options) { catalogs.Source, o.Catalogs = o.Catalogs, catalogs })
		s := f.session(alice, spec.V20251125)
		f.follow(alice, s, "event://ci/deploy")
		f.publish("event://ci/deploy", `{"n":1}`)
		catalogs.fails.Store(1)
		if r := f.do("GET", alice, "", "Accept:", "Accept: text/event-stream", "Mcp-Session-Id: "+s); r.Status != 503 {
			t.Fatalf("the first stream: status %d, want 503", r.Status)
		}
		g := f.stream(alice, s, "")
		g.event()
		g.next().isEvent(t, "event://ci/deploy", `{"n":1}`)
		g.cancel()
		g = f.stream(alice, s, "") // the stream has begun now, so this one starts at the end of the log
		g.event()
		f.publish("event://ci/deploy", `{"n":2}`)
		g.next().isEvent(t, "event://ci/deploy", `{"n":2}`)
	})
	t.Run("SES-04_of_two_first_streams_that_open_at_the_same_time_one_stays_open", func(t *testing.T) {
		db := &takenOver{}
		f := newFixture(t, func(o *Options) { db.DB, o.Sessions = o.Sessions, db })
		s := f.session(alice, spec.V20251125)
		f.follow(alice, s, "event://ci/deploy")
		var quicker *open
		during := func() {
			quicker = f.stream(alice, s, "")
			quicker.event()
		}
		db.during.Store(&during)
		slower := f.stream(alice, s, "")
		slower.event()
		quicker.end()
		f.publish("event://ci/deploy", `{"n":1}`)
		slower.next().isEvent(t, "event://ci/deploy", `{"n":1}`)
	})
}

// takenOver is a store that calls a function once when a stream is about to take over its session.
type takenOver struct {
	store.DB
	during atomic.Pointer[func()]
}

func (db *takenOver) Write(ctx context.Context, ops ...store.Op) error {
	if ops[0].Item.Sort == "stream" {
		if during := db.during.Swap(nil); during != nil {
			(*during)()
		}
	}
	return db.DB.Write(ctx, ops...)
}

func nonceOf(id string) string { n, _, _ := strings.Cut(id, "."); return n }

// instance is another process over the same store.
func (f *fixture) instance(change ...func(*Options)) *fixture {
	f.t.Helper()
	other := *f
	other.log = &eventlog.Log{DB: f.db}
	other.tails = stream.New(other.log, f.db, f.tails.Sealer)
	f.t.Cleanup(other.tails.Close)
	o := f.endpoint.options
	o.Feeds = other.tails
	for _, c := range change {
		c(&o)
	}
	var err error
	other.endpoint, err = New(o)
	must(f.t, err)
	other.serve()
	return &other
}

// waitTargets waits until the tails read so many event partitions, beside the topics.
func (f *fixture) waitTargets(n int) {
	f.t.Helper()
	f.waitFor("the partitions", func() bool { return f.tails.Running() == n+3 }) // session, catalog, principal
}

var _ http.Handler = (*Endpoint)(nil)
