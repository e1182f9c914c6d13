package forward_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/events"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/functions/internal/forward"
	"github.com/mcp-events/mcpevents/test/expect"
)

// function returns an Invoke that runs a handler as Lambda would.
func function(h http.HandlerFunc) forward.Invoke {
	serve := boot.BufferedHandler(h)
	return func(ctx context.Context, payload []byte) ([]byte, error) {
		var event events.LambdaFunctionURLRequest
		if err := json.Unmarshal(payload, &event); err != nil {
			return nil, err
		}
		out, err := serve(ctx, event)
		if err != nil {
			return nil, err
		}
		return json.Marshal(out)
	}
}

func serve(invoke forward.Invoke, body string) *httptest.ResponseRecorder {
	h := forward.Handler{Invoke: invoke, Log: slog.New(slog.DiscardHandler)}
	r := httptest.NewRequest("POST", "https://example.com/mcp", strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer token")
	r.Header.Set("Mcp-Protocol-Version", "2026-07-28")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestTheWholeRequestAndResponseAreForwarded(t *testing.T) {
	w := serve(function(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("WWW-Authenticate", "Bearer")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(r.Method + r.URL.Path + r.Host + r.Header.Get("Authorization") + r.Header.Get("Mcp-Protocol-Version") + string(b)))
	}), `{"id":1}`)
	if want := `POST/mcpexample.comBearer token2026-07-28{"id":1}`; w.Body.String() != want {
		t.Errorf("got %q, want %q", w.Body, want)
	}
	if w.Code != http.StatusUnauthorized || w.Header().Get("Www-Authenticate") != "Bearer" {
		t.Errorf("got %d %v", w.Code, w.Header())
	}
	if w := serve(function(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte{0xff}) }), "{}"); w.Body.String() != "\xff" {
		t.Errorf("got %q", w.Body)
	}
}

func TestAFunctionThatCannotServeIsUnavailable(t *testing.T) {
	const body = `{"jsonrpc":"2.0","id":"seven","method":"m"}`
	for name, invoke := range map[string]forward.Invoke{
		"it cannot be invoked": func(context.Context, []byte) ([]byte, error) { return nil, errors.New("secret") },
		"it answers rubbish":   func(context.Context, []byte) ([]byte, error) { return []byte("?"), nil },
		"it answers no status": func(context.Context, []byte) ([]byte, error) { return []byte(`{}`), nil },
		"it answers bad base64": func(context.Context, []byte) ([]byte, error) {
			return []byte(`{"statusCode":200,"isBase64Encoded":true,"body":"?"}`), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := serve(invoke, body)
			if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), `"id":"seven"`) || strings.Contains(w.Body.String(), "secret") {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
		})
	}
	expect.Equal(t, "the status for a body over the limit", serve(nil, strings.Repeat("x", 3<<20)).Code, http.StatusRequestEntityTooLarge)
}
