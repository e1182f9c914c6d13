package method

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Codes of our own. The specification asks new ones to lie outside of
// -32768…-32000; these are the HTTP statuses of the same meaning.
const (
	CodeUnauthenticated = 401
	CodeForbidden       = 403
	CodeNotFound        = 404
	codeConflict        = 409
	CodeTooLarge        = 413
	CodeExhausted       = 429
	CodeUnavailable     = 503
)

// eventCodes numbers the named errors of the MCP Events extension.
type eventCodes struct {
	NotFound, Forbidden, ResourceExhausted, Unsupported, CallbackEndpointError int
}

// Codes are the numbers of each profile.
var Codes = map[spec.Profile]eventCodes{
	spec.Released: {-32011, -32012, -32013, -32014, -32015},
	spec.Final:    {-32023, -32024, -32025, -32026, -32027},
}

// Family says whether a method is of the MCP Events extension, whose faults have names and numbers of their own.
type Family uint8

const (
	CoreMethods Family = iota
	EventsMethods
)

// meaning is what a fault becomes on the wire.
type meaning struct {
	sessionBased, stateless int
	events                  string // its name in the MCP Events extension; empty is as in core
}

// meanings translates kinds of faults: the one table for all methods.
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

// Faults translates errors for clients, and logs those that are ours.
type Faults struct {
	Logger  *slog.Logger
	Metrics *metric.Set
}

// LogError logs an error of our own.
func (f Faults) LogError(ctx context.Context, msg string, err error) {
	f.Logger.ErrorContext(ctx, msg, "error", err)
}

// Translate returns the JSON-RPC error for an error of a handler. It returns a JSON-RPC error as it is. The profile is the
// profile of the call, and empty for a method outside of the MCP Events extension.
func (f Faults) Translate(ctx context.Context, err error, v spec.Version, profile spec.Profile) *jsonrpc.Error {
	if rpc, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return rpc
	}
	f.Metrics.LimitReached(fault.LimitOf(err))
	kind := fault.KindOf(err)
	if data, ok := fault.DataOf(err).(map[string]any); ok && profile != "" && kind == fault.Unavailable {
		// Why a client's callback endpoint was not verified: one of the published lastError categories.
		if reason, ok := data["reason"].(string); ok {
			return &jsonrpc.Error{
				Code:    Codes[profile].CallbackEndpointError,
				Message: "CallbackEndpointError: the callback endpoint was not verified",
				Data:    map[string]string{"reason": reason},
			}
		}
	}
	switch {
	case kind != fault.Internal && kind != fault.Unavailable:
	case ctx.Err() != nil && errors.Is(err, context.Canceled): // no client reads the answer
		f.Logger.DebugContext(ctx, "client went away", "error", err)
	default:
		f.LogError(ctx, "MCP request failed", err)
	}
	return errorOf(err, v, profile)
}

// errorOf looks a fault up in the table.
func errorOf(err error, v spec.Version, profile spec.Profile) *jsonrpc.Error {
	kind := fault.KindOf(err)
	m := meanings[kind]
	out := &jsonrpc.Error{Code: m.stateless, Message: fault.Public(err)}
	if !v.Stateless() {
		out.Code = m.sessionBased
	}
	if c, events := Codes[profile]; events && m.events != "" {
		out.Code = map[string]int{
			"NotFound": c.NotFound, "Forbidden": c.Forbidden, "ResourceExhausted": c.ResourceExhausted, "Unsupported": c.Unsupported,
		}[m.events]
		out.Message = m.events + ": " + out.Message
	}
	if kind != fault.Internal {
		out.Data = fault.DataOf(err)
	}
	return out
}

// ErrorObject returns the error with which a webhook notifies the end of a subscription of the profile (SEP-3415, Subscription
// Termination). Its code and text are the same as on a stream.
func ErrorObject(profile spec.Profile, reason error) json.RawMessage {
	return jsonrpc.AppendErrorObject(nil, errorOf(reason, spec.V20260728, profile))
}

// HTTPStatus is the HTTP status of a response in the stateless revisions. Only where the
// revision demands one does an error have another than 200: it is an answer of the method,
// not of the transport.
func HTTPStatus(e *jsonrpc.Error) int {
	switch e.Code {
	case jsonrpc.MethodNotFound:
		return http.StatusNotFound
	case jsonrpc.ParseError, jsonrpc.InvalidRequest, jsonrpc.InvalidParams, spec.CodeHeaderMismatch, spec.CodeMissingCapability, spec.CodeUnsupportedVersion:
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// MissingScopes reports whether the error is a lack of scopes, which HTTP has to say too.
func MissingScopes(err error) bool {
	_, ok := fault.DataOf(err).(auth.MissingScopes)
	return ok
}

// InvalidParams returns the error for params that a method cannot read.
func InvalidParams(format string, args ...any) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.InvalidParams, Message: fmt.Sprintf(format, args...)}
}

// NotFound is a resource that does not exist for the caller, whatever the
// reason.
func NotFound(uri string) error {
	return fault.New(fault.NotFound, "resource not found").With(map[string]any{"uri": Clip(uri)})
}

// Clip bounds what is echoed of the input.
func Clip(s string) string {
	const most = 256
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// InvalidRequest returns the error for a request that does not follow JSON-RPC or the transport.
func InvalidRequest(text string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.InvalidRequest, Message: text}
}

// UnknownMethod returns the error for a method that is not served.
func UnknownMethod(name string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.MethodNotFound, Message: "unknown method " + Clip(name)}
}
