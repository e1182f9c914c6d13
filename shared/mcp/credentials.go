package mcp

import (
	"context"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/fault"
)

// A stream lives longer than the request that it began with. So the caller's
// credentials are looked at again: when nothing was sent for a while, when the catalog
// changed, and before an event if the last look is a heartbeat ago.

// errRevoked ends a stream whose caller would not be let in any more.
var errRevoked = errors.New("mcp: the caller's credentials are not good any more")

// unsure reports whether the last look at the credentials is too long ago to send an event.
func (o *streamWriter) unsure() bool { return time.Since(o.looked) >= o.streams.timing.heartbeat }

// look takes over what the caller's credentials are worth now, or fails with
// [errRevoked]. Where that is not known now, they are as good as they were.
func (o *streamWriter) look(ctx context.Context) error {
	o.looked = time.Now()
	now, err := o.streams.auth.Authenticate(ctx, o.header)
	switch {
	case fault.Is(err, fault.Unauthenticated), fault.Is(err, fault.Forbidden):
		return errRevoked
	case err != nil:
		return nil
	case now.ID != o.principal.ID || now.Workspace != o.principal.Workspace || !now.Has(auth.ScopeRead):
		return errRevoked
	}
	o.principal = now
	return nil
}
