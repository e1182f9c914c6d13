package mcp

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

type contents struct {
	Contents []struct{ URI, MIMEType, Text string }
}

func (f *fixture) readText(key, uri string, into any) {
	f.t.Helper()
	var c contents
	f.stateless(key, spec.MethodRead, `"uri":"`+uri+`"`).result(f.t, &c)
	if len(c.Contents) != 1 || c.Contents[0].URI != uri || c.Contents[0].MIMEType != "application/json" {
		f.t.Fatalf("got %+v", c)
	}
	must(f.t, json.Unmarshal([]byte(c.Contents[0].Text), into))
}

// crowded has types with different rules below one parent.
const crowded = `
events:
  - {name: hub.push, uriTemplate: "event://hub/{repo}/push", payloadSchema: {type: object}}
  - {name: hub.invoice, uriTemplate: "event://hub/{repo}/invoice", payloadSchema: {type: object}, access: {scopes: [billing]}}
`

func TestRead(t *testing.T) {
	f := newFixture(t, nil)
	t.Run("EVS-04_no_events_yet", func(t *testing.T) {
		var got map[string]json.RawMessage
		for _, uri := range []string{"event://ci/deploy", "event://ci", "event://github/acme/*/push"} {
			f.readText(alice, uri, &got)
			if string(got["events"]) != "[]" {
				t.Errorf("%s: %s", uri, got["events"])
			}
		}
	})
	t.Run("EVS-04_the_latest_events_newest_first", func(t *testing.T) {
		for i := range 20 + 5 {
			f.publish("event://ci/build-finished", fmt.Sprintf(`{"status":"%d"}`, i))
		}
		last := f.publish("event://ci/deploy", `{"big":9007199254740993}`)
		var got latestEvents
		f.readText(alice, "event://ci/build-finished", &got)
		if len(got.Events) != 20 || string(got.Events[0].Data) != `{"status":"24"}` || got.Events[0].Name != "ci.build" {
			t.Errorf("%d events, the first is %+v", len(got.Events), got.Events[0])
		}
		if _, err := time.Parse(time.RFC3339Nano, got.Events[0].Timestamp); err != nil {
			t.Error(err)
		}
		f.readText(alice, "event://ci", &got)
		if len(got.Events) != 20 || got.Events[0].EventID != last.ID || string(got.Events[0].Data) != `{"big":9007199254740993}` {
			t.Errorf("a parent: %d events, the first is %+v", len(got.Events), got.Events[0])
		}
	})
	t.Run("EVS-04_a_pattern", func(t *testing.T) {
		f.publish("event://github/acme/web/push", `{}`)
		f.publish("event://github/acme/web/pull_request", `{}`)
		var got latestEvents
		f.readText(alice, "event://github/acme/*/push", &got)
		if len(got.Events) != 1 || got.Events[0].URI != "event://github/acme/web/push" {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("EVS-04_others_do_not_take_the_room", func(t *testing.T) {
		f := newFixture(t, nil)
		f.catalogs.Replace(mustParse(t, crowded))
		f.publish("event://hub/web/push", `{"n":"mine"}`)
		for i := range 20 + 5 {
			f.publish("event://hub/web/invoice", fmt.Sprintf(`{"n":%d}`, i))
		}
		for _, tc := range []struct {
			key, uri string
			n        int
		}{
			{alice, "event://hub", 1},
			{alice, "event://hub/web", 1},
			{billing, "event://hub", 20},
			{billing, "event://hub/*/push", 1},
		} {
			var got latestEvents
			f.readText(tc.key, tc.uri, &got)
			if len(got.Events) != tc.n || tc.n == 1 && string(got.Events[0].Data) != `{"n":"mine"}` {
				t.Errorf("%s: %+v", tc.uri, got)
			}
		}
	})
	t.Run("EVS-04_the_latest_of_very_many_sub-resources", func(t *testing.T) {
		f := newFixture(t, nil)
		f.catalogs.Replace(mustParse(t, crowded))
		f.log.Now = func() time.Time { return time.Now().Add(-12 * time.Hour) }
		for i := range 60 {
			f.publish(fmt.Sprintf("event://hub/a%d/push", i), `{}`)
		}
		f.log.Now = nil
		last := f.publish("event://hub/z/push", `{}`)
		for _, uri := range []string{"event://hub", "event://hub/*/push"} {
			var got latestEvents
			f.readText(alice, uri, &got)
			if len(got.Events) != 20 || got.Events[0].EventID != last.ID {
				t.Errorf("%s: %d events, the first is %+v", uri, len(got.Events), got.Events[0])
			}
		}
	})
	s := f.session(alice, spec.V20251125)
	for _, uri := range []string{
		"event://nothing", "event://ci/build-finished/x", "event://github/ACME/web/push2", "event://github/UPPER/x/pull_request",
		"file:///etc/passwd", "event://", "x", "subscription://sub_00000000000000000000000000000000", "subscription://x",
		"event://" + strings.Repeat("a", 3000),
	} {
		t.Run("EVS-04_unknown_"+uri[:min(len(uri), 40)], func(t *testing.T) {
			for _, tc := range []struct {
				r            reply
				status, code int
			}{
				{f.stateless(alice, spec.MethodRead, `"uri":"`+uri+`"`), 400, -32602},
				{f.sessionBased(alice, s, spec.MethodRead, `"uri":"`+uri+`"`), 200, -32002},
			} {
				m := tc.r.rpc(t)
				if tc.r.Status != tc.status || m.Error == nil || m.Error.Code != tc.code {
					t.Fatalf("%d %s", tc.r.Status, tc.r.Body)
				}
				var data struct{ URI string }
				must(t, json.Unmarshal(m.Error.Data, &data))
				if data.URI != method.Clip(uri) || m.Error.Message != "resource not found" {
					t.Errorf("got %+v %s", m.Error, m.Error.Data)
				}
			}
		})
	}
	t.Run("EVS-04_without_a_uri", func(t *testing.T) {
		for _, params := range []string{``, `"uri":7`, `"uri":null`, `"URI":"event://ci/deploy"`} {
			if r := f.sessionBased(alice, s, spec.MethodRead, params); r.code(t) != -32602 {
				t.Errorf("%s: %s", params, r.Body)
			}
		}
	})
	t.Run("AUT-04_access", func(t *testing.T) {
		f.publish("event://tenant/acme/alarm", `{}`)
		f.publish("event://tenant/other/alarm", `{}`)
		var got latestEvents
		f.readText(acme, "event://tenant/acme/alarm", &got)
		if len(got.Events) != 1 {
			t.Errorf("got %+v", got)
		}
		for key, uri := range map[string]string{
			alice:   "event://tenant/acme/alarm",
			acme:    "event://tenant/other/alarm",
			billing: "event://tenant",
		} {
			if r := f.stateless(key, spec.MethodRead, `"uri":"`+uri+`"`); r.code(t) != method.CodeForbidden {
				t.Errorf("%s reads %s: %s", key, uri, r.Body)
			}
		}
	})
	t.Run("AUT-05_another_workspace", func(t *testing.T) {
		var got latestEvents
		f.readText(foreign, "event://ci/build-finished", &got)
		if len(got.Events) != 0 {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("EVS-12_a_subscription", func(t *testing.T) {
		uri := f.registerOne(alice, "event://ci/deploy", "https://a.example/hook")
		var got readSubscription
		f.readText(alice, uri, &got)
		if got.URI != uri || got.TargetURI != "https://a.example/hook" || got.EventURIs[0] != "event://ci/deploy" || got.State != string(subscription.Active) ||
			!got.Delivery.Active || got.Delivery.LastError != nil {
			t.Errorf("got %+v", got)
		}
		for _, key := range []string{bob, foreign} {
			if r := f.stateless(key, spec.MethodRead, `"uri":"`+uri+`"`); r.code(t) != -32602 || !strings.Contains(r.Body, "resource not found") {
				t.Errorf("%s: %s", key, r.Body)
			}
		}
	})
}

// latestEvents is the text of an event URI.
type latestEvents struct {
	Events []struct {
		EventID, Name, URI, Timestamp string
		Data                          json.RawMessage
	}
}

// readSubscription is the text of a subscription URI.
type readSubscription struct {
	URI, TargetURI, State string
	EventURIs             []string
	Delivery              struct {
		Active    bool
		LastError *string
	} `json:"deliveryStatus"`
}
