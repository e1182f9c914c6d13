package awsx

import (
	"errors"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// KindOf returns the kind of an AWS client's error. It is [fault.Unavailable] if a retry may help: the service did not answer, it
// failed, or the SDK itself would retry. A request that the service rejects is [fault.Internal], because we check input before it
// reaches a client.
func KindOf(err error) fault.Kind {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return fault.KindOf(err)
	}
	api, answered := errors.AsType[smithy.APIError](err)
	if !answered || api.ErrorFault() == smithy.FaultServer {
		return fault.Unavailable
	}
	if _, throttled := retry.DefaultThrottleErrorCodes[api.ErrorCode()]; throttled {
		return fault.Unavailable
	}
	for _, r := range retry.DefaultRetryables { // these also look at the HTTP status
		if again := r.IsErrorRetryable(err); again.Bool() {
			return fault.Unavailable
		}
	}
	return fault.Internal
}
