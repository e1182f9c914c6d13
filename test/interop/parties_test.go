//go:build unix

package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	mcpevents "github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/test/harness"
)

// partiesOf returns clients of four makers in all modes: ours, the AI SDK's (webhooks), Mastra's (resources), and the official
// SDKs of three languages.
func partiesOf(t *testing.T, s *harness.Target) []*party {
	t.Helper()
	return []*party{
		ours(t, s, mcpevents.ModeWebhook, wish{"event://incidents/payments/", "severity", "critical"},
			"--name", "incident.created", "--arg", "service=payments", "--arg", "severity=critical"),
		ours(t, s, mcpevents.ModePush, wish{prefix: "event://chat/acme/"}, "--name", "message.created", "--arg", "workspace=acme"),
		ours(t, s, mcpevents.ModePoll, wish{"event://github/acme/", "action", "opened"},
			"--name", "github.pull_request", "--arg", "owner=acme", "--arg", "action=opened"),
		ours(t, s, "register", wish{prefix: "event://github/globex/"}, "--uri", "event://github/globex"),
		aiSDK(t, s, wish{"event://incidents/search/", "severity", "info"}, "incident.created", object{"service": "search", "severity": "info"}),
		polling(t, s, wish{"event://deploy/staging/", "outcome", "succeeded"},
			"deploy.finished", object{"environment": "staging", "outcome": "succeeded"}),
		streaming(t, s, wish{prefix: "event://chat/globex/random/"}, "message.created", object{"workspace": "globex", "channel": "random"}),
		mastra(t, s, wish{prefix: "event://deploy/production/web/finished"}),
		session(t, s, wish{prefix: "event://chat/globex/general/message"}),
	}
}

// ours runs mcpevents listen, which uses the package client. Registered webhooks (SEP-1803) have no cursor.
func ours(t *testing.T, s *harness.Target, mode string, w wish, flags ...string) *party {
	t.Helper()
	p := &party{name: "package client, " + mode, wish: w, patient: true, killable: mode != "register", readyLog: "following"}
	if p.killable {
		flags = append(flags, "--mode", mode, "--cursor-file", filepath.Join(t.TempDir(), "cursor"))
	}
	if mode == mcpevents.ModeWebhook || mode == "register" {
		p.readyLog = "receiving webhooks"
		flags = append(flags, "--listen", harness.FreeAddr(t)) // a restarted process keeps its subscription only if its URL stays the same
	}
	binary := harness.Binary(t, "./cmd/mcpevents", false)
	p.command = func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, binary, append([]string{"listen"}, flags...)...)
		cmd.Env = append(os.Environ(), "MCPEVENTS_SERVER="+s.MCP, "MCPEVENTS_KEY="+s.Keys["alice"])
		return cmd
	}
	p.onLine = func(line []byte) {
		var e struct {
			mcpevents.Event
			Envelope string
		}
		if err := json.Unmarshal(line, &e); err != nil || e.Envelope != "" {
			p.fault(fmt.Sprintf("the process printed %s: %v", line, err))
			return
		}
		p.receive(e.ID, e.Data)
	}
	return p
}

// withSteps makes the party call do, which acts as the application, with each step that the script writes.
func withSteps(p *party, do func(step)) *party {
	p.onLine = func(line []byte) {
		var st step
		if err := json.Unmarshal(line, &st); err != nil {
			p.fault(fmt.Sprintf("the script wrote %s: %v", line, err))
			return
		}
		do(st)
	}
	return p
}

// aiSDK runs the AI SDK's client. As its documentation recommends, it keeps its subscriptions in a file. After a restart it
// refreshes them, because subscribing again would create another subscription.
func aiSDK(t *testing.T, s *harness.Target, w wish, name string, arguments object) *party {
	t.Helper()
	js, file := harness.Node(t), filepath.Join(t.TempDir(), "subscriptions.json")
	_, port, _ := net.SplitHostPort(harness.FreeAddr(t))
	next := object{"do": "subscribe", "name": name, "args": arguments, "ttlMs": 3_600_000}
	p := &party{name: "AI SDK, webhook", wish: w, killable: true}
	p.command = func(ctx context.Context) *exec.Cmd {
		return js.Command(ctx, "ai-sdk.js", s.MCP, s.Keys["bob"], "discover", file, port)
	}
	return withSteps(p, func(st step) {
		switch st.Step {
		case "connected":
			p.send(next)
		case "subscribe", "refresh":
			var sub struct{ ID string }
			if st.Error != "" || json.Unmarshal(st.Result, &sub) != nil {
				p.sendLater(next)
				return
			}
			next = object{"do": "refresh", "id": sub.ID}
			p.ready()
		case "event":
			p.receive(st.Event.EventID, st.Event.Data)
		case "gap", "terminated":
			p.fault("unexpected " + st.Step)
		}
	})
}

// resumeParams returns the params of events/poll and events/stream with the cursor that the application keeps.
func (p *party) resumeParams(name string, arguments object) object {
	p.mu.Lock()
	defer p.mu.Unlock()
	params := object{"name": name, "arguments": arguments}
	if p.cursor != "" {
		params["cursor"] = p.cursor
	}
	return params
}

func (p *party) setCursor(cursor string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cursor = cursor
}

// polling runs the TypeScript SDK's client with an application that polls.
func polling(t *testing.T, s *harness.Target, w wish, name string, arguments object) *party {
	t.Helper()
	js := harness.Node(t)
	p := &party{name: "TypeScript SDK, poll", wish: w, killable: true}
	p.command = func(ctx context.Context) *exec.Cmd {
		return js.Command(ctx, "typescript.js", s.MCP, s.Keys["bob"], harness.V20260728, "2")
	}
	poll := func() object { return object{"do": "poll", "params": p.resumeParams(name, arguments)} }
	return withSteps(p, func(st step) {
		switch st.Step {
		case "connected":
			p.send(poll())
		case "poll":
			var answer page
			if st.Error == "" && json.Unmarshal(st.Result, &answer) == nil {
				for _, e := range answer.Events {
					p.receive(e.EventID, e.Data)
				}
				if answer.Truncated {
					p.fault("events are missing after a poll")
				}
				p.setCursor(answer.Cursor)
				p.ready()
			}
			p.sendLater(poll())
		}
	})
}

// streaming runs the Python SDK's client with an application that opens streams. The client does not always notice that a
// killed server's stream ended, so the application watches for missing heartbeats.
func streaming(t *testing.T, s *harness.Target, w wish, name string, arguments object) *party {
	t.Helper()
	python := harness.NewPython(t)
	p := &party{name: "Python SDK, push", wish: w, killable: true}
	p.command = func(ctx context.Context) *exec.Cmd {
		return python.Command(ctx, "client.py", s.MCP, s.Keys["bob"], harness.V20260728)
	}
	stream := func() object { return object{"do": "stream", "params": p.resumeParams(name, arguments)} }
	p.onQuiet = func() {
		p.send(object{"do": "cancel", "name": name})
		p.sendLater(stream())
	}
	return withSteps(p, func(st step) {
		if st.Params.Truncated {
			p.fault("events are missing on a stream")
		}
		switch st.Step {
		case "connected":
			p.send(stream())
		case "stream ended":
			p.sendLater(stream())
		case "active":
			p.ready()
		case "event":
			p.receive(st.Params.EventID, st.Params.Data)
		}
		if st.Params.Cursor != nil {
			p.setCursor(*st.Params.Cursor)
		}
	})
}

// mastra subscribes to a resource with Mastra's client. The client does not report the end of its stream and cannot resume
// it. So the application subscribes again and reads the resource, which contains the last twenty events.
func mastra(t *testing.T, s *harness.Target, w wish) *party {
	t.Helper()
	js, wire := harness.Node(t), s.Wire(t)
	p := &party{name: "Mastra, resource", wish: w, killable: true}
	p.command = func(ctx context.Context) *exec.Cmd { return js.Command(ctx, "mastra.js", wire.MCP, s.Keys["bob"]) }
	subscribe, read := object{"do": "subscribe", "uri": w.prefix}, object{"do": "read", "uri": w.prefix}
	var resubscribe func()
	resubscribe = func() { // waits until the stream has ended
		if wire.Streams() == 0 {
			p.send(subscribe)
		} else {
			p.later(resubscribe)
		}
	}
	return withSteps(p, func(st step) {
		switch st.Step {
		case "connected":
			p.send(subscribe)
		case "subscribe":
			p.send(read)
		case "read":
			var contents struct{ Events []occurrence }
			if st.Error == "" && json.Unmarshal(st.Result, &contents) == nil {
				for _, e := range contents.Events {
					p.receive(e.EventID, e.Data)
				}
				if wire.Streams() > 0 {
					p.ready()
				}
			}
			p.later(resubscribe)
		case "updated":
			p.receiveUpdate(st)
		}
	})
}

// receiveUpdate records the event of notifications/resources/updated.
func (p *party) receiveUpdate(st step) {
	id, _ := st.Meta[harness.Prefix+"eventId"].(string)
	p.receive(id, st.Payload)
}

// session runs the Go SDK's client in a session of 2025-11-25, within the test's process. The SDK resumes the stream.
func session(t *testing.T, s *harness.Target, w wish) *party {
	t.Helper()
	c := goSDK(t, s.Wire(t), harness.V20251125).(*goClient)
	c.do(t, object{"do": "subscribe", "uri": w.prefix}, nil)
	p := &party{name: "Go SDK, session", wish: w}
	p.inside = func(ctx context.Context) {
		p.ready()
		for {
			select {
			case st := <-c.of("updated"):
				p.receiveUpdate(st)
			case <-ctx.Done():
				return
			}
		}
	}
	return p
}
