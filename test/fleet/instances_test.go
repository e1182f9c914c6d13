//go:build unix

package fleet

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/test/backend"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

const toolsChanged = "notifications/tools/list_changed"

// pair is two instances with a common store, in front of a session-based backend and a stateless one.
type pair struct {
	*fleet
	backends map[string]*harness.Backend // by prefix
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{backends: map[string]*harness.Backend{}}
	var all []api.Backend
	for prefix, kind := range map[string]backend.Kind{"s25_": backend.Stateful, "s26_": backend.Stateless} {
		b := harness.StartBackend(t, kind)
		p.backends[prefix] = b
		all = append(all, api.Backend{Name: prefix[:3], URL: b.URL, Prefix: prefix, Workspace: "default", ProtocolVersion: api.AutoVersion})
	}
	p.fleet = newFleet(t, fleetOptions{instances: 2, backends: all, principals: soakers(), callTimeout: time.Minute})
	p.open(t)
	harness.Eventually(t, harness.Patience, "the relay follows the backends", func() bool {
		return p.backends["s25_"].State(t).Streams > 0 && p.backends["s26_"].State(t).Listens > 0
	})
	return p
}

// session returns a client with a session. Its requests go to a random instance.
func (p *pair) session(t *testing.T, who string) *caller {
	t.Helper()
	c := newCaller(&harness.Client{URL: p.MCP, Key: p.Keys[who], Version: harness.V20251125}, http.DefaultTransport)
	c.Initialize(t)
	return c
}

// moved returns the same client with the same session, whose requests go to instance n.
func (p *pair) moved(c *caller, n int) *caller {
	return newCaller(&harness.Client{URL: p.instances[n].URL + "/mcp", Key: c.Key, Version: c.Version, Session: c.Session}, http.DefaultTransport)
}

// TestInstances shows that two instances of the endpoint that share only a store serve a client together.
func TestInstances(t *testing.T) {
	p := newPair(t)
	for prefix, b := range p.backends {
		t.Run("GWN-04 a change reaches the streams of both instances once, "+prefix, func(t *testing.T) { p.changes(t, b) })
	}
	t.Run("GWN-08 both instances use the one session with a backend", func(t *testing.T) {
		b := p.backends["s25_"]
		before := b.State(t).Sessions
		c := p.session(t, "p8")
		expect.Equal(t, "the sessions at the backend before the first call", b.State(t).Sessions, before)
		for n := range 6 {
			p.echo(t, p.moved(c, n%2), "s25_")
		}
		expect.Equal(t, "the sessions at the backend after the calls", b.State(t).Sessions, before+1)
		expect.OK(t, c.end(t.Context()))
		harness.Eventually(t, harness.Patience, "the session with the backend ends with the client's", func() bool {
			return b.State(t).Sessions == before
		})
	})
	t.Run("GWN-07 GWN-14 a backend dies within calls at both instances, and is used again when it is back", p.dies)
}

func (p *pair) echo(t *testing.T, c *caller, prefix string) {
	t.Helper()
	r := request{tool: prefix + "test_echo", mark: "mk-echo-0-end", id: json.RawMessage(fmt.Sprint(time.Now().UnixNano())), arguments: map[string]any{"mark": "mk-echo-0-end"}}
	o := expect.Value(c.call(t.Context(), r))(t)
	expect.Contains(t, "the answer of "+r.tool, o.text(), r.mark)
}

func (p *pair) changes(t *testing.T, b *harness.Backend) {
	streams := map[string]*harness.Stream{}
	for n := range 2 {
		at := p.target(n)
		c := p.moved(p.session(t, fmt.Sprint("p", n)), n)
		streams[fmt.Sprint("session at ", n)] = c.Open(t, "")
		streams[fmt.Sprint("listen at ", n)] = at.Stateless("p2").Listen(t, 1, map[string]any{"toolsListChanged": true, "promptsListChanged": true}, nil)
	}
	received := func(s *harness.Stream, method string) (n int) {
		for _, m := range s.Messages() {
			if m.Method == method {
				n++
			}
		}
		return n
	}
	b.ChangeList(t, "tools")
	for name, s := range streams {
		harness.Eventually(t, harness.Patience, "the change reaches the "+name, func() bool { return received(s, toolsChanged) > 0 })
	}
	b.ChangeList(t, "prompts") // when this change has arrived, a repetition of the first one would have arrived too
	for name, s := range streams {
		harness.Eventually(t, harness.Patience, "the second change reaches the "+name, func() bool { return received(s, "notifications/prompts/list_changed") > 0 })
		expect.Equal(t, "the notifications of the "+name, received(s, toolsChanged), 1)
	}
}

// dies kills one backend within calls at both instances.
func (p *pair) dies(t *testing.T) {
	b := p.backends["s25_"]
	calls := b.State(t).Calls["test_wait"]
	ended := make(chan string, 4)
	for n := range 2 {
		for _, c := range []*caller{p.moved(p.session(t, "p5"), n), newCaller(p.target(n).Stateless("p5"), http.DefaultTransport)} {
			go func() {
				o, err := c.call(t.Context(), request{tool: "s25_test_wait", mark: "m", id: json.RawMessage("1"), arguments: map[string]any{}})
				if err != nil || o.response == nil || o.response.Error == nil {
					ended <- fmt.Sprintf("%v, %s", err, o.text())
					return
				}
				ended <- ""
			}()
		}
	}
	harness.Eventually(t, harness.Patience, "the calls are at the backend", func() bool { return b.State(t).Calls["test_wait"] == calls+4 })
	b.Kill()
	for range 4 {
		expect.Equal(t, "a call at the dead backend", expect.Receive(t, "the end of the call", ended), "")
	}
	for n := range 2 {
		p.echo(t, p.moved(p.session(t, "p5"), n), "s26_")
	}
	b.Start()
	for n := range 2 {
		p.echo(t, p.moved(p.session(t, "p5"), n), "s25_")
	}
}

// TestRelayIsHandedOver kills the instance that follows a backend while the backend's tools change.
//
// GWN-03, GWN-04, GWN-06: The other instance follows the backend when the lease has expired and renews the clients'
// subscriptions there. A client's stream gets one notification for all changes in the meantime and one for each other
// change. The final list contains all tools.
func TestRelayIsHandedOver(t *testing.T) {
	for prefix, kind := range map[string]backend.Kind{"s25_": backend.Stateful, "s26_": backend.Stateless} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			handOver(t, prefix, kind)
		})
	}
}

func handOver(t *testing.T, prefix string, kind backend.Kind) {
	b := harness.StartBackend(t, kind)
	following := func() bool { s := b.State(t); return s.Streams+s.Listens == 1 }
	f := newFleet(t, fleetOptions{
		instances: 2, principals: soakers(), lease: 3 * time.Second, // short, but the store's times are whole seconds
		backends: []api.Backend{{Name: "b", URL: b.URL, Prefix: prefix, Workspace: "default", ProtocolVersion: api.AutoVersion}},
		onFirst:  func() { harness.Eventually(t, harness.Patience, "the first instance follows", following) },
	})
	c := f.target(1).Stateless("p0")
	stream := c.Listen(t, 1, map[string]any{"toolsListChanged": true, "resourceSubscriptions": []string{watched}}, nil)
	received := func(method string) (n int) {
		for _, m := range stream.Messages() {
			if m.Method == method {
				n++
			}
		}
		return n
	}
	updates := func() int { return received("notifications/resources/updated") }
	update := func() {
		before := updates()
		harness.Eventually(t, harness.Patience, "an update arrives", func() bool {
			b.UpdateResource(t, watched)
			return updates() > before
		})
	}
	update()
	var added []string
	add := func() {
		added = append(added, fmt.Sprintf("added_%d", len(added)))
		b.AddTool(t, added[len(added)-1])
	}
	for n := range 5 {
		add()
		harness.Eventually(t, harness.Patience, "the change is announced", func() bool { return received(toolsChanged) == n+1 })
	}
	f.instances[0].kill()
	harness.Eventually(t, harness.Patience, "no instance follows the backend", func() bool { s := b.State(t); return s.Streams+s.Listens == 0 })
	for range 5 {
		add()
	}
	harness.Eventually(t, harness.Patience, "the other instance follows", following)
	harness.Eventually(t, harness.Patience, "the client is notified of the missed changes", func() bool { return received(toolsChanged) == 6 })
	update()
	for n := range 5 {
		add()
		harness.Eventually(t, harness.Patience, "the change is announced", func() bool { return received(toolsChanged) == 7+n })
	}
	var names []string
	for _, x := range c.All(t, "tools/list", "tools") {
		names = append(names, x["name"].(string))
	}
	for _, name := range added {
		expect.Has(t, "the list", names, prefix+name)
	}
	expect.Equal(t, "the notifications for 15 changes", received(toolsChanged), 11)
}
