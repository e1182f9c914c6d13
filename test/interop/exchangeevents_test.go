//go:build unix

package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mcpevents "github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// mailbox is a backend of revision 2026-07-28 that sends each user's mail to this user. It checks each token at the authorization server, as
// one that was issued for it, and ends a stream when the token expires.
type mailbox struct {
	*httptest.Server
	auth   *harness.AuthServer
	opened chan mailStream

	mu    sync.Mutex
	seen  []string            // the Authorization headers of all requests
	mails map[string][]string // by user
	more  chan struct{}       // is closed at the next mail
}

// mailStream is a stream of a mailbox.
type mailStream struct {
	user, token string
	cursor      any // after which it begins
}

func startMailbox(t *testing.T, a *harness.AuthServer) *mailbox {
	t.Helper()
	m := &mailbox{auth: a, opened: make(chan mailStream, 1000), mails: map[string][]string{}, more: make(chan struct{})}
	m.Server = httptest.NewServer(m)
	t.Cleanup(func() { m.CloseClientConnections(); m.Close() })
	return m
}

func (m *mailbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var call struct {
		ID     json.RawMessage
		Method string
		Params map[string]any
	}
	header := r.Header.Get("Authorization")
	m.mu.Lock()
	m.seen = append(m.seen, header)
	m.mu.Unlock()
	token := strings.TrimPrefix(header, "Bearer ")
	user, err := m.auth.TryIntrospect(r.Context(), "crm", token)
	if err != nil || !user.Active || json.NewDecoder(r.Body).Decode(&call) != nil {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	result := `"error":{"code":-32601,"message":"unknown method"}`
	switch call.Method {
	case "server/discover":
		result = `"result":{"supportedVersions":["2026-07-28"],"capabilities":{"extensions":{"io.modelcontextprotocol/events":{}}},"serverInfo":{"name":"mailbox","version":"1"}}`
	case "events/list":
		result = `"result":{"events":[{"name":"received","description":"","delivery":["push"]}]}`
	case "events/stream":
		ctx, cancel := context.WithDeadline(r.Context(), time.Unix(user.Expires, 0))
		defer cancel()
		m.stream(ctx, w, string(call.ID), mailStream{user.Subject, token, call.Params["cursor"]})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, call.ID, result)
}

// stream sends a user's mails after the cursor until ctx ends.
func (m *mailbox) stream(ctx context.Context, w http.ResponseWriter, id string, s mailStream) {
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(method, params string) {
		fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":%q,\"params\":{\"_meta\":{\"io.modelcontextprotocol/subscriptionId\":%s},%s}}\n\n", method, id, params)
		w.(http.Flusher).Flush()
	}
	m.mu.Lock()
	sent := len(m.mails[s.user])
	m.mu.Unlock()
	if s.cursor != nil {
		_, _ = fmt.Sscan(fmt.Sprint(s.cursor), &sent)
	}
	send("notifications/events/active", fmt.Sprintf(`"cursor":"%d","truncated":false`, sent))
	m.opened <- s
	for ctx.Err() == nil {
		m.mu.Lock()
		mails, more := m.mails[s.user][sent:], m.more
		m.mu.Unlock()
		for _, text := range mails {
			sent++
			send("notifications/events/event", fmt.Sprintf(`"eventId":"%d","name":"received","timestamp":"2026-11-28T10:00:00Z","data":{"text":%q},"cursor":"%d"`, sent, text, sent))
		}
		select {
		case <-more:
		case <-ctx.Done():
		}
	}
}

// receive adds a mail for each user.
func (m *mailbox) receive(n int, users ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, user := range users {
		m.mails[user] = append(m.mails[user], fmt.Sprintf("mail %d for %s", n, user))
	}
	close(m.more)
	m.more = make(chan struct{})
}

// awaitStreams waits until each user has another stream, and returns one stream of each user.
func (m *mailbox) awaitStreams(t *testing.T, users ...string) map[string]mailStream {
	t.Helper()
	got := map[string]mailStream{}
	for len(got) < len(users) {
		select {
		case s := <-m.opened:
			if !slices.Contains(users, s.user) {
				t.Fatalf("there is a stream for %s", s.user)
			}
			got[s.user] = s
		case <-time.After(harness.Patience):
			t.Fatalf("there are streams only for %v", got)
		}
	}
	return got
}

// TestEventsWithExchangedTokens checks that a backend sends each caller's events to this caller, without the caller's token (GWN-21, GWN-27).
// The authorization server is Zitadel's library.
func TestEventsWithExchangedTokens(t *testing.T) {
	t.Parallel()
	a := harness.StartAuthServer(t, audience, "", "--exchanged-life", "13s") // the gateway uses each token for three seconds
	m := startMailbox(t, a)
	gateway := harness.StartServer(t, harness.ServerOptions{
		Auth: "jwt", Args: []string{"--jwt-issuer", a.Issuer, "--jwt-audience", audience}, Env: []string{"CRM_SECRET=" + harness.AuthSecret},
		Config: fmt.Sprintf(`
backends:
  - name: mail
    url: %s
    prefix: mail_
    credentials: exchange
    exchange: {tokenUrl: %q, clientId: gateway, clientSecret: "env:CRM_SECRET", audience: crm, scopes: [crm.read]}
`, m.URL, a.Issuer+"/oauth/token"),
	})
	users, tokens := []string{"alice", "bob"}, map[string]string{}
	got := map[string]chan string{}
	for _, user := range []string{"alice", "bob", "mallory"} {
		tokens[user] = a.Token(t, user, "events:read events:subscribe")
	}
	gateway.Keys = tokens
	check := func(t *testing.T, n int) {
		t.Helper()
		for _, user := range users {
			expect.Equal(t, "the event of "+user, expect.Receive(t, "the event of "+user, got[user]), fmt.Sprintf(`{"text":"mail %d for %s"}`, n, user))
		}
		for _, user := range users {
			if len(got[user]) > 0 {
				t.Errorf("%s gets another event: %s", user, <-got[user])
			}
		}
	}
	for _, user := range users {
		c, err := mcpevents.Connect(t.Context(), gateway.MCP, mcpevents.Options{Key: tokens[user]})
		expect.OK(t, err)
		harness.Eventually(t, harness.Patience, "the gateway lists the event type", func() bool {
			types := expect.Value(c.EventTypes(t.Context()))(t)
			return slices.ContainsFunc(types, func(e mcpevents.EventType) bool { return e.Name == "mail_received" })
		})
		events := make(chan string, 100)
		got[user] = events
		expect.OK(t, expect.ErrOf(c.Subscribe(t.Context(), mcpevents.SubscribeOptions{
			Name: "mail_received", Mode: mcpevents.ModePush, Arguments: map[string]any{"folder": "inbox"},
			Event: func(_ context.Context, e mcpevents.Event) error { events <- string(e.Data); return nil },
		})))
	}
	first := m.awaitStreams(t, users...)
	t.Run("GWN-21, GWN-27 each principal has its own subscription at the backend, and gets its own events", func(t *testing.T) {
		m.receive(1, users...)
		check(t, 1)
	})
	t.Run("GWN-27 a subscription continues with another token after its token has expired", func(t *testing.T) {
		second := m.awaitStreams(t, users...)
		for _, user := range users {
			expect.Differ(t, "the token of the second stream of "+user, second[user].token, first[user].token)
		}
		m.receive(2, users...)
		check(t, 2)
	})
	t.Run("GWN-21, GWN-27 a caller to whom the authorization server gives no token cannot subscribe", func(t *testing.T) {
		poll := map[string]any{"name": "mail_received", "arguments": map[string]any{"folder": "inbox"}, "cursor": nil}
		got := gateway.Stateless("mallory").Refused(t, 503, "events/poll", poll)
		expect.Contains(t, "the error", got.Message, "the authorization server gives this caller no token for backend mail")
	})
	t.Run("GWN-27 neither the backend nor the log gets a caller's token", func(t *testing.T) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for user, token := range tokens {
			expect.True(t, "the backend does not get the token of "+user, !slices.Contains(m.seen, "Bearer "+token))
			expect.Lacks(t, "the log, without the token of "+user, gateway.Output(), token[len(token)-30:])
		}
	})
}
