package mcp

import (
	"context"
	"net/http"

	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// get serves GET: it opens the stream of a session, which begins with it
// unless the request names one.
func (d dialect) get(w http.ResponseWriter, c *call) {
	d.endpoint.sessionStream(w, c, d.enter, func(ctx context.Context, last position) (*streamWriter, error) {
		if c.session == nil {
			var err error
			if c.session, err = d.endpoint.session.create(ctx, c.principal, session.Session{
				Workspace: c.principal.Workspace, Principal: c.principal.ID, Version: dialectVersion, Dialect: true,
			}); err != nil {
				return nil, err
			}
		}
		out, err := d.endpoint.streams.openDialect(ctx, c, last)
		if err == nil {
			w.Header().Set(spec.HeaderSession, c.session.ID)
			streamHeaders(w.Header(), c.request)
		}
		return out, err
	})
}
