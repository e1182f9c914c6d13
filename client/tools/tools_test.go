package tools_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/client/tools"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// agent is an MCP client that supports only tools, together with the server whose events it receives.
type agent struct {
	*testing.T
	server   *standalone.Server
	session  *mcp.ClientSession
	progress chan string
}

// connect starts a server and returns tools that subscribe to it with a key.
func connect(t *testing.T, key string) (*standalone.Server, *tools.Tools) {
	t.Helper()
	o := servertest.Options(t, map[string]servertest.Caller{
		"agent": {Workspace: "default", Scopes: "events:read"}, "stranger": {Workspace: "other", Scopes: "events:subscribe"},
	})
	o.Catalog = append(o.Catalog, "  - {name: file.read, uri: event://file/read}\n"...)
	s := servertest.Start(t, o)
	ts := tools.New(expect.Value(client.Connect(t.Context(), s.URL, client.Options{Key: key, Agent: "test/1"}))(t))
	tools.SetProgressEvery(ts, 300*time.Millisecond)
	return s, ts
}

func newAgent(t *testing.T, key string) *agent {
	t.Helper()
	a := &agent{T: t, progress: make(chan string, 100)}
	var ts *tools.Tools
	a.server, ts = connect(t, key)
	t.Cleanup(ts.Close)
	in, asks := io.Pipe()
	answers, out := io.Pipe()
	go func() {
		_ = out.CloseWithError(ts.Serve(context.WithoutCancel(t.Context()), "mcpevents", "1", in, out))
	}()
	a.session = expect.Value(mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { a.progress <- r.Params.Message },
	}).Connect(t.Context(), &mcp.IOTransport{Reader: answers, Writer: asks}, nil))(t)
	t.Cleanup(func() { _ = a.session.Close() })
	return a
}

type args = map[string]any

// call calls a tool and decodes its result. It returns the text of an error, or an empty string.
func (a *agent) call(name string, arguments args, result any) string {
	a.Helper()
	params := &mcp.CallToolParams{Name: name, Arguments: arguments}
	params.SetProgressToken(name)
	got, err := a.session.CallTool(a.Context(), params)
	if err != nil {
		a.Fatalf("%s: %v", name, err)
	}
	if got.IsError {
		return got.Content[0].(*mcp.TextContent).Text
	}
	b, err := json.Marshal(got.StructuredContent)
	if err == nil && result != nil {
		err = json.Unmarshal(b, result)
	}
	if err != nil {
		a.Fatalf("%s: %v", name, err)
	}
	return ""
}

func (a *agent) publish(service, text string) {
	a.Helper()
	a.publishAt("event://incidents/"+service+"/created", text)
}

func (a *agent) publishAt(uri, text string) {
	a.Helper()
	_, err := a.server.Publish(a.Context(), "default", standalone.Event{URI: uri, Data: json.RawMessage(fmt.Sprintf(`{"id":"I-1","title":%q,"severity":"critical"}`, text))})
	if err != nil {
		a.Fatal(err)
	}
}

type read struct {
	Events []struct {
		Subscription, ID, Name, Time, Note string
		Data                               map[string]any
	}
	More, Gap, TimedOut bool
}

// titles returns the titles of the events.
func (r read) titles() (all []string) {
	for _, e := range r.Events {
		all = append(all, fmt.Sprint(e.Data["title"]))
	}
	return all
}

func TestClientWithOnlyToolsReceivesEvents(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "agent")
	t.Run("RCH-04 it lists the tools and the event types", func(t *testing.T) {
		var names []string
		for tool, err := range a.session.Tools(t.Context(), nil) {
			expect.OK(t, err)
			names = append(names, tool.Name)
			if tool.Title == "" || tool.Description == "" || tool.OutputSchema == nil || !tool.Annotations.ReadOnlyHint {
				t.Errorf("got %+v, want a title, a description, an output schema and readOnlyHint", tool)
			}
		}
		slices.Sort(names)
		expect.List(t, "the tools", names, []string{"list_event_types", "recent_events", "subscribe", "unsubscribe", "wait_for_event"})
		var types struct {
			EventTypes []struct {
				Name      string
				Arguments map[string]any
			}
		}
		if refused := a.call("list_event_types", nil, &types); refused != "" || len(types.EventTypes) < 5 || types.EventTypes[0].Arguments["type"] != "object" {
			t.Errorf("got %q, %+v, want at least 5 event types", refused, types)
		}
	})
	var sub, again struct{ Subscription string }
	t.Run("RCH-04 it subscribes, and waits for the events that match its arguments", func(t *testing.T) {
		arguments := args{"name": "incident.created", "arguments": args{"service": "api"}}
		expect.MustEqual(t, "the refusal", a.call("subscribe", arguments, &sub), "")
		a.call("subscribe", arguments, &again)
		expect.Equal(t, "the second answer", again, sub)
		a.publish("web", "not for it")
		a.publish("api", "down")
		var got read
		if refused := a.call("wait_for_event", nil, &got); refused != "" || !slices.Equal(got.titles(), []string{"down"}) || got.Events[0].Subscription != sub.Subscription {
			t.Errorf("got %q, %+v, want the event \"down\" of %s", refused, got, sub.Subscription)
		}
	})
	t.Run("RCH-04 an event is read only once, and recent_events does not wait for the next one", func(t *testing.T) {
		var got, none read
		if a.call("wait_for_event", args{"seconds": 1}, &got); !got.TimedOut || len(got.Events) > 0 {
			t.Errorf("wait_for_event: got %+v, want a timeout", got)
		}
		if a.call("recent_events", args{"subscription": sub.Subscription}, &none); len(none.Events) > 0 || none.TimedOut {
			t.Errorf("recent_events: got %+v, want no event", none)
		}
		a.publish("api", "up")
		expect.Eventually(t, "recent_events has the event", func() bool {
			a.call("recent_events", args{"subscription": sub.Subscription}, &none)
			return len(none.Events) > 0
		})
		if !slices.Equal(none.titles(), []string{"up"}) || none.More {
			t.Errorf("recent_events: got %+v, want the event \"up\"", none)
		}
	})
	t.Run("RCH-04 a wait reports progress", func(t *testing.T) {
		a.call("wait_for_event", args{"seconds": 1}, nil)
		expect.Equal(t, "the message", expect.Receive(t, "a progress notification", a.progress), "no event yet")
	})
	t.Run("RCH-04 no event arrives after unsubscribe", func(t *testing.T) {
		a.call("subscribe", args{"name": "file.read"}, nil) // so that there is something to wait for
		var ended struct{ Ended bool }
		a.call("unsubscribe", args{"subscription": sub.Subscription}, &ended)
		expect.True(t, "the subscription has ended", ended.Ended)
		a.call("unsubscribe", args{"subscription": sub.Subscription}, &ended)
		expect.True(t, "the second unsubscribe ends nothing", !ended.Ended)
		a.publish("api", "late")
		var got read
		if a.call("wait_for_event", args{"seconds": 1}, &got); !got.TimedOut {
			t.Errorf("got %+v, want a timeout", got)
		}
	})
}

// watch returns the data of each event of a type as soon as the server's log has it.
func (a *agent) watch(name string) <-chan string {
	a.Helper()
	c := expect.Value(client.Connect(a.Context(), a.server.URL, client.Options{Key: "agent", Agent: "test/1"}))(a)
	data := make(chan string, 100)
	sub := expect.Value(c.Subscribe(context.WithoutCancel(a.Context()), client.SubscribeOptions{
		Name: name, Mode: client.ModePush,
		Event: func(_ context.Context, e client.Event) error { data <- string(e.Data); return nil },
	}))(a)
	a.Cleanup(func() { _ = sub.Close() })
	return data
}

func TestSubscribingAgainBeginsNow(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "agent")
	var s struct{ Subscription string }
	subscribe := func() { a.call("subscribe", args{"name": "file.read"}, &s) }
	wait := func() (got read) {
		a.call("wait_for_event", args{"subscription": s.Subscription, "seconds": 10}, &got)
		return got
	}
	inLog := a.watch("file.read")
	subscribe()
	a.publishAt("event://file/read", "before")
	expect.MustEqual(t, "the number of events", len(wait().Events), 1)
	a.call("unsubscribe", args{"subscription": s.Subscription}, nil)
	a.publishAt("event://file/read", "between")
	for !strings.Contains(<-inLog, "between") {
	}
	subscribe()
	a.publishAt("event://file/read", "after")
	t.Run("RCH-04 the events between the two are not delivered", func(t *testing.T) {
		if got := wait(); len(got.Events) != 1 || got.Events[0].Data["title"] != "after" {
			t.Errorf("got %+v, want only the event after the second subscribe", got)
		}
	})
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "agent")
	const none = "there is no subscription: subscribe first"
	refused := func(says string, tool string, arguments args) {
		t.Helper()
		if got := a.call(tool, arguments, nil); !strings.Contains(got, says) || (got == "") != (says == "") {
			t.Errorf("RCH-04 %s %v: got %q, want %q", tool, arguments, got, says)
		}
	}
	ofReaders := func(says, subscription string) {
		t.Helper()
		refused(says, "wait_for_event", args{"subscription": subscription, "seconds": 1})
		refused(says, "recent_events", args{"subscription": subscription})
	}
	// Before the first subscription, next to others, and after the last has ended.
	refused(none, "wait_for_event", args{"seconds": 1})
	refused(none, "recent_events", args{})
	ofReaders(none, "s1")
	refused("", "subscribe", args{"name": "incident.created"})
	refused("", "subscribe", args{"name": "file.read"})
	ofReaders(`there is no subscription "bogus" (there are: s1, s2)`, "bogus")
	refused("", "recent_events", args{"subscription": "s1"})
	refused("", "unsubscribe", args{"subscription": "s1"})
	refused("", "unsubscribe", args{"subscription": "s2"})
	refused(none, "wait_for_event", args{"seconds": 1})
	ofReaders(none, "s1")
	refused("unknown event type", "subscribe", args{"name": "no.such"})
	refused("colour", "subscribe", args{"name": "incident.created", "arguments": args{"colour": "red"}})
	refused(none, "recent_events", args{})
	for i := range 20 {
		refused("", "subscribe", args{"name": "incident.created", "arguments": args{"service": fmt.Sprint("s", i)}})
	}
	refused("allowed: 20", "subscribe", args{"name": "incident.created", "arguments": args{"service": "s20"}})
}

func TestToolsFollowAccessRules(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "stranger")
	expect.Differ(t, "RCH-04 the refusal of a caller without events:read", a.call("subscribe", args{"name": "incident.created"}, nil), "")
}
