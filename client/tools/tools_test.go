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
	c, err := client.Connect(t.Context(), s.URL, client.Options{Key: key, Agent: "test/1"})
	if err != nil {
		t.Fatal(err)
	}
	ts := tools.New(c)
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
	var err error
	a.session, err = mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { a.progress <- r.Params.Message },
	}).Connect(t.Context(), &mcp.IOTransport{Reader: answers, Writer: asks}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.session.Close() })
	return a
}

// call calls a tool and decodes its result. It returns the text of an error, or an empty string.
func (a *agent) call(name string, arguments map[string]any, result any) string {
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
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, tool.Name)
			if tool.Title == "" || tool.Description == "" || tool.OutputSchema == nil || !tool.Annotations.ReadOnlyHint {
				t.Errorf("got %+v, want a title, a description, an output schema and readOnlyHint", tool)
			}
		}
		slices.Sort(names)
		if want := []string{"list_event_types", "recent_events", "subscribe", "unsubscribe", "wait_for_event"}; !slices.Equal(names, want) {
			t.Errorf("got the tools %q, want %q", names, want)
		}
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
		arguments := map[string]any{"name": "incident.created", "arguments": map[string]any{"service": "api"}}
		if refused := a.call("subscribe", arguments, &sub); refused != "" {
			t.Fatal(refused)
		}
		if a.call("subscribe", arguments, &again); again != sub {
			t.Errorf("subscribing again returned %v, want %v", again, sub)
		}
		a.publish("web", "not for it")
		a.publish("api", "down")
		var got read
		if refused := a.call("wait_for_event", nil, &got); refused != "" || !slices.Equal(got.titles(), []string{"down"}) || got.Events[0].Subscription != sub.Subscription {
			t.Errorf("got %q, %+v, want the event \"down\" of %s", refused, got, sub.Subscription)
		}
	})
	t.Run("RCH-04 an event is read only once", func(t *testing.T) {
		var got read
		if a.call("wait_for_event", map[string]any{"seconds": 1}, &got); !got.TimedOut || len(got.Events) > 0 {
			t.Errorf("wait_for_event: got %+v, want a timeout", got)
		}
		got = read{}
		if a.call("recent_events", map[string]any{"subscription": sub.Subscription}, &got); len(got.Events) > 0 || got.TimedOut {
			t.Errorf("recent_events: got %+v, want no event", got)
		}
	})
	t.Run("RCH-04 it reads recent events without waiting", func(t *testing.T) {
		a.publish("api", "up")
		var got read
		for end := time.Now().Add(servertest.Patience); len(got.Events) == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			a.call("recent_events", map[string]any{"subscription": sub.Subscription}, &got)
		}
		if !slices.Equal(got.titles(), []string{"up"}) || got.More {
			t.Errorf("got %+v, want the event \"up\"", got)
		}
	})
	t.Run("RCH-04 results are bounded", func(t *testing.T) {
		if refused := a.call("subscribe", map[string]any{"name": "file.read"}, nil); refused != "" {
			t.Fatal(refused)
		}
		for i := range 3 {
			a.publishAt("event://file/read", fmt.Sprint(i, strings.Repeat("x", 30<<10)))
		}
		var all []string
		more := 0
		for len(all) < 3 {
			var got read
			if a.call("wait_for_event", nil, &got); len(got.Events) > 2 || got.TimedOut {
				t.Fatalf("got %d events of 30 KiB in a result (timed out: %v), want 1 or 2", len(got.Events), got.TimedOut)
			}
			for _, title := range got.titles() {
				all = append(all, title[:1])
			}
			if got.More {
				more++
			}
		}
		if !slices.Equal(all, []string{"0", "1", "2"}) {
			t.Errorf("got %q (more in %d results), want 0, 1 and 2", all, more)
		}
		for _, bad := range []map[string]any{{"seconds": 601}, {"seconds": 0}, {"limit": 51}, {"limit": 0}} {
			if refused := a.call("wait_for_event", bad, nil); !strings.Contains(refused, "out of range") {
				t.Errorf("%v: got %q, want an error about the range", bad, refused)
			}
		}
		if refused := a.call("recent_events", map[string]any{"limit": 0}, nil); refused != "limit 0 is out of range (1 to 50)" {
			t.Errorf("got %q, want the range of limit", refused)
		}
	})
	t.Run("RCH-04 a wait reports progress", func(t *testing.T) {
		a.call("wait_for_event", map[string]any{"seconds": 1}, nil)
		select {
		case got := <-a.progress:
			if got != "no event yet" {
				t.Errorf("got the message %q, want %q", got, "no event yet")
			}
		case <-time.After(servertest.Patience):
			t.Error("no progress notification arrived")
		}
	})
	t.Run("RCH-04 no event arrives after unsubscribe", func(t *testing.T) {
		var ended struct{ Ended bool }
		if a.call("unsubscribe", map[string]any{"subscription": sub.Subscription}, &ended); !ended.Ended {
			t.Error("unsubscribe: got ended false, want true")
		}
		if a.call("unsubscribe", map[string]any{"subscription": sub.Subscription}, &ended); ended.Ended {
			t.Error("second unsubscribe: got ended true, want false")
		}
		a.publish("api", "late")
		var got read
		if a.call("wait_for_event", map[string]any{"seconds": 1}, &got); !got.TimedOut {
			t.Errorf("got %+v, want a timeout", got)
		}
	})
}

// watch returns the data of each event of a type as soon as the server's log has it.
func (a *agent) watch(name string) <-chan string {
	a.Helper()
	c, err := client.Connect(a.Context(), a.server.URL, client.Options{Key: "agent", Agent: "test/1"})
	if err != nil {
		a.Fatal(err)
	}
	data := make(chan string, 100)
	sub, err := c.Subscribe(context.WithoutCancel(a.Context()), client.SubscribeOptions{
		Name: name, Mode: client.ModePush,
		Event: func(_ context.Context, e client.Event) error { data <- string(e.Data); return nil },
	})
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() { _ = sub.Close() })
	return data
}

func TestSubscribingAgainBeginsNow(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "agent")
	var s struct{ Subscription string }
	subscribe := func() { a.call("subscribe", map[string]any{"name": "file.read"}, &s) }
	wait := func() (got read) {
		a.call("wait_for_event", map[string]any{"subscription": s.Subscription, "seconds": 10}, &got)
		return got
	}
	inLog := a.watch("file.read")
	subscribe()
	a.publishAt("event://file/read", "before")
	if got := wait(); len(got.Events) != 1 {
		t.Fatalf("got %+v, want the first event", got)
	}
	a.call("unsubscribe", map[string]any{"subscription": s.Subscription}, nil)
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

func TestRefusedSubscriptions(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "agent")
	t.Run("RCH-04 an unknown event type", func(t *testing.T) {
		if refused := a.call("subscribe", map[string]any{"name": "no.such"}, nil); !strings.Contains(refused, "unknown event type") {
			t.Errorf("got %q, want it to say that the event type is unknown", refused)
		}
		const want = "there is no subscription: subscribe first"
		if refused := a.call("recent_events", map[string]any{}, nil); refused != want {
			t.Errorf("recent_events after the refusal: got %q, want %q", refused, want)
		}
	})
	t.Run("RCH-04 an unknown argument", func(t *testing.T) {
		refused := a.call("subscribe", map[string]any{"name": "incident.created", "arguments": map[string]any{"colour": "red"}}, nil)
		if !strings.Contains(refused, "colour") {
			t.Errorf("got %q, want it to name the argument colour", refused)
		}
	})
	t.Run("RCH-04 too many subscriptions", func(t *testing.T) {
		last := ""
		for i := range 21 {
			last = a.call("subscribe", map[string]any{"name": "incident.created", "arguments": map[string]any{"service": fmt.Sprint("s", i)}}, nil)
			if i < 20 && last != "" {
				t.Fatalf("subscription %d: %s", i, last)
			}
		}
		if !strings.Contains(last, "allowed: 20") {
			t.Errorf("got %q, want it to name the limit", last)
		}
	})
}

func TestUnknownSubscription(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "agent")
	refused := func(t *testing.T, tool, subscription, want string) {
		t.Helper()
		arguments := map[string]any{}
		if subscription != "" {
			arguments["subscription"] = subscription
		}
		if tool == "wait_for_event" {
			arguments["seconds"] = 1
		}
		if got := a.call(tool, arguments, nil); got != want {
			t.Errorf("%s of %q: got %q, want %q", tool, subscription, got, want)
		}
	}
	const none = "there is no subscription: subscribe first"
	t.Run("RCH-04 before the first subscription", func(t *testing.T) {
		refused(t, "wait_for_event", "", none)
		refused(t, "wait_for_event", "s1", none)
		refused(t, "recent_events", "s1", none)
		refused(t, "recent_events", "", none)
	})
	a.call("subscribe", map[string]any{"name": "incident.created"}, nil)
	a.call("subscribe", map[string]any{"name": "file.read"}, nil)
	t.Run("RCH-04 next to others", func(t *testing.T) {
		const others = `there is no subscription "bogus" (there are: s1, s2)`
		refused(t, "wait_for_event", "bogus", others)
		refused(t, "recent_events", "bogus", others)
		refused(t, "recent_events", "s1", "")
	})
	t.Run("RCH-04 after the last has ended", func(t *testing.T) {
		for _, s := range []string{"s1", "s2"} {
			a.call("unsubscribe", map[string]any{"subscription": s}, nil)
		}
		refused(t, "wait_for_event", "", none)
		refused(t, "wait_for_event", "s1", none)
		refused(t, "recent_events", "s2", none)
	})
}

func TestToolsFollowAccessRules(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "stranger")
	if refused := a.call("subscribe", map[string]any{"name": "incident.created"}, nil); refused == "" {
		t.Error("RCH-04: a caller without events:read could subscribe, want an error")
	}
}
