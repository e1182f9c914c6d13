//go:build unix

package interop

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
	"github.com/mcp-events/mcpevents/test/identity"
)

// TestChatGPT sends the messages of MCP Events that ChatGPT sends, according to OpenAI's guide "MCP Events" and the logs of servers, with
// its key as a secret path: EVX-20, EVX-22, RCH-05. ChatGPT itself cannot run in a test.
func TestChatGPT(t *testing.T) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--events-retry-schedule", "0s,1s,1s"}})
		c := byPath(t, &s.Target)
		chatting(t, c)
		secret(t, c, s.Output)
		t.Run("RCH-05 no metric has the key", func(t *testing.T) {
			expect.Lacks(t, "the metrics", s.Metrics(t), s.Keys["chatgpt"])
		})
	})
	t.Run("local AWS", func(t *testing.T) {
		t.Parallel()
		aws := harness.StartAWS(t, harness.AWSOptions{Env: harness.Quick})
		c := byPath(t, &aws.Target)
		chatting(t, c)
		secret(t, c, aws.Output)
	})
	t.Run("embedded, signed in by OAuth", func(t *testing.T) {
		t.Parallel()
		p := identity.Start(t, "")
		s := harness.StartServer(t, harness.ServerOptions{Provider: p})
		s.Keys["publisher"] = p.Token("publisher", "events:publish", nil)
		chatting(t, newChatGPT(t, &s.Target, s.MCP, p.Token("somebody", "events:read events:subscribe", nil)))
	})
}

// byPath returns a double that has its key in the URL.
func byPath(t *testing.T, s *harness.Target) *chatGPT {
	return newChatGPT(t, s, s.MCP+"/u/"+s.Keys["chatgpt"], "")
}

// chatGPT is the double: a client that declares nothing, and callbacks of one host.
type chatGPT struct {
	*harness.Client
	server    *harness.Target
	host      *harness.Receiver
	callbacks []*callback
}

// callback is one of its subscriptions.
type callback struct {
	*harness.Endpoint
	name      string
	arguments object
	cursor    any // the last one; null at first
}

type received struct {
	EventID, Name, Timestamp string
	Data                     object
	Cursor                   *string
	id                       string // of the subscription
}

// grant is the answer to events/subscribe.
type grant struct {
	ID            string
	RefreshBefore *time.Time
	Cursor        *string
	Truncated     *bool
}

func newChatGPT(t *testing.T, s *harness.Target, at, token string) *chatGPT {
	client := &harness.Client{URL: at, Key: token, Version: harness.V20260728}
	return &chatGPT{Client: client, server: s, host: harness.NewReceiver(t)}
}

func (c *chatGPT) challenges() (n int) {
	for _, cb := range c.callbacks {
		n += len(cb.Challenges())
	}
	return n
}

// ask acts as a person who asks for an event: it creates a callback and a subscription.
func (c *chatGPT) ask(t *testing.T, name string, arguments object) (*callback, grant) {
	t.Helper()
	cb := &callback{Endpoint: c.host.Endpoint("callback_" + rand.Text()), name: name, arguments: arguments}
	cb.SetSecret(harness.NewSecret())
	c.callbacks = append(c.callbacks, cb)
	return cb, c.subscribe(t, cb)
}

func (c *chatGPT) subscribe(t *testing.T, cb *callback) (g grant) {
	t.Helper()
	c.Call(t, "events/subscribe", object{
		"name": cb.name, "arguments": cb.arguments, "cursor": cb.cursor, // no ttlMs
		"delivery": object{"mode": "webhook", "url": cb.URL(), "secret": cb.Secret()},
	}, &g)
	if g.ID == "" || g.RefreshBefore == nil || g.Truncated == nil || *g.Truncated {
		t.Fatalf("granted %+v", g)
	}
	if g.Cursor != nil {
		cb.cursor = *g.Cursor
	}
	return g
}

// wait waits for n events at a callback, and checks each request to it as ChatGPT does.
func (cb *callback) wait(t *testing.T, n int) (got []received) {
	t.Helper()
	for _, d := range slices.Concat(cb.Challenges(), cb.Wait(t, n)) {
		var m struct {
			Type string
			received
		}
		err := errors.Join(d.Verify(cb.Secret()), json.Unmarshal(d.Body, &m))
		m.id = d.Header.Get("X-MCP-Subscription-Id")
		if err != nil || d.Method != http.MethodPost || d.Header.Get("Content-Type") != "application/json" || len(d.Body) > 256<<10 || m.id == "" {
			t.Errorf("a request that is not taken: %s %v, %v", d.Method, d.Header, err)
		}
		switch {
		case d.Challenge != "" && strings.HasPrefix(d.ID(), "msg_verification_"):
			continue
		case m.Type != "" || d.ID() != m.EventID:
			t.Errorf("it does not know the message %s with the id %s", d.Body, d.ID())
		}
		got = append(got, m.received)
		if m.Cursor != nil {
			cb.cursor = *m.Cursor
		}
	}
	return got
}

func chatting(t *testing.T, c *chatGPT) {
	s := c.server
	service := "chat" + strings.ToLower(rand.Text()[:8])
	incident := func(t *testing.T, id, severity string) {
		t.Helper()
		s.Publish(t, harness.Event{ID: service + id, URI: "event://incidents/" + service + "/created", Data: object{
			"id": id, "title": "It is down", "severity": severity,
		}})
	}
	arguments := object{"service": service, "severity": "critical"}

	t.Run("EVX-20 EVX-22 RCH-05 1: server/discover shows events, to a client that declares nothing", func(t *testing.T) {
		var result struct {
			Capabilities struct {
				Events     *struct{}
				Extensions map[string]any
			}
			SupportedVersions []string
		}
		c.Call(t, "server/discover", nil, &result)
		if result.Capabilities.Events == nil || result.Capabilities.Extensions["io.modelcontextprotocol/events"] == nil || !slices.Contains(result.SupportedVersions, harness.V20260728) {
			t.Errorf("%+v", result)
		}
	})
	for _, version := range []string{harness.V20251125, harness.V20250618, harness.V20250326} {
		t.Run("EVX-20 EVX-22 1: or initialize of "+version+", and the methods after it", func(t *testing.T) {
			session := &harness.Client{URL: c.URL, Key: c.Key, Version: version}
			var result struct {
				ProtocolVersion string
				Capabilities    struct {
					Events     *struct{}
					Extensions map[string]any
				}
			}
			expect.OK(t, json.Unmarshal(session.Initialize(t), &result))
			if result.ProtocolVersion != version || result.Capabilities.Events == nil || result.Capabilities.Extensions["io.modelcontextprotocol/events"] == nil {
				t.Errorf("%+v", result)
			}
			var list struct{ Events []object }
			session.Call(t, "events/list", nil, &list)
			var poll struct{ Cursor string }
			session.Call(t, "events/poll", object{"name": "incident.created", "arguments": arguments}, &poll)
			expect.AtLeast(t, "the number of events", len(list.Events), 1)
			expect.Differ(t, "the cursor", poll.Cursor, "")
		})
	}
	t.Run("EVX-20 2: events/list has the type, its arguments and its payload", func(t *testing.T) {
		var list struct {
			Events []struct {
				Name                       string
				Delivery                   []string
				InputSchema, PayloadSchema struct{ Properties object }
			}
		}
		c.Call(t, "events/list", nil, &list)
		for _, e := range list.Events {
			if e.Name == "incident.created" {
				if !slices.Contains(e.Delivery, "webhook") || e.InputSchema.Properties["severity"] == nil || e.PayloadSchema.Properties["severity"] == nil {
					t.Errorf("%+v", e)
				}
				return
			}
		}
		t.Error("not listed")
	})

	var first *callback
	var g grant
	t.Run("EVX-20 3: events/subscribe without ttlMs, with cursor null; the callback is challenged meanwhile", func(t *testing.T) {
		first, g = c.ask(t, "incident.created", arguments)
		if c.challenges() != 1 || time.Until(*g.RefreshBefore) < time.Minute {
			t.Errorf("%d challenges, granted until %v", c.challenges(), g.RefreshBefore)
		}
	})
	t.Run("EVX-20 4: an event that fits arrives, one that does not does not", func(t *testing.T) {
		incident(t, "info", "info")
		incident(t, "a", "critical")
		e := first.wait(t, 1)[0]
		at, err := time.Parse(time.RFC3339Nano, e.Timestamp)
		if e.EventID != service+"a" || e.Name != "incident.created" || err != nil || at.IsZero() || e.Data["severity"] != "critical" || e.id != g.ID {
			t.Errorf("got %+v, %v", e, err)
		}
	})
	t.Run("EVX-20 5: the refresh, due at 73 % of the time, has the same secret and the last cursor, and causes no challenge", func(t *testing.T) {
		granted := time.Until(*g.RefreshBefore)
		if due := time.Now().Add(granted * 73 / 100); !due.Before(*g.RefreshBefore) {
			t.Fatalf("due %v, granted until %v", due, g.RefreshBefore)
		}
		again := c.subscribe(t, first)
		if again.ID != g.ID || again.RefreshBefore.Before(*g.RefreshBefore) || c.challenges() != 1 {
			t.Errorf("%+v after %+v, %d challenges", again, g, c.challenges())
		}
		incident(t, "b", "critical")
		expect.Equal(t, "the second event", first.wait(t, 2)[1].EventID, service+"b")
	})

	var second *callback
	t.Run("EVX-20 6: asked again, it makes a second subscription at another callback of the host; both get the next event", func(t *testing.T) {
		var other grant
		if second, other = c.ask(t, "incident.created", arguments); other.ID == g.ID || c.challenges() != 2 {
			t.Errorf("got %+v, want it equal to %+v; %d challenges", other, g, c.challenges())
		}
		incident(t, "c", "critical")
		if got := first.wait(t, 3)[2]; got.EventID != service+"c" || got.id != g.ID {
			t.Errorf("the first got %+v", got)
		}
		if got := second.wait(t, 1)[0]; got.EventID != service+"c" || got.id != other.ID {
			t.Errorf("the second got %+v", got)
		}
	})
	t.Run("EVX-20 7: removed, it says nothing and answers 410: the other goes on", func(t *testing.T) {
		first.Answer(func(int, *harness.Delivery) harness.Reply { return harness.Reply{Status: http.StatusGone} })
		incident(t, "d", "critical")
		incident(t, "e", "critical")
		expect.Len(t, "the events", second.wait(t, 3), 3)
	})
	t.Run("EVX-15 EVX-20 8: or it unsubscribes, twice, and gets empty results", func(t *testing.T) {
		for range 2 {
			var result object
			c.Call(t, "events/unsubscribe", object{"name": second.name, "arguments": second.arguments, "delivery": object{"mode": "webhook", "url": second.URL()}}, &result)
			delete(result, "resultType")
			delete(result, "_meta")
			expect.Len(t, "the result", result, 0)
		}
	})
}

// secret shows that the key stays where it is.
func secret(t *testing.T, c *chatGPT, output func() string) {
	s := c.server
	t.Run("RCH-05 no answer and no log has the key", func(t *testing.T) {
		for _, a := range []*harness.Answer{
			c.Do(t, "server/discover", nil), c.Do(t, "no/such", nil), c.Raw(t, "POST", "{"), c.Raw(t, "PUT", ""),
			(&harness.Client{URL: c.URL + "/more", Version: harness.V20260728}).Do(t, "server/discover", nil),
			(&harness.Client{URL: s.MCP + "//u/" + s.Keys["chatgpt"], Version: harness.V20260728}).Do(t, "server/discover", nil),
		} {
			expect.Lacks(t, "the answer", fmt.Sprint(a.Header, string(a.Body)), s.Keys["chatgpt"])
		}
		expect.Lacks(t, "the log", output(), s.Keys["chatgpt"])
	})
}
