package mcp

import (
	"context"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

func always(profile spec.Profile) func(context.Context, auth.Principal) spec.Profile {
	return func(context.Context, auth.Principal) spec.Profile { return profile }
}

// TestProfile: the configuration and the client choose the profile of each request and of each subscription.
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
	call := func(key, method, params, settings string) reply {
		return f.do("POST", key, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{`+params+`,"_meta":{
			"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"},
			"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/events":`+settings+`}}}}}`,
			"MCP-Protocol-Version: 2026-07-28", "Mcp-Method: "+method)
	}
	const known, unknownEvent = `"name":"ci.build",` + callback, `"name":"no.such",` + callback
	nothing := strings.Replace(known, "/hook", "/nothing", 1)
	for _, tc := range []struct {
		name, key, settings string
		code                int // of an unknown event type
		unsubscribe         int // of an unknown subscription
		stored              spec.Profile
	}{
		{"EVX-25 EVX-22 the default, with empty settings", alice, `{}`, -32011, 0, spec.Released},
		{"EVX-25 a principal that is configured", bob, `{}`, -32023, -32023, spec.Final},
		{"EVX-25 a revision that the client declares", alice, `{"revision":"2026-11-01"}`, -32023, -32023, spec.Final},
		{"EVX-25 the client's revision takes precedence", bob, `{"revision":"2026-10-01"}`, -32011, 0, spec.Released},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := call(tc.key, spec.MethodEventsUnsub, nothing, tc.settings).code(t); got != tc.unsubscribe {
				t.Errorf("EVX-15 an unknown subscription is answered with %d, want %d", got, tc.unsubscribe)
			}
			if got := call(tc.key, spec.MethodEventsSub, unknownEvent, tc.settings).code(t); got != tc.code {
				t.Errorf("EVX-16 an unknown event type is answered with %d, want %d", got, tc.code)
			}
			if r := call(tc.key, spec.MethodEventsSub, known, tc.settings); r.code(t) != 0 {
				t.Fatal(r.Body)
			}
			principal := map[string]string{alice: "alice", bob: "bob"}[tc.key]
			var subs []*subscription.Subscription
			must(t, (&subscription.Lists{DB: f.db}).Each(t.Context(), "default", principal, func(sub *subscription.Subscription) error {
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
			m := r.rpc(t)
			if m.Error == nil || m.Error.Code != -32014 || !strings.Contains(m.Error.Message, "2026-10-01, 2026-11-01") {
				t.Fatalf("%s: %s", method, r.Body)
			}
			sameJSON(t, m.Error.Data, `{"feature":"revision","value":"2031-01-01","supported":["2026-10-01","2026-11-01"]}`)
		}
		if got := call(bob, spec.MethodEvents, `"cursor":null`, `{"revision":"2031-01-01"}`).code(t); got != -32026 {
			t.Errorf("a principal of the final profile got %d, want -32026", got)
		}
		if got := call(alice, spec.MethodEvents, `"cursor":null`, `{"revision":1}`).code(t); got != -32602 {
			t.Errorf("a revision that is no text got %d, want -32602", got)
		}
	})
	t.Run("EVX-25 other methods do not look at it", func(t *testing.T) {
		if r := call(alice, spec.MethodResources, `"cursor":null`, `{"revision":"2031-01-01"}`); r.code(t) != 0 {
			t.Error(r.Body)
		}
	})
	t.Run("EVX-25 while no revision is defined, none may be declared", func(t *testing.T) {
		f := newFixture(t, nil)
		m := f.do("POST", alice, `{"jsonrpc":"2.0","id":1,"method":"events/list","params":{"_meta":{
			"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"},
			"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/events":{"revision":"1"}}}}}}`,
			"MCP-Protocol-Version: 2026-07-28", "Mcp-Method: events/list").rpc(t)
		if m.Error == nil || m.Error.Code != -32014 || !strings.Contains(m.Error.Message, "none is known yet") {
			t.Fatalf("got %+v", m.Error)
		}
		sameJSON(t, m.Error.Data, `{"feature":"revision","value":"1","supported":[]}`)
	})
}
