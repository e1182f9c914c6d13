package auth

import (
	"context"
	"net/http"
	"sync/atomic"
)

// Replaceable is an [Authenticator] that can be changed while it is in use.
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
