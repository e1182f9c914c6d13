package mcp

import (
	"net/http"

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
