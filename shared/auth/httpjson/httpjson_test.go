package httpjson

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// AUT-03, AUT-06, AUT-07: a refusal has the status of its kind and tells the caller how to react, but hides internal errors.
func TestRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		serve       func() (any, error)
		status      int
		want        string
		header, log string
	}{
		"an answer":       {func() (any, error) { return map[string]int{"n": 1}, nil }, 202, `{"n":1}`, "", ""},
		"a fault":         {func() (any, error) { return nil, fault.New(fault.Invalid, "it is bad") }, 400, `{"error":{"kind":"invalid","message":"it is bad"}}`, "", ""},
		"its data":        {func() (any, error) { return nil, fault.New(fault.NotFound, "no").With(map[string]int{"n": 1}) }, 404, `{"error":{"kind":"not found","message":"no","n":1}}`, "", ""},
		"data of no name": {func() (any, error) { return nil, fault.New(fault.NotFound, "no").With([]int{1}) }, 404, `{"error":{"kind":"not found","message":"no"}}`, "", ""},
		"a limit": {func() (any, error) {
			return nil, fault.New(fault.Exhausted, "slow").With(quota.RetryAfter{Limit: fault.Limit{Limit: "l", Max: 1}, Seconds: 7})
		}, 429, `{"error":{"kind":"exhausted","message":"slow","limit":"l","max":1,"retryAfterSeconds":7}}`, "Retry-After: 7", ""},
		"a limit without a time": {func() (any, error) {
			return nil, fault.New(fault.Exhausted, "full").AtLimit("l", 1)
		}, 429, `{"error":{"kind":"exhausted","message":"full","limit":"l","max":1}}`, "Retry-After: 5", ""},
		"a method":         {func() (any, error) { return nil, NotAllowed("PUT, DELETE") }, 405, `{"error":{"kind":"unsupported","message":"the HTTP method is not allowed here","allow":"PUT, DELETE"}}`, "Allow: PUT, DELETE", ""},
		"no service":       {func() (any, error) { return nil, fault.Wrap(fault.Unavailable, errors.New("secret"), "read") }, 503, `{"error":{"kind":"unavailable","message":"this cannot be done now; try again"}}`, "Retry-After: 1", "secret"},
		"a fault of ours":  {func() (any, error) { return nil, fault.New(fault.Internal, "secret").With(map[string]int{"n": 1}) }, 500, `{"error":{"kind":"internal","message":"internal error"}}`, "", "secret"},
		"an unknown error": {func() (any, error) { return nil, errors.New("secret") }, 500, `{"error":{"kind":"internal","message":"internal error"}}`, "", "secret"},
		"a panic":          {func() (any, error) { panic("secret") }, 500, `{"error":{"kind":"internal","message":"internal error"}}`, "", "secret"},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			w := httptest.NewRecorder()
			Responder{Log: slog.New(slog.NewTextHandler(&log, nil))}.Serve(w, httptest.NewRequest("GET", "/x", nil), http.StatusAccepted, tc.serve)
			if w.Code != tc.status || w.Body.String() != tc.want || w.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("got %d %s with Cache-Control %q, want %d %s and no-store", w.Code, w.Body, w.Header().Get("Cache-Control"), tc.status, tc.want)
			}
			if name, value, _ := strings.Cut(tc.header, ": "); tc.header != "" && w.Header().Get(name) != value {
				t.Errorf("got the headers %v, want %s", w.Header(), tc.header)
			}
			expect.Equal(t, "the presence of a log", (log.Len() > 0), (tc.log != ""))
			expect.Contains(t, "the log", log.String(), tc.log)
		})
	}
}

// A client that disconnects is no failure of the server, but a request of the server's own that is canceled is one.
func TestAClientThatDisconnectsIsNoError(t *testing.T) {
	for _, disconnected := range []bool{true, false} {
		var log bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		Responder{Log: slog.New(slog.NewTextHandler(&log, nil))}.Serve(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/x", nil), http.StatusOK, func() (any, error) {
			if disconnected {
				cancel()
			}
			return nil, fault.Wrap(fault.Unavailable, context.Canceled, "queue the events")
		})
		cancel()
		expect.Equal(t, "the log has an error", log.Len() > 0, !disconnected)
	}
}

func TestNamesInPathsAreNotLogged(t *testing.T) {
	var log bytes.Buffer
	responder := Responder{Log: slog.New(slog.NewTextHandler(&log, nil))}
	mux := http.NewServeMux()
	mux.HandleFunc("/principals/{id}", func(w http.ResponseWriter, r *http.Request) {
		responder.Serve(w, r, http.StatusOK, func() (any, error) { return nil, fault.New(fault.Unavailable, "down") })
	})
	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("DELETE", "/principals/alice@example.com", nil))
	if text := log.String(); strings.Contains(text, "alice") || !strings.Contains(text, "path=/principals/{id}") {
		t.Errorf("OPS-04: got the log %s, want the route without the name", text)
	}
}
