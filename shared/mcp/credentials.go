package mcp

import (
	"context"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// caller is the principal of a stream, with the credentials of the request that opened it.
type caller struct {
	principal auth.Principal
	header    http.Header
	looked    time.Time // when the credentials were last checked
}

// A stream lives longer than the request that it began with. So the caller's
// credentials are looked at again: when nothing was sent for a while, when the catalog
// changed, and before an event if the last look is a heartbeat ago.

// unsure reports whether the last look at the credentials is too long ago to send an event.
func (w *streamWriter) unsure() bool {
	return time.Since(w.caller.looked) >= w.streams.timing.heartbeat
}

// look takes over what the caller's credentials are worth now, or fails with
// [errRevoked]. Where that is not known now, they are as good as they were.
func (w *streamWriter) look(ctx context.Context) error {
	w.caller.looked = time.Now()
	now, err := recheck(ctx, w.streams.auth, w.caller.header, w.caller.principal)
	if err == nil {
		w.caller.principal = now
	}
	return err
}

// recheck is what the credentials of a caller who was let in before are worth now.
func recheck(ctx context.Context, a auth.Authenticator, header http.Header, before auth.Principal) (auth.Principal, error) {
	now, err := a.Authenticate(ctx, header)
	switch {
	case fault.Is(err, fault.Unauthenticated), fault.Is(err, fault.Forbidden):
		return before, errRevoked
	case err != nil:
		return before, nil
	case now.ID != before.ID || now.Workspace != before.Workspace || !now.Has(auth.ScopeRead):
		return before, errRevoked
	}
	return now, nil
}
