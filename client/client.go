package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// Client is as much of an MCP client as events need, for one revision of the protocol. Its methods may
// be called concurrently once [Client.Begin] has returned.
type Client struct {
	// Log gets a line for each request that is sent again because the server did not answer; nil
	// discards it.
	Log *slog.Logger
	// Store, Webhooks and MinPoll are those of [Options].
	Store    Store
	Webhooks *Handler
	MinPoll  time.Duration

	server  Server
	url     string
	version spec.Version
	session atomic.Pointer[string] // of the revisions that have sessions
	begun   atomic.Bool            // Begin has succeeded since the last session ended
	renewal sync.Mutex
	seq     atomic.Int64
	memory  memory
	silence time.Duration
}

// New makes a client of a server, which it does not call yet.
func New(s Server, version spec.Version) (*Client, error) {
	url, err := s.Endpoint("/mcp")
	if err != nil {
		return nil, err
	}
	c := &Client{server: s, url: url, version: version, silence: deadAfter}
	c.setSession("")
	return c, nil
}

// stateless reports whether the revision has no sessions.
func (c *Client) stateless() bool { return c.version.Stateless() }

// implementation is the clientInfo that servers see.
func (c *Client) implementation() map[string]string {
	name, version, _ := strings.Cut(c.server.Agent, "/")
	return map[string]string{"name": name, "version": version}
}

// Begin opens a session where the revision has them.
func (c *Client) Begin(ctx context.Context) error {
	if c.stateless() {
		return nil
	}
	c.setSession("")
	c.begun.Store(false)
	var result struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	header, err := c.exchange(ctx, spec.MethodInitialize, map[string]any{
		"protocolVersion": c.version, "capabilities": map[string]any{}, "clientInfo": c.implementation(),
	}, &result)
	if err != nil {
		return err
	}
	if result.ProtocolVersion != string(c.version) {
		return fault.New(fault.Unsupported, "the server offers revision %.32q and not %s", result.ProtocolVersion, c.version)
	}
	c.setSession(header.Get("Mcp-Session-Id"))
	body := []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	resp, b, err := c.server.Do(ctx, http.MethodPost, c.url, c.header(spec.NoteInitialized, nil), body)
	if err == nil && resp.StatusCode >= 300 {
		err = Refusal(resp, b)
	}
	c.begun.Store(err == nil)
	return err
}

// errSessionGone says that the server has ended or lost the session.
var errSessionGone = fault.New(fault.NotFound, "the session has ended")

func (c *Client) sessionID() string { return *c.session.Load() }

func (c *Client) setSession(id string) { c.session.Store(&id) }

// call sends a request of a subscription and returns the header of the answer. It starts a new session if the last one
// has ended, or if an earlier call could not start one.
func (c *Client) call(f *flow, method string, params map[string]any, result any) (http.Header, error) {
	session := c.sessionID()
	if c.stateless() || c.begun.Load() {
		header, err := c.exchange(f.ctx, method, params, result)
		if !errors.Is(err, errSessionGone) {
			return header, err
		}
		f.log.Warn("session ended, starting a new one")
	}
	if err := c.renew(f.ctx, session); err != nil {
		return nil, err
	}
	header, err := c.exchange(f.ctx, method, params, result)
	if errors.Is(err, errSessionGone) {
		err = fault.New(fault.Unavailable, "%s: the new session has ended, too", method)
	}
	return header, err
}

// renew starts a new session unless another goroutine has replaced the given one already.
func (c *Client) renew(ctx context.Context, gone string) error {
	c.renewal.Lock()
	defer c.renewal.Unlock()
	if c.begun.Load() && c.sessionID() != gone {
		return nil
	}
	return c.Begin(ctx)
}

func (c *Client) log() *slog.Logger { return logTo(c.Log) }

// logTo is a log, which may be nil.
func logTo(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}

// storeOf returns the store that keeps the cursor of a subscription.
func (c *Client) storeOf(s Subscription) Store {
	switch {
	case s.Store != nil:
		return s.Store
	case c.Store != nil:
		return c.Store
	}
	return &c.memory
}

// End ends the session, if there is one, also when ctx has ended. It takes five seconds at most: the server forgets a
// session by itself, too.
func (c *Client) End(ctx context.Context) {
	ctx, cancel := ending(ctx)
	defer cancel()
	c.endSession(ctx)
}

func (c *Client) endSession(ctx context.Context) {
	if c.sessionID() == "" {
		return
	}
	_, _, _ = c.server.Do(ctx, http.MethodDelete, c.url, c.header("", nil), nil)
}

// Call sends a request and decodes its result; result may be nil.
func (c *Client) Call(ctx context.Context, method string, params map[string]any, result any) error {
	_, err := c.exchange(ctx, method, params, result)
	return err
}

func (c *Client) exchange(ctx context.Context, method string, params map[string]any, result any) (http.Header, error) {
	resp, body, err := c.server.Do(ctx, http.MethodPost, c.url, c.header(method, params), c.request(method, params))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusNotFound && c.sessionID() != "" {
		return nil, errSessionGone // so the revisions with sessions say it
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
			return nil, fault.Wrap(fault.Internal, Refusal(resp, body), "%s", method)
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

// lastMessage takes the response out of a stream that ends with it.
func lastMessage(stream []byte) ([]byte, error) {
	r := sse.NewReader(strings.NewReader(string(stream)), maxAnswer)
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
	req, err := c.server.request(live, method, c.url, header, body)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	dead := time.AfterFunc(c.silence, func() { cancel(errSilent) })
	resp, err := c.server.streams().Do(req)
	if err != nil {
		dead.Stop()
		cancel(nil)
		return nil, unreachable(ctx, silent(live, err))
	}
	content := &liveBody{ReadCloser: resp.Body, ctx: live, cancel: cancel, dead: dead, limit: c.silence}
	if resp.StatusCode == http.StatusOK && strings.HasPrefix(resp.Header.Get("Content-Type"), sse.ContentType) {
		return content, nil
	}
	defer func() { _ = content.Close() }()
	b, _ := io.ReadAll(io.LimitReader(content, maxAnswer))
	var answer struct {
		Error *rpcError `json:"error"`
	}
	if resp.StatusCode == http.StatusOK && json.Unmarshal(b, &answer) == nil && answer.Error != nil {
		return nil, answer.Error.fault(resp.StatusCode)
	}
	return nil, Refusal(resp, b)
}

// rpcError is a JSON-RPC error.
type rpcError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

// fault gives the error the kind of its code, else that of the HTTP status.
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
		return kindOfStatus(e.Code)
	}
	if status >= 300 {
		return kindOfStatus(status)
	}
	return fault.Invalid
}
