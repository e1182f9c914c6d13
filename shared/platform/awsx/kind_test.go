package awsx

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestKindOf(t *testing.T) {
	tests := map[string]struct {
		err  error
		want fault.Kind
	}{
		"an ended context":          {context.DeadlineExceeded, fault.Unavailable},
		"the network":               {errors.New("connection refused"), fault.Unavailable},
		"a failure of the service":  {&smithy.GenericAPIError{Code: "InternalFailure", Fault: smithy.FaultServer}, fault.Unavailable},
		"throttling":                {&smithy.GenericAPIError{Code: "ThrottlingException", Fault: smithy.FaultClient}, fault.Unavailable},
		"a rejected request":        {&smithy.GenericAPIError{Code: "ValidationException", Fault: smithy.FaultClient}, fault.Internal},
		"no permission":             {&smithy.GenericAPIError{Code: "AccessDeniedException"}, fault.Internal},
		"a code with status 503":    {answered(503, &smithy.GenericAPIError{Code: "Unknown"}), fault.Unavailable},
		"a code with status 400":    {answered(400, &smithy.GenericAPIError{Code: "Unknown"}), fault.Internal},
		"an error with a kind":      {fmt.Errorf("wrapped: %w", fault.New(fault.TooLarge, "item")), fault.TooLarge},
		"an error of kind internal": {fault.New(fault.Internal, "broken item"), fault.Internal},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, "the kind", KindOf(tt.err), tt.want)
		})
	}
}

func answered(status int, err error) error {
	return &awshttp.ResponseError{ResponseError: &smithyhttp.ResponseError{
		Response: &smithyhttp.Response{Response: &http.Response{StatusCode: status}}, Err: err,
	}}
}
