package mcp

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

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
			must(t, f.log.Notify(t.Context(), "default", stream.TopicPrincipal("alice"), json.RawMessage(`{}`)))
			must(t, f.log.Notify(t.Context(), "default", stream.TopicPrincipal("bob"), json.RawMessage(`{}`)))
			must(t, f.log.Notify(t.Context(), "default", stream.TopicSubscription(id), json.RawMessage(`{"state":"disabled"}`)))
			var got []string
			for range want {
				got = append(got, l.next().Method)
			}
			slices.Sort(got)
			equal(t, filter+", in any order", slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want)))
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

// agedCatalog is a source whose cached catalog is older than its latest one.
type agedCatalog struct {
	catalog.Source
	latest *catalog.Catalog
}

// Latest returns the catalog that the cache does not have yet.
func (a agedCatalog) Latest(context.Context, string) (*catalog.Catalog, error) { return a.latest, nil }
