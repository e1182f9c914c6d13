package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

func TestListen(t *testing.T) {
	t.Run("SUB-01_EVX-18_acknowledges_first_and_only_what_it_honours", func(t *testing.T) {
		f := newFixture(t, nil)
		for filter, want := range map[string]string{
			`{}`: `{}`,
			`{"toolsListChanged":true,"promptsListChanged":true}`:                                              `{}`,
			`{"resourcesListChanged":true,"eventsListChanged":true}`:                                           `{"resourcesListChanged":true,"eventsListChanged":true}`,
			`{"resourcesListChanged":false,"eventsListChanged":false,"resourceSubscriptions":null,"other":{}}`: `{}`,
			`{"resourceSubscriptions":["event://ci/deploy","event://nope","event://billing/invoice","event://audit/entry","x","event://ci/deploy",
				"subscription://sub_00000000000000000000000000000000","EVENT://ci","event://github/acme/*/push"]}`: `{"resourceSubscriptions":["event://ci/deploy","EVENT://ci","event://github/acme/*/push"]}`,
		} {
			l := f.listen(alice, "1", filter)
			m := l.next()
			if l.status != 200 || m.Method != spec.NoteAcknowledged {
				t.Fatalf("%d %s", l.status, m.sse.Data)
			}
			sameJSON(t, m.Params.Notifications, want)
		}
	})
	t.Run("SUB-02_the_id_in_value_and_type_on_every_message", func(t *testing.T) {
		f := newFixture(t, nil)
		for _, id := range []string{`1`, `"1"`, `9007199254740993`, `"a\"b\u0041"`} {
			l := f.listen(alice, id, `{"resourceSubscriptions":["event://ci/deploy"],"resourcesListChanged":true,"eventsListChanged":true}`)
			frames := []frame{l.next()}
			f.publish("event://ci/deploy", `{}`)
			frames = append(frames, l.next())
			must(t, f.log.Notify(t.Context(), "default", stream.TopicCatalog, json.RawMessage(`{}`)))
			frames = append(frames, l.next(), l.next())
			for _, m := range frames {
				if got := string(m.Params.Meta[spec.MetaSubscription]); got != id {
					t.Errorf("%s: subscription id %s, want %s", m.Method, got, id)
				}
				if m.Params.Meta[spec.MetaCursor] == nil {
					t.Errorf("SUB-08: %s has no cursor", m.Method)
				}
				if m.sse.ID != "" || m.sse.Retry != 0 {
					t.Errorf("SUB-10: %s has an SSE id or retry", m.Method)
				}
			}
			if frames[2].Method != spec.NoteResourcesChange || frames[3].Method != spec.NoteEventsChange {
				t.Errorf("got %s, %s", frames[2].Method, frames[3].Method)
			}
			l.cancel()
		}
	})
	t.Run("SUB-03_EVX-18_each_kind_alone_and_nothing_unrequested", func(t *testing.T) {
		f := newFixture(t, nil)
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
			l := f.listen(alice, "1", filter)
			l.next()
			must(t, f.log.Notify(t.Context(), "default", stream.TopicCatalog, json.RawMessage(`{}`)))
			f.publish("event://ci/build-finished", `{"status":"x"}`)
			f.publish("event://ci/deploy", `{}`)
			id, _ := subscription.ParseURI(uri)
			must(t, f.log.Notify(t.Context(), "default", stream.TopicPrincipal("alice"), json.RawMessage(`{}`)))
			must(t, f.log.Notify(t.Context(), "default", stream.TopicPrincipal("bob"), json.RawMessage(`{}`)))
			must(t, f.log.Notify(t.Context(), "default", stream.TopicSubscription(id), json.RawMessage(`{"state":"disabled"}`)))
			got := map[string]int{}
			for range want {
				got[l.next().Method]++
			}
			for _, m := range want {
				got[m]--
			}
			for m, n := range got {
				if n != 0 {
					t.Errorf("%s: %s %+d", filter, m, n)
				}
			}
			select {
			case e := <-l.events:
				t.Errorf("%s: unrequested %s", filter, e.Data)
			default:
			}
			l.cancel()
		}
	})
	t.Run("SUB-04_several_at_once_are_independent", func(t *testing.T) {
		f := newFixture(t, nil)
		a := f.listen(alice, "1", `{"resourceSubscriptions":["event://ci/deploy"]}`)
		b := f.listen(alice, "1", `{"resourceSubscriptions":["event://ci/build-finished"]}`)
		a.next()
		b.next()
		f.publish("event://ci/deploy", `{"n":1}`)
		f.publish("event://ci/build-finished", `{"n":2}`)
		a.next().isEvent(t, "event://ci/deploy", `{"n":1}`)
		b.next().isEvent(t, "event://ci/build-finished", `{"n":2}`)
		a.cancel()
		f.publish("event://ci/build-finished", `{"n":3}`)
		b.next().isEvent(t, "event://ci/build-finished", `{"n":3}`)
	})
	t.Run("SUB-06_shutdown_ends_it_with_its_result", func(t *testing.T) {
		f := newFixture(t, nil)
		l := f.listen(alice, `"x"`, `{}`)
		l.next()
		must(t, f.endpoint.Close(t.Context()))
		m := l.next()
		if string(m.ID) != `"x"` || m.Result.ResultType != "complete" || string(m.Result.Meta[spec.MetaSubscription]) != `"x"` ||
			m.Result.Meta[spec.MetaCursor] == nil || m.Result.Meta[spec.MetaServer] == nil {
			t.Errorf("got %s", m.sse.Data)
		}
		l.end()
		r := f.stateless(alice, spec.MethodListen, `"notifications":{}`)
		if r.Status != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" {
			t.Errorf("a new one: %+v", r)
		}
	})
	t.Run("SUB-07_headers", func(t *testing.T) {
		l := newFixture(t, nil).listen(alice, "1", `{}`)
		for name, want := range map[string]string{"Content-Type": "text/event-stream", "X-Accel-Buffering": "no", "Cache-Control": "no-cache", spec.HeaderSession: ""} {
			if got := l.header.Get(name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	})
	t.Run("SUB-08_resumes_at_another_instance_without_loss_or_gap", func(t *testing.T) {
		f := newFixture(t, nil)
		const filter = `{"resourceSubscriptions":["event://ci/deploy","event://github"]}`
		l := f.listen(alice, "1", filter)
		var cursor json.RawMessage
		read := func(m frame) frame {
			cursor = m.Params.Meta[spec.MetaCursor]
			return m
		}
		read(l.next())
		at := f
		for round := range 3 {
			for i := range 4 {
				f.publish("event://ci/deploy", fmt.Sprintf(`{"n":%d}`, i))
			}
			read(l.next()).isEvent(t, "event://ci/deploy", `{"n":0}`)
			read(l.next()).isEvent(t, "event://ci/deploy", `{"n":1}`)
			l.cancel()
			f.publish("event://github/acme/web/push", fmt.Sprintf(`{"round":%d}`, round))
			at = at.instance()
			l = at.listenWith(alice, "2", filter, `"`+spec.MetaCursor+`":`+string(cursor))
			if m := read(l.next()); m.Params.Meta[spec.MetaTruncated] != nil {
				t.Errorf("a gap: %s", m.sse.Data)
			}
			got := map[string]bool{}
			for range 3 {
				got[string(read(l.next()).Params.Payload)] = true
			}
			if !got[`{"n":2}`] || !got[`{"n":3}`] || !got[fmt.Sprintf(`{"round":%d}`, round)] {
				t.Errorf("round %d: got %v", round, got)
			}
		}
	})
	t.Run("SUB-08_a_client_that_is_cut_off_between_two_notifications_of_a_change_gets_both", func(t *testing.T) {
		f := newFixture(t, nil)
		const filter = `{"resourcesListChanged":true,"eventsListChanged":true}`
		l := f.listen(alice, "1", filter)
		l.next()
		must(t, f.log.Notify(t.Context(), "default", stream.TopicCatalog, json.RawMessage(`{}`)))
		first := l.next()
		l.cancel()
		l = f.listenWith(alice, "2", filter, `"`+spec.MetaCursor+`":`+string(first.Params.Meta[spec.MetaCursor]))
		l.next()
		for _, want := range []string{spec.NoteResourcesChange, spec.NoteEventsChange} {
			m := l.next()
			if m.Method != want {
				t.Errorf("after the resume: got %s, want %s", m.sse.Data, want)
			}
			first = m
		}
		l.cancel()
		l = f.listenWith(alice, "3", filter, `"`+spec.MetaCursor+`":`+string(first.Params.Meta[spec.MetaCursor]))
		l.next()
		must(t, f.log.Notify(t.Context(), "default", stream.TopicPrincipal("alice"), json.RawMessage(`{}`)))
		if m := l.next(); m.Method != spec.NoteResourcesChange {
			t.Errorf("after the resume from the last notification: got %s", m.sse.Data)
		}
	})
	t.Run("SUB-08_a_gap_is_said", func(t *testing.T) {
		f := newFixture(t, nil)
		l := f.listen(alice, "1", `{"resourceSubscriptions":["event://ci/deploy"]}`)
		cursor := string(l.next().Params.Meta[spec.MetaCursor])
		l.cancel()
		f.log.Retention = time.Nanosecond
		m := f.listenWith(alice, "1", `{"resourceSubscriptions":["event://ci/deploy"]}`, `"`+spec.MetaCursor+`":`+cursor).next()
		if m.Method != spec.NoteAcknowledged || string(m.Params.Meta[spec.MetaTruncated]) != "true" {
			t.Errorf("got %s", m.sse.Data)
		}
	})
	t.Run("SUB-09_what_is_no_filter", func(t *testing.T) {
		f := newFixture(t, nil)
		for _, params := range []string{
			``, `"notifications":[]`, `"notifications":{"resourcesListChanged":"yes"}`,
			`"notifications":{"resourceSubscriptions":"event://ci"}`, `"notifications":{"resourceSubscriptions":[1]}`,
		} {
			if r := f.stateless(alice, spec.MethodListen, params); r.Status != 400 || r.code(t) != -32602 {
				t.Errorf("%s: %d %s", params, r.Status, r.Body)
			}
		}
	})
	t.Run("AUT-07_its_URIs_are_bounded", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.MaxStreamURIs, o.MaxStreamPatterns = 3, 1 })
		for uris, limit := range map[string]string{
			`"event://ci/deploy","event://ci/deploy","event://ci/deploy","event://ci/deploy"`: "streamURIs",
			`"event://ci","event://github"`: "streamPatterns",
		} {
			r := f.stateless(alice, spec.MethodListen, `"notifications":{"resourceSubscriptions":[`+uris+`]}`)
			if r.code(t) != method.CodeExhausted || !strings.Contains(r.Body, limit) {
				t.Errorf("%+v", r)
			}
		}
	})
	t.Run("EVS-14_an_event_of_a_type_that_was_just_added_reaches_a_process_with_an_old_catalog", func(t *testing.T) {
		before := mustParse(t, strings.Replace(testCatalog, "- name: ci.build\n", "- name: ci.other\n", 1))
		f := newFixture(t, func(o *Options) {
			o.Catalogs = agedCatalog{catalog.NewStatic(before), mustParse(t, testCatalog)}
		})
		l := f.listen(alice, "1", `{"resourceSubscriptions":["event://ci"]}`)
		l.next()
		f.waitShape("event://ci")
		f.publish("event://ci/build-finished", `{"status":"new"}`)
		l.next().isEvent(t, "event://ci/build-finished", `{"status":"new"}`)
	})
	t.Run("EVS-14_events_follow_the_new_catalog", func(t *testing.T) {
		f := newFixture(t, nil)
		l := f.listen(alice, "1", `{"resourceSubscriptions":["event://ci/deploy"],"resourcesListChanged":true}`)
		l.next()
		f.catalogs.Replace(mustParse(t, strings.Replace(testCatalog, "event://ci/build-finished", "event://ci/deploy/step", 1)))
		must(t, f.log.Notify(t.Context(), "default", stream.TopicCatalog, json.RawMessage(`{}`)))
		if m := l.next(); m.Method != spec.NoteResourcesChange {
			t.Fatalf("got %s", m.sse.Data)
		}
		f.waitShape("event://ci/deploy")
		f.publish("event://ci/deploy/step", `{"status":"new"}`)
		l.next().isEvent(t, "event://ci/deploy/step", `{"status":"new"}`)
	})
}

// agedCatalog is a source whose cached catalog is older than its latest one.
type agedCatalog struct {
	catalog.Source
	latest *catalog.Catalog
}

// Latest returns the catalog that the cache does not have yet.
func (a agedCatalog) Latest(context.Context, string) (*catalog.Catalog, error) { return a.latest, nil }
