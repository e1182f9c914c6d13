package mcp

import (
	"context"
	"net/http"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/streams"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// postSessionBased serves one message of the session-based revisions.
func (e *Endpoint) postSessionBased(w http.ResponseWriter, c *method.Call) {
	if c.Msg.Kind == jsonrpc.Request && c.Msg.Method == spec.MethodInitialize {
		e.session.initialize(w, c)
		return
	}
	limit := method.NoticeFor
	if c.Msg.Kind == jsonrpc.Request || e.conversations.handles(c) {
		limit = method.DetachedFor
	}
	defer c.Detach(limit)()
	switch {
	case !e.enterSession(w, c): // answered
	case c.Msg.Kind == jsonrpc.Request:
		e.dispatch(w, c)
	default:
		e.accept(w, c)
	}
}

// enterSession determines the session and the revision of a request. If that fails, it answers and returns false.
func (e *Endpoint) enterSession(w http.ResponseWriter, c *method.Call) bool {
	c.Version = spec.V20250326 // the revision of clients without the header
	if header := c.Request.Header.Get(spec.HeaderVersion); header != "" {
		if c.Version = spec.Version(header); !c.Version.Known() || len(c.Request.Header[spec.HeaderVersion]) > 1 {
			method.SendError(w, http.StatusBadRequest, c.Msg.ID, &jsonrpc.Error{
				Code: jsonrpc.InvalidRequest, Message: "Bad Request: unsupported protocol version",
				Data: map[string]any{"supported": e.about.supported(), "requested": method.Clip(header)},
			})
			return false
		}
	}
	if e.sessions == nil {
		return true
	}
	id := c.Request.Header.Get(spec.HeaderSession)
	switch {
	case id == "" && c.Request.Header.Get(spec.HeaderVersion) == "":
		method.SendError(w, http.StatusBadRequest, c.Msg.ID, &jsonrpc.Error{
			Code: jsonrpc.InvalidRequest, Message: "Bad Request: the header MCP-Protocol-Version is missing: send " + string(spec.V20260728) +
				", or begin a session of an earlier revision with initialize",
			Data: map[string]any{"supported": e.about.supported()},
		})
		return false
	case id == "":
		method.SendError(w, http.StatusBadRequest, c.Msg.ID, method.InvalidRequest("Bad Request: the header Mcp-Session-Id is missing; begin with initialize"))
		return false
	}
	return e.loadSession(w, c, id)
}

// loadSession loads the session with an id. If that fails, it answers and returns false.
func (e *Endpoint) loadSession(w http.ResponseWriter, c *method.Call, id string) bool {
	s, err := e.sessions.Load(c.Request.Context(), id, c.Principal, c.Dialect)
	if err != nil {
		e.replies.SessionFailed(w, c, err)
		return false
	}
	c.Session, c.Version = s, s.Version
	return true
}

// get serves GET, i.e. the stream of a session.
func (e *Endpoint) get(w http.ResponseWriter, c *method.Call) {
	e.sessionStream(w, c, e.enterSession, func(ctx context.Context, last streams.Position) (*streams.Writer, error) {
		return e.streams.OpenSession(ctx, c, last)
	})
}

// sessionStream serves a GET with the stream of the session that enter loads.
func (e *Endpoint) sessionStream(w http.ResponseWriter, c *method.Call, enter func(http.ResponseWriter, *method.Call) bool,
	open func(context.Context, streams.Position) (*streams.Writer, error),
) {
	if !method.Accepts(c.Request.Header, sse.ContentType) {
		method.SendError(w, http.StatusNotAcceptable, nil, method.InvalidRequest("Accept must list text/event-stream"))
		return
	}
	if !enter(w, c) {
		return
	}
	if err := c.Principal.Require(auth.ScopeRead); err != nil {
		e.replies.Fault(w, c, method.Row{}, err)
		return
	}
	from, err := streams.LastEvent(c)
	if err == nil {
		err = e.streams.Hold(w, c, func(ctx context.Context) (*streams.Writer, error) { return open(ctx, from) })
	}
	switch {
	case err == nil:
	case fault.Is(err, fault.Exhausted):
		w.Header().Set("Retry-After", "5")
		method.SendError(w, http.StatusTooManyRequests, nil, e.faults.Translate(c.Request.Context(), err, c.Version, c.Profile))
	case fault.Is(err, fault.Invalid):
		method.SendError(w, http.StatusBadRequest, nil, e.faults.Translate(c.Request.Context(), err, c.Version, c.Profile))
	default:
		e.replies.SessionFailed(w, c, err)
	}
}
