package client_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestWebhooksReachTheSubscriptionThatTheyName has several subscriptions to URIs at one handler. The server sends unsigned webhooks, and its
// answer to the first registration takes long. EVX-19: the type that the bodies have does not make them control messages.
func TestWebhooksReachTheSubscriptionThatTheyName(t *testing.T) {
	t.Parallel()
	answer := make(chan struct{})
	names := []string{"slow", "a", "b"} // in the order of their registrations
	s := newScript(t, spec.MethodRegister, func(n int, _ http.ResponseWriter) string {
		if n == 1 {
			select {
			case <-answer:
			case <-t.Context().Done():
			}
		}
		return `{"subscription":{"uri":"subscription://sub_` + names[n-1] + `","webhookSecret":{"type":"none"}}}`
	})
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
		req := expect.Value(http.NewRequest(http.MethodPost, hooks.URL, strings.NewReader(`{"type":"terminated","uri":"event://x","data":"`+name+`"}`)))(t)
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
		subscribe(names[0])
	}()
	for <-s.arrived != spec.MethodRegister { // until the first subscription waits for its answer
	}
	for _, name := range names[1:] {
		subscribe(name)
	}
	send("b", `b got "b"`)
	send("a", `a got "a"`)
	time.AfterFunc(100*time.Millisecond, func() { close(answer) })
	send("slow", `slow got "slow"`) // arrives before the answer
	<-slow
}
