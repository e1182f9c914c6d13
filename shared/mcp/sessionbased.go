package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// postSessionBased serves one message of the revisions that have sessions.
func (e *Endpoint) postSessionBased(w http.ResponseWriter, c *call) {
	if c.msg.Kind == jsonrpc.Request && c.msg.Method == spec.MethodInitialize {
		e.session.initialize(w, c)
		return
	}
	whole := noticeFor
	if c.msg.Kind == jsonrpc.Request || e.conversations.handles(c) {
		whole = detachedFor
	}
	defer c.detach(e.shut, whole)()
	switch {
	case !e.enterSession(w, c): // answered
	case c.msg.Kind == jsonrpc.Request:
		e.dispatch(w, c)
	default:
		e.takeIn(w, c)
	}
}

const (
	// detachedFor bounds a request whose client may be gone.
	detachedFor = time.Minute
	// noticeFor bounds a notification, an answer or the end of a session. Clients that cancel or end often close the connection right
	// after they have sent it.
	noticeFor = 10 * time.Second
)

// detach lets the request go on when its client disconnects, which in these
// revisions is no cancellation (2025-11-25, Transports, Sending Messages). It ends with the endpoint.
func (c *call) detach(shut context.Context, whole time.Duration) (stop func()) {
	ctx := c.request.Context()
	c.attached = ctx
	until := time.Now().Add(whole)
	if c.ends, _ = ctx.Deadline(); !c.ends.IsZero() && c.ends.Before(until) {
		until = c.ends
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	c.request = c.request.WithContext(ctx)
	attached := context.AfterFunc(shut, cancel)
	return func() {
		attached()
		cancel()
	}
}

// enterSession finds the session and the revision of a request, or answers.
func (e *Endpoint) enterSession(w http.ResponseWriter, c *call) bool {
	c.version = spec.V20250326 // what a client without the header speaks
	if header := c.request.Header.Get(spec.HeaderVersion); header != "" {
		if c.version = spec.Version(header); !c.version.Known() || len(c.request.Header[spec.HeaderVersion]) > 1 {
			sendError(w, http.StatusBadRequest, c.msg.ID, &jsonrpc.Error{
				Code: jsonrpc.InvalidRequest, Message: "Bad Request: unsupported protocol version",
				Data: map[string]any{"supported": e.about.supported(), "requested": clip(header)},
			})
			return false
		}
	}
	if e.sessions == nil {
		return true
	}
	id := c.request.Header.Get(spec.HeaderSession)
	switch {
	case id == "" && c.request.Header.Get(spec.HeaderVersion) == "":
		sendError(w, http.StatusBadRequest, c.msg.ID, &jsonrpc.Error{
			Code: jsonrpc.InvalidRequest, Message: "Bad Request: the header MCP-Protocol-Version is missing: send " + string(spec.V20260728) +
				", or begin a session of an earlier revision with initialize",
			Data: map[string]any{"supported": e.about.supported()},
		})
		return false
	case id == "":
		sendError(w, http.StatusBadRequest, c.msg.ID, invalidRequest("Bad Request: the header Mcp-Session-Id is missing; begin with initialize"))
		return false
	}
	return e.loadSession(w, c, id)
}

// loadSession finds the session of an id, or answers.
func (e *Endpoint) loadSession(w http.ResponseWriter, c *call, id string) bool {
	s, err := e.sessions.Load(c.request.Context(), id, c.principal, c.dialect)
	if err != nil {
		e.replies.sessionFailed(w, c, err)
		return false
	}
	c.session, c.version = s, s.Version
	return true
}

// sessionFailed answers a request whose session could not be had. A 404 has no
// JSON-RPC body: clients take the status alone as the sign to initialize again.
func (r *replies) sessionFailed(w http.ResponseWriter, c *call, err error) {
	if errors.Is(err, session.ErrNone) {
		http.Error(w, "session not found", http.StatusNotFound)
		return
	}
	rpc := r.faults.translate(c.request.Context(), err, c.version, c.profile)
	w.Header().Set("Retry-After", "1")
	sendError(w, http.StatusServiceUnavailable, c.msg.ID, rpc)
}

// declares reports whether a client's capabilities name the extension; up to
// 2025-11-25 that may be among the experimental ones.
func declares(capabilities json.RawMessage, extension string) bool {
	for _, member := range []string{"extensions", "experimental"} {
		if jsonrpc.Member(jsonrpc.Member(capabilities, member), extension) != nil {
			return true
		}
	}
	return false
}

// Unreachable answers a forwarded request whose service cannot be reached.
func Unreachable(w http.ResponseWriter, id json.RawMessage) {
	w.Header().Set("Retry-After", "1")
	sendError(w, http.StatusServiceUnavailable, id, &jsonrpc.Error{Code: codeUnavailable, Message: "the service cannot be reached now"})
}
