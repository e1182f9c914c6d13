package client

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// The kinds of errors. Test for them with [errors.Is].
var (
	// ErrInvalid is the error of options, arguments or data that are malformed.
	ErrInvalid error = fault.Invalid
	// ErrUnauthenticated is the error of a missing or wrong key.
	ErrUnauthenticated error = fault.Unauthenticated
	// ErrForbidden is the error of a caller who may not do this.
	ErrForbidden error = fault.Forbidden
	// ErrNotFound is the error of an event type or URI that does not exist or that this caller may not see.
	ErrNotFound error = fault.NotFound
	// ErrUnsupported is the error of a mode or method that the server or this client does not offer.
	ErrUnsupported error = fault.Unsupported
	// ErrExhausted is the error of a reached limit or quota. It is [Retryable].
	ErrExhausted error = fault.Exhausted
	// ErrUnavailable is the error of a server that does not answer, or of a [Store] that fails. It is [Retryable].
	ErrUnavailable error = fault.Unavailable
	// ErrConflict is the error of a [File] that belongs to another subscription.
	ErrConflict error = fault.Conflict
	// ErrTooLarge is the error of data over a limit of the server.
	ErrTooLarge error = fault.TooLarge
	// ErrSchema is the error of an event that does not match the schema of its type.
	ErrSchema error = fault.Unprocessable
)

// Retryable reports whether a call that failed with err may succeed when it is repeated.
func Retryable(err error) bool { return httpcall.Retryable(err) }

// Terminated is the error of a subscription that the server has ended, for example because access was revoked or the event
// type was removed (SEP-3415, "Subscription Termination").
type Terminated struct {
	// Name is the event type.
	Name string
	// Err is the server's reason.
	Err error
}

func (t *Terminated) Error() string { return "the server ended the subscription: " + t.Err.Error() }

// Unwrap returns the server's reason.
func (t *Terminated) Unwrap() error { return t.Err }

// newTerminated returns the error of a subscription that the server ended, perhaps with a reason.
func newTerminated(name string, e *rpcError) *Terminated {
	if e == nil {
		return &Terminated{Name: name, Err: fault.New(fault.Forbidden, "it gave no reason")}
	}
	return &Terminated{Name: name, Err: e.fault(http.StatusOK)}
}

// rpcError is a JSON-RPC error.
type rpcError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

// fault returns an error with the kind of the code, or otherwise of the HTTP status.
func (e *rpcError) fault(status int) error {
	f := &fault.Error{Kind: e.kind(status), Message: fmt.Sprintf("the server refused (%d): %.1000s", e.Code, e.Message)}
	if e.Data != nil && string(e.Data) != "null" {
		f.Data = e.Data
	}
	return f
}

func (e *rpcError) kind(status int) fault.Kind {
	if kind, ok := kinds[e.Code]; ok {
		return kind
	}
	if e.Code >= 400 && e.Code <= 599 { // for errors without a standard code, our server uses the HTTP status
		return httpcall.KindOfStatus(e.Code)
	}
	if status >= 300 {
		return httpcall.KindOfStatus(status)
	}
	return fault.Invalid
}

// kinds maps error codes to kinds. The released profile and SEP-3415 number the named errors of MCP Events differently, so most
// kinds have two codes.
var kinds = map[int]fault.Kind{
	-32011: fault.NotFound, -32023: fault.NotFound, spec.CodeResourceNotFound: fault.NotFound,
	-32012: fault.Forbidden, -32024: fault.Forbidden,
	-32013: fault.Exhausted, -32025: fault.Exhausted,
	-32014: fault.Unsupported, -32026: fault.Unsupported, jsonrpc.MethodNotFound: fault.Unsupported,
	jsonrpc.InternalError: fault.Unavailable,
}
