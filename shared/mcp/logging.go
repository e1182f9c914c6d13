package mcp

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// logger names the origin of our log messages to clients.
const logger = "mcp-events"

// setLevel serves logging/setLevel (up to 2025-11-25): from then on the session's
// stream logs what a client would otherwise not notice. Without it nothing is logged there.
func (h *sessionMethods) setLevel(ctx context.Context, c *call) (result, error) {
	level, err := c.required("level")
	if err != nil {
		return result{}, err
	}
	if !spec.KnownSeverity(level) {
		return result{}, invalidParams("level must be one of the severities of RFC 5424, debug to emergency")
	}
	if err := h.sessions.Change(ctx, c.session, func(s *session.Session) { s.Level = level }); err != nil {
		return result{}, sessionFault(err)
	}
	if h.backends.Any(ctx) {
		if err := h.backends.SetLevel(ctx, c.client()); err != nil {
			return result{}, err
		}
	}
	return result{}, h.notify(ctx, c)
}

// say sends a log message, if the client asked for its level.
func (s *sessionStream) say(level, message, uri string) error {
	if s.sess.Level == "" || !spec.SevereAs(level, s.sess.Level) {
		return nil
	}
	return s.send(spec.NoteMessage, func(b []byte) []byte {
		b = append(b, `"level":"`+level+`","logger":"`+logger+`","data":{"message":`...)
		b = jsonrpc.AppendString(b, message)
		if uri != "" {
			b = jsonrpc.AppendString(append(b, `,"uri":`...), uri)
		}
		return append(b, '}')
	}, nil, s.feed.Cursor())
}

// lost logs that a URI brings nothing any more.
func (s *sessionStream) lost(t target) error {
	return s.say("warning", "the catalog no longer has this for you; nothing comes from it", t.asked)
}

// checkLogLevel refuses a request of 2026-07-28 that asks for log messages at a level that
// there is not. Only backends send some in this revision, which deprecates them.
func (c *call) checkLogLevel() *jsonrpc.Error {
	raw := jsonrpc.Member(c.meta, spec.MetaLogLevel)
	if raw == nil {
		return nil
	}
	if level, ok := jsonrpc.String(raw); !ok || !spec.KnownSeverity(level) {
		return invalidParams("%s must be one of the severities of RFC 5424", spec.MetaLogLevel)
	}
	return nil
}
