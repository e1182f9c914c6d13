package forward

import (
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// attempts is how often a throttled invocation is tried. With pauses of at most a second, a caller waits at most 3 s.
const attempts = 4

// Lambda returns an Invoke for the named function. It repeats throttled invocations, because the function did not
// run. It does not repeat other failures, because a second invocation could create a second subscription. Clients can
// repeat them with their idempotency key.
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
