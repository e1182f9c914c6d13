package mcp

import (
	"net/http"
	"strings"

	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// postStateless serves one message of the stateless revisions.
func (e *Endpoint) postStateless(w http.ResponseWriter, c *method.Call) {
	if c.Msg.Kind == jsonrpc.Response {
		method.SendError(w, http.StatusBadRequest, nil, method.InvalidRequest("this revision has no requests to clients, so it has no responses"))
		return
	}
	bad := checkVersion(c, e.about.supported())
	if bad == nil {
		bad = checkHeaders(c)
	}
	switch {
	case bad != nil:
		method.SendError(w, http.StatusBadRequest, c.Msg.ID, bad)
	case c.Msg.Kind == jsonrpc.Notification:
		e.accept(w, c)
	default:
		e.dispatch(w, c)
	}
}

// checkVersion checks that the header and _meta name the same supported revision, and that _meta has the required members. A notification
// may lack both.
func checkVersion(c *method.Call, supported []spec.Version) *jsonrpc.Error {
	headers := c.Request.Header[spec.HeaderVersion]
	raw := jsonrpc.Member(c.Meta, spec.MetaVersion)
	version, isText := jsonrpc.String(raw)
	switch {
	case len(headers) > 1:
		return mismatch("%s was sent more than once", "MCP-Protocol-Version")
	case len(headers) == 0 && c.Msg.Kind == jsonrpc.Request:
		return mismatch("%s is missing", "MCP-Protocol-Version")
	case raw == nil && c.Msg.Kind == jsonrpc.Request:
		return method.InvalidParams("_meta must name %s", spec.MetaVersion)
	case raw != nil && !isText:
		return method.InvalidParams("%s must be a string", spec.MetaVersion)
	case raw != nil && len(headers) == 1 && headers[0] != version:
		return mismatch("MCP-Protocol-Version is %q and _meta names %q", method.Clip(headers[0]), method.Clip(version))
	}
	if c.Msg.Kind == jsonrpc.Request {
		if declared := jsonrpc.Member(c.Meta, spec.MetaCapabilities); len(declared) == 0 || declared[0] != '{' {
			return method.InvalidParams("_meta must have the object %s", spec.MetaCapabilities)
		}
	}
	if len(headers) == 1 {
		version = headers[0]
	}
	if c.Version = spec.Version(version); c.Version != spec.V20260728 {
		c.Version = spec.V20260728 // for the form of the answer
		return &jsonrpc.Error{
			Code: spec.CodeUnsupportedVersion, Message: "Unsupported protocol version",
			Data: map[string]any{"supported": supported, "requested": method.Clip(version)},
		}
	}
	return checkLogLevel(c)
}

func mismatch(format string, args ...any) *jsonrpc.Error {
	bad := method.InvalidParams("Header mismatch: "+format, args...)
	bad.Code = spec.CodeHeaderMismatch
	return bad
}

// checkHeaders checks that Mcp-Method and Mcp-Name repeat the body. They are optional on a notification.
func checkHeaders(c *method.Call) *jsonrpc.Error {
	if bad := checkHeader(c, spec.HeaderMethod, c.Msg.Method); bad != nil {
		return bad
	}
	member, ok := spec.Mirrored[c.Msg.Method]
	if !ok {
		return nil
	}
	name, _ := jsonrpc.String(c.Param(member))
	return checkHeader(c, spec.HeaderName, name)
}

func checkHeader(c *method.Call, header, want string) *jsonrpc.Error {
	values := c.Request.Header[header]
	switch {
	case len(values) == 0 && c.Msg.Kind == jsonrpc.Notification:
		return nil
	case len(values) == 0:
		return mismatch("%s is missing", header)
	case len(values) > 1:
		return mismatch("%s was sent more than once", header)
	}
	got := strings.Trim(values[0], " \t")
	if header == spec.HeaderName { // may be Base64
		var err error
		if got, err = spec.DecodeHeader(got); err != nil {
			return mismatch("%s is malformed", header)
		}
	}
	if got != want {
		return mismatch("%s is %q and the body has %q", header, method.Clip(got), method.Clip(want))
	}
	return nil
}

// checkLogLevel refuses a request for log messages at an unknown level. In 2026-07-28, which deprecates log messages, only backends
// send them.
func checkLogLevel(c *method.Call) *jsonrpc.Error {
	raw := jsonrpc.Member(c.Meta, spec.MetaLogLevel)
	if raw == nil {
		return nil
	}
	if level, ok := jsonrpc.String(raw); !ok || !spec.KnownSeverity(level) {
		return method.InvalidParams("%s must be one of the severities of RFC 5424", spec.MetaLogLevel)
	}
	return nil
}
