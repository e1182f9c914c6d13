package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/mcp/eventtools/logsource"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

func withEventTools(o *Options) { o.EventTools = logsource.New }

// shownEvents is the result of a tool that reads events.
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

// toolAnswer returns the text and the structured content of a tool's result. Errors have no structured content.
func toolAnswer(t testing.TB, r reply) (text string, structured json.RawMessage) {
	t.Helper()
	var got struct {
		Content           []struct{ Type, Text string }
		StructuredContent json.RawMessage
		IsError           bool
	}
	r.result(t, &got)
	if len(got.Content) != 1 || got.Content[0].Type != "text" || got.IsError != (got.StructuredContent == nil) {
		t.Fatalf("got %s, want a text, and structured content or an error", r.Body)
	}
	return got.Content[0].Text, got.StructuredContent
}

// toolResult decodes the result of a call that must succeed.
func toolResult(t testing.TB, r reply, into any) {
	t.Helper()
	text, structured := toolAnswer(t, r)
	sameJSON(t, json.RawMessage(text), string(structured))
	expect.OK(t, json.Unmarshal(structured, into))
}

// toolIn calls a tool in the session's revision, or in 2026-07-28 if session is empty.
func (f *fixture) toolIn(key, session, name, arguments string) reply {
	f.t.Helper()
	return f.in(key, session, spec.MethodToolsCall, toolParams(name, arguments))
}

func (f *fixture) tool(t *testing.T, key, name, arguments string) (out shownEvents) {
	t.Helper()
	toolResult(t, f.toolIn(key, "", name, arguments), &out)
	return out
}

// toolRefusal calls a tool that must fail, and returns the error text that the model gets.
func (f *fixture) toolRefusal(t *testing.T, key, name, arguments string) string {
	t.Helper()
	text, structured := toolAnswer(t, f.toolIn(key, "", name, arguments))
	if structured != nil {
		t.Fatalf("got the result %s, want a refusal", structured)
	}
	return text
}

func at(subscription string) string { return fmt.Sprintf(`{"subscription":%q}`, subscription) }

var eventToolNames = []string{"list_event_types", "subscribe", "unsubscribe", "recent_events", "wait_for_event"}

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
					t.Errorf("got %+v, want a title, a description, an object as input, and the hint", x)
				}
				doc := expect.Value(jsonschema.UnmarshalJSON(bytes.NewReader(x.OutputSchema)))(t)
				c := jsonschema.NewCompiler()
				expect.OK(t, c.AddResource("memory:///result", doc))
				results[x.Name] = expect.Value(c.Compile("memory:///result"))(t)
				if s := results[x.Name]; s.Types == nil || s.Types.String() != "[object]" || len(s.Properties) == 0 {
					t.Errorf("the result of %s is %s, want an object with members", x.Name, x.OutputSchema)
				}
			}
			expect.Deep(t, "the tools", names, eventToolNames)
		})
		t.Run("RCH-04 a model subscribes, waits and reads in "+version, func(t *testing.T) {
			call := func(name, arguments string, into any) {
				t.Helper()
				r := f.toolIn(alice, session, name, arguments)
				toolResult(t, r, into)
				_, structured := toolAnswer(t, r)
				expect.OK(t, results[name].Validate(expect.Value(jsonschema.UnmarshalJSON(bytes.NewReader(structured)))(t)))
			}
			var types struct {
				EventTypes []struct {
					Name, Description string
					Arguments         struct{ Properties map[string]any }
				}
			}
			call("list_event_types", `{}`, &types)
			if x := types.EventTypes[0]; x.Name != "ci.build" || x.Description == "" || x.Arguments.Properties["status"] == nil {
				t.Errorf("the first type is %+v, want ci.build with a description and the argument status", x)
			}
			var sub, first, again, none shownEvents
			call("subscribe", `{"name":"ci.build","arguments":{"status":"failed"}}`, &sub)
			f.publish("event://ci/build-finished", `{"status":"passed"}`)
			ev := f.publish("event://ci/build-finished", `{"status":"failed","n":12345678901234567890}`)
			call("wait_for_event", at(sub.Subscription), &first)
			if len(first.Events) != 1 || first.Events[0].ID != ev.ID || first.Events[0].Name != "ci.build" || first.Events[0].URI != ev.URI || first.Events[0].Time != ev.Timestamp() ||
				string(first.Events[0].Data) != string(ev.Data) || first.More || first.Gap || first.TimedOut {
				t.Errorf("got %+v, want the event %+v alone", first, ev)
			}
			if call("recent_events", at(first.Subscription), &none); len(none.Events) > 0 || none.TimedOut {
				t.Errorf("then got %+v, want no event and no timeout", none)
			}
			call("recent_events", at(sub.Subscription), &again)
			expect.Deep(t, "with the subscription of before", again.data(), first.data())
			var ended struct{ Ended bool }
			call("unsubscribe", at(first.Subscription), &ended)
			expect.True(t, "the subscription has ended", ended.Ended)
		})
	}
	t.Run("RCH-04 each call may be served by another instance", func(t *testing.T) {
		sub := f.tool(t, alice, "subscribe", `{"name":"github.push","arguments":{"owner":"acme"}}`)
		next := f
		for i := range 3 {
			f.publish("event://github/acme/web/push", fmt.Sprintf(`{"n":%d}`, i))
			f.publish("event://github/other/web/push", `{}`)
			next = next.instance()
			sub = next.tool(t, alice, "recent_events", at(sub.Subscription))
			expect.Deep(t, "the events", sub.data(), []string{fmt.Sprintf(`{"n":%d}`, i)})
		}
	})
	t.Run("RCH-04 they are advertised, and the instructions say what for", func(t *testing.T) {
		for what, r := range map[string]reply{"discover": f.stateless(alice, spec.MethodDiscover, ""), "initialize": f.initialize(alice, spec.V20251125, `{}`)} {
			r.is(t, what, 200, 0, `"tools":{"listChanged":false}`, `"instructions":"With these tools`)
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
			t.Errorf("got %+v, want the first three and more", part)
		}
		if part = f.tool(t, alice, "wait_for_event", at(part.Subscription)); len(part.Events) != 20 || !part.More {
			t.Errorf("got %d, more %v, want 20 and more", len(part.Events), part.More)
		}
		if sub = f.tool(t, alice, "wait_for_event", at(part.Subscription)); !slices.Equal(sub.data(), []string{`{"n":23}`, `{"n":24}`}) || sub.More {
			t.Errorf("got %+v, want the last two", sub)
		}
	})
	t.Run("RCH-04 by their size", func(t *testing.T) {
		for _, size := range []int{30 << 10, 30 << 10, 30 << 10, 70 << 10} {
			f.publish("event://ci/deploy", `{"x":"`+strings.Repeat("x", size)+`"}`)
		}
		for _, want := range []int{2, 1, 1} {
			if sub = f.tool(t, alice, "recent_events", at(sub.Subscription)); len(sub.Events) != want || sub.More != (want != 1 || sub.Events[0].Note == "") {
				t.Fatalf("got %d events, more %v, want %d", len(sub.Events), sub.More, want)
			}
		}
		if e := sub.Events[0]; e.Data != nil || !strings.Contains(e.Note, "too large") || e.ID == "" {
			t.Errorf("a payload of 70 KiB is shown as %.100s, %q, want a note that it is too large", e.Data, e.Note)
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
				expect.MustEqual(t, "the name", x.Name, fmt.Sprintf("type.n%02d", n))
				n++
			}
			more, after = got.More, fmt.Sprintf("%q", got.EventTypes[len(got.EventTypes)-1].Name)
		}
		expect.Equal(t, "the types", n, 100)
		expect.Equal(t, "the calls", calls, 2)
	})
	run(t, "RCH-04 what is lost is a gap", withEventTools, func(t *testing.T, f *fixture) {
		sub := f.tool(t, alice, "subscribe", `{"name":"ci.deploy"}`)
		expect.True(t, "the part before has no gap", !f.tool(t, alice, "recent_events", at(sub.Subscription)).Gap)
		f.log.Retention = 1 // every event has expired
		if part := f.tool(t, alice, "wait_for_event", at(sub.Subscription)); !part.Gap || part.TimedOut {
			t.Errorf("after the retention: got %+v, want a gap", part)
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
		"arguments that are too long":                    {"subscribe", `{"name":"ci.build","arguments":{"status":["` + strings.Repeat(strings.Repeat("x", 500)+`","`, 5) + `"]}}`, "allowed: 2048"},
		"a type without polls":                           {"subscribe", `{"name":"audit.entry"}`, "not delivered by poll"},
		"a type that is not visible":                     {"subscribe", `{"name":"billing.invoice"}`, `unknown event type "billing.invoice"`},
		"an argument that it does not take":              {"subscribe", `{"name":"ci.build","limit":5}`, `takes no argument "limit"`},
		"no subscription":                                {"recent_events", `{}`, "subscription is missing"},
		"a subscription of another workspace":            {"recent_events", at(theirs), noHandle},
		"a forged cursor":                                {"wait_for_event", at(strings.ToUpper(sub)), ""},
		"a cursor that is none":                          {"wait_for_event", at("ci.deploy~~AAAA"), noHandle},
		"arguments in it that are none":                  {"wait_for_event", at("ci.deploy~W10~" + cursor), noHandle},
		"arguments in it that do not fit":                {"wait_for_event", at("ci.deploy~eyJ4IjoxfQ~" + cursor), `takes no argument "x"`},
		"a type that is not visible, with a good cursor": {"recent_events", at("billing.invoice~~" + cursor), "unknown event type"},
		"too long":                         {"wait_for_event", at("ci.deploy~~" + strings.Repeat("A", 9000)), noHandle},
		"an unsubscribe of nothing":        {"unsubscribe", at("x"), noHandle},
		"too many events":                  {"recent_events", `{"subscription":"x","limit":51}`, "limit 51 is out of range (1 to 50)"},
		"no wait":                          {"wait_for_event", `{"subscription":"x","seconds":0}`, "seconds 0 is out of range"},
		"too long a wait":                  {"wait_for_event", `{"subscription":"x","seconds":601}`, "seconds 601 is out of range (1 to 600)"},
		"a list after what is not visible": {"list_event_types", `{"after":"billing.invoice"}`, "unknown event type"},
	} {
		t.Run("RCH-04 "+name, func(t *testing.T) {
			if got := f.toolRefusal(t, alice, x.tool, x.arguments); !strings.Contains(got, x.says) || len(got) > 300 {
				t.Errorf("the model reads %q, want %q and at most 300 bytes", got, x.says)
			}
		})
	}
	t.Run("RCH-04 a tool that there is not", func(t *testing.T) {
		f.toolIn(alice, "", "no_such", `{}`).is(t, "no_such", 400, -32602)
		f.toolIn(alice, "", "list_event_types", `[]`).is(t, "arguments that are a list", 400, -32602)
	})
}

func TestAccessRulesHoldForEventTools(t *testing.T) {
	f := newFixture(t, withEventTools)
	t.Run("RCH-04 claims bind the arguments", func(t *testing.T) {
		sub := f.tool(t, acme, "subscribe", `{"name":"tenant.alarm","arguments":{"org":"acme"}}`)
		f.publish("event://tenant/other/alarm", `{"secret":1}`)
		f.publish("event://tenant/acme/alarm", `{"n":1}`)
		expect.Deep(t, "the events of acme", f.tool(t, acme, "recent_events", at(sub.Subscription)).data(), []string{`{"n":1}`})
		other := strings.Replace(sub.Subscription, "eyJvcmciOiJhY21lIn0", "eyJvcmciOiJvdGhlciJ9", 1)
		expect.Differ(t, "the subscription", other, sub.Subscription)
		for tool, arguments := range map[string]string{"subscribe": `{"name":"tenant.alarm","arguments":{"org":"other"}}`, "recent_events": at(other)} {
			expect.Differ(t, "the reason of "+tool, f.toolRefusal(t, acme, tool, arguments), "")
		}
		expect.Contains(t, "the subscription of another caller", f.toolRefusal(t, alice, "recent_events", at(sub.Subscription)), "unknown event type")
	})
	t.Run("RCH-04 access that was taken away ends it", func(t *testing.T) {
		sub := f.tool(t, alice, "subscribe", `{"name":"ci.deploy"}`)
		f.publish("event://ci/deploy", `{"secret":1}`)
		f.catalogs.Replace(mustParse(t, withoutDeploy))
		for _, tool := range []string{"recent_events", "wait_for_event"} {
			expect.Contains(t, tool, f.toolRefusal(t, alice, tool, at(sub.Subscription)), "unknown event type")
		}
	})
}

// The list of tools has the event tools first and then the backends' tools.
func TestEventToolsBesideBackends(t *testing.T) {
	l := startLister(t, "plain", true, "other", "subscribe", "third")
	l.answers(spec.MethodToolsCall, func(received) string {
		return `{"resultType":"complete","content":[{"type":"text","text":"of the backend"}]}`
	})
	for _, size := range []int{1, 2, 100} {
		f := behindGateway(t, func(o *Options) { o.EventTools, o.PageSize = logsource.New, size }, l)
		for _, session := range []string{"", f.session(alice, spec.V20251125)} {
			t.Run(fmt.Sprintf("RCH-04 they follow on pages of %d", size), func(t *testing.T) {
				expect.Deep(t, "the tools", f.wholeList(t, spec.MethodToolsList, session, nil).names, slices.Concat(eventToolNames, []string{"other", "third"}))
			})
			t.Run("RCH-04 one of the same name is hidden", func(t *testing.T) {
				var sub shownEvents
				toolResult(t, f.toolIn(alice, session, "subscribe", `{"name":"ci.deploy"}`), &sub)
				expect.Differ(t, "the subscription", sub.Subscription, "")
				f.toolIn(alice, session, "no_such", `{}`).fails(t, "no_such", -32602, "")
				f.toolIn(alice, session, "other", `{}`).is(t, "other", 200, 0, `"of the backend"`)
			})
		}
	}
}

// aWait returns a function that subscribes to ci.deploy and makes a wait_for_event request. The text more adds
// arguments to it, e.g. `,"seconds":7`. The request is in a session if inSession is set, and has the deadline unless that is 0.
func aWait(inSession bool, deadline time.Duration, more string) func(*fixture) *http.Request {
	return func(f *fixture) *http.Request {
		call := func(tool, arguments, meta string) *http.Request {
			params := toolParams(tool, arguments)
			body := strings.Replace(statelessBody("1", spec.MethodToolsCall, params), `"_meta":{`, `"_meta":{`+meta, 1)
			if !inSession {
				return f.request("POST", alice, body, statelessHeaders(spec.MethodToolsCall, params)...)
			}
			return f.request("POST", alice, rpcText("1", spec.MethodToolsCall, params+`,"_meta":{`+strings.TrimSuffix(meta, ",")+`}`),
				"Mcp-Session-Id: "+f.newSession(session.Session{Version: spec.V20251125}).ID)
		}
		var sub shownEvents
		toolResult(f.t, reply{200, nil, f.served(call("subscribe", `{"name":"ci.deploy"}`, "")).Body.String()}, &sub)
		request := call("wait_for_event", strings.TrimSuffix(at(sub.Subscription), "}")+more+"}", `"progressToken":"p",`)
		if deadline == 0 {
			return request
		}
		ctx, cancel := context.WithTimeout(f.t.Context(), deadline)
		f.t.Cleanup(cancel)
		return request.WithContext(ctx)
	}
}

// inWait serves a wait in a bubble. The maximum age of streams, most, also limits the wait.
func inWait(t *testing.T, db func() store.DB, most time.Duration, request func(*fixture) *http.Request, during func(*bubbled)) {
	t.Helper()
	inBubble(t, db, func(o *Options) { o.EventTools, o.MaxAge = logsource.New, most }, request, during)
}

// waitIn runs a subtest with [inWait].
func waitIn(t *testing.T, name string, db func() store.DB, most time.Duration, request func(*fixture) *http.Request, during func(*testing.T, *bubbled)) {
	t.Run(name, func(t *testing.T) { inWait(t, db, most, request, func(b *bubbled) { during(t, b) }) })
}

// events waits for the end of the call. It returns the result and the messages that were sent before it.
func (b *bubbled) events() (got shownEvents, before []frame) {
	b.f.t.Helper()
	<-b.done
	if !strings.HasPrefix(b.text(), ":") && !strings.HasPrefix(b.text(), "data: ") {
		toolResult(b.f.t, reply{200, nil, b.text()}, &got)
		return got, nil
	}
	all := b.frames(b.f.t)
	last := all[len(all)-1]
	toolResult(b.f.t, reply{200, nil, string(last.sse.Data)}, &got)
	return got, all[:len(all)-1]
}

// recent reads the events after the wait.
func (b *bubbled) recent(subscription string) (next shownEvents) {
	b.f.t.Helper()
	r := b.f.served(b.f.statelessRequest(alice, spec.MethodToolsCall, toolParams("recent_events", at(subscription))))
	toolResult(b.f.t, reply{200, nil, r.Body.String()}, &next)
	return next
}

func TestWaitForEvent(t *testing.T) {
	for name, db := range map[string]func() store.DB{"one writer": inMemory, "several": several} {
		for revision, session := range map[string]bool{"2026-07-28": false, "2025-11-25": true} {
			waitIn(t, "RCH-04 an event ends the wait, "+name+", "+revision, db, time.Hour, aWait(session, 0, `,"seconds":600`), func(t *testing.T, w *bubbled) {
				time.Sleep(2 * time.Minute)
				w.f.publish("event://ci/deploy", `{"n":1}`)
				got, before := w.events()
				if !slices.Equal(got.data(), []string{`{"n":1}`}) || got.TimedOut || w.took > 2*time.Minute+2*time.Second {
					w.f.t.Errorf("after %s got %+v, want the event within two seconds", w.took, got)
				}
				if len(before) != 24 {
					w.f.t.Fatalf("got %d notifications of progress, want 24", len(before))
				}
				for i, m := range before {
					params := map[string]any{"progressToken": "p", "progress": 5 * (i + 1), "total": 600, "message": "no event yet"}
					sameJSON(w.f.t, m.sse.Data, string(jsonrpc.Encode(map[string]any{"jsonrpc": "2.0", "method": spec.NoteProgress, "params": params})))
				}
			})
		}
	}
	t.Run("RCH-04 it ends in time", func(t *testing.T) {
		for name, x := range map[string]struct {
			more             string
			maxAge, deadline time.Duration
			want             time.Duration
		}{
			"by itself":                  {"", time.Hour, 0, 50 * time.Second},
			"as asked":                   {`,"seconds":7`, time.Hour, 0, 7 * time.Second},
			"at the age of streams":      {`,"seconds":600`, 90 * time.Second, 0, 90 * time.Second},
			"before the function does":   {`,"seconds":600`, time.Hour, 30 * time.Second, 25 * time.Second},
			"when there is no time left": {`,"seconds":600`, time.Hour, 4 * time.Second, 0},
		} {
			for _, session := range []bool{false, true} {
				inWait(t, inMemory, x.maxAge, aWait(session, x.deadline, x.more), func(w *bubbled) {
					got, _ := w.events()
					if !got.TimedOut || len(got.Events) > 0 || w.took != x.want {
						w.f.t.Errorf("%s: after %s got %+v, want a timeout after %s", name, w.took, got, x.want)
					}
					ev := w.f.publish("event://ci/deploy", `{"n":1}`)
					if next := w.recent(got.Subscription); len(next.Events) != 1 || next.Events[0].ID != ev.ID {
						w.f.t.Errorf("%s: then got %+v, want the event %s", name, next, ev.ID)
					}
				})
			}
		}
	})
	t.Run("RCH-04 it ends with its client, and with the server", func(t *testing.T) {
		for _, session := range []bool{false, true} {
			inWait(t, inMemory, 5*time.Minute, aWait(session, 0, `,"seconds":600`), func(w *bubbled) {
				time.Sleep(10 * time.Second)
				if n := w.f.endpoint.OpenStreams(); n != 1 {
					w.f.t.Errorf("it counts as %d streams, want 1", n)
				}
				w.cancel()
				if <-w.done; w.took != 10*time.Second || w.f.endpoint.OpenStreams() != 0 {
					w.f.t.Errorf("it ended after %s, with %d streams, want 10 s and none", w.took, w.f.endpoint.OpenStreams())
				}
			})
			inWait(t, inMemory, 5*time.Minute, aWait(session, 0, `,"seconds":600`), func(w *bubbled) {
				time.Sleep(10 * time.Second)
				w.f.close()
				if got, _ := w.events(); !got.TimedOut || w.took != 10*time.Second {
					w.f.t.Errorf("after %s got %+v, want a timeout after 10 s", w.took, got)
				}
			})
		}
	})
	bubble(t, "RCH-04 it needs room for a stream", inMemory, func(o *Options) { o.EventTools, o.Leases = logsource.New, &oneStream{} }, aWait(false, 0, ""), func(t *testing.T, w *bubbled) {
		out := newWritten()
		w.f.endpoint.ServeHTTP(out, aWait(false, 0, "")(w.f))
		reply{200, out.header, out.text()}.is(t, "a second wait", 200, 503)
		reply{200, out.header, ""}.hasHeader(t, "Retry-After", "")
	})
	t.Run("RCH-04 what happens after access was taken away is not shown", func(t *testing.T) {
		for name, change := range map[string]func(w *bubbled){
			"credentials": func(w *bubbled) { w.caller.say(auth.Principal{}, auth.ErrNoToken) },
			"the right":   func(w *bubbled) { w.caller.say(auth.Principal{ID: "alice", Workspace: auth.DefaultWorkspace}, nil) },
			"the type":    func(w *bubbled) { w.f.catalogs.Replace(mustParse(t, withoutDeploy)) },
		} {
			inWait(t, inMemory, 5*time.Minute, aWait(false, 0, `,"seconds":600`), func(w *bubbled) {
				time.Sleep(time.Minute)
				change(w)
				w.f.publish("event://ci/deploy", `{"secret":1}`)
				<-w.done
				if text := w.text(); strings.Contains(text, "secret") || !strings.Contains(text, `"error"`) && !strings.Contains(text, `"isError":true`) {
					w.f.t.Errorf("%s: got %s, want an error and no secret", name, text)
				}
			})
		}
	})
}
