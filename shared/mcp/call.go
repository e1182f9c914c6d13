package mcp

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/trace"
)

// call is one request on its way through the endpoint.
type call struct {
	request   *http.Request
	body      []byte // of the whole HTTP request
	principal auth.Principal
	version   mcpspec.Version
	session   *session.Session // nil in the stateless revisions
	dialect   bool             // of named events, see dialect.go
	msg       jsonrpc.Message
	meta      json.RawMessage // of the params; nil without
	waits     func()          // to be called before the answer waits for others; see [lateAnswer]
	ends      time.Time       // when the function that serves it is ended; zero for a server
}

// inTrace has what is done for the message belong to the trace that its _meta names (SEP-414), or else its HTTP
// request.
func (c *call) inTrace() {
	parent, _ := jsonrpc.String(jsonrpc.Member(c.meta, trace.Parent))
	state, _ := jsonrpc.String(jsonrpc.Member(c.meta, trace.State))
	where := trace.Parse(parent, state)
	if where.Parent == "" {
		where = trace.FromHeader(c.request.Header)
	}
	if where.Parent != "" {
		c.request = c.request.WithContext(trace.With(c.request.Context(), where))
	}
}

// param finds a member of the params; nil when it is absent or null.
func (c *call) param(name string) json.RawMessage { return jsonrpc.Member(c.msg.Params, name) }

// text finds a member of the params that must be a string if it is there.
func (c *call) text(name string) (value string, given bool, err error) {
	raw := c.param(name)
	if raw == nil {
		return "", false, nil
	}
	value, ok := jsonrpc.String(raw)
	if !ok {
		return "", false, invalidParams("%s must be a string", name)
	}
	return value, true, nil
}

// required is [call.text] for a member that must be there and not be empty.
func (c *call) required(name string) (string, error) {
	raw := jsonrpc.Member(c.msg.Params, name)
	value, ok := jsonrpc.String(raw)
	switch {
	case raw != nil && !ok:
		return "", invalidParams("%s must be a string", name)
	case value == "":
		return "", invalidParams("%s is missing", name)
	}
	return value, nil
}
