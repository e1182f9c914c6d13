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
	"testing/synctest"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/aws"

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
	expect.Equal(t, "the forwarded request", w.Body.String(), `POST/mcpexample.comBearer token2026-07-28{"id":1}`)
	expect.Equal(t, "the status", w.Code, http.StatusUnauthorized)
	expect.Equal(t, "the header Www-Authenticate", w.Header().Get("Www-Authenticate"), "Bearer")
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

type doer func(*http.Request) (*http.Response, error)

func (d doer) Do(r *http.Request) (*http.Response, error) { return d(r) }

func TestLambda(t *testing.T) {
	for name, tc := range map[string]struct {
		statuses []int
		code     string
		requests int
		fails    bool
	}{
		"AWS-08 a throttled invocation is retried, because the function did not run": {[]int{429, 429, 200}, "TooManyRequestsException", 3, false},
		"AWS-08 an invocation that stays throttled fails":                            {[]int{429, 429, 429, 429, 429}, "TooManyRequestsException", 4, true},
		"an invocation that may have run is not repeated":                            {[]int{500, 200}, "ServiceException", 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				requests := 0
				client := doer(func(*http.Request) (*http.Response, error) {
					status := tc.statuses[requests]
					requests++
					header := http.Header{}
					if status != http.StatusOK {
						header.Set("X-Amzn-Errortype", tc.code)
					}
					return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(`{}`))}, nil
				})
				invoke := forward.Lambda(aws.Config{
					Region: "eu-central-1", RetryMaxAttempts: 5, HTTPClient: client,
					Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
						return aws.Credentials{AccessKeyID: "a", SecretAccessKey: "b"}, nil
					}),
				}, "register")
				_, err := invoke(t.Context(), []byte(`{}`))
				if (err != nil) != tc.fails || requests != tc.requests {
					t.Errorf("got error %v after %d requests, want an error: %t, after %d", err, requests, tc.fails, tc.requests)
				}
			})
		})
	}
}
