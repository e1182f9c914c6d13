package mcp

import (
	"context"
	"net/http"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// get serves GET: the stream of a session of the earlier revisions.
func (e *Endpoint) get(w http.ResponseWriter, c *call) {
	e.sessionStream(w, c, e.enterSession, func(ctx context.Context, last position) (*streamWriter, error) {
		return e.streams.openSession(ctx, c, last)
	})
}

// sessionStream serves a GET by the stream of a session that enter finds.
func (e *Endpoint) sessionStream(w http.ResponseWriter, c *call, enter func(http.ResponseWriter, *call) bool,
	open func(context.Context, position) (*streamWriter, error),
) {
	if !accepts(c.request.Header, sse.ContentType) {
		sendError(w, http.StatusNotAcceptable, nil, invalidRequest("Accept must list text/event-stream"))
		return
	}
	if !enter(w, c) {
		return
	}
	if err := c.principal.Require(auth.ScopeRead); err != nil {
		e.replies.fault(w, c, method{}, err)
		return
	}
	from, err := c.lastEvent()
	if err == nil {
		err = e.streams.hold(w, c, func(ctx context.Context) (*streamWriter, error) { return open(ctx, from) })
	}
	switch {
	case err == nil:
	case fault.Is(err, fault.Exhausted):
		w.Header().Set("Retry-After", "5")
		sendError(w, http.StatusTooManyRequests, nil, e.faults.translate(c.request.Context(), err, c.version, c.profile))
	case fault.Is(err, fault.Invalid):
		sendError(w, http.StatusBadRequest, nil, e.faults.translate(c.request.Context(), err, c.version, c.profile))
	default:
		e.replies.sessionFailed(w, c, err)
	}
}
