package functions_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/identity"
)

// callerEvents shows that stream, register and relay receive the events of a backend with the token of each caller, that a webhook and a
// stream get only the events of their principal, and that the next relay continues.
//
// GWN-21
func callerEvents(t *testing.T, stack *runner.Stack, p *identity.Provider) {
	names := map[string]string{} // by Authorization header
	tokens := map[string]string{}
	for _, name := range []string{"alice", "bob"} {
		tokens[name] = p.Token(name, "events:read events:subscribe", nil)
		names["Bearer "+tokens[name]] = name
	}
	opened, publish := make(chan string, 100), make(chan struct{})
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		name := names[r.Header.Get("Authorization")]
		if json.NewDecoder(r.Body).Decode(&m) != nil || name == "" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		result := `"error":{"code":-32601,"message":"unknown method"}`
		switch m.Method {
		case "server/discover":
			result = `"result":{"supportedVersions":["2026-07-28"],"capabilities":{"extensions":{"io.modelcontextprotocol/events":{}}},"serverInfo":{"name":"fake","version":"1"}}`
		case "events/list":
			result = `"result":{"events":[{"name":"mail.received","description":"","delivery":["push"]}]}`
		case "events/stream":
			w.Header().Set("Content-Type", "text/event-stream")
			send := func(method, params string) {
				fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":%q,\"params\":{\"_meta\":{\"io.modelcontextprotocol/subscriptionId\":%s},%s}}\n\n", method, m.ID, params)
				w.(http.Flusher).Flush()
			}
			send("notifications/events/active", `"cursor":"c","truncated":false`)
			opened <- name
			select {
			case <-publish:
				send("notifications/events/event", fmt.Sprintf(`"eventId":"1","name":"mail.received","timestamp":"2026-11-28T10:00:00Z","data":{"for":%q},"cursor":"c"`, name))
				<-r.Context().Done()
			case <-r.Context().Done():
			}
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, m.ID, result)
	}))
	defer func() { backend.CloseClientConnections(); backend.Close() }()
	configureStack(t, stack, fmt.Sprintf("backends:\n  - {name: mail, url: %q, prefix: mail_, forwardToken: true}\n", backend.URL))
	defer configureStack(t, stack, "backends: []\n")

	target, hooks := endpoint(t, echo)
	streamed := make(chan string, 100)
	for _, name := range []string{"bob", "alice"} {
		c, err := client.Connect(t.Context(), stack.URL(), client.Options{Agent: "test/1", Revision: "2026-07-28", Key: tokens[name]})
		expect.OK(t, err)
		awaitType(t, c, "mail_mail.received")
		if name == "bob" {
			sub := subscribe(t, c, client.SubscribeOptions{
				Name: "mail_mail.received", Mode: client.ModePush, Event: func(_ context.Context, e client.Event) error { streamed <- string(e.Data); return nil },
			})
			defer func() { _ = sub.Close() }()
			continue
		}
		secret, _ := webhook.NewSecret()
		eventually(t, "register knows the event type", func() bool {
			body, header := request("events/subscribe", `"name":"mail_mail.received","delivery":{"mode":"webhook","url":"`+target+`","secret":"`+secret+`"}`)
			header["Authorization"] = "Bearer " + tokens[name]
			var made struct{ Result struct{ ID string } }
			post(t, stack.URL()+"/mcp", body, header, &made)
			return made.Result.ID != ""
		})
	}
	for subscribed := map[string]bool{}; len(subscribed) < 2; {
		subscribed[wait(t, "the subscriptions of both", opened)] = true
	}
	close(publish)
	expect.Equal(t, "bob's stream", wait(t, "bob's event", streamed), `{"for":"bob"}`)
	for {
		if body := string(wait(t, "alice's webhook", hooks).body); strings.Contains(body, `"for"`) {
			expect.Contains(t, "alice's webhook", body, `{"for":"alice"}`)
			break
		}
	}
	before := len(opened)
	stack.Kill("RelayFunction")
	for range before + 2 { // the next relay has the tokens
		wait(t, "the subscriptions of the next relay", opened)
	}
	if len(streamed) > 0 {
		t.Errorf("bob's stream got another event: %s", <-streamed)
	}
}
