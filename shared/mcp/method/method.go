// Package method contains the parts that all methods of the MCP endpoint share: the [Call] that a method serves, the [Result] or
// error that it returns, the HTTP response to the client, and the [Table] of methods.
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

// Result is the result of a method. [Replies.AppendResult] encodes it for the protocol revision of the call.
type Result struct {
	// Members is the JSON of the result's members without the braces. AppendResult concatenates the pieces, for example
	// `"protocolVersion":"2025-11-25",` and `"capabilities":{}`.
	Members [][]byte
	Meta    []byte // JSON of further members of _meta, without the braces
	// Cache is the caching hint that revision 2026-07-28 requires for some results, for example for lists. It is nil for other results.
	Cache *Caching
}

// Caching tells a client how long it may cache a result, and whether caches may share the result between users (revision
// 2026-07-28, Caching).
type Caching struct {
	TTL   int64 // milliseconds
	Scope string
}

// The values of [Caching.Scope]: caches may share a public result between users, but not a private one.
const (
	Public  = "public"
	Private = "private"
)

// Handler serves one call of a method. It may return an error only if it has written no part of the response.
type Handler interface {
	Serve(w http.ResponseWriter, c *Call) error
}

// Row describes one method in a [Table]: in which revisions of MCP and for which callers it exists, which scope a caller needs, and which
// handler serves it.
type Row struct {
	// SessionBased tells whether the method exists in the protocol revisions with sessions, and Stateless whether it exists in the
	// revisions without sessions.
	SessionBased, Stateless bool
	Family                  Family
	Session                 bool   // the method needs a session
	Scope                   string // the scope that a caller needs, or empty
	// Offered reports whether the method currently exists for the caller. If it is nil, the method always exists.
	Offered func(c *Call) bool
	Handler Handler
}

// CheckCall returns an error if the method does not exist for the caller, or if the caller lacks the scope that the method needs.
func (m Row) CheckCall(c *Call) error {
	there := m.SessionBased
	if c.Version.Stateless() {
		there = m.Stateless
	}
	if !there || m.Offered != nil && !m.Offered(c) {
		return UnknownMethod(c.Msg.Method)
	}
	if m.Scope != "" {
		return c.Principal.Require(m.Scope)
	}
	return nil
}

// Table contains the methods of the endpoint by name. The endpoint answers other methods with an error, and does not advertise them.
type Table map[string]Row

// Has reports whether the table contains the method.
func (t Table) Has(name string) bool {
	_, ok := t[name]
	return ok
}

// Answering is a [Handler] for methods that return a [Result]. Its function Answer returns the result. If Answer has to wait for backends
// or events, it first calls [answer.Wait].
type Answering struct {
	Replies *Replies
	Timing  Timing
	Answer  func(ctx context.Context, c *Call) (Result, error)
}

// Serve implements [Handler].
func (h Answering) Serve(w http.ResponseWriter, c *Call) error {
	if !Accepts(c.Request.Header, "application/json") {
		SendError(w, http.StatusNotAcceptable, c.Msg.ID, InvalidRequest("Accept must list application/json"))
		return nil
	}
	c.Answer = h.Timing.answer(w, c)
	defer c.Answer.Stop()
	r, err := h.Answer(c.Request.Context(), c)
	if err == nil {
		var release func()
		if release, err = h.Replies.hold(c, r); err == nil {
			defer release()
		}
	}
	build := func(b []byte) []byte {
		if err != nil {
			return jsonrpc.AppendError(b, c.Msg.ID, h.Replies.faults.Translate(c.Request.Context(), err, c.Version, c.Profile))
		}
		return h.Replies.AppendResult(b, c, r)
	}
	if c.Answer.finish(build) {
		return nil
	}
	if err == nil {
		Send(w, http.StatusOK, build)
	}
	return err
}

// NotAcceptable answers with status 406, for a client that does not accept event streams. It is a separate function so that
// the stack frame of its caller stays small: an open stream keeps that frame in memory.
func NotAcceptable(w http.ResponseWriter, c *Call) error {
	SendError(w, http.StatusNotAcceptable, c.Msg.ID, InvalidRequest("Accept must list text/event-stream"))
	return nil
}

// Empty answers with an empty result.
func Empty(context.Context, *Call) (Result, error) { return Result{}, nil }

// Call is a client's message to the endpoint: an HTTP request, or one message of a batch.
type Call struct {
	Request   *http.Request
	Body      []byte // the body of the HTTP request or, in a batch, the message
	Principal auth.Principal
	Version   spec.Version
	Profile   spec.Profile     // the version of the MCP Events extension; empty for other methods
	Session   *session.Session // nil in the stateless revisions
	Dialect   bool             // the call uses the named-event dialect
	Msg       jsonrpc.Message
	Meta      json.RawMessage // _meta of the params, or nil
	Answer    *answer         // set by [Answering], for methods that may have to wait
	life      life
}

// Param returns a member of the params, or nil if it is absent or null.
func (c *Call) Param(name string) json.RawMessage { return jsonrpc.Member(c.Msg.Params, name) }

// OptionalString returns an optional member of the params, which must be a string. The result given is false if the member is absent or
// null.
func (c *Call) OptionalString(name string) (value string, given bool, err error) {
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

// RequiredString returns a member of the params that must be a non-empty string.
func (c *Call) RequiredString(name string) (string, error) {
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

// maxDeclaration is the maximum size in bytes of the capabilities or the clientInfo that a client declares. Larger ones are ignored.
const maxDeclaration = 16 << 10

// CopyDeclaration returns a copy of the capabilities or clientInfo that a client declares, or nil if raw is not an object or is
// larger than maxDeclaration.
func CopyDeclaration(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 || raw[0] != '{' || len(raw) > maxDeclaration {
		return nil
	}
	return bytes.Clone(raw)
}

// ClientInfo returns a copy of a clientInfo object as [CopyDeclaration] does. It returns nil if the object has no name or version,
// because backends would refuse it.
func ClientInfo(raw json.RawMessage) json.RawMessage {
	_, named := jsonrpc.String(jsonrpc.Member(raw, "name"))
	_, versioned := jsonrpc.String(jsonrpc.Member(raw, "version"))
	if !named || !versioned {
		return nil
	}
	return CopyDeclaration(raw)
}

// Client returns the caller as an [api.Client], for calls to backends.
func (c *Call) Client() api.Client {
	out := api.Client{Principal: c.Principal, Version: c.Version, Token: c.Request.Header.Get("Authorization")}
	if c.Session != nil {
		out.Session, out.Capabilities, out.Info, out.Level = c.Session.Key, c.Session.Capabilities, c.Session.Client, c.Session.Level
		return out
	}
	out.Capabilities = CopyDeclaration(jsonrpc.Member(c.Meta, spec.MetaCapabilities))
	out.Info = ClientInfo(jsonrpc.Member(c.Meta, spec.MetaClient))
	out.Level, _ = jsonrpc.String(jsonrpc.Member(c.Meta, spec.MetaLogLevel))
	return out
}

// WithToken returns ctx with the caller's token. Code that reads events uses it for calls to backends that require the token of the
// caller.
func (c *Call) WithToken(ctx context.Context) context.Context {
	return auth.WithToken(ctx, auth.Token{Header: c.Request.Header.Get("Authorization"), Expires: c.Principal.Expires})
}

// Arguments returns the member "arguments" of the params, which must be an object, or nil if it is absent.
func (c *Call) Arguments() (json.RawMessage, error) {
	raw := c.Param("arguments")
	if raw != nil && raw[0] != '{' {
		return nil, InvalidParams("arguments must be an object")
	}
	return raw, nil
}

// maxMilliseconds, about 285 years, is the longest duration that [Call.Milliseconds] returns. A [time.Duration] can hold at most 292
// years.
const maxMilliseconds = 9e12

// Milliseconds returns an optional member of the params that is a duration: an integer number of milliseconds that is not negative. It
// returns maxMilliseconds for a longer duration.
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

// Declares reports whether a client's capabilities name the extension. Up to revision 2025-11-25, clients may list it under
// experimental instead of extensions.
func Declares(capabilities json.RawMessage, extension string) bool {
	for _, member := range []string{"extensions", "experimental"} {
		if jsonrpc.Member(jsonrpc.Member(capabilities, member), extension) != nil {
			return true
		}
	}
	return false
}

// WithoutBraces returns the text between the braces of a JSON object. The parameter object may be empty.
func WithoutBraces(object json.RawMessage) []byte {
	return bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimPrefix(bytes.TrimSpace(object), []byte("{")), []byte("}")))
}

// Accepts reports whether the Accept header allows the media type. Without the header, anything is allowed (RFC 9110, section 12.5.1).
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

// MediaTypes returns the media types of an Accept header without their parameters.
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

// Catalogs reads the catalog of a principal's workspace.
type Catalogs struct{ Source catalog.Source }

// CatalogOf returns the catalog of the principal's workspace.
func (cs Catalogs) CatalogOf(ctx context.Context, p auth.Principal) (*catalog.Catalog, error) {
	cat, err := cs.Source.Catalog(ctx, p.Workspace)
	return cat, fault.Wrap(fault.Unavailable, err, "read the catalog")
}

// With returns the catalog of the principal's workspace. If the cached catalog lacks the named event type, With reads the
// latest catalog from the store, because an event may arrive moments after its type was added.
func (cs Catalogs) With(ctx context.Context, p auth.Principal, name string) (*catalog.Catalog, error) {
	cat, err := catalog.Try(ctx, cs.Source, p.Workspace, func(cat *catalog.Catalog) bool { return cat.ByName(name) != nil })
	return cat, fault.Wrap(fault.Unavailable, err, "read the catalog")
}
