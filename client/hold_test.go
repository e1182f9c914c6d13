package client

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// silencing is a server that answers until it is silent, and nothing then.
type silencing struct{ silent bool }

func (s *silencing) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.silent {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	var message struct{ Method string }
	_ = json.NewDecoder(r.Body).Decode(&message)
	result := map[string]string{
		spec.MethodInitialize: `{"protocolVersion":"2025-11-25"}`,
		spec.MethodRegister:   `{"subscription":{"uri":"subscription://s","webhookSecret":{"type":"none"}}}`,
	}[message.Method]
	header := http.Header{"Content-Type": {"application/json"}, "Mcp-Session-Id": {"s"}}
	body := io.NopCloser(strings.NewReader(`{"jsonrpc":"2.0","id":1,"result":` + result + `}`))
	return &http.Response{StatusCode: http.StatusOK, Header: header, Body: body, Request: r}, nil
}

// TestHold_EndsInTime: a server that no longer answers holds up the end of a subscription and of its session for five
// seconds together.
func TestHold_EndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, away := slog.New(slog.DiscardHandler), &silencing{}
		c, err := New(Server{URL: "http://server.test", Agent: "test/1", HTTP: &http.Client{Transport: away}}, spec.V20251125)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := &Receiver{Failed: make(chan error, 1), ready: make(chan struct{}), closed: make(chan struct{})}
		began := time.Now()
		err = Hold(ctx, c, &Registration{Client: c, URIs: []string{"event://a/b"}, Target: "http://receiver.test"}, r, func() {
			away.silent = true
			cancel()
		}, log)
		if took := time.Since(began); err != nil || took != drainTime {
			t.Errorf("it took %v: %v", took, err)
		}
	})
}
