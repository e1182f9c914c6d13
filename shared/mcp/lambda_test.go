package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambdaurl"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/test/expect"
)

// functionURL converts a request to the event that AWS sends for a Function URL.
func functionURL(r *http.Request) *events.LambdaFunctionURLRequest {
	headers := map[string]string{}
	for name, values := range r.Header {
		headers[strings.ToLower(name)] = strings.Join(values, ",")
	}
	body, _ := io.ReadAll(r.Body)
	return &events.LambdaFunctionURLRequest{
		RawPath: "/mcp", Headers: headers, Body: string(body),
		RequestContext: events.LambdaFunctionURLRequestContext{
			DomainName: "abc.lambda-url.eu-west-1.on.aws",
			HTTP:       events.LambdaFunctionURLRequestContextHTTPDescription{Method: r.Method, SourceIP: "192.0.2.1"},
		},
	}
}

// TestLambda serves requests through lambdaurl. Its responses cannot flush, so every write must be sent immediately.
func TestLambda(t *testing.T) {
	f := newEndpoint(t, nil)
	defer f.close()
	invoke := lambdaurl.Wrap(f.endpoint)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	t.Run("SUB-09_an_answer", func(t *testing.T) {
		res := expect.Value(invoke(ctx, functionURL(f.statelessRequest(alice, spec.MethodDiscover, ""))))(t)
		body := expect.Value(io.ReadAll(res.Body))(t)
		if res.StatusCode != 200 || res.Headers["Content-Type"] != "application/json" || !json.Valid(body) {
			t.Errorf("got status %d, %v: %s, want 200 and JSON", res.StatusCode, res.Headers, body)
		}
	})
	t.Run("SUB-01_a_listen", func(t *testing.T) {
		req := f.statelessRequest(alice, spec.MethodListen, `"notifications":{"resourceSubscriptions":["event://ci/deploy"]}`)
		res := expect.Value(invoke(ctx, functionURL(req)))(t)
		if res.StatusCode != 200 || res.Headers["Content-Type"] != sse.ContentType || res.Headers["X-Accel-Buffering"] != "no" {
			t.Fatalf("got status %d, %v, want a stream", res.StatusCode, res.Headers)
		}
		r := sse.NewReader(res.Body, 1<<20)
		brings := func(want string) {
			t.Helper()
			e := expect.Value(r.Next())(t)
			equal(t, "the next message", decodeFrame(t, e).says(), want)
		}
		brings(spec.NoteAcknowledged)
		f.publish(deploy, `{"n":1}`)
		brings(deploy + ` {"n":1}`)
		closed := make(chan error, 1)
		go func() { closed <- f.endpoint.Close(ctx) }()
		brings("complete") // SUB-06
		if _, err := r.Next(); err != io.EOF {
			t.Errorf("after the end: %v", err)
		}
		expect.OK(t, <-closed)
	})
	for _, stateless := range []bool{true, false} {
		b := startLister(t, "b", stateless, "tool")
		b.set(func() { b.mute = true })
		f := behindGateway(t, nil, b)
		params := `"name":"b_tool","arguments":{}`
		for client, req := range map[string]*http.Request{
			"2026-07-28": f.statelessRequest(alice, "tools/call", params),
			"a_session":  f.request("POST", alice, rpcText("1", spec.MethodToolsCall, params), "Mcp-Session-Id: "+f.session(alice, spec.V20251125)),
		} {
			t.Run(fmt.Sprintf("GWN-14_a_hanging_backend_and_the_function's_deadline_%s_stateless_%v", client, stateless), func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), method.CallReserve+300*time.Millisecond)
				defer cancel()
				res := expect.Value(lambdaurl.Wrap(f.endpoint)(ctx, functionURL(req)))(t)
				body, err := io.ReadAll(res.Body)
				if err != nil || !strings.Contains(string(body), `"code":503`) || ctx.Err() != nil {
					t.Errorf("got %s (%v, %v), want the error 503 before the deadline", body, err, ctx.Err())
				}
			})
		}
	}
}
