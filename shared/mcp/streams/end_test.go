package streams

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// The reasons that a test cannot bring about in a moment.
func TestEndReasons(t *testing.T) {
	gone, leave := context.WithCancel(t.Context())
	leave()
	open := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/mcp", nil)
	for name, tc := range map[string]struct {
		r    *http.Request
		why  error
		want string
	}{
		"a write that took too long":      {open, errors.Join(method.ErrWriting, &net.OpError{Op: "write", Err: os.ErrDeadlineExceeded}), "slow_reader"},
		"a feed that ran over":            {open, stream.ErrSlow, "slow_reader"},
		"a failed write":                  {open, errors.Join(method.ErrWriting, net.ErrClosed), "client_closed"},
		"the store fails":                 {open, fault.New(fault.Unavailable, "x"), "error"},
		"what fails as the client leaves": {open.WithContext(gone), fault.New(fault.Unavailable, "x"), "client_closed"},
	} {
		expect.Equal(t, name, endReason(tc.r, tc.why), tc.want)
	}
}
