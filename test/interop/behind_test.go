//go:build unix

package interop

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"testing"
	"time"

	mcpevents "github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/client/check"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestServersOfOthersBehindTheGateway: clients of the gateway receive the events of other makers' servers, which deliver by webhook only, in
// every mode, and continue from cursors that those servers do not have.
func TestServersOfOthersBehindTheGateway(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *theirs{
		"mcp-webhook-events": func(t *testing.T) *theirs { return startTheirs(t, "webhook") },
		"mcp-handler":        startHandler,
	} {
		t.Run("GWN-20, GWN-21, GWN-22 "+name, func(t *testing.T) {
			t.Parallel()
			behindTheGateway(t, start(t))
		})
	}
}

func behindTheGateway(t *testing.T, s *theirs) {
	gateway := harness.StartServer(t, harness.ServerOptions{
		Config: fmt.Sprintf("backends:\n  - {name: tickets, url: %q, prefix: t_, headers: {Authorization: \"env:TICKETS_AUTH\"}}\n", s.url),
		Env:    []string{"TICKETS_AUTH=Bearer " + s.key}, Args: []string{"--public-url", s.hooks.URL},
	})
	to := expect.Value(url.Parse(gateway.Events))(t)
	s.hooks.Config.Handler = httputil.NewSingleHostReverseProxy(&url.URL{Scheme: to.Scheme, Host: to.Host})
	hooks := &mcpevents.Handler{}
	receiver := httptest.NewServer(hooks)
	t.Cleanup(receiver.Close)
	hooks.URL = receiver.URL
	c, err := mcpevents.Connect(t.Context(), gateway.MCP, mcpevents.Options{Key: gateway.Keys["alice"], Webhooks: hooks, MinPoll: 50 * time.Millisecond})
	expect.OK(t, err)
	const name = "t_ticket.updated"
	var listed mcpevents.EventType
	for end := time.Now().Add(harness.Patience); listed.Name == ""; time.Sleep(50 * time.Millisecond) {
		types := expect.Value(c.EventTypes(t.Context()))(t)
		if at := slices.IndexFunc(types, func(e mcpevents.EventType) bool { return e.Name == name }); at >= 0 {
			listed = types[at]
		} else if time.Now().After(end) {
			t.Fatalf("the gateway lists %d event types without %s", len(types), name)
		}
	}
	modes := []string{mcpevents.ModeWebhook, mcpevents.ModePush, mcpevents.ModePoll}
	for _, mode := range modes {
		expect.Has(t, "the modes of delivery", listed.Delivery, mode)
	}
	follow := func(mode, cursor string) chan mcpevents.Event {
		t.Helper()
		events := make(chan mcpevents.Event, 100)
		sub, err := c.Subscribe(t.Context(), mcpevents.SubscribeOptions{
			Name: name, Arguments: map[string]string{"ticket": "T1"}, Mode: mode, Cursor: cursor, Store: &nowhere{},
			Event: func(_ context.Context, e mcpevents.Event) error { events <- e; return nil },
		})
		expect.OK(t, err)
		t.Cleanup(func() { _ = sub.Close() })
		return events
	}
	next := func(from chan mcpevents.Event, what string) mcpevents.Event {
		t.Helper()
		return expect.Receive(t, what, from)
	}
	streams := map[string]chan mcpevents.Event{}
	for _, mode := range modes {
		streams[mode] = follow(mode, "")
	}
	s.publish("T2-1", "T1-1", "T1-2")
	s.kill()
	s.start()
	s.publish("T1-3")
	var first mcpevents.Event
	ids := map[string]int{}
	for mode, events := range streams {
		for i := range 3 {
			e := next(events, fmt.Sprintf("event %d by %s", i+1, mode))
			if ids[e.ID]++; mode == mcpevents.ModePush && i == 0 {
				first = e
			}
			expect.Equal(t, mode+": the name", e.Name, name)
			expect.Equal(t, mode+": the data", string(e.Data), `{"ticket":"T1"}`)
		}
	}
	replayed := follow(mcpevents.ModePush, first.Cursor)
	for i := range 2 {
		ids[next(replayed, fmt.Sprintf("replayed event %d", i+1)).ID]++
	}
	expect.Len(t, "the events", ids, 3)
	expect.Equal(t, "the arrivals of the first event", ids[first.ID], 3)
	for mode, events := range streams {
		if len(events) > 0 {
			t.Errorf("%s: got a further event %+v", mode, <-events)
		}
	}
}

// nowhere is a store that keeps nothing, so that each subscription begins where its options say.
type nowhere struct{}

func (*nowhere) Load(context.Context, string) (string, error) { return "", nil }
func (*nowhere) Save(context.Context, string, string) error   { return nil }

// TestCheckOfServersOfOthers holds servers that others made against the specification. What it finds in them is in docs/how-to/check-a-server.md.
func TestCheckOfServersOfOthers(t *testing.T) {
	t.Parallel()
	t.Run("RCH-06 mcp-webhook-events", func(t *testing.T) {
		t.Parallel()
		// Without a key, the rule webhook-principal is not testable on this machine. The server ignores the key.
		checked(t, startTheirs(t, "webhook"), check.Options{Key: "any"}, map[string][]string{
			check.Passed: {"list", "webhook-secret", "webhook-challenge", "webhook-challenge-failed", "webhook-signature", "webhook-rotation", "webhook-redirect"},
			check.Failed: {"capability", "error-unknown-event", "webhook-principal", "webhook-url", "webhook-unsubscribe"},
		})
	})
	t.Run("RCH-06 mcp-handler", func(t *testing.T) {
		t.Parallel()
		s := startHandler(t)
		l := place(t)
		receiver := net.JoinHostPort(l[0], l[1])
		s.hooks.Config.Handler = httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: receiver})
		checked(t, s, check.Options{Listen: receiver, Receiver: s.hooks.URL}, map[string][]string{
			check.Passed: {
				"list", "error-unknown-event", "error-arguments", "webhook-principal", "webhook-https", "webhook-url", "webhook-secret",
				"webhook-challenge", "webhook-challenge-failed", "webhook-ttl", "webhook-key", "webhook-key-url", "webhook-signature", "webhook-rotation", "webhook-unsubscribe",
			},
			check.Failed: {"capability"},
		})
	})
}

// checked checks a server, and compares the results of some rules.
func checked(t *testing.T, s *theirs, o check.Options, want map[string][]string) {
	t.Helper()
	o.URL, o.Key, o.Agent, o.Event, o.Arguments, o.Wait = s.url, cmp.Or(o.Key, s.key), "check/1", "ticket.updated", []byte(`{"ticket":"T1"}`), 10*time.Second // which some rules wait in vain
	n := 0
	o.Publish = func(context.Context) error {
		n++
		s.publish(fmt.Sprint("T1-", n))
		return nil
	}
	report := expect.Value(check.Run(t.Context(), o))(t)
	for result, ids := range want {
		for _, id := range ids {
			i := slices.IndexFunc(report.Results, func(r check.Result) bool { return r.ID == id })
			if i < 0 || report.Results[i].Result != result {
				t.Errorf("%s is not %s: %+v", id, result, report.Results[max(i, 0)])
			}
		}
	}
}
