// Package forward lets a Lambda function forward HTTP requests, including their credentials, to another function. The other function gets
// a request as an event of its Function URL.
package forward

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// Invoke calls a Lambda function and returns its response.
type Invoke func(ctx context.Context, payload []byte) ([]byte, error)

// Handler forwards requests to a function with Invoke. If the function fails, the response says that the service is temporarily
// unavailable.
type Handler struct {
	Invoke Invoke
	Log    *slog.Logger
}

// maxBody is the maximum size of a request body, in bytes. The MCP endpoint that passes requests to the handler accepts at most 1 MiB.
const maxBody = 2 << 20

func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	}
	response, decoded, err := h.serve(r, body)
	if err != nil {
		h.Log.ErrorContext(r.Context(), "request not forwarded", "error", err)
		var message jsonrpc.Message
		if m, bad := jsonrpc.Decode(body); bad == nil {
			message = m
		}
		method.Unreachable(w, message.ID)
		return
	}
	for k, v := range response.Headers {
		w.Header().Set(k, v)
	}
	w.WriteHeader(response.StatusCode)
	_, _ = w.Write(decoded)
}

func (h Handler) serve(r *http.Request, body []byte) (response events.LambdaFunctionURLResponse, decoded []byte, err error) {
	payload, err := json.Marshal(boot.Event(r, body))
	if err != nil {
		return response, nil, fault.Wrap(fault.Internal, err, "encode the request")
	}
	answer, err := h.Invoke(r.Context(), payload)
	if err != nil {
		return response, nil, err
	}
	if err := json.Unmarshal(answer, &response); err != nil || response.StatusCode < 200 {
		return response, nil, fault.New(fault.Internal, "the response does not have the format of a Function URL")
	}
	decoded = []byte(response.Body)
	if response.IsBase64Encoded {
		if decoded, err = base64.StdEncoding.DecodeString(response.Body); err != nil {
			return response, nil, fault.Wrap(fault.Internal, err, "decode the response")
		}
	}
	return response, decoded, nil
}

// attempts is how many times an invocation is tried if Lambda throttles it. With pauses of at most a second, a caller waits at most 3 s.
const attempts = 4

// Lambda returns an [Invoke] that calls the Lambda function with the given name. If Lambda throttles an invocation, the function has not
// run, so Invoke repeats the invocation. After other failures, the function may have run, and a second invocation could create a second
// subscription. Invoke does not repeat these, but clients can repeat their requests with an idempotency key.
func Lambda(cfg aws.Config, function string) Invoke {
	client := lambda.NewFromConfig(cfg, func(o *lambda.Options) {
		o.RetryMaxAttempts = attempts
		o.Retryer = retry.NewStandard(func(s *retry.StandardOptions) {
			s.MaxBackoff = time.Second
			s.Retryables = []retry.IsErrorRetryable{retry.RetryableErrorCode{Codes: map[string]struct{}{
				"TooManyRequestsException": {},
			}}}
		})
	})
	return func(ctx context.Context, payload []byte) ([]byte, error) {
		out, err := client.Invoke(ctx, &lambda.InvokeInput{FunctionName: &function, Payload: payload})
		if err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "invoke %s", function)
		}
		if out.FunctionError != nil {
			return nil, fault.New(fault.Unavailable, "%s failed", function)
		}
		return out.Payload, nil
	}
}
