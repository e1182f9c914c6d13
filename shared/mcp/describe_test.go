package mcp

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"testing"

	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// described is what initialize and server/discover say.
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
		const resources = `{"events":true,"subscribe":true,"listChanged":true,"subscription":["notification","webhook"]}`
		const ours = `{"events":true,"subscription":["notification","webhook"]}`
		for _, d := range []described{initialize, discover} {
			sameJSON(t, d.Capabilities["resources"], resources)
			var ext map[string]json.RawMessage
			must(t, json.Unmarshal(d.Capabilities["extensions"], &ext))
			sameJSON(t, ext[spec.OwnExtension], ours)
			for _, absent := range []string{"tools", "prompts"} {
				if _, ok := d.Capabilities[absent]; ok {
					t.Errorf("%s is advertised and not served", absent)
				}
			}
		}
		sameJSON(t, initialize.Capabilities["completions"], `{}`)
		sameJSON(t, discover.Capabilities["completions"], `{}`)
		sameJSON(t, initialize.Capabilities["logging"], `{}`)
		if _, ok := discover.Capabilities["logging"]; ok {
			t.Error("logging is advertised in 2026-07-28, where it is not served")
		}
		sameJSON(t, initialize.Capabilities["experimental"], `{"`+spec.OwnExtension+`":`+ours+`}`)
		if _, ok := discover.Capabilities["experimental"]; ok {
			t.Error("experimental is advertised in 2026-07-28")
		}
	})
	t.Run("EVX-01_EVX-22_both_shapes_in_every_revision_and_a_client_that_declares_nothing_is_served", func(t *testing.T) {
		f := newFixture(t, nil)
		methods := []string{spec.MethodEvents, spec.MethodEventsPoll, spec.MethodEventsSub, spec.MethodEventsUnsub}
		shapes := func(r reply) {
			t.Helper()
			var d described
			r.result(t, &d)
			var ext map[string]json.RawMessage
			must(t, json.Unmarshal(d.Capabilities["extensions"], &ext))
			sameJSON(t, ext[spec.EventsExtension], `{"listChanged":true}`)
			sameJSON(t, d.Capabilities["events"], `{"listChanged":true}`)
		}
		served := func(at spec.Version, method string, r reply) {
			t.Helper()
			if r.Status != 200 || r.code(t) != 0 {
				t.Errorf("%s in %s: %d %s", method, at, r.Status, r.Body)
			}
		}
		for _, v := range []spec.Version{spec.V20250326, spec.V20250618, spec.V20251125} {
			r := f.initialize(alice, v, `{}`)
			shapes(r)
			for _, m := range methods {
				served(v, m, f.sessionBased(alice, r.Header.Get(spec.HeaderSession), m, `"name":"ci.build",`+callback))
			}
		}
		shapes(f.stateless(alice, spec.MethodDiscover, ""))
		for _, m := range methods { // clientCapabilities is {}
			served(spec.V20260728, m, f.stateless(alice, m, `"name":"ci.build",`+callback))
		}
		if _, first := f.push(alice, "1", "ci.build", `{}`, ""); *first.Params.Truncated {
			t.Errorf("got %+v", first)
		}
	})
	t.Run("SUB-09_discover_names_versions_identity_and_caching", func(t *testing.T) {
		initialize, d := newFixture(t, nil).describeBoth()
		if want := []string{"2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"}; !slices.Equal(d.SupportedVersions, want) {
			t.Errorf("supportedVersions %v", d.SupportedVersions)
		}
		sameJSON(t, d.Meta[spec.MetaServer], `{"name":"mcp-events","version":"1.2.3"}`)
		if d.ResultType != "complete" || d.TTLMs == nil || d.CacheScope != method.Public {
			t.Errorf("got %+v", d)
		}
		if initialize.ProtocolVersion != "2025-11-25" || initialize.ServerInfo.Name != "mcp-events" || initialize.ResultType != "" {
			t.Errorf("got %+v", initialize)
		}
	})
}

// TestSwitchedOff takes the parts of an endpoint away one by one: what nothing
// serves is neither advertised nor known.
func TestSwitchedOff(t *testing.T) {
	for _, tc := range []struct {
		name     string
		change   func(*Options)
		unknown  []string
		resource string // the capability in discover
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
		t.Run("EVS-01_"+tc.name, func(t *testing.T) {
			f := newFixture(t, tc.change)
			for _, m := range tc.unknown {
				if r := f.stateless(alice, m, `"uri":"event://x"`); r.code(t) != -32601 || r.Status != http.StatusNotFound {
					t.Errorf("%s in 2026-07-28: %d %s", m, r.Status, r.Body)
				}
			}
			var d described
			f.stateless(alice, spec.MethodDiscover, "").result(t, &d)
			if tc.resource == "" {
				if d.Capabilities["resources"] != nil || d.Capabilities["events"] != nil {
					t.Errorf("got %s", d.Capabilities)
				}
				return
			}
			sameJSON(t, d.Capabilities["resources"], tc.resource)
			sameJSON(t, d.Capabilities["events"], tc.events)
			s := f.session(alice, spec.V20251125)
			for _, m := range tc.unknown {
				if r := f.sessionBased(alice, s, m, ""); r.code(t) != -32601 || r.Status != http.StatusOK {
					t.Errorf("%s in 2025-11-25: %d %s", m, r.Status, r.Body)
				}
			}
		})
	}
}
