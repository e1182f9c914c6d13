package functions_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/functions/internal/forward"
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
		c := expect.Value(client.Connect(t.Context(), stack.URL(), client.Options{Agent: "test/1", Revision: "2026-07-28", Key: tokens[name]}))(t)
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
		subscribed[expect.Receive(t, "the subscriptions of both", opened)] = true
	}
	close(publish)
	expect.Equal(t, "bob's stream", expect.Receive(t, "bob's event", streamed), `{"for":"bob"}`)
	for {
		if body := string(expect.Receive(t, "alice's webhook", hooks).body); strings.Contains(body, `"for"`) {
			expect.Contains(t, "alice's webhook", body, `{"for":"alice"}`)
			break
		}
	}
	before := len(opened)
	stack.Kill("RelayFunction")
	for range before + 2 { // the next relay has the tokens
		expect.Receive(t, "the subscriptions of the next relay", opened)
	}
	if len(streamed) > 0 {
		t.Errorf("bob's stream got another event: %s", <-streamed)
	}
}

// TestTokens: with Auth=jwt, each function that callers reach accepts the provider's tokens, and tells clients where
// to get one (AUT-01, AUT-03).
func TestTokens(t *testing.T) {
	t.Parallel()
	const resource = "https://events.example.com/mcp"
	p := identity.Start(t, resource)
	stack := deploy(t, func(o *runner.Options) {
		o.Parameters["Auth"], o.Parameters["JwtIssuer"], o.Parameters["JwtAudience"] = "jwt", p.Issuer, resource
	})
	target, hooks := endpoint(t, nil)
	hand := func(token string) map[string]string { return map[string]string{"Authorization": "Bearer " + token} }
	good := p.Token("alice", "events:read events:subscribe events:publish", nil)
	const event = `{"uri":"event://ci/build-finished","data":{"build":1,"status":"passed"}}`

	call := func(t *testing.T, url, method, params, token string, answer any) *http.Response {
		t.Helper()
		body, header := request(method, params)
		if token != "" {
			header["Authorization"] = "Bearer " + token
		}
		return post(t, url, body, header, answer)
	}
	registration := `"uris":["event://ci/build-finished"],"targetUri":"` + target + `"`
	var made struct {
		Result struct{ Subscription struct{ URI string } }
	}
	t.Run("AUT-01 stream, register, publish and deregister accept a good token", func(t *testing.T) {
		var list struct{ Result struct{ Resources []any } }
		if resp := call(t, stack.URL()+"/mcp", "resources/list", "", good, &list); resp.StatusCode != 200 || len(list.Result.Resources) == 0 {
			t.Errorf("stream: got %d %+v", resp.StatusCode, list)
		}
		if resp := call(t, stack.URL()+"/mcp", "resources/subscriptions/register", registration, good, &made); resp.StatusCode != 200 || made.Result.Subscription.URI == "" {
			t.Fatalf("register: got %d %+v", resp.StatusCode, made)
		}
		expect.Equal(t, "the status of publish", post(t, stack.URL()+"/events", event, hand(good), nil).StatusCode, http.StatusAccepted)
		expect.Receive(t, "the webhook", hooks)
		if resp := call(t, stack.URL()+"/mcp", "resources/subscriptions/deregister", `"uri":"`+made.Result.Subscription.URI+`"`, good, nil); resp.StatusCode != 200 {
			t.Errorf("deregister: got %d", resp.StatusCode)
		}
	})

	// register and deregister can be reached only through stream, and also check the token themselves.
	urls := map[string]string{"stream": stack.URL() + "/mcp"}
	for name, id := range map[string]string{"register": "RegisterFunction", "deregister": "DeregisterFunction"} {
		expect.Equal(t, "the URL of "+name, stack.FunctionURL(id), "")
		forwarder := httptest.NewServer(forward.Handler{Log: slog.New(slog.DiscardHandler), Invoke: func(ctx context.Context, payload []byte) ([]byte, error) {
			return stack.Invoke(ctx, id, payload)
		}})
		t.Cleanup(forwarder.Close)
		urls[name] = forwarder.URL + "/mcp"
	}
	methods := map[string]string{
		"stream": "resources/list", "register": "resources/subscriptions/register", "deregister": "resources/subscriptions/deregister",
	}
	for name, url := range urls {
		t.Run("AUT-01 "+name+" refuses others", func(t *testing.T) {
			for token, want := range map[string]string{"": "", "garbage": "invalid_token", p.Token("alice", "", nil): "insufficient_scope"} {
				resp := call(t, url, methods[name], registration, token, nil)
				status := http.StatusUnauthorized
				if want == "insufficient_scope" {
					status = http.StatusForbidden
				}
				// A Function URL renames this header. The front restores it.
				challenge := cmp.Or(resp.Header.Get("WWW-Authenticate"), resp.Header.Get("X-Amzn-Remapped-Www-Authenticate"))
				expect.Equal(t, token+": the status code", resp.StatusCode, status)
				expect.Contains(t, token+": the challenge", challenge, want, `="https://events.example.com/.well-known/oauth-protected-resource/mcp"`)
			}
		})
	}
	t.Run("AUT-01 stream has the metadata", func(t *testing.T) { described(t, stack.URL(), resource, p.Issuer) })
	t.Run("AUT-03 publish refuses others", func(t *testing.T) {
		for token, want := range map[string]int{"": 401, "garbage": 401, p.Token("alice", "events:read events:subscribe", nil): 403} {
			resp := post(t, stack.URL()+"/events", event, hand(token), nil)
			expect.Equal(t, token+": the status code", resp.StatusCode, want)
			expect.Contains(t, token+": the header WWW-Authenticate", resp.Header.Get("WWW-Authenticate"), "events:publish")
		}
		described(t, strings.TrimSuffix(stack.FunctionURL("PublishFunction"), "/"), resource, p.Issuer)
	})
	t.Run("GWN-21 each principal has its own subscription at a backend that gets the callers' tokens", func(t *testing.T) {
		callerEvents(t, stack, p)
	})
}

// described reads the protected resource metadata at a host.
func described(t *testing.T, base, resource, issuer string) {
	t.Helper()
	for _, path := range []string{"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"} {
		resp := expect.Value(http.Get(base + path))(t)
		var doc struct {
			Resource string
			Servers  []string `json:"authorization_servers"`
		}
		err := json.NewDecoder(resp.Body).Decode(&doc)
		resp.Body.Close()
		if err != nil || resp.StatusCode != 200 || doc.Resource != resource || len(doc.Servers) != 1 || doc.Servers[0] != issuer {
			t.Errorf("%s: got %d %+v %v", path, resp.StatusCode, doc, err)
		}
	}
}
