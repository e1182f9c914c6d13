package mcp

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// described is the result of initialize or server/discover.
type described struct {
	ProtocolVersion   string
	SupportedVersions []string
	ResultType        string
	TTLMs             *int
	CacheScope        string
	ServerInfo        Implementation
	Capabilities      map[string]json.RawMessage
	Meta              map[string]json.RawMessage `json:"_meta"`
}

func (f *fixture) describeBoth() (initialize, discover described) {
	f.t.Helper()
	f.initialize(alice, spec.V20251125, `{}`).result(f.t, &initialize)
	f.stateless(alice, spec.MethodDiscover, "").result(f.t, &discover)
	return initialize, discover
}

func sameJSON(t testing.TB, got json.RawMessage, want string) {
	t.Helper()
	var a, b any
	if json.Unmarshal(got, &a) != nil || json.Unmarshal([]byte(want), &b) != nil || !reflect.DeepEqual(a, b) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestCapabilities(t *testing.T) {
	t.Run("EVS-01_every_revision_advertises_event_subscriptions", func(t *testing.T) {
		initialize, discover := newFixture(t, nil).describeBoth()
		const both = `"resources":{"events":true,"subscribe":true,"listChanged":true,"subscription":["notification","webhook"]},
			"extensions":{"` + spec.OwnExtension + `":{"events":true,"subscription":["notification","webhook"]},"` + spec.EventsExtension + `":{"listChanged":true}},
			"events":{"listChanged":true},"completions":{}` // Tools and prompts are missing because they are not served.
		sameJSON(t, jsonrpc.Encode(discover.Capabilities), `{`+both+`}`)
		sameJSON(t, jsonrpc.Encode(initialize.Capabilities), `{`+both+`,"logging":{},"experimental":{"`+spec.OwnExtension+`":{"events":true,"subscription":["notification","webhook"]}}}`)
	})
	run(t, "EVX-01_EVX-22_both_shapes_in_every_revision_and_a_client_that_declares_nothing_is_served", nil, func(t *testing.T, f *fixture) {
		served := func(in string) {
			t.Helper()
			for _, m := range []string{spec.MethodEvents, spec.MethodEventsPoll, spec.MethodEventsSub, spec.MethodEventsUnsub} {
				f.in(alice, in, m, `"name":"ci.build",`+callback).is(t, m, 200, 0)
			}
		}
		const shapes = `"` + spec.EventsExtension + `":{"listChanged":true}`
		for _, v := range []spec.Version{spec.V20250326, spec.V20250618, spec.V20251125} {
			r := f.initialize(alice, v, `{}`)
			r.is(t, string(v), 200, 0, shapes, `"events":{"listChanged":true}`)
			served(r.Header.Get(spec.HeaderSession))
		}
		f.stateless(alice, spec.MethodDiscover, "").is(t, "2026-07-28", 200, 0, shapes, `"events":{"listChanged":true}`)
		served("") // The clientCapabilities are {}.
		f.push(alice, "1", "ci.build", `{}`, "")
	})
	t.Run("SUB-09_discover_names_versions_identity_and_caching", func(t *testing.T) {
		initialize, d := newFixture(t, nil).describeBoth()
		equal(t, "the versions", d.SupportedVersions, []string{"2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"})
		sameJSON(t, d.Meta[spec.MetaServer], `{"name":"mcp-events","version":"1.2.3"}`)
		if d.ResultType != "complete" || d.TTLMs == nil || d.CacheScope != method.Public {
			t.Errorf("got %+v, want complete, a ttl and public", d)
		}
		if initialize.ProtocolVersion != "2025-11-25" || initialize.ServerInfo.Name != "mcp-events" || initialize.ResultType != "" {
			t.Errorf("got %+v, want 2025-11-25, the server, and no result type", initialize)
		}
	})
}

// TestSwitchedOff removes parts of an endpoint. The methods of a missing part must be unknown, and the endpoint must not
// advertise its capabilities.
func TestSwitchedOff(t *testing.T) {
	for _, tc := range []struct {
		name     string
		change   func(*Options)
		unknown  []string
		resource string // the resources capability in discover
		events   string
	}{
		{
			name:     "no webhooks",
			change:   func(o *Options) { o.Registrar, o.Deregistrar, o.Subscriptions = nil, nil, nil },
			unknown:  []string{spec.MethodRegister, spec.MethodDeregister, spec.MethodEventsSub, spec.MethodEventsUnsub},
			resource: `{"events":true,"subscribe":true,"listChanged":true,"subscription":["notification"]}`, events: `{"listChanged":true}`,
		},
		{
			name: "only register, as the function of that name",
			change: func(o *Options) {
				*o = Options{Auth: o.Auth, Catalogs: o.Catalogs, Registrar: o.Registrar, Logger: o.Logger}
			},
			unknown: []string{
				spec.MethodListen, spec.MethodSubscribe, spec.MethodDeregister, spec.MethodEventsUnsub, spec.MethodResources, spec.MethodTemplates,
				spec.MethodRead, spec.MethodEvents, spec.MethodInitialize,
			},
		},
	} {
		run(t, "EVS-01_"+tc.name, tc.change, func(t *testing.T, f *fixture) {
			for _, m := range tc.unknown {
				f.stateless(alice, m, `"uri":"event://x"`).is(t, m, http.StatusNotFound, -32601)
			}
			var d described
			f.stateless(alice, spec.MethodDiscover, "").result(t, &d)
			if tc.resource == "" {
				if d.Capabilities["resources"] != nil || d.Capabilities["events"] != nil {
					t.Errorf("got %s, want no resources and no events", d.Capabilities)
				}
				return
			}
			sameJSON(t, d.Capabilities["resources"], tc.resource)
			sameJSON(t, d.Capabilities["events"], tc.events)
			s := f.session(alice, spec.V20251125)
			for _, m := range tc.unknown {
				f.sessionBased(alice, s, m, "").is(t, m+" in 2025-11-25", http.StatusOK, -32601)
			}
		})
	}
}

func always(profile spec.Profile) func(context.Context, auth.Principal) spec.Profile {
	return func(context.Context, auth.Principal) spec.Profile { return profile }
}

// TestProfile checks that the configuration and the client choose the profile of each request and each subscription.
func TestProfile(t *testing.T) {
	f := newFixture(t, func(o *Options) {
		o.Profile = func(_ context.Context, p auth.Principal) spec.Profile {
			if p.ID == "bob" {
				return spec.Final
			}
			return spec.Released
		}
		o.EventsRevisions = map[string]spec.Profile{"2026-11-01": spec.Final, "2026-10-01": spec.Released}
	})
	callOf := func(f *fixture, key, method, params, settings string) reply {
		body := strings.Replace(statelessBody("1", method, params), `Capabilities":{}`, `Capabilities":{"extensions":{"`+spec.EventsExtension+`":`+settings+`}}`, 1)
		return f.do("POST", key, body, statelessHeaders(method, "")...)
	}
	call := func(key, method, params, settings string) reply { return callOf(f, key, method, params, settings) }
	const known, unknownEvent = `"name":"ci.build",` + callback, `"name":"no.such",` + callback
	nothing := strings.Replace(known, "/hook", "/nothing", 1)
	for _, tc := range []struct {
		name, key, settings string
		code                int // the error code for an unknown event type
		unsubscribe         int // the error code for an unknown subscription
		stored              spec.Profile
	}{
		{"EVX-25 EVX-22 the default, with empty settings", alice, `{}`, -32011, 0, spec.Released},
		{"EVX-25 a principal that is configured", bob, `{}`, -32023, -32023, spec.Final},
		{"EVX-25 a revision that the client declares", alice, `{"revision":"2026-11-01"}`, -32023, -32023, spec.Final},
		{"EVX-25 the client's revision takes precedence", bob, `{"revision":"2026-10-01"}`, -32011, 0, spec.Released},
	} {
		t.Run(tc.name, func(t *testing.T) {
			equal(t, "EVX-15 the code of an unknown subscription", call(tc.key, spec.MethodEventsUnsub, nothing, tc.settings).code(t), tc.unsubscribe)
			equal(t, "EVX-16 the code of an unknown event type", call(tc.key, spec.MethodEventsSub, unknownEvent, tc.settings).code(t), tc.code)
			call(tc.key, spec.MethodEventsSub, known, tc.settings).is(t, "events/subscribe", 200, 0)
			principal := map[string]string{alice: "alice", bob: "bob"}[tc.key]
			var subs []*subscription.Subscription
			expect.OK(t, (&subscription.Lists{DB: f.db}).Each(t.Context(), "default", principal, func(sub *subscription.Subscription) error {
				subs = append(subs, sub)
				return nil
			}))
			if len(subs) != 1 || subs[0].Profile != tc.stored || subs[0].Subscriber().Profile != tc.stored {
				t.Errorf("the subscription has %+v, want the profile %s", subs, tc.stored)
			}
		})
	}
	t.Run("EVX-25 an unknown revision is an error that names the known ones", func(t *testing.T) {
		for _, method := range []string{spec.MethodEvents, spec.MethodEventsPoll, spec.MethodEventsSub, spec.MethodEventsUnsub} {
			r := call(alice, method, nothing, `{"revision":"2031-01-01"}`)
			r.fails(t, method, -32014, `{"feature":"revision","value":"2031-01-01","supported":["2026-10-01","2026-11-01"]}`)
			if want := "2026-10-01, 2026-11-01"; !strings.Contains(r.rpc(t).Error.Message, want) {
				t.Errorf("%s: got %s, want %s in the message", method, r.Body, want)
			}
		}
		call(bob, spec.MethodEvents, `"cursor":null`, `{"revision":"2031-01-01"}`).fails(t, "a principal of the final profile", -32026, "")
		call(alice, spec.MethodEvents, `"cursor":null`, `{"revision":1}`).fails(t, "a revision that is no text", -32602, "")
	})
	t.Run("EVX-25 other methods do not look at it", func(t *testing.T) {
		call(alice, spec.MethodResources, `"cursor":null`, `{"revision":"2031-01-01"}`).is(t, "resources/list", 200, 0)
	})
	t.Run("EVX-25 while no revision is defined, none may be declared", func(t *testing.T) {
		r := callOf(newFixture(t, nil), alice, spec.MethodEvents, `"cursor":null`, `{"revision":"1"}`)
		r.fails(t, "events/list", -32014, `{"feature":"revision","value":"1","supported":[]}`)
		if want := "none is known yet"; !strings.Contains(r.rpc(t).Error.Message, want) {
			t.Errorf("got %s, want %s in the message", r.Body, want)
		}
	})
}
