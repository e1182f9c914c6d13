package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

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
	if c.stateless() {
		meta, _ := params["_meta"].(map[string]any)
		if meta == nil {
			meta = map[string]any{}
		}
		meta[spec.MetaVersion] = c.version
		meta[spec.MetaClient] = c.implementation()
		meta[spec.MetaCapabilities] = map[string]any{}
		params["_meta"] = meta
	}
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": c.seq.Add(1), "method": method, "params": params})
	if err != nil {
		panic(err) // maps and texts of our own
	}
	return b
}

func (c *Client) header(method string, params map[string]any) http.Header {
	h := http.Header{}
	h.Set("Accept", "application/json, "+sse.ContentType)
	session := c.sessionID()
	if c.stateless() || session != "" {
		h.Set("Mcp-Protocol-Version", string(c.version))
	}
	if session != "" {
		h.Set("Mcp-Session-Id", session)
	}
	if c.stateless() && method != "" {
		h.Set("Mcp-Method", method)
		member := map[string]string{spec.MethodRead: "uri", spec.MethodToolsCall: "name", spec.MethodPromptsGet: "name"}[method]
		if name, ok := params[member].(string); ok {
			h.Set("Mcp-Name", spec.EncodeHeader(name))
		}
	}
	return h
}

// post sends a request of JSON-RPC whose answer is a stream.
func (c *Client) post(ctx context.Context, method string, params map[string]any) (io.ReadCloser, error) {
	return c.stream(ctx, http.MethodPost, c.header(method, params), c.request(method, params))
}

// stream sends a request whose answer is a stream. The stream fails if it is silent for too long; see [liveBody].
func (c *Client) stream(ctx context.Context, method string, header http.Header, body []byte) (io.ReadCloser, error) {
	live, cancel := context.WithCancelCause(ctx)
	req, err := c.server.NewRequest(live, method, c.url, header, body)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	dead := time.AfterFunc(c.silence, func() { cancel(errSilent) })
	resp, err := c.server.StreamClient().Do(req)
	if err != nil {
		dead.Stop()
		cancel(nil)
		return nil, httpcall.Unreachable(ctx, silent(live, err))
	}
	content := &liveBody{ReadCloser: resp.Body, ctx: live, cancel: cancel, dead: dead, limit: c.silence}
	if resp.StatusCode == http.StatusOK && strings.HasPrefix(resp.Header.Get("Content-Type"), sse.ContentType) {
		return content, nil
	}
	defer func() { _ = content.Close() }()
	b, _ := io.ReadAll(io.LimitReader(content, httpcall.MaxAnswer))
	var answer struct {
		Error *rpcError `json:"error"`
	}
	if resp.StatusCode == http.StatusOK && json.Unmarshal(b, &answer) == nil && answer.Error != nil {
		return nil, answer.Error.fault(resp.StatusCode)
	}
	return nil, httpcall.ReadRefusal(resp, b)
}

// rpcError is a JSON-RPC error.
type rpcError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

// fault returns an error with the kind of the code, or otherwise of the HTTP status.
func (e *rpcError) fault(status int) error {
	f := &fault.Error{Kind: e.kind(status), Message: fmt.Sprintf("the server refused (%d): %s", e.Code, e.Message)}
	if e.Data != nil && string(e.Data) != "null" {
		f.Data = e.Data
	}
	return f
}

func (e *rpcError) kind(status int) fault.Kind {
	if kind, ok := kinds[e.Code]; ok {
		return kind
	}
	if e.Code >= 400 && e.Code <= 599 { // codes of our own are the HTTP statuses of the same meaning
		return httpcall.KindOfStatus(e.Code)
	}
	if status >= 300 {
		return httpcall.KindOfStatus(status)
	}
	return fault.Invalid
}

// deadAfter limits how long a stream may be silent. It is more than twice the interval between heartbeats (SEP-3415,
// "Lifecycle": at least every 30 seconds; our server sends one every 15 seconds).
const deadAfter = 65 * time.Second

var errSilent = fault.New(fault.Unavailable, "the stream was silent for too long")

// liveBody is the body of a stream. It fails with errSilent if the connection brings no byte for too long, because a
// proxy can keep the connection open although the server behind it is gone. Any byte counts, for example a comment that
// serves as a heartbeat. The time in which the caller handles an event does not count.
type liveBody struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	dead   *time.Timer
	limit  time.Duration
}

// Read implements [io.Reader].
func (b *liveBody) Read(p []byte) (int, error) {
	b.dead.Reset(b.limit)
	n, err := b.ReadCloser.Read(p)
	b.dead.Stop()
	return n, silent(b.ctx, err)
}

// Close implements [io.Closer].
func (b *liveBody) Close() error {
	b.dead.Stop()
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// silent replaces an error by errSilent if ctx was canceled for that reason.
func silent(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errSilent) {
		return errSilent
	}
	return err
}

// The names of this project's additions to MCP. The server has them in shared/mcp, which would bring the whole server along.
const (
	prefix          = "io.github.mcp-events/"
	metaCursor      = prefix + "cursor"
	metaEventID     = prefix + "eventId"
	metaTime        = prefix + "time"
	metaURI         = prefix + "uri"
	metaTruncated   = prefix + "truncated"
	metaIdempotency = prefix + "idempotencyKey"
)

// kinds maps error codes to kinds. The named errors of MCP Events have two numberings: that of the released profile and that
// of SEP-3415.
var kinds = map[int]fault.Kind{
	-32011: fault.NotFound, -32023: fault.NotFound, spec.CodeResourceNotFound: fault.NotFound,
	-32012: fault.Forbidden, -32024: fault.Forbidden,
	-32013: fault.Exhausted, -32025: fault.Exhausted,
	-32014: fault.Unsupported, -32026: fault.Unsupported, jsonrpc.MethodNotFound: fault.Unsupported,
	jsonrpc.InternalError: fault.Unavailable,
}
