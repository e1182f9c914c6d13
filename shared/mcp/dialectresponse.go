package mcp

import (
	"net/http"

	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// An answer that is to go out on the caller's open stream travels as a notice on
// the session's topic of the log, because the stream may be open at another instance.
// It may hold what must not lie in the store in clear (the secret of a webhook), so
// it is sealed with a key that only the session's id gives, and of the id the store
// has but a hash.

// maxResponse is the largest answer in bytes that a notice carries. In Base64 it
// stays below [store.MaxItem]. A larger one is the answer to the POST itself.
const maxResponse = 256 << 10

// respond sends what was recorded to the open stream of the session. It reports
// whether it did; if not, the POST has to be answered. That is so as well of
// everything that HTTP has a status for, and of what has no body.
func (d dialect) respond(c *call, kept *httpjson.Recorder) bool {
	body := kept.Body.Bytes()
	if kept.Status != http.StatusOK || len(body) == 0 || len(body) > maxResponse || kept.Header().Get(spec.HeaderSession) != "" {
		return false
	}
	ctx := c.request.Context()
	open, err := d.endpoint.sessions.Streaming(ctx, c.session.Key)
	if err != nil {
		d.endpoint.faults.log(ctx, "open stream not found, the answer goes to the POST", err)
	}
	if !open {
		return false
	}
	err = d.endpoint.options.Feeds.Log.Notify(ctx, c.principal.Workspace, stream.TopicSession(c.session.Key),
		jsonrpc.Encode(responseNotice{sealResponse(c.session.ID, body)}))
	if err != nil {
		d.endpoint.faults.log(ctx, "answer not sent to its stream, it goes to the POST", err)
	}
	return err == nil
}

// redeclare writes what the client of a session declared by a later initialize,
// and notifies its stream.
func (h *sessionMethods) redeclare(c *call, s session.Session) error {
	ctx := c.request.Context()
	if err := h.sessions.Change(ctx, c.session, func(now *session.Session) {
		now.Version, now.Payloads, now.Events = s.Version, s.Payloads, s.Events
	}); err != nil {
		return err
	}
	return h.notify(ctx, c)
}
