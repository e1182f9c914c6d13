package mcp

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

const completable = `
events:
  - name: deploy.finished
    uriTemplate: event://deploy/{stage}/{service}/finished
    paramsSchema: {type: object, properties: {stage: {enum: [staging, production, preproduction]}}}
  - name: tenant.alarm
    uriTemplate: event://tenant/{org}/{kind}
    access: {claims: {org: org}}
  - name: billing.paid
    uriTemplate: event://billing/{plan}
    access: {scopes: [billing]}
`

const deployTemplate = "event://deploy/{stage}/{service}/finished"

func ref(uri, name, value string) string {
	return fmt.Sprintf(`"ref":{"type":"ref/resource","uri":%q},"argument":{"name":%q,"value":%q}`, uri, name, value)
}

func TestComplete(t *testing.T) {
	f := newFixture(t, nil)
	f.catalogs.Replace(mustParse(t, completable))
	for _, uri := range []string{
		"event://deploy/staging/web/finished", "event://deploy/production/web/finished", "event://deploy/production/worker/finished",
		"event://deploy/production/a%20b/finished", "event://tenant/acme/fire", "event://tenant/other/flood", "event://billing/gold",
	} {
		f.publish(uri, `{}`)
	}
	f.publishIn("elsewhere", "event://deploy/staging/secret/finished", `{}`)
	for name, tc := range map[string]struct {
		key, params string
		want        []string
	}{
		"all that the schema lists":              {alice, ref(deployTemplate, "stage", ""), []string{"staging", "production", "preproduction"}},
		"what begins with it before the rest":    {alice, ref(deployTemplate, "stage", "PRO"), []string{"production", "preproduction"}},
		"nothing fits":                           {alice, ref(deployTemplate, "stage", "x"), []string{}},
		"what events had, for the known context": {alice, ref(deployTemplate, "service", "w") + `,"context":{"arguments":{"stage":"production"}}`, []string{"web", "worker"}},
		"another context":                        {alice, ref(deployTemplate, "service", "") + `,"context":{"arguments":{"stage":"staging"}}`, []string{"web"}},
		"without context":                        {alice, ref(deployTemplate, "service", ""), []string{"a b", "web", "worker"}},
		"a context that is not known":            {alice, ref(deployTemplate, "service", "") + `,"context":{"arguments":{"stage":"../x"}}`, []string{}},
		"only what the caller's claim allows":    {acme, ref("event://tenant/{org}/{kind}", "org", ""), []string{"acme"}},
		"and what of it happened":                {acme, ref("event://tenant/{org}/{kind}", "kind", ""), []string{"fire"}},
		"a scope that the caller has":            {billing, ref("event://billing/{plan}", "plan", ""), []string{"gold"}},
	} {
		t.Run("SES-05_"+strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			session := f.session(tc.key, spec.V20251125)
			for _, r := range []reply{f.stateless(tc.key, spec.MethodComplete, tc.params), f.sessionBased(tc.key, session, spec.MethodComplete, tc.params)} {
				var got completionResult
				r.result(t, &got)
				if !slices.Equal(got.Completion.Values, tc.want) || got.Completion.Total != len(tc.want) || got.Completion.HasMore || got.Completion.Values == nil {
					t.Errorf("got %s, want %q", r.Body, tc.want)
				}
			}
		})
	}
	for name, tc := range map[string]struct{ key, params string }{
		"no ref":                            {alice, `"argument":{"name":"stage","value":""}`},
		"a prompt":                          {alice, `"ref":{"type":"ref/prompt","name":"x"},"argument":{"name":"stage","value":""}`},
		"a template that is not there":      {alice, ref("event://no/{such}", "such", "")},
		"a template that is not the caller": {alice, ref("event://billing/{plan}", "plan", "")},
		"a URI that is filled in":           {alice, ref("event://deploy/staging/web/finished", "stage", "")},
		"another variable":                  {alice, ref(deployTemplate, "no", "")},
		"no argument":                       {alice, `"ref":{"type":"ref/resource","uri":"` + deployTemplate + `"}`},
		"a value that is no text":           {alice, `"ref":{"type":"ref/resource","uri":"` + deployTemplate + `"},"argument":{"name":"stage","value":7}`},
		"a context that is no text":         {alice, ref(deployTemplate, "stage", "") + `,"context":{"arguments":{"service":[]}}`},
	} {
		t.Run("SES-05_refuses_"+strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			if r := f.stateless(tc.key, spec.MethodComplete, tc.params); r.code(t) != -32602 {
				t.Errorf("got %s", r.Body)
			}
		})
	}
	t.Run("SES-05_at_most_100_values", func(t *testing.T) {
		for i := range 120 {
			f.publish(fmt.Sprintf("event://deploy/staging/s%03d/finished", i), `{}`)
		}
		var got completionResult
		f.stateless(alice, spec.MethodComplete, ref(deployTemplate, "service", "s")).result(t, &got)
		if c := got.Completion; len(c.Values) != 100 || c.Total != 120 || !c.HasMore {
			t.Errorf("%d values of %d, more: %v", len(c.Values), c.Total, c.HasMore)
		}
	})
}

func TestSetLevel(t *testing.T) {
	setLevel := func(f *fixture, s, level string) {
		t.Helper()
		if r := f.sessionBased(alice, s, spec.MethodSetLevel, `"level":"`+level+`"`); r.Body != `{"jsonrpc":"2.0","id":1,"result":{}}` {
			t.Fatalf("%s: %s", level, r.Body)
		}
	}
	without := mustParse(t, "events:\n  - {name: ci.deploy, uri: event://ci/deploy}\n")
	// tells changes the catalog, and reports what is said of the URI that goes with it.
	tells := func(t *testing.T, f *fixture, g *open) (warnings []json.RawMessage) {
		t.Helper()
		f.catalogs.Replace(without)
		must(t, f.log.Notify(t.Context(), "default", "catalog", json.RawMessage(`{}`)))
		f.publish("event://ci/deploy", `{"last":true}`)
		changes := 0
		for done := false; !done || changes < 1; { // topics and events have no common order
			switch m := g.next(); m.Method {
			case spec.NoteUpdated:
				done = true
			case spec.NoteResourcesChange:
				changes++
			case spec.NoteMessage:
				warnings = append(warnings, g.paramsOf(m))
			}
		}
		must(t, f.log.Notify(t.Context(), "default", "catalog", json.RawMessage(`{}`)))
		for {
			m := g.next()
			if m.Method == spec.NoteMessage {
				warnings = append(warnings, g.paramsOf(m))
			} else if m.Method == spec.NoteResourcesChange {
				if changes++; changes == 2 {
					return warnings
				}
			}
		}
	}
	for level, want := range map[string]int{"": 0, "debug": 1, "warning": 1, "error": 0} {
		t.Run("SES-05_what_is_told_at_level_"+level, func(t *testing.T) {
			f := newFixture(t, nil)
			s := f.session(alice, spec.V20251125)
			f.follow(alice, s, "event://ci/build-finished", "event://ci/deploy")
			if level != "" {
				setLevel(f.instance(), s, "alert")
				setLevel(f.instance(), s, level)
			}
			g := f.stream(alice, s, "")
			g.event()
			got := tells(t, f, g)
			if len(got) != want {
				t.Fatalf("%d messages: %s", len(got), got)
			}
			for _, m := range got {
				sameJSON(t, m, `{"level":"warning","logger":"mcp-events","data":{"uri":"event://ci/build-finished","message":"the catalog no longer has this URI for you, so it brings no further events"}}`)
			}
		})
	}
	t.Run("SES-05_an_open_stream_follows_the_level", func(t *testing.T) {
		f := newFixture(t, nil)
		s := f.session(alice, spec.V20250326)
		f.follow(alice, s, "event://ci/build-finished", "event://ci/deploy")
		g := f.stream(alice, s, "")
		setLevel(f, s, "info")
		f.follow(alice, s, "event://chat/typing") // what the stream does next, after the level
		f.waitTargets(3)
		if got := tells(t, f, g); len(got) != 2 {
			t.Errorf("%d messages: %s", len(got), got)
		}
	})
	t.Run("SES-05_levels_that_there_are_not", func(t *testing.T) {
		f := newFixture(t, nil)
		s := f.session(alice, spec.V20250618)
		for _, params := range []string{``, `"level":"loud"`, `"level":"INFO"`, `"level":3`} {
			if r := f.sessionBased(alice, s, spec.MethodSetLevel, params); r.code(t) != -32602 {
				t.Errorf("%s: %s", params, r.Body)
			}
		}
		for level, code := range map[string]int{`"info"`: 0, `"loud"`: -32602, `7`: -32602} {
			body := strings.Replace(statelessBody("1", spec.MethodDiscover, ""), `"_meta":{`, `"_meta":{"`+spec.MetaLogLevel+`":`+level+`,`, 1)
			if r := f.do("POST", alice, body, statelessHeaders(spec.MethodDiscover, "")...); r.code(t) != code || code != 0 && r.Status != 400 {
				t.Errorf("2026-07-28, %s: %+v", level, r)
			}
		}
	})
}

// paramsOf are the params of a message as they were sent.
func (o *open) paramsOf(m frame) json.RawMessage {
	o.t.Helper()
	var raw struct{ Params json.RawMessage }
	must(o.t, json.Unmarshal(m.sse.Data, &raw))
	return raw.Params
}

// completionResult is the result of a completion.
type completionResult struct {
	Completion struct {
		Values  []string
		Total   int
		HasMore bool
	}
}
