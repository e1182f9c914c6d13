package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// exchange sends a request and returns the header of the response. It does not renew the session.
func (c *Client) exchange(ctx context.Context, method string, params map[string]any, result any) (http.Header, error) {
	resp, body, err := c.server.Do(ctx, http.MethodPost, c.url, c.header(method, params), c.request(method, params))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusNotFound && c.sessionID() != "" {
		return nil, errSessionGone // the revisions with sessions define this status
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), sse.ContentType) {
		if body, err = lastMessage(body); err != nil {
			return nil, err
		}
	}
	var answer struct {
		Result json.RawMessage `json:"result"`
		Error  *rpcError       `json:"error"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Result == nil && answer.Error == nil {
		if resp.StatusCode >= 300 {
			return nil, fault.Wrap(fault.Internal, httpcall.ReadRefusal(resp, body), "%s", method)
		}
		return nil, fault.New(fault.Unavailable, "%s: the server's response is not JSON-RPC", method)
	}
	if answer.Error != nil {
		return nil, fault.Wrap(fault.Internal, answer.Error.fault(resp.StatusCode), "%s", method)
	}
	if result == nil {
		return resp.Header, nil
	}
	if err := json.Unmarshal(answer.Result, result); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "%s: read the result", method)
	}
	return resp.Header, nil
}

// lastMessage returns the response at the end of a stream.
func lastMessage(stream []byte) ([]byte, error) {
	r := sse.NewReader(strings.NewReader(string(stream)), httpcall.MaxAnswer)
	for {
		e, err := r.Next()
		if err != nil {
			return nil, fault.New(fault.Unavailable, "the server's stream ended without a response")
		}
		if m, bad := jsonrpc.Decode(e.Data); bad == nil && m.Kind == jsonrpc.Response {
			return e.Data, nil
		}
	}
}

// request encodes a request, with the _meta that revision 2026-07-28 requires.
func (c *Client) request(method string, params map[string]any) []byte {
	if params == nil {
		params = map[string]any{}
	}
	if c.isStateless() {
		meta, _ := params["_meta"].(map[string]any)
		if meta == nil {
			meta = map[string]any{}
		}
		meta[spec.MetaVersion] = c.version
		meta[spec.MetaClient] = c.clientInfo()
		meta[spec.MetaCapabilities] = map[string]any{}
		params["_meta"] = meta
	}
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": c.seq.Add(1), "method": method, "params": params})
	if err != nil {
		panic(err) // the parameters consist of maps and strings
	}
	return b
}

func (c *Client) header(method string, params map[string]any) http.Header {
	h := http.Header{}
	h.Set("Accept", "application/json, "+sse.ContentType)
	session := c.sessionID()
	if c.isStateless() || session != "" {
		h.Set("Mcp-Protocol-Version", string(c.version))
	}
	if session != "" {
		h.Set("Mcp-Session-Id", session)
	}
	if c.isStateless() && method != "" {
		h.Set("Mcp-Method", method)
		member := map[string]string{spec.MethodRead: "uri", spec.MethodToolsCall: "name", spec.MethodPromptsGet: "name"}[method]
		if name, ok := params[member].(string); ok {
			h.Set("Mcp-Name", spec.EncodeHeader(name))
		}
	}
	return h
}

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
