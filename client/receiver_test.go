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

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestARegistrationWithAChallenge registers at a server that verifies endpoints before it answers.
func TestARegistrationWithAChallenge(t *testing.T) {
	t.Parallel()
	challenge := func(target, id, body string) (int, string) {
		req, _ := http.NewRequest(http.MethodPost, target, strings.NewReader(body))
		req.Header.Set(webhook.HeaderID, id)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, strings.TrimSpace(string(text))
	}
	const id, nonce = "msg_verification_1", `{"type":"verification","challenge":"nonce"}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var message struct {
			Params struct{ TargetURI string }
		}
		_ = json.NewDecoder(req.Body).Decode(&message)
		if message.Params.TargetURI == "" { // deregister
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"jsonrpc":"2.0","id":2,"result":{}}`)
			return
		}
		for body, want := range map[string]string{nonce: `200 {"challenge":"nonce"}`, `{"type":"other"}`: "400 not a challenge", strings.Repeat(" ", 5000) + nonce: "400 not a challenge"} {
			if status, text := challenge(message.Params.TargetURI, id, body); fmt.Sprint(status, " ", text) != want {
				t.Errorf("%.50s: got %d %s, want %s", body, status, text, want)
			}
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":{"subscription":{"uri":"subscription://s","webhookSecret":{"type":"standard","key":"whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}}}}`)
	}))
	defer server.Close()
	hooks := &client.Handler{}
	end := expect.Value(hooks.Listen("127.0.0.1:0"))(t)
	defer end()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := expect.Value(client.Connect(ctx, server.URL, client.Options{Agent: "test/1", Revision: string(spec.V20260728), Webhooks: hooks}))(t)
	var sub *client.Subscription
	t.Run("SRF-07 the challenge of a registration is echoed before the secret is known", func(t *testing.T) {
		sub = expect.Value(c.Subscribe(ctx, client.SubscribeOptions{
			URIs: []string{"event://a"}, Mode: client.ModeWebhook,
			Event: func(_ context.Context, e client.Event) error { t.Errorf("got %+v, want no event", e); return nil },
		}))(t)
	})
	t.Run("SRF-07 afterwards an unsigned challenge is refused", func(t *testing.T) {
		if status, _ := challenge(hooks.URL, id, nonce); status != http.StatusUnauthorized {
			t.Errorf("answered with %d, want 401", status)
		}
	})
	if err := sub.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
}
