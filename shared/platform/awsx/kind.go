package awsx

import (
	"errors"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// KindOf tells whether an error of a client may pass: no answer at all, an
// error of the service's, and what the SDK itself would repeat are
// [fault.Unavailable]. What the service finds wrong with the request is
// [fault.Internal], since nothing reaches a client here that was not checked before.
func KindOf(err error) fault.Kind {
	if _, ours := errors.AsType[*fault.Error](err); ours {
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
