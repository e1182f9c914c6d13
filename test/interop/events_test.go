//go:build unix

package interop

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestEvents tests poll and push of MCP Events with the two SDKs that let an application send requests, and receive notifications, that
// the SDK does not know. We found no client that knows these methods itself: the AI SDK supports only webhooks, and Mastra's release
// 2.0.0 does not support the extension. If the stream of an answer breaks, the TypeScript SDK does not report it for such requests, so
// the application has to notice that heartbeats are missing.
func TestEvents(t *testing.T) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		following(t, &harness.StartServer(t, harness.ServerOptions{}).Target)
	})
	t.Run("local AWS", func(t *testing.T) {
		t.Parallel()
		following(t, &harness.StartAWS(t, harness.AWSOptions{Env: harness.Quick}).Target)
	})
}

func following(t *testing.T, s *harness.Target) {
	js, python := harness.Node(t), harness.NewPython(t)
	for name, begin := range map[string]func(*testing.T, *harness.Wire) *script{
		"TypeScript SDK 2": func(t *testing.T, w *harness.Wire) *script {
			return start(t, js.Command(t.Context(), "typescript.js", w.MCP, w.Keys["alice"], harness.V20260728, "2"))
		},
		"Python SDK": func(t *testing.T, w *harness.Wire) *script {
			return start(t, python.Command(t.Context(), "client.py", w.MCP, w.Keys["alice"], harness.V20260728))
		},
	} {
		t.Run("EVX-20 EVX-05 EVX-06 EVX-07 "+name, func(t *testing.T) {
			t.Parallel()
			w := s.Wire(t)
			f := &follower{script: begin(t, w), Wire: w, quiet: strings.HasPrefix(name, "TypeScript"), own: fmt.Sprintf("e%d", time.Now().UnixNano())}
			f.next(t, "connected")
			f.follow(t)
		})
	}
}

// follower follows one event type with one argument.
type follower struct {
	*script
	*harness.Wire
	own   string
	quiet bool // is not notified of a break
}

// page is the result of events/poll.
type page struct {
	Events    []occurrence
	Cursor    string
	Truncated bool
}

func (f *follower) params(cursor string) object {
	p := object{"name": "incident.created", "arguments": object{"service": f.own}}
	if cursor != "" {
		p["cursor"] = cursor
	}
	return p
}

func (f *follower) incident(t *testing.T, id string) {
	t.Helper()
	f.Publish(t, harness.Event{
		ID: f.own + "-" + id, URI: "event://incidents/" + f.own + "/created",
		Data: object{"id": id, "title": "It is down", "severity": "critical"},
	})
}

// poll polls until there is an event, which must have the id.
func (f *follower) poll(t *testing.T, cursor, id string) (after string) {
	t.Helper()
	harness.Eventually(t, harness.Patience, id+" by poll", func() bool {
		var p page
		f.do(t, object{"do": "poll", "params": f.params(cursor)}, &p)
		if p.Truncated || len(p.Events) > 1 {
			t.Fatalf("polled %+v", p)
		}
		after, cursor = p.Cursor, p.Cursor
		if len(p.Events) == 0 {
			return false
		}
		if got := p.Events[0]; got.EventID != f.own+"-"+id || got.Data["id"] != id || got.Name != "incident.created" {
			t.Fatalf("polled %+v, want %s", got, id)
		}
		return true
	})
	return after
}

// stream opens a stream, which must say first that it is active.
func (f *follower) stream(t *testing.T, cursor string) {
	t.Helper()
	f.do(t, object{"do": "stream", "params": f.params(cursor)}, nil)
	if got := f.next(t, "active").Params; got.Cursor == nil || got.Truncated {
		t.Fatalf("a stream began with %+v", got)
	}
}

// pushed waits for an event on the stream.
func (f *follower) pushed(t *testing.T, id string) (cursor string) {
	t.Helper()
	got := f.next(t, "event").Params
	if got.EventID != f.own+"-"+id || got.Data["id"] != id || got.Cursor == nil {
		t.Fatalf("the stream brought %+v, want %s", got, id)
	}
	return *got.Cursor
}

func (f *follower) follow(t *testing.T) {
	var listed []struct {
		Name     string
		Delivery []string
	}
	f.do(t, object{"do": "events"}, &listed)
	if !slices.ContainsFunc(listed, func(e struct {
		Name     string
		Delivery []string
	},
	) bool {
		return e.Name == "incident.created" && strings.Join(e.Delivery, " ") == "push poll webhook"
	}) {
		t.Errorf("listed %v", listed)
	}

	var first page
	f.do(t, object{"do": "poll", "params": f.params("")}, &first)
	f.incident(t, "1")
	cursor := f.poll(t, first.Cursor, "1")
	f.incident(t, "2")
	cursor = f.poll(t, cursor, "2")

	f.incident(t, "3")
	f.stream(t, cursor)
	f.pushed(t, "3")
	f.incident(t, "4")
	cursor = f.pushed(t, "4")
	if f.Cut() == 0 {
		t.Fatal("there was no stream to cut")
	}
	if !f.quiet {
		if cause := f.next(t, "stream ended").Cause; cause == "graceful" || cause == "local" {
			t.Errorf("a stream that was cut ended as %s", cause)
		}
	}
	f.incident(t, "5")
	f.stream(t, cursor)
	cursor = f.pushed(t, "5")

	f.do(t, object{"do": "cancel", "name": "incident.created"}, nil)
	harness.Eventually(t, harness.Patience, "the end of the stream", func() bool { return f.Streams() == 0 })
	f.incident(t, "6")
	f.poll(t, cursor, "6")
	f.do(t, object{"do": "close"}, nil)
}
