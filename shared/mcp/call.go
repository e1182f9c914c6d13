package mcp

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// call is one request on its way through the endpoint.
type call struct {
	request   *http.Request
	body      []byte // of the whole HTTP request
	principal auth.Principal
	version   spec.Version
	profile   spec.Profile     // of a method of the MCP Events extension; empty for all others
	session   *session.Session // nil in the stateless revisions
	dialect   bool             // of named events, see dialect.go
	msg       jsonrpc.Message
	meta      json.RawMessage // of the params; nil without
	late      *lateAnswer     // of a method that may have to wait, see [answering]
	ends      time.Time       // when the function that serves it is ended; zero for a server
	attached  context.Context // ends when the client disconnects, where that of the request does not; else nil
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
