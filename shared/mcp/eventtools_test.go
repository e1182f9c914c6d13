package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/mcp/eventtools/logsource"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

func withEventTools(o *Options) { o.EventTools = logsource.New }

// toolAnswer is the result of tools/call.
type toolAnswer struct {
	Content           []struct{ Type, Text string }
	StructuredContent json.RawMessage
	IsError           bool
}

// shownEvents is the result of a tool that reads.
type shownEvents struct {
	Events []struct {
		ID, Name, URI, Time, Note string
		Data                      json.RawMessage
	}
	Subscription        string
	More, Gap, TimedOut bool
}

func (s shownEvents) data() (all []string) {
	for _, e := range s.Events {
		all = append(all, string(e.Data))
	}
	return all
}

func toolParams(name, arguments string) string {
	return fmt.Sprintf(`"name":%q,"arguments":%s`, name, arguments)
}

// toolResult decodes the result of a call that must succeed.
func toolResult(t testing.TB, r reply, into any) {
	t.Helper()
	var got toolAnswer
	r.result(t, &got)
	if got.IsError || len(got.Content) != 1 || got.Content[0].Type != "text" {
		t.Fatalf("got %s", r.Body)
	}
	sameJSON(t, json.RawMessage(got.Content[0].Text), string(got.StructuredContent))
	must(t, json.Unmarshal(got.StructuredContent, into))
}

// toolIn calls a tool of an endpoint in the revision of the session, which is empty for 2026-07-28.
func (f *fixture) toolIn(key, session, name, arguments string) reply {
	f.t.Helper()
	return f.in(key, session, spec.MethodToolsCall, toolParams(name, arguments))
}

func (f *fixture) tool(t *testing.T, key, name, arguments string) (out shownEvents) {
	t.Helper()
	toolResult(t, f.toolIn(key, "", name, arguments), &out)
	return out
}

// toolRefusal is what a model gets instead of a result.
func (f *fixture) toolRefusal(t *testing.T, key, name, arguments string) string {
	t.Helper()
	var got toolAnswer
	r := f.toolIn(key, "", name, arguments)
	r.result(t, &got)
	if !got.IsError || len(got.Content) != 1 || got.StructuredContent != nil {
		t.Fatalf("got %s", r.Body)
	}
	return got.Content[0].Text
}

func at(subscription string) string { return fmt.Sprintf(`{"subscription":%q}`, subscription) }

var eventToolNames = []string{"list_event_types", "subscribe", "unsubscribe", "recent_events", "wait_for_event"}

func TestEventToolsAreOff(t *testing.T) {
	f := newFixture(t, nil)
	for _, method := range []string{spec.MethodToolsList, spec.MethodToolsCall} {
		if r := f.stateless(alice, method, toolParams("list_event_types", `{}`)); r.code(t) != -32601 {
			t.Errorf("RCH-04 by default %s answers %s", method, r.Body)
		}
	}
	if r := f.stateless(alice, spec.MethodDiscover, ""); strings.Contains(r.Body, `"tools":`) || strings.Contains(r.Body, "list_event_types") {
		t.Errorf("RCH-04 by default there are tools: %s", r.Body)
	}
}

func TestEventTools(t *testing.T) {
	f := newFixture(t, withEventTools)
	sessions := map[string]string{"2026-07-28": ""}
	for _, v := range []spec.Version{spec.V20250326, spec.V20250618, spec.V20251125} {
		sessions[string(v)] = f.session(alice, v)
	}
	for version, session := range sessions {
		results := map[string]*jsonschema.Schema{}
		t.Run("RCH-04 the tools are listed in "+version, func(t *testing.T) {
			var list struct {
				Tools []struct {
					Name, Title, Description string
					InputSchema              struct{ Type string }
					OutputSchema             json.RawMessage
					Annotations              struct{ ReadOnlyHint bool }
				}
			}
			f.in(alice, session, spec.MethodToolsList, "").result(t, &list)
			var names []string
			for _, x := range list.Tools {
				names = append(names, x.Name)
				if x.Title == "" || x.Description == "" || x.InputSchema.Type != "object" || !x.Annotations.ReadOnlyHint {
					t.Errorf("%+v", x)
				}
				doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(x.OutputSchema))
				must(t, err)
				c := jsonschema.NewCompiler()
				must(t, c.AddResource("memory:///result", doc))
				results[x.Name], err = c.Compile("memory:///result")
				must(t, err)
				if s := results[x.Name]; s.Types == nil || s.Types.String() != "[object]" || len(s.Properties) == 0 {
					t.Errorf("the result of %s is %s", x.Name, x.OutputSchema)
				}
			}
			if !slices.Equal(names, eventToolNames) {
				t.Errorf("the tools are %q", names)
			}
		})
		t.Run("RCH-04 a model subscribes, waits and reads in "+version, func(t *testing.T) {
			call := func(name, arguments string, into any) {
				t.Helper()
				r := f.toolIn(alice, session, name, arguments)
				toolResult(t, r, into)
				var got toolAnswer
				r.result(t, &got)
				structured, err := jsonschema.UnmarshalJSON(bytes.NewReader(got.StructuredContent))
				must(t, err)
				must(t, results[name].Validate(structured))
			}
			var types struct {
				EventTypes []struct {
					Name, Description string
					Arguments         struct{ Properties map[string]any }
				}
			}
			call("list_event_types", `{}`, &types)
			if x := types.EventTypes[0]; x.Name != "ci.build" || x.Description == "" || x.Arguments.Properties["status"] == nil {
				t.Errorf("the first type is %+v", x)
			}
			var sub, first, again, none shownEvents
			call("subscribe", `{"name":"ci.build","arguments":{"status":"failed"}}`, &sub)
			f.publish("event://ci/build-finished", `{"status":"passed"}`)
			ev := f.publish("event://ci/build-finished", `{"status":"failed","n":12345678901234567890}`)
			call("wait_for_event", at(sub.Subscription), &first)
			if len(first.Events) != 1 || first.Events[0].ID != ev.ID || first.Events[0].Name != "ci.build" || first.Events[0].URI != ev.URI || first.Events[0].Time != ev.Timestamp() ||
				string(first.Events[0].Data) != `{"status":"failed","n":12345678901234567890}` || first.More || first.Gap || first.TimedOut {
				t.Errorf("got %+v", first)
			}
			if call("recent_events", at(first.Subscription), &none); len(none.Events) > 0 || none.TimedOut {
				t.Errorf("then %+v", none)
			}
			if call("recent_events", at(sub.Subscription), &again); !slices.Equal(again.data(), first.data()) {
				t.Errorf("with the subscription of before %+v", again)
			}
			var ended struct{ Ended bool }
			if call("unsubscribe", at(first.Subscription), &ended); !ended.Ended {
				t.Error("it has not ended")
			}
		})
	}
	t.Run("RCH-04 each call may be served by another instance", func(t *testing.T) {
		sub := f.tool(t, alice, "subscribe", `{"name":"github.push","arguments":{"owner":"acme"}}`)
		next := f
		for i := range 3 {
			f.publish("event://github/acme/web/push", fmt.Sprintf(`{"n":%d}`, i))
			f.publish("event://github/other/web/push", `{}`)
			next = next.instance()
			if sub = next.tool(t, alice, "recent_events", at(sub.Subscription)); !slices.Equal(sub.data(), []string{fmt.Sprintf(`{"n":%d}`, i)}) {
				t.Errorf("got %+v", sub)
			}
		}
	})
	t.Run("RCH-04 they are advertised, and the instructions say what for", func(t *testing.T) {
		for _, r := range []reply{
			f.stateless(alice, spec.MethodDiscover, ""),
			f.initialize(alice, spec.V20251125, `{}`),
		} {
			var about struct {
				Capabilities struct{ Tools *listCapability }
				Instructions string
			}
			r.result(t, &about)
			if tools := about.Capabilities.Tools; tools == nil || tools.ListChanged {
				t.Errorf("capabilities.tools is %+v", tools)
			}
			if !strings.HasPrefix(about.Instructions, "With these tools") {
				t.Errorf("the instructions are %q", about.Instructions)
			}
		}
	})
}

func TestResultsOfEventToolsAreBounded(t *testing.T) {
	f := newFixture(t, withEventTools)
	sub := f.tool(t, alice, "subscribe", `{"name":"ci.deploy"}`)
	t.Run("RCH-04 by their number", func(t *testing.T) {
		for i := range 25 {
			f.publish("event://ci/deploy", fmt.Sprintf(`{"n":%d}`, i))
		}
		part := f.tool(t, alice, "recent_events", fmt.Sprintf(`{"subscription":%q,"limit":3}`, sub.Subscription))
		if !slices.Equal(part.data(), []string{`{"n":0}`, `{"n":1}`, `{"n":2}`}) || !part.More {
			t.Errorf("got %+v", part)
		}
		if part = f.tool(t, alice, "wait_for_event", at(part.Subscription)); len(part.Events) != 20 || !part.More {
			t.Errorf("got %d, more %v", len(part.Events), part.More)
		}
		if sub = f.tool(t, alice, "wait_for_event", at(part.Subscription)); !slices.Equal(sub.data(), []string{`{"n":23}`, `{"n":24}`}) || sub.More {
			t.Errorf("got %+v", sub)
		}
	})
	t.Run("RCH-04 by their size", func(t *testing.T) {
		for _, size := range []int{30 << 10, 30 << 10, 30 << 10, 70 << 10} {
			f.publish("event://ci/deploy", `{"x":"`+strings.Repeat("x", size)+`"}`)
		}
		for _, want := range []int{2, 1, 1} {
			if sub = f.tool(t, alice, "recent_events", at(sub.Subscription)); len(sub.Events) != want || sub.More != (want != 1 || sub.Events[0].Note == "") {
				t.Fatalf("got %d events, more %v", len(sub.Events), sub.More)
			}
		}
		if e := sub.Events[0]; e.Data != nil || !strings.Contains(e.Note, "too large") || e.ID == "" {
			t.Errorf("a payload of 70 KiB is shown as %.100s, %q", e.Data, e.Note)
		}
	})
	t.Run("RCH-04 the event types too", func(t *testing.T) {
		var catalog strings.Builder
		catalog.WriteString("events:\n")
		for i := range 100 {
			fmt.Fprintf(&catalog, "  - {name: type.n%02d, uri: 'event://types/n%02d', description: %s}\n", i, i, strings.Repeat("d", 1000))
		}
		f := newFixture(t, withEventTools)
		f.catalogs.Replace(mustParse(t, catalog.String()))
		after, n, calls := "null", 0, 0
		for more := true; more; calls++ {
			var got struct {
				EventTypes []struct{ Name string }
				More       bool
			}
			toolResult(t, f.toolIn(alice, "", "list_event_types", `{"after":`+after+`}`), &got)
			for _, x := range got.EventTypes {
				if want := fmt.Sprintf("type.n%02d", n); x.Name != want {
					t.Fatalf("got %s, want %s", x.Name, want)
				}
				n++
			}
			more, after = got.More, fmt.Sprintf("%q", got.EventTypes[len(got.EventTypes)-1].Name)
		}
		if n != 100 || calls != 2 {
			t.Errorf("%d types in %d calls", n, calls)
		}
	})
	t.Run("RCH-04 what is lost is a gap", func(t *testing.T) {
		f := newFixture(t, withEventTools)
		sub := f.tool(t, alice, "subscribe", `{"name":"ci.deploy"}`)
		if part := f.tool(t, alice, "recent_events", at(sub.Subscription)); part.Gap {
			t.Errorf("before: %+v", part)
		}
		f.log.Retention = 1 // nothing is kept
		if part := f.tool(t, alice, "wait_for_event", at(sub.Subscription)); !part.Gap || part.TimedOut {
			t.Errorf("after the retention: %+v", part)
		}
	})
}

func TestWhatEventToolsRefuse(t *testing.T) {
	f := newFixture(t, withEventTools)
	sub := f.tool(t, alice, "subscribe", `{"name":"ci.deploy"}`).Subscription
	theirs := f.tool(t, foreign, "subscribe", `{"name":"ci.deploy"}`).Subscription
	_, cursor, _ := strings.Cut(sub, "~~")
	const noHandle = "copy it exactly, or subscribe again"
	for name, x := range map[string]struct{ tool, arguments, says string }{
		"an unknown type":                                {"subscribe", `{"name":"no.such"}`, `unknown event type "no.such"`},
		"no name":                                        {"subscribe", `{}`, "name is missing"},
		"a name that is no string":                       {"subscribe", `{"name":7}`, "name is not a string"},
		"arguments that do not fit":                      {"subscribe", `{"name":"ci.build","arguments":{"colour":"red"}}`, "colour"},
		"arguments that are no object":                   {"subscribe", `{"name":"ci.build","arguments":"failed"}`, "not an object"},
		"arguments that are too long":                    {"subscribe", `{"name":"ci.build","arguments":{"status":["` + strings.Repeat(strings.Repeat("x", 500)+`","`, 5) + `"]}}`, "allowed: 2048"},
		"a type without polls":                           {"subscribe", `{"name":"audit.entry"}`, "not delivered by poll"},
		"a type that is not visible":                     {"subscribe", `{"name":"billing.invoice"}`, `unknown event type "billing.invoice"`},
		"an argument that it does not take":              {"subscribe", `{"name":"ci.build","limit":5}`, `takes no argument "limit"`},
		"no subscription":                                {"recent_events", `{}`, "subscription is missing"},
		"a subscription of another workspace":            {"recent_events", at(theirs), noHandle},
		"a forged cursor":                                {"wait_for_event", at(strings.ToUpper(sub)), ""},
		"text":                                           {"wait_for_event", at("ci.deploy"), noHandle},
		"no cursor":                                      {"wait_for_event", at("ci.deploy~~"), noHandle},
		"a cursor that is none":                          {"wait_for_event", at("ci.deploy~~AAAA"), noHandle},
		"arguments in it that are none":                  {"wait_for_event", at("ci.deploy~W10~" + cursor), noHandle},
		"arguments in it that do not fit":                {"wait_for_event", at("ci.deploy~eyJ4IjoxfQ~" + cursor), `takes no argument "x"`},
		"a type that is not visible, with a good cursor": {"recent_events", at("billing.invoice~~" + cursor), "unknown event type"},
		"too long":                                       {"wait_for_event", at("ci.deploy~~" + strings.Repeat("A", 9000)), noHandle},
		"an unsubscribe of nothing":                      {"unsubscribe", at("x"), noHandle},
		"too many events":                                {"recent_events", `{"subscription":"x","limit":51}`, "limit 51 is out of range (1 to 50)"},
		"half an event":                                  {"recent_events", `{"subscription":"x","limit":0.5}`, "out of range"},
		"too long a wait":                                {"wait_for_event", `{"subscription":"x","seconds":601}`, "seconds 601 is out of range (1 to 600)"},
		"a wait without a number":                        {"wait_for_event", `{"subscription":"x","seconds":"60"}`, "out of range"},
		"a list after nothing":                           {"list_event_types", `{"after":"no.such"}`, "unknown event type"},
		"a list after what is not visible":               {"list_event_types", `{"after":"billing.invoice"}`, "unknown event type"},
	} {
		t.Run("RCH-04 "+name, func(t *testing.T) {
			if got := f.toolRefusal(t, alice, x.tool, x.arguments); !strings.Contains(got, x.says) || len(got) > 300 {
				t.Errorf("the model reads %q", got)
			}
		})
	}
	t.Run("RCH-04 a tool that there is not", func(t *testing.T) {
		if r := f.toolIn(alice, "", "no_such", `{}`); r.Status != 400 || r.code(t) != -32602 {
			t.Errorf("%d %s", r.Status, r.Body)
		}
		if r := f.toolIn(alice, "", "list_event_types", `[]`); r.code(t) != -32602 {
			t.Errorf("%d %s", r.Status, r.Body)
		}
	})
}

func TestAccessRulesHoldForEventTools(t *testing.T) {
	listed := func(f *fixture, key string) (names []string) {
		var got struct{ EventTypes []struct{ Name string } }
		toolResult(f.t.(*testing.T), f.toolIn(key, "", "list_event_types", `{}`), &got)
		for _, x := range got.EventTypes {
			names = append(names, x.Name)
		}
		return names
	}
	t.Run("RCH-04 a caller sees what it may have", func(t *testing.T) {
		f := newFixture(t, withEventTools)
		for key, want := range map[string][]string{
			alice:   {"ci.build", "ci.deploy", "github.pull_request", "github.push"},
			billing: {"ci.build", "ci.deploy", "github.pull_request", "github.push", "billing.invoice"},
			acme:    {"ci.build", "ci.deploy", "github.pull_request", "github.push", "tenant.alarm"},
		} {
			if got := listed(f, key); !slices.Equal(got, want) {
				t.Errorf("%s sees %q", key, got)
			}
		}
	})
	t.Run("RCH-04 claims bind the arguments", func(t *testing.T) {
		f := newFixture(t, withEventTools)
		sub := f.tool(t, acme, "subscribe", `{"name":"tenant.alarm","arguments":{"org":"acme"}}`)
		f.publish("event://tenant/other/alarm", `{"secret":1}`)
		f.publish("event://tenant/acme/alarm", `{"n":1}`)
		if got := f.tool(t, acme, "recent_events", at(sub.Subscription)); !slices.Equal(got.data(), []string{`{"n":1}`}) {
			t.Errorf("got %+v", got)
		}
		other := strings.Replace(sub.Subscription, "eyJvcmciOiJhY21lIn0", "eyJvcmciOiJvdGhlciJ9", 1)
		if other == sub.Subscription {
			t.Fatalf("the subscription is %q", other)
		}
		for tool, arguments := range map[string]string{"subscribe": `{"name":"tenant.alarm","arguments":{"org":"other"}}`, "recent_events": at(other)} {
			if got := f.toolRefusal(t, acme, tool, arguments); got == "" {
				t.Errorf("%s gives the reason %q", tool, got)
			}
		}
		if got := f.toolRefusal(t, alice, "recent_events", at(sub.Subscription)); !strings.Contains(got, "unknown event type") {
			t.Errorf("the subscription of another caller: %q", got)
		}
	})
	t.Run("RCH-04 access that was taken away ends it", func(t *testing.T) {
		f := newFixture(t, withEventTools)
		sub := f.tool(t, alice, "subscribe", `{"name":"ci.deploy"}`)
		f.publish("event://ci/deploy", `{"secret":1}`)
		f.catalogs.Replace(mustParse(t, withoutDeploy))
		for _, tool := range []string{"recent_events", "wait_for_event"} {
			if got := f.toolRefusal(t, alice, tool, at(sub.Subscription)); !strings.Contains(got, "unknown event type") {
				t.Errorf("%s: %q", tool, got)
			}
		}
	})
}

// withoutDeploy is the catalog of the tests after access to ci.deploy was restricted.
var withoutDeploy = strings.Replace(testCatalog, "    description: Something was deployed.", "    description: Something was deployed.\n    access: {scopes: [deployers]}", 1)

// Tools of backends are beside those for events.
func TestEventToolsBesideBackends(t *testing.T) {
	l := startLister(t, "plain", true, "other", "subscribe", "third")
	l.call = func(w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","content":[{"type":"text","text":"of the backend"}]}}`, id)
	}
	for _, size := range []int{1, 2, 100} {
		f := behindGateway(t, func(o *Options) { o.EventTools, o.PageSize = logsource.New, size }, l)
		for _, session := range []string{"", f.session(alice, spec.V20251125)} {
			t.Run(fmt.Sprintf("RCH-04 they follow on pages of %d", size), func(t *testing.T) {
				if got, want := f.wholeList(t, spec.MethodToolsList, session, nil).names, slices.Concat(eventToolNames, []string{"other", "third"}); !slices.Equal(got, want) {
					t.Errorf("got %q", got)
				}
			})
			t.Run("RCH-04 one of the same name is hidden", func(t *testing.T) {
				var sub shownEvents
				if toolResult(t, f.toolIn(alice, session, "subscribe", `{"name":"ci.deploy"}`), &sub); sub.Subscription == "" {
					t.Errorf("got %+v", sub)
				}
				if r := f.toolIn(alice, session, "no_such", `{}`); r.rpc(t).Error == nil {
					t.Errorf("got %s", r.Body)
				}
				if r := f.toolIn(alice, session, "other", `{}`); !strings.Contains(r.Body, `"of the backend"`) {
					t.Errorf("another is answered %s", r.Body)
				}
			})
		}
	}
}
