package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
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

// maxDeclaration bounds what a session keeps of a client's capabilities and name.
const maxDeclaration = 16 << 10

// declaration is what a client said of itself, if it is an object of reasonable size.
func declaration(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 || raw[0] != '{' || len(raw) > maxDeclaration {
		return nil
	}
	return bytes.Clone(raw)
}

// clientInfo returns a client's declaration of its name, or nil if it is not an Implementation, which backends would refuse.
func clientInfo(raw json.RawMessage) json.RawMessage {
	_, named := jsonrpc.String(jsonrpc.Member(raw, "name"))
	_, versioned := jsonrpc.String(jsonrpc.Member(raw, "version"))
	if !named || !versioned {
		return nil
	}
	return declaration(raw)
}

// client is the caller as backends know it.
func (c *call) client() api.Client {
	out := api.Client{Principal: c.principal, Version: c.version, Token: c.request.Header.Get("Authorization")}
	if c.session != nil {
		out.Session, out.Capabilities, out.Info, out.Level = c.session.Key, c.session.Capabilities, c.session.Client, c.session.Level
		return out
	}
	out.Capabilities = declaration(jsonrpc.Member(c.meta, spec.MetaCapabilities))
	out.Info = clientInfo(jsonrpc.Member(c.meta, spec.MetaClient))
	out.Level, _ = jsonrpc.String(jsonrpc.Member(c.meta, spec.MetaLogLevel))
	return out
}

// arguments is an object or nothing.
func (c *call) arguments() (json.RawMessage, error) {
	raw := c.param("arguments")
	if raw != nil && raw[0] != '{' {
		return nil, invalidParams("arguments must be an object")
	}
	return raw, nil
}

// maxMilliseconds is about 285 years: what fits a [time.Duration].
const maxMilliseconds = 9e12

// milliseconds reads a duration that is not negative. One that is too long to
// be held is the longest.
func (c *call) milliseconds(name string) (d time.Duration, given bool, err error) {
	raw := c.param(name)
	if raw == nil {
		return 0, false, nil
	}
	ms, parseErr := strconv.ParseFloat(string(raw), 64)
	if parseErr != nil || ms < 0 || ms != float64(int64(min(ms, maxMilliseconds))) && ms <= maxMilliseconds {
		return 0, false, invalidParams("%s must be an integer of milliseconds, not negative", name)
	}
	return time.Duration(min(ms, maxMilliseconds)) * time.Millisecond, true, nil
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

// inner returns the text between the braces of an object, or nothing if it is not one.
func inner(object json.RawMessage) []byte {
	return bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimPrefix(bytes.TrimSpace(object), []byte("{")), []byte("}")))
}
