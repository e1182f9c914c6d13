package auth

import (
	"context"
	"net/http"
	"sync/atomic"

	"github.com/mcp-events/mcpevents/shared/fault"
)

// Replaceable is an [Authenticator] that can be changed while it is in use. It is a
// [Directory] if what it holds is.
type Replaceable struct{ current atomic.Pointer[Authenticator] }

// NewReplaceable begins with a.
func NewReplaceable(a Authenticator) *Replaceable {
	r := &Replaceable{}
	r.Replace(a)
	return r
}

// Replace changes it for all calls that follow.
func (r *Replaceable) Replace(a Authenticator) { r.current.Store(&a) }

// Authenticate implements [Authenticator].
func (r *Replaceable) Authenticate(ctx context.Context, h http.Header) (Principal, error) {
	return (*r.current.Load()).Authenticate(ctx, h)
}

// Principals implements [Directory].
func (r *Replaceable) Principals(ctx context.Context, workspace, id string, latest bool) ([]Principal, error) {
	directory, ok := (*r.current.Load()).(Directory)
	if !ok {
		return nil, fault.New(fault.Internal, "no directory of principals is configured")
	}
	return directory.Principals(ctx, workspace, id, latest)
}
