package method

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Call is one request on its way through the endpoint.
type Call struct {
	Request   *http.Request
	Body      []byte // of the whole HTTP request
	Principal auth.Principal
	Version   spec.Version
	Profile   spec.Profile     // of a method of the MCP Events extension; empty for all others
	Session   *session.Session // nil in the stateless revisions
	Dialect   bool             // of named events, see dialect.go
	Msg       jsonrpc.Message
	Meta      json.RawMessage // of the params; nil without
	Late      *lateAnswer     // of a method that may have to wait, see [Answering]
	ends      time.Time       // when the function that serves it is ended; zero for a server
	Attached  context.Context // ends when the client disconnects, where that of the request does not; else nil
}

// Param finds a member of the params; nil when it is absent or null.
func (c *Call) Param(name string) json.RawMessage { return jsonrpc.Member(c.Msg.Params, name) }

// Text finds a member of the params that must be a string if it is there.
func (c *Call) Text(name string) (value string, given bool, err error) {
	raw := c.Param(name)
	if raw == nil {
		return "", false, nil
	}
	value, ok := jsonrpc.String(raw)
	if !ok {
		return "", false, InvalidParams("%s must be a string", name)
	}
	return value, true, nil
}

// Required is [Call.Text] for a member that must be there and not be empty.
func (c *Call) Required(name string) (string, error) {
	raw := jsonrpc.Member(c.Msg.Params, name)
	value, ok := jsonrpc.String(raw)
	switch {
	case raw != nil && !ok:
		return "", InvalidParams("%s must be a string", name)
	case value == "":
		return "", InvalidParams("%s is missing", name)
	}
	return value, nil
}

// maxDeclaration bounds what a session keeps of a client's capabilities and name.
const maxDeclaration = 16 << 10

// Declaration is what a client said of itself, if it is an object of reasonable size.
func Declaration(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 || raw[0] != '{' || len(raw) > maxDeclaration {
		return nil
	}
	return bytes.Clone(raw)
}

// ClientInfo returns a client's declaration of its name, or nil if it is not an Implementation, which backends would refuse.
func ClientInfo(raw json.RawMessage) json.RawMessage {
	_, named := jsonrpc.String(jsonrpc.Member(raw, "name"))
	_, versioned := jsonrpc.String(jsonrpc.Member(raw, "version"))
	if !named || !versioned {
		return nil
	}
	return Declaration(raw)
}

// Client is the caller as backends know it.
func (c *Call) Client() api.Client {
	out := api.Client{Principal: c.Principal, Version: c.Version, Token: c.Request.Header.Get("Authorization")}
	if c.Session != nil {
		out.Session, out.Capabilities, out.Info, out.Level = c.Session.Key, c.Session.Capabilities, c.Session.Client, c.Session.Level
		return out
	}
	out.Capabilities = Declaration(jsonrpc.Member(c.Meta, spec.MetaCapabilities))
	out.Info = ClientInfo(jsonrpc.Member(c.Meta, spec.MetaClient))
	out.Level, _ = jsonrpc.String(jsonrpc.Member(c.Meta, spec.MetaLogLevel))
	return out
}

// Arguments is an object or nothing.
func (c *Call) Arguments() (json.RawMessage, error) {
	raw := c.Param("arguments")
	if raw != nil && raw[0] != '{' {
		return nil, InvalidParams("arguments must be an object")
	}
	return raw, nil
}

// maxMilliseconds is about 285 years: what fits a [time.Duration].
const maxMilliseconds = 9e12

// Milliseconds reads a duration that is not negative. One that is too long to
// be held is the longest.
func (c *Call) Milliseconds(name string) (d time.Duration, given bool, err error) {
	raw := c.Param(name)
	if raw == nil {
		return 0, false, nil
	}
	ms, parseErr := strconv.ParseFloat(string(raw), 64)
	if parseErr != nil || ms < 0 || ms != float64(int64(min(ms, maxMilliseconds))) && ms <= maxMilliseconds {
		return 0, false, InvalidParams("%s must be an integer of milliseconds, not negative", name)
	}
	return time.Duration(min(ms, maxMilliseconds)) * time.Millisecond, true, nil
}

const (
	// DetachedFor bounds a request whose client may be gone.
	DetachedFor = time.Minute
	// NoticeFor bounds a notification, an answer or the end of a session. Clients that cancel or end often close the connection right
	// after they have sent it.
	NoticeFor = 10 * time.Second
)

// Detach lets the request go on when its client disconnects, which in these
// revisions is no cancellation (2025-11-25, Transports, Sending Messages). It ends with the endpoint.
func (c *Call) Detach(shut context.Context, whole time.Duration) (stop func()) {
	ctx := c.Request.Context()
	c.Attached = ctx
	until := time.Now().Add(whole)
	if c.ends, _ = ctx.Deadline(); !c.ends.IsZero() && c.ends.Before(until) {
		until = c.ends
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	c.Request = c.Request.WithContext(ctx)
	attached := context.AfterFunc(shut, cancel)
	return func() {
		attached()
		cancel()
	}
}

// Declares reports whether a client's capabilities name the extension; up to
// 2025-11-25 that may be among the experimental ones.
func Declares(capabilities json.RawMessage, extension string) bool {
	for _, member := range []string{"extensions", "experimental"} {
		if jsonrpc.Member(jsonrpc.Member(capabilities, member), extension) != nil {
			return true
		}
	}
	return false
}

// WithoutBraces returns the text between the braces of an object, or nothing if it is not one.
func WithoutBraces(object json.RawMessage) []byte {
	return bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimPrefix(bytes.TrimSpace(object), []byte("{")), []byte("}")))
}

// Accepts reports whether the Accept header lets the media type through. None at
// all accepts anything (RFC 9110, section 12.5.1).
func Accepts(h http.Header, mediaType string) bool {
	values := h["Accept"]
	if len(values) == 0 {
		return true
	}
	main, _, _ := strings.Cut(mediaType, "/")
	for t := range MediaTypes(values) {
		if strings.EqualFold(t, mediaType) || t == "*/*" || strings.EqualFold(t, main+"/*") {
			return true
		}
	}
	return false
}

// MediaTypes are those that an Accept header lists, without their parameters.
func MediaTypes(values []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, v := range values {
			for part := range strings.SplitSeq(v, ",") {
				t, _, _ := strings.Cut(part, ";")
				if !yield(strings.TrimSpace(t)) {
					return
				}
			}
		}
	}
}

// Catalogs finds the catalog of a principal's workspace.
type Catalogs struct{ Source catalog.Source }

// Of returns the catalog of the principal's workspace.
func (cs Catalogs) Of(ctx context.Context, p auth.Principal) (*catalog.Catalog, error) {
	cat, err := cs.Source.Catalog(ctx, p.Workspace)
	return cat, fault.Wrap(fault.Unavailable, err, "read the catalog")
}

// With returns the principal's catalog. If it lacks the named event type, with reads the latest catalog, because the
// type may have been added, and its first event published, within the seconds for which this process keeps a catalog.
func (cs Catalogs) With(ctx context.Context, p auth.Principal, name string) (*catalog.Catalog, error) {
	cat, err := cs.Of(ctx, p)
	if err == nil && cat.ByName(name) == nil {
		cat, err = catalog.Latest(ctx, cs.Source, p.Workspace)
		err = fault.Wrap(fault.Unavailable, err, "read the latest catalog")
	}
	return cat, err
}
