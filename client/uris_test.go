package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestWebhooksReachTheSubscriptionThatTheyName has several subscriptions to URIs at one handler. The server sends unsigned webhooks, and its
// answer to the first registration takes long.
func TestWebhooksReachTheSubscriptionThatTheyName(t *testing.T) {
	t.Parallel()
	answer := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct{ URIs []string }
		}
		_ = json.NewDecoder(r.Body).Decode(&m)
		if m.Method == "resources/subscriptions/register" {
			name := strings.TrimPrefix(m.Params.URIs[0], "event://")
			if name == "slow" {
				select {
				case <-answer:
				case <-r.Context().Done():
				}
			}
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"subscription":{"uri":"subscription://sub_%s","webhookSecret":{"type":"none"}}}}`, m.ID, name)
			return
		}
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
	}))
	defer s.Close()
	defer s.CloseClientConnections()
	hooks := startHandler(t)
	c := expect.Value(client.Connect(t.Context(), s.URL, client.Options{Revision: "2026-07-28", Webhooks: hooks}))(t)
	got := make(chan string, 10)
	subscribe := func(name string) {
		sub, err := c.Subscribe(t.Context(), client.SubscribeOptions{
			URIs: []string{"event://" + name}, Mode: client.ModeWebhook,
			Event: func(_ context.Context, e client.Event) error { got <- name + " got " + string(e.Data); return nil },
		})
		if err != nil {
			t.Errorf("subscribe to %s: %v", name, err)
			return
		}
		t.Cleanup(func() { _ = sub.Close() })
	}
	send := func(name, want string) {
		t.Helper()
		req := expect.Value(http.NewRequest(http.MethodPost, hooks.URL, strings.NewReader(`{"type":"t","uri":"event://x","data":"`+name+`"}`)))(t)
		req.Header.Set("Webhook-Id", "evt_"+name)
		req.Header.Set("X-MCP-Subscription-Id", "sub_"+name)
		began := time.Now()
		resp := expect.Value(http.DefaultClient.Do(req))(t)
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if took := time.Since(began); resp.StatusCode != http.StatusNoContent || took > 5*time.Second {
			t.Fatalf("the webhook for %s was answered with %d %s after %s, want 204 immediately", name, resp.StatusCode, text, took)
		}
		expect.Equal(t, "the event", <-got, want)
	}
	slow := make(chan struct{})
	go func() {
		defer close(slow)
		subscribe("slow")
	}()
	time.Sleep(100 * time.Millisecond) // the first subscription is waiting for its answer
	subscribe("a")
	subscribe("b")
	send("b", `b got "b"`)
	send("a", `a got "a"`)
	time.AfterFunc(100*time.Millisecond, func() { close(answer) })
	send("slow", `slow got "slow"`) // arrives before the answer
	<-slow
}
