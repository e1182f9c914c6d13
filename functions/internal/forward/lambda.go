package forward

import (
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// attempts is how often a throttled invocation is tried. With up to a second between them, a caller waits 3 s at most.
const attempts = 4

// Lambda invokes a function by its name. It repeats a request that Lambda throttled, because the function did not run.
// It repeats no other failed request, because a second one could create a second subscription. Clients
// repeat it, with their idempotency key if they have one.
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
