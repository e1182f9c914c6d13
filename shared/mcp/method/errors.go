package method

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// The JSON-RPC error codes that this server defines. The specification requires new codes to be outside of -32768…-32000, so these are
// the HTTP statuses with the same meaning.
const (
	CodeUnauthenticated = 401
	CodeForbidden       = 403
	CodeNotFound        = 404
	codeConflict        = 409
	CodeTooLarge        = 413
	CodeExhausted       = 429
	CodeUnavailable     = 503
)

// Codes has the error codes of the MCP Events extension, by profile (the version of the extension) and by the error's name.
var Codes = map[spec.Profile]map[string]int{
	spec.Released: {
		"NotFound": -32011, "Forbidden": -32012, "ResourceExhausted": -32013, "Unsupported": -32014, "CallbackEndpointError": -32015,
	},
	spec.Final: {
		"NotFound": -32023, "Forbidden": -32024, "ResourceExhausted": -32025, "Unsupported": -32026, "CallbackEndpointError": -32027,
	},
}

// Family tells whether a method belongs to the MCP Events extension, whose errors have names and codes of their own.
type Family uint8

// The families of methods.
const (
	CoreMethods Family = iota
	EventsMethods
)

// meaning has the JSON-RPC error codes for a kind of fault, in the session-based and in the stateless revisions.
type meaning struct {
	sessionBased, stateless int
	events                  string // the name in the MCP Events extension; empty if the extension has no name for this kind
}

var meanings = map[fault.Kind]meaning{
	fault.Internal:        {jsonrpc.InternalError, jsonrpc.InternalError, ""},
	fault.Invalid:         {jsonrpc.InvalidParams, jsonrpc.InvalidParams, ""},
	fault.NotFound:        {spec.CodeResourceNotFound, jsonrpc.InvalidParams, "NotFound"},
	fault.Forbidden:       {CodeForbidden, CodeForbidden, "Forbidden"},
	fault.Unauthenticated: {CodeUnauthenticated, CodeUnauthenticated, "Forbidden"},
	fault.Exhausted:       {CodeExhausted, CodeExhausted, "ResourceExhausted"},
	fault.Unavailable:     {CodeUnavailable, CodeUnavailable, ""},
	fault.Conflict:        {codeConflict, codeConflict, ""},
	fault.TooLarge:        {jsonrpc.InvalidParams, jsonrpc.InvalidParams, ""},
	fault.Unprocessable:   {jsonrpc.InvalidParams, jsonrpc.InvalidParams, ""},
	fault.Unsupported:     {jsonrpc.InvalidParams, jsonrpc.InvalidParams, "Unsupported"},
}

// Faults translates errors for clients, and logs errors that are the server's fault.
type Faults struct {
	Logger  *slog.Logger
	Metrics *metric.Set
}

// LogError logs an error that is the server's fault.
func (f Faults) LogError(ctx context.Context, msg string, err error) {
	f.Logger.ErrorContext(ctx, msg, "error", err)
}

// Translate returns the JSON-RPC error with which a client is answered if a handler returns err. It logs the errors that are the server's
// fault. The parameter profile is empty for methods outside of the MCP Events extension.
func (f Faults) Translate(ctx context.Context, err error, v spec.Version, profile spec.Profile) *jsonrpc.Error {
	if rpc, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return rpc
	}
	f.Metrics.LimitReached(fault.LimitOf(err))
	kind := fault.KindOf(err)
	if data, ok := fault.DataOf(err).(map[string]any); ok && profile != "" && kind == fault.Unavailable {
		// The fault's data has a reason if the client's webhook endpoint was not verified. The reason is one of the categories that
		// the MCP Events extension defines for lastError.
		if reason, ok := data["reason"].(string); ok {
			return &jsonrpc.Error{
				Code:    Codes[profile]["CallbackEndpointError"],
				Message: "CallbackEndpointError: the callback endpoint was not verified",
				Data:    map[string]string{"reason": reason},
			}
		}
	}
	switch {
	case kind != fault.Internal && kind != fault.Unavailable:
	case ctx.Err() != nil && errors.Is(err, context.Canceled): // the client has disconnected
		f.Logger.DebugContext(ctx, "client disconnected", "error", err)
	default:
		f.LogError(ctx, "MCP request failed", err)
	}
	return errorOf(err, v, profile)
}

func errorOf(err error, v spec.Version, profile spec.Profile) *jsonrpc.Error {
	kind := fault.KindOf(err)
	m := meanings[kind]
	out := &jsonrpc.Error{Code: m.stateless, Message: fault.Public(err)}
	if !v.Stateless() {
		out.Code = m.sessionBased
	}
	if code, events := Codes[profile][m.events]; events {
		out.Code, out.Message = code, m.events+": "+out.Message
	}
	if kind != fault.Internal {
		out.Data = fault.DataOf(err)
	}
	return out
}

// ErrorObject returns the JSON-RPC error that tells a webhook why its subscription has ended (SEP-3415, Subscription Termination). The
// profile determines the error code. A stream reports the same code and text.
func ErrorObject(profile spec.Profile, reason error) json.RawMessage {
	return jsonrpc.AppendErrorObject(nil, errorOf(reason, spec.V20260728, profile))
}

// httpStatus returns the HTTP status of an error in the stateless revisions. It is 200 unless the revision requires another status,
// because the transport worked even if the method failed.
func httpStatus(e *jsonrpc.Error) int {
	switch e.Code {
	case jsonrpc.MethodNotFound:
		return http.StatusNotFound
	case jsonrpc.ParseError, jsonrpc.InvalidRequest, jsonrpc.InvalidParams, spec.CodeHeaderMismatch, spec.CodeMissingCapability, spec.CodeUnsupportedVersion:
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// InvalidParams returns the error for params that are missing or malformed.
func InvalidParams(format string, args ...any) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.InvalidParams, Message: fmt.Sprintf(format, args...)}
}

// NotFound returns the error for a resource that the caller cannot read. It does not tell whether the resource exists.
func NotFound(uri string) error {
	return fault.New(fault.NotFound, "resource not found").With(map[string]any{"uri": Clip(uri)})
}

// Clip shortens a text from a client to 256 bytes and appends "…", so that an error can repeat the text.
func Clip(s string) string { return fault.Clip(s, 256) }

// InvalidRequest returns the error for a request that does not follow JSON-RPC or the transport.
func InvalidRequest(text string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.InvalidRequest, Message: text}
}

// UnknownMethod returns the error for a method that is not served.
func UnknownMethod(name string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.MethodNotFound, Message: "unknown method " + Clip(name)}
}

// neededScopes returns all scopes that an operation needs: the method's scope and the scopes of every event type in the params. The
// response to the client names all of them, so that the client has to ask its user only once (MCP 2026-07-28, Scope Challenge
// Handling).
func (r *Replies) neededScopes(c *Call, m Row) []string {
	needed := r.entryScopes(c, m)
	if m.Scope != "" {
		needed = append(needed, m.Scope)
	}
	return needed
}

// entryScopes returns the scopes of the event types that the params name or whose URIs they contain. It ignores malformed and unknown
// names. The method reports these names later, when the caller has the scopes.
func (r *Replies) entryScopes(c *Call, m Row) []string {
	cat, err := r.catalogs.CatalogOf(c.Request.Context(), c.Principal)
	if err != nil {
		return nil
	}
	var scopes []string
	if name, ok := jsonrpc.String(c.Param("name")); ok && m.Family == EventsMethods {
		if entry := cat.ByName(name); entry != nil && entry.Access != nil {
			scopes = append(scopes, entry.Access.Scopes...)
		}
	}
	uris := stringsOf(c.Param("uris"))
	all := len(uris) > 0 // a webhook (uris) needs the scopes of all event types below a parent, a stream or read needs one
	if uri, ok := jsonrpc.String(c.Param("uri")); ok {
		uris = append(uris, uri)
	}
	if filter := c.Param("notifications"); len(filter) > 0 && filter[0] == '{' {
		uris = append(uris, stringsOf(jsonrpc.Member(filter, "resourceSubscriptions"))...)
	}
	for _, uri := range uris[:min(len(uris), subscription.MaxURIs)] {
		scopes = append(scopes, scopesOf(cat, uri, c.Principal, all)...)
	}
	return scopes
}

// scopesOf returns the scopes that a principal needs for the event types at a URI or below it. If the parameter all is true, these are
// the scopes of all these event types. Otherwise access to one event type is enough. If the principal already has all scopes of one event
// type, scopesOf then returns only the scopes of this event type.
func scopesOf(cat *catalog.Catalog, uri string, p auth.Principal, all bool) (scopes []string) {
	_, access, err := match.Resolve(cat, uri)
	if err != nil {
		return nil
	}
	for _, a := range access {
		var rule []string
		if a.Entry.Access != nil {
			rule = a.Entry.Access.Scopes
		}
		if !all && p.Has(rule...) {
			return rule
		}
		scopes = append(scopes, rule...)
	}
	slices.Sort(scopes)
	return slices.Compact(scopes)
}

// stringsOf returns the strings of an array, or nil for any other value.
func stringsOf(raw json.RawMessage) (out []string) {
	if len(raw) == 0 || raw[0] != '[' || json.Unmarshal(raw, &out) != nil {
		return nil
	}
	return out
}
