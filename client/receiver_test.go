package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// TestReceiver_Challenge registers at a server that verifies endpoints before it answers.
func TestReceiver_Challenge(t *testing.T) {
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
		for body, want := range map[string]string{nonce: `200 {"challenge":"nonce"}`, `{"type":"other"}`: "400 no challenge", strings.Repeat(" ", 5000) + nonce: "400 no challenge"} {
			if status, text := challenge(message.Params.TargetURI, id, body); fmt.Sprint(status, " ", text) != want {
				t.Errorf("%.50s: got %d %s, want %s", body, status, text, want)
			}
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":{"subscription":{"uri":"subscription://s","webhookSecret":{"type":"standard","key":"whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}}}}`)
	}))
	defer server.Close()
	c, err := client.New(client.Server{URL: server.URL, Agent: "test/1"}, spec.V20260728)
	if err != nil {
		t.Fatal(err)
	}
	r, err := client.NewReceiver("127.0.0.1:0", func(e client.Event) error { t.Errorf("took %+v", e); return nil }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	registration := &client.Registration{Client: c, URIs: []string{"event://a"}, Target: r.URL}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	t.Run("SRF-07 the challenge of a registration is echoed before the secret is known", func(t *testing.T) {
		if err := registration.Begin(ctx, r); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("SRF-07 and none afterwards that is not signed", func(t *testing.T) {
		if status, _ := challenge(r.URL, id, nonce); status != http.StatusUnauthorized {
			t.Errorf("answered with %d", status)
		}
	})
}
