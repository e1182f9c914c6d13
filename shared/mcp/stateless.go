package mcp

import (
	"net/http"
	"strings"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// postStateless serves one message of the stateless revisions.
func (e *Endpoint) postStateless(w http.ResponseWriter, c *call) {
	if c.msg.Kind == jsonrpc.Response {
		sendError(w, http.StatusBadRequest, nil, invalidRequest("this revision has no requests to clients, and so no responses"))
		return
	}
	bad := c.checkVersion(e.about.supported())
	if bad == nil {
		bad = c.checkHeaders()
	}
	switch {
	case bad != nil:
		sendError(w, http.StatusBadRequest, c.msg.ID, bad)
	case c.msg.Kind == jsonrpc.Notification:
		e.takeIn(w, c)
	default:
		e.dispatch(w, c)
	}
}

// checkVersion checks that header and _meta name the same known revision, and
// that _meta has what it must. A notification has to have neither.
func (c *call) checkVersion(supported []spec.Version) *jsonrpc.Error {
	headers := c.request.Header[spec.HeaderVersion]
	raw := jsonrpc.Member(c.meta, spec.MetaVersion)
	version, isText := jsonrpc.String(raw)
	switch {
	case len(headers) > 1:
		return mismatch("%s was sent more than once", "MCP-Protocol-Version")
	case len(headers) == 0 && c.msg.Kind == jsonrpc.Request:
		return mismatch("%s is missing", "MCP-Protocol-Version")
	case raw == nil && c.msg.Kind == jsonrpc.Request:
		return invalidParams("_meta must name %s", spec.MetaVersion)
	case raw != nil && !isText:
		return invalidParams("%s must be a string", spec.MetaVersion)
	case raw != nil && len(headers) == 1 && headers[0] != version:
		return mismatch("MCP-Protocol-Version is %q and _meta names %q", clip(headers[0]), clip(version))
	}
	if c.msg.Kind == jsonrpc.Request {
		if declared := jsonrpc.Member(c.meta, spec.MetaCapabilities); len(declared) == 0 || declared[0] != '{' {
			return invalidParams("_meta must have the object %s", spec.MetaCapabilities)
		}
	}
	if len(headers) == 1 {
		version = headers[0]
	}
	if c.version = spec.Version(version); c.version != spec.V20260728 {
		c.version = spec.V20260728 // the form of the answer
		return &jsonrpc.Error{
			Code: spec.CodeUnsupportedVersion, Message: "Unsupported protocol version",
			Data: map[string]any{"supported": supported, "requested": clip(version)},
		}
	}
	return c.checkLogLevel()
}

func mismatch(format string, args ...any) *jsonrpc.Error {
	bad := invalidParams("Header mismatch: "+format, args...)
	bad.Code = spec.CodeHeaderMismatch
	return bad
}

// checkHeaders checks that Mcp-Method and Mcp-Name repeat the body. On a
// notification they need not be there.
func (c *call) checkHeaders() *jsonrpc.Error {
	if bad := c.checkHeader(spec.HeaderMethod, c.msg.Method); bad != nil {
		return bad
	}
	member, ok := spec.Mirrored[c.msg.Method]
	if !ok {
		return nil
	}
	name, _ := jsonrpc.String(c.param(member))
	return c.checkHeader(spec.HeaderName, name)
}

func (c *call) checkHeader(header, want string) *jsonrpc.Error {
	values := c.request.Header[header]
	switch {
	case len(values) == 0 && c.msg.Kind == jsonrpc.Notification:
		return nil
	case len(values) == 0:
		return mismatch("%s is missing", header)
	case len(values) > 1:
		return mismatch("%s was sent more than once", header)
	}
	got := strings.Trim(values[0], " \t")
	if header == spec.HeaderName { // the one that may be in Base64
		var err error
		if got, err = spec.DecodeHeader(got); err != nil {
			return mismatch("%s is malformed", header)
		}
	}
	if got != want {
		return mismatch("%s is %q and the body has %q", header, clip(got), clip(want))
	}
	return nil
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
