package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

const deploy = "event://ci/deploy"

func TestAStreamResumesAtAnotherInstance(t *testing.T) {
	for number, by := range map[string]framing{"SUB-08": byListen, "SES-03": bySession, "SSE-04": byDialect} {
		run(t, number+" "+by.name+" repeats and loses nothing", nil, func(t *testing.T, f *fixture) {
			c := f.follow(by, deploy, "event://github/acme")
			seen := map[string]bool{}
			read := func(n int) {
				t.Helper()
				for range n {
					m := c.next()
					if !strings.HasPrefix(m.says(), "event://") || seen[m.says()] {
						t.Fatalf("got %q, want an event that did not come before", m.says())
					}
					seen[m.says()] = true
				}
			}
			at := f
			for round := range 4 {
				for n := range 5 {
					f.publish(deploy, fmt.Sprintf(`{"round":%d,"n":%d}`, round, n))
					f.publish("event://github/acme/web/push", fmt.Sprintf(`{"round":%d,"push":%d}`, round, n))
				}
				lost := round * 2 // the number of events at the end of the round that the client misses
				read(10 - lost)
				for range 2 { // The second resume starts after the first message of the first resumed stream.
					at = at.instance()
					expect.True(t, "the resumed stream has no gap", !strings.HasPrefix(c.resume(at).says(), "gap"))
				}
				read(lost)
			}
		})
	}
}

func TestAStreamTellsThatEventsAreLost(t *testing.T) {
	for number, tc := range map[string]struct {
		by    framing
		first string   // the first message of the resumed stream
		then  []string // the messages after it
	}{
		"SUB-08": {byListen, "gap", nil},
		"SES-03": {bySession, "", []string{"gap " + deploy, spec.NoteResourcesChange}},
		"SSE-04": {byDialect, "streamOpened", []string{"gap " + deploy, spec.NoteResourcesChange}},
		"EVX-07": {byType, "gap", nil},
	} {
		run(t, number+" when "+tc.by.name+" resumes from before the retention", nil, func(t *testing.T, f *fixture) {
			c := f.follow(tc.by, deploy)
			old := c.position
			f.log.Retention = time.Nanosecond
			if m := c.resume(f); m.says() != tc.first || m.position() == old {
				t.Errorf("it begins with %q at %s, want %q at another position: %s", m.says(), m.position(), tc.first, m.sse.Data)
			}
			c.brings(tc.then...)
		})
		run(t, number+" when "+tc.by.name+" meets an item of the log that cannot be decoded, once and between the events", nil, func(t *testing.T, f *fixture) {
			c := f.follow(tc.by, deploy)
			f.publishAroundADamagedItem()
			gap := "gap " + deploy
			if tc.by.name == byType.name {
				gap = "gap" // An events/stream sends a new active message, marked as truncated.
			}
			c.brings(deploy+` {"n":1}`, gap, deploy+` {"n":2}`)
		})
	}
	run(t, "EVX-05 EVX-07 when a poll meets such an item, in its result and not in the next one", nil, func(t *testing.T, f *fixture) {
		cursor := f.poll(alice, "ci.deploy", `{}`, "", "").Cursor
		f.publishAroundADamagedItem()
		p := f.poll(alice, "ci.deploy", `{}`, cursor, "")
		if len(p.Events) != 2 || !*p.Truncated || *p.HasMore {
			t.Errorf("the poll returns %+v, want two events, truncated, and no more", p)
		}
		expect.True(t, "the next poll is not truncated", !*f.poll(alice, "ci.deploy", `{}`, p.Cursor, "").Truncated)
	})
	run(t, "SES-03 again when the client of a session is cut off before it knows of the whole gap", nil, func(t *testing.T, f *fixture) {
		c := f.follow(bySession, "event://ci", "event://github") // From now on the log keeps events for these parents.
		parts := strings.SplitN(c.position, ".", 3)
		last := parts[0] + "." + parts[1] + "." + f.tails.Sealer.Seal(auth.DefaultWorkspace, eventlog.Cursor{At: f.log.Position() - time.Hour.Microseconds()})
		for read := range 3 { // the number of messages before the client is cut off
			c.position = last
			ids, gaps := []string{last, c.resume(f).position()}, map[string]bool{}
			for range 2 {
				m := c.next()
				ids, gaps[m.says()] = append(ids, m.position()), true
			}
			if !gaps["gap event://ci"] || !gaps["gap event://github"] {
				t.Errorf("cut off after %d messages: got %v, want the gaps of both URIs", read, gaps)
			}
			last = ids[read]
		}
	})
}

// publishAroundADamagedItem publishes two events and, between them, puts an item in the log that cannot be decoded.
func (f *fixture) publishAroundADamagedItem() {
	f.t.Helper()
	f.publish(deploy, `{"n":1}`)
	expect.OK(f.t, f.db.Write(f.t.Context(), store.Put(store.Item{
		Key: store.Key{Table: store.Log, Partition: eventlog.OwnPartition("default", deploy).Name(), Sort: store.AtCommit}, Value: []byte("{"),
	})))
	f.publish(deploy, `{"n":2}`)
}

func TestAClientThatIsCutOffBetweenTwoNotificationsOfAChangeGetsBoth(t *testing.T) {
	for number, by := range map[string]framing{"SUB-08": byListen, "EVX-01 SES-03": bySession} { // EVX-01: the session declares the extension
		run(t, number+" "+by.name, nil, func(t *testing.T, f *fixture) {
			c := &follower{framing: by, key: alice, lists: true}
			c.resume(f)
			f.announceCatalog()
			c.brings(spec.NoteResourcesChange)
			c.resume(f)
			c.brings(spec.NoteResourcesChange, spec.NoteEventsChange)
			c.resume(f)
			expect.OK(t, f.log.Notify(t.Context(), "default", stream.TopicPrincipal("alice"), json.RawMessage(`{}`)))
			c.brings(spec.NoteResourcesChange)
			c.isQuiet("behind the last notification")
		})
	}
}

// If a stream fails to send an event, it ends with a position before that event, so that a resume sends it.
func TestAStreamThatFailsOverAnEventLosesNothing(t *testing.T) {
	for number, by := range map[string]framing{"SUB-08": byListen, "SES-03": bySession, "SSE-03": byDialect} {
		t.Run(number+" "+by.name, func(t *testing.T) {
			catalogs := &shaky{}
			f := newFixture(t, func(o *Options) { catalogs.Source, o.Catalogs = o.Catalogs, catalogs })
			c := f.follow(by, deploy)
			f.publish(deploy, `{"n":1}`)
			c.brings(deploy + ` {"n":1}`)
			catalogs.fails.Store(math.MaxInt64)
			f.publish(deploy, `{"n":2}`)
			if last := c.next(); last.position() == "" || strings.HasPrefix(last.says(), "event://") {
				t.Fatalf("the stream ends with %s, want a position", last.sse.Data)
			}
			catalogs.fails.Store(0)
			c.resume(f)
			c.brings(deploy + ` {"n":2}`)
		})
	}
}

// Two events with the same id and different URIs are different events. A stream that follows both URIs, directly or through
// their parent, must send both events.
func TestStreamsTellEventsOfOneIDApart(t *testing.T) {
	f := newFixture(t, nil)
	c := f.follow(byListen, deploy, "event://ci/build-finished", "event://ci")
	start := c.position
	for _, uri := range []string{deploy, "event://ci/build-finished"} {
		f.publishEvent(event.Event{Workspace: auth.DefaultWorkspace, ID: "1", URI: uri, Data: json.RawMessage(`{}`)})
	}
	both := map[string]bool{deploy + " {}": true, "event://ci/build-finished {}": true} // Only events of the same URI have an order.
	expect.Deep(t, "EVS-06 EVS-13: the events", map[string]bool{c.next().says(): true, c.next().says(): true}, both)
	c.uris, c.position = []string{"event://ci"}, start
	c.resume(f)
	expect.Deep(t, "SUB-08: the events after a resume", map[string]bool{c.next().says(): true, c.next().says(): true}, both)
}

// SUB-02, EVX-06: every message has the id of the request, with the same value and type.
func TestTheIDOfTheRequestIsOnEveryMessage(t *testing.T) {
	f := newFixture(t, nil)
	for _, id := range []string{`1`, `"1"`, `9007199254740993`, `"a\"b\u0041"`} {
		t.Run("SUB-02 SUB-08 SUB-10 a listen "+id, func(t *testing.T) {
			l := f.listen(alice, id, `{"resourceSubscriptions":["event://ci/deploy"],"resourcesListChanged":true,"eventsListChanged":true}`)
			defer l.cancel()
			for i, want := range []string{spec.NoteAcknowledged, deploy + " {}", spec.NoteResourcesChange, spec.NoteEventsChange} {
				m := l.brings(want)
				if got := string(m.Params.Meta[spec.MetaSubscription]); got != id || m.Params.Meta[spec.MetaCursor] == nil || m.sse.ID != "" || m.sse.Retry != 0 {
					t.Errorf("got %+v, want the subscription id %s, a cursor, and no SSE id or retry", m, id)
				}
				switch i {
				case 0:
					f.publish(deploy, `{}`)
				case 1:
					f.announceCatalog()
				}
			}
		})
		t.Run("EVX-04 EVX-06 an events/stream "+id, func(t *testing.T) {
			o, first := f.push(alice, id, "ci.deploy", `{}`, "")
			defer o.cancel()
			if got := string(first.Params.Meta[spec.MetaSubscription]); got != id || len(first.Params.Meta) != 1 || *first.Params.Truncated {
				t.Errorf("got %+v, want the subscription id %s alone in _meta, and no gap", first, id)
			}
			for i := range 3 {
				ev := f.publish(deploy, fmt.Sprintf(`{"n":%d}`, i))
				p := o.next()
				if p.Method != spec.NoteEventsEvent || p.Params.EventID != ev.ID || p.Params.Name != "ci.deploy" || p.Params.Cursor == "" ||
					string(p.Params.Data) != string(ev.Data) || p.Params.Timestamp != ev.Timestamp() {
					t.Errorf("got %+v, want the event %+v", p, ev)
				}
				expect.Equal(t, "the subscription id", string(p.Params.Meta[spec.MetaSubscription]), id)
				expect.Len(t, "the members of _meta", p.Params.Meta, 3)
			}
		})
	}
}

func TestHeadersOfStreams(t *testing.T) {
	f := newFixture(t, nil)
	ours := map[string]string{"Content-Type": "text/event-stream", "X-Accel-Buffering": "no", "Cache-Control": "no-cache"}
	for number, tc := range map[string]struct {
		by   framing
		more map[string]string
	}{
		"SUB-07 SUB-10": {byListen, map[string]string{spec.HeaderSession: ""}}, "SUB-07 SES-02": {bySession, nil}, "SUB-07 EVX-06": {byType, nil},
		"SSE-01": {byDialect, map[string]string{"Connection": "keep-alive"}},
	} {
		t.Run(number+" "+tc.by.name, func(t *testing.T) {
			c := f.follow(tc.by, deploy)
			for _, headers := range []map[string]string{ours, tc.more} {
				for name, want := range headers {
					if got := c.header.Get(name); c.status != 200 || got != want {
						t.Errorf("status %d, %s: got %q, want 200 and %q", c.status, name, got, want)
					}
				}
			}
		})
	}
	t.Run("SSE-01 no Connection header in HTTP/2", func(t *testing.T) {
		h := http.Header{}
		streamHeaders(h, &http.Request{ProtoMajor: 2})
		expect.Equal(t, "the header Connection", h.Get("Connection"), "")
		expect.Equal(t, "the header Content-Type", h.Get("Content-Type"), sse.ContentType)
	})
}

// TestShutdownEndsStreams checks the last message of each kind of stream when the endpoint closes.
func TestShutdownEndsStreams(t *testing.T) {
	f := newFixture(t, nil)
	l, p := f.listening(alice, `"x"`, `{}`), f.open(f.request("POST", reader, statelessBody(`"x"`, spec.MethodEventsStream, `"name":"ci.deploy"`), statelessHeaders(spec.MethodEventsStream, "")...))
	p.brings(spec.NoteEventsActive)
	d := f.follow(byDialect)
	expect.OK(t, f.endpoint.Close(t.Context()))
	for number, o := range map[string]*open{"SUB-06 a listen": l, "EVX-06 an events/stream": p} {
		t.Run(number+" ends with its result", func(t *testing.T) {
			m := o.brings("complete")
			if string(m.ID) != `"x"` || string(m.Result.Meta[spec.MetaSubscription]) != `"x"` || m.Result.Meta[spec.MetaServer] == nil || (m.Result.Meta[spec.MetaCursor] != nil) != (o == l) {
				t.Errorf("got %s, want a result with the id, the server, and a cursor only for a listen", m.sse.Data)
			}
			o.end()
		})
	}
	t.Run("SSE-02 a stream of the dialect says why", func(t *testing.T) {
		d.lifecycle("streamClosed", "shutdown")
		d.end()
	})
	t.Run("SUB-06 and no stream begins", func(t *testing.T) {
		if r := f.stateless(alice, spec.MethodListen, `"notifications":{}`); r.Status != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" {
			t.Errorf("got %+v, want 503 and Retry-After", r)
		}
	})
}

// TestStalledReadersAtTheEnd closes an endpoint while some clients have open streams but do not read from them.
func TestStalledReadersAtTheEnd(t *testing.T) {
	f := newFixture(t, nil)
	all := []framing{byListen, byType, bySession, byDialect}
	for _, by := range all {
		c := expect.Value(net.Dial("tcp", f.server.Listener.Addr().String()))(t)
		defer c.Close()
		expect.OK(t, c.(*net.TCPConn).SetReadBuffer(4<<10))
		expect.OK(t, by.opening(deploy)(f).Write(c)) // The client never reads.
	}
	f.waitFor("the streams", func() bool { return f.endpoint.OpenStreams() >= int64(len(all)) })
	reading := f.follow(byListen, deploy)
	for i := range 40 { // 9 MiB in total, more than the connections can buffer
		f.publish(deploy, fmt.Sprintf(`{"n":%d,"x":"%s"}`, i, strings.Repeat("x", 230<<10)))
		reading.next()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // shorter than the write timeout
	defer cancel()
	began := time.Now()
	expect.OK(t, f.endpoint.Close(ctx), "SUB-06 after", time.Since(began))
	reading.brings("complete")
}

func TestListen(t *testing.T) {
	run(t, "SUB-01_EVX-18_acknowledges_first_and_only_what_it_honours", nil, func(t *testing.T, f *fixture) {
		for filter, want := range map[string]string{
			`{}`: `{}`,
			`{"toolsListChanged":true,"promptsListChanged":true}`:                                              `{}`,
			`{"resourcesListChanged":true,"eventsListChanged":true}`:                                           `{"resourcesListChanged":true,"eventsListChanged":true}`,
			`{"resourcesListChanged":false,"eventsListChanged":false,"resourceSubscriptions":null,"other":{}}`: `{}`,
			`{"resourceSubscriptions":["event://ci/deploy","event://nope","event://billing/invoice","event://audit/entry","x","event://ci/deploy",
				"subscription://sub_00000000000000000000000000000000","EVENT://ci","event://github/acme/*/push"]}`: `{"resourceSubscriptions":["event://ci/deploy","EVENT://ci","event://github/acme/*/push"]}`,
		} {
			sameJSON(t, f.listen(alice, "1", filter).brings(spec.NoteAcknowledged).Params.Notifications, want)
		}
	})
	run(t, "SUB-03_EVX-18_each_kind_alone_and_nothing_unrequested", nil, func(t *testing.T, f *fixture) {
		uri := f.registerOne(alice, "event://ci/deploy", "https://a.example/")
		for filter, want := range map[string][]string{
			`{"resourcesListChanged":true}`:                           {spec.NoteResourcesChange, spec.NoteResourcesChange},
			`{"eventsListChanged":true}`:                              {spec.NoteEventsChange},
			`{"resourceSubscriptions":["event://ci/build-finished"]}`: {spec.NoteUpdated},
			`{"resourceSubscriptions":["` + uri + `"]}`:               {spec.NoteUpdated},
			`{"resourcesListChanged":true,"eventsListChanged":true,"resourceSubscriptions":["event://ci","` + uri + `"]}`: {
				spec.NoteResourcesChange, spec.NoteEventsChange, spec.NoteResourcesChange, spec.NoteUpdated, spec.NoteUpdated, spec.NoteUpdated,
			},
			`{"toolsListChanged":true,"promptsListChanged":true}`: nil,
		} {
			l := f.listening(alice, "1", filter)
			f.announceCatalog()
			f.publish("event://ci/build-finished", `{"status":"x"}`)
			f.publish("event://ci/deploy", `{}`)
			id, _ := subscription.ParseURI(uri)
			expect.OK(t, f.log.Notify(t.Context(), "default", stream.TopicPrincipal("alice"), json.RawMessage(`{}`)))
			expect.OK(t, f.log.Notify(t.Context(), "default", stream.TopicPrincipal("bob"), json.RawMessage(`{}`)))
			expect.OK(t, f.log.Notify(t.Context(), "default", stream.TopicSubscription(id), json.RawMessage(`{"state":"disabled"}`)))
			var got []string
			for range want {
				got = append(got, l.next().Method)
			}
			slices.Sort(got)
			expect.Deep(t, filter+", in any order", slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want)))
			l.isQuiet(filter)
			l.cancel()
		}
	})
	run(t, "SUB-04_several_at_once_are_independent", nil, func(t *testing.T, f *fixture) {
		a, b := f.follow(byListen, deploy), f.follow(byListen, "event://ci/build-finished")
		f.publish(deploy, `{"n":1}`)
		f.publish("event://ci/build-finished", `{"n":2}`)
		a.brings(deploy + ` {"n":1}`)
		b.brings(`event://ci/build-finished {"n":2}`)
		a.cancel()
		f.publish("event://ci/build-finished", `{"n":3}`)
		b.brings(`event://ci/build-finished {"n":3}`)
	})
	run(t, "SUB-09_what_is_no_filter", nil, func(t *testing.T, f *fixture) {
		for _, params := range []string{
			``, `"notifications":[]`, `"notifications":{"resourcesListChanged":"yes"}`,
			`"notifications":{"resourceSubscriptions":"event://ci"}`, `"notifications":{"resourceSubscriptions":[1]}`,
			`"notifications":{"taskIds":"t"}`, `"notifications":{"taskIds":[1]}`,
		} {
			f.stateless(alice, spec.MethodListen, params).is(t, params, 400, -32602)
		}
	})
	run(t, "AUT-07_its_URIs_are_bounded", func(o *Options) { o.MaxStreamURIs, o.MaxStreamPatterns = 3, 1 }, func(t *testing.T, f *fixture) {
		for uris, limit := range map[string]string{
			`"event://ci/deploy","event://ci/deploy","event://ci/deploy","event://ci/deploy"`: "streamURIs",
			`"event://ci","event://github"`: "streamPatterns",
		} {
			f.stateless(alice, spec.MethodListen, `"notifications":{"resourceSubscriptions":[`+uris+`]}`).is(t, uris, 200, method.CodeExhausted, limit)
		}
	})
	run(t, "GWN-23_its_tasks_are_bounded_and_none_without_backends", func(o *Options) { o.MaxStreamURIs = 3 }, func(t *testing.T, f *fixture) {
		const tasks = `{"taskIds":["a","b","c","d"]}`
		l := f.listen(alice, "1", tasks)
		expect.Lacks(t, "the acknowledgment, without tasks", string(l.next().Params.Notifications), "taskIds")
		f = newFixture(t, func(o *Options) { o.MaxStreamURIs, o.Gateway = 3, newFakeGateway() })
		f.stateless(alice, spec.MethodListen, `"notifications":`+tasks).is(t, tasks, 200, method.CodeExhausted, "streamURIs")
	})
	t.Run("EVS-14_an_event_of_a_type_that_was_just_added_reaches_a_process_with_an_old_catalog", func(t *testing.T) {
		before := mustParse(t, strings.Replace(testCatalog, "- name: ci.build\n", "- name: ci.other\n", 1))
		f := newFixture(t, func(o *Options) {
			o.Catalogs = agedCatalog{catalog.NewStatic(before), mustParse(t, testCatalog)}
		})
		l := f.follow(byListen, "event://ci")
		f.waitShape("event://ci")
		f.publish("event://ci/build-finished", `{"status":"new"}`)
		l.brings(`event://ci/build-finished {"status":"new"}`)
	})
	run(t, "EVS-14_events_follow_the_new_catalog", nil, func(t *testing.T, f *fixture) {
		l := f.listening(alice, "1", `{"resourceSubscriptions":["event://ci/deploy"],"resourcesListChanged":true}`)
		f.changeCatalog("event://ci/build-finished", "event://ci/deploy/step")
		f.announceCatalog()
		l.brings(spec.NoteResourcesChange)
		f.waitShape(deploy)
		f.publish("event://ci/deploy/step", `{"status":"new"}`)
		l.brings(`event://ci/deploy/step {"status":"new"}`)
	})
}

// agedCatalog is a source whose cached catalog is out of date.
type agedCatalog struct {
	catalog.Source
	latest *catalog.Catalog
}

// Latest returns the newer catalog, which is not cached yet.
func (a agedCatalog) Latest(context.Context, string) (*catalog.Catalog, error) { return a.latest, nil }
