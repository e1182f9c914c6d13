package forward

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/mcp-events/mcpevents/shared/fault"
)

// Lambda invokes a function by its name.
//
// Notes:
//   - A request is sent once: a second one could make a second subscription.
//     Clients repeat it, with their idempotency key if they have one.
func Lambda(cfg aws.Config, function string) Invoke {
	client := lambda.NewFromConfig(cfg, func(o *lambda.Options) { o.Retryer = aws.NopRetryer{} })
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
