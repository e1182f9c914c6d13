package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// Options configure [Connect]. The zero value sends no credentials and keeps cursors in memory.
type Options struct {
	// Key is the API key or access token, which the client sends as Authorization: Bearer. If it is empty, the client sends no such
	// header.
	Key string
	// HTTP is the HTTP client that sends the requests. Set it to use a proxy, certificates, or tokens that expire (for example with an
	// oauth2.Transport). Its Timeout limits requests but not streams. If it is nil, [http.DefaultClient] is used.
	HTTP *http.Client
	// Agent is the name and version of the calling program, for example my-app/1.2. The client sends it to the server in the header
	// User-Agent and in clientInfo.
	Agent string
	// Revision is the revision of MCP to speak, for example 2025-11-25. If it is empty, Connect asks the server for its revisions, and
	// uses the newest one that this package also supports. If it is set, Connect sends no request. In a revision with sessions, the first
	// request of the client then starts the session.
	Revision string
	// Store saves the cursors of subscriptions. If it is nil, the client keeps them in memory.
	Store Store
	// Webhooks receives webhooks from the server. Leave it nil if the server cannot reach the program.
	Webhooks *Handler
	// MinPoll is the shortest pause between two polls, even if the server allows a shorter pause. 0 means one second. If the server says
	// that it has more events, the client polls again without a pause.
	MinPoll time.Duration
	// Log receives warnings, for example about failed requests that the client repeats. If it is nil, there are no warnings.
	Log *slog.Logger
}

// Client is a connection to an MCP server. Its methods may be called concurrently.
type Client struct {
	options  Options
	log      *slog.Logger
	server   httpcall.Server
	url      string
	version  spec.Version
	session  atomic.Pointer[string] // nil if no session is open; points to an empty id if the server works without sessions
	renewing sync.Mutex
	seq      atomic.Int64
	memory   memory
	silence  time.Duration
}

// Connect returns a client of the MCP endpoint at url. It negotiates the newest revision of MCP that both sides support. In revision
// 2026-07-28, there are no sessions. In an earlier revision, Connect starts a session, and [Client.Close] ends it. If the server does not
// answer, Connect tries five times.
func Connect(ctx context.Context, url string, o Options) (*Client, error) {
	c, err := newClient(url, o)
	if err != nil || o.Revision != "" {
		return c, err
	}
	var discovered struct {
		Versions []spec.Version `json:"supportedVersions"`
	}
	err = c.retry(ctx, func() error {
		_, err := c.exchangeIn(ctx, "", spec.MethodDiscover, nil, &discovered)
		return err
	})
	switch {
	case err == nil && slices.Contains(discovered.Versions, spec.V20260728):
		return c, nil
	case ctx.Err() != nil, Retryable(err), fault.Is(err, fault.Unauthenticated), fault.Is(err, fault.Forbidden):
		return nil, err
	}
	// The server does not support 2026-07-28, which has no sessions. Try the revisions with sessions, the newest first.
	var failed error
	for _, version := range spec.Versions {
		if version.Stateless() {
			continue
		}
		c.version = version
		if failed = c.retry(ctx, func() error { return c.startSession(ctx) }); failed == nil {
			return c, nil
		}
	}
	return nil, errors.Join(err, failed)
}

func newClient(url string, o Options) (*Client, error) {
	c := &Client{
		options: o, log: orDiscard(o.Log), server: httpcall.Server{URL: url, Key: o.Key, Agent: o.Agent, HTTP: o.HTTP},
		version: spec.V20260728, silence: deadAfter,
	}
	if o.Revision != "" {
		c.version = spec.Version(o.Revision)
		if !slices.Contains(spec.Versions, c.version) {
			return nil, fault.New(fault.Unsupported, "unknown revision %.32q (known: %v)", o.Revision, spec.Versions)
		}
	}
	var err error
	c.url, err = c.server.Endpoint("/mcp")
	c.seq.Store(firstID())
	return c, err
}

// firstID returns the random number from which a client counts its request ids. The ids of different clients must differ, because the
// gateway sends the requests of several clients over one connection if the server is a command (stdio).
func firstID() int64 { return rand.Int64N(1 << 30) }

// withOwnSession returns another client of the same server, with a session of its own, because a session can have only one stream.
func (c *Client) withOwnSession() *Client {
	own := &Client{options: c.options, log: c.log, server: c.server, url: c.url, version: c.version, silence: c.silence}
	own.seq.Store(firstID())
	return own
}

// Revision returns the revision of MCP that the client and the server speak.
func (c *Client) Revision() string { return string(c.version) }

func (c *Client) isStateless() bool { return c.version.Stateless() }

// clientInfo returns the MCP object clientInfo, with the name and the version from [Options.Agent], for example my-app/1.2.
func (c *Client) clientInfo() map[string]string {
	name, version, _ := strings.Cut(c.server.Agent, "/")
	return map[string]string{"name": name, "version": version}
}

// startSession starts a session if the revision of MCP has sessions.
func (c *Client) startSession(ctx context.Context) error {
	if c.isStateless() {
		return nil
	}
	c.session.Store(nil)
	var result struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	header, err := c.exchangeIn(ctx, "", spec.MethodInitialize, map[string]any{
		"protocolVersion": c.version, "capabilities": map[string]any{}, "clientInfo": c.clientInfo(),
	}, &result)
	if err != nil {
		return err
	}
	if result.ProtocolVersion != string(c.version) {
		return fault.New(fault.Unsupported, "the server offers revision %.32q and not %s", result.ProtocolVersion, c.version)
	}
	session := header.Get("Mcp-Session-Id")
	body := []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	resp, b, err := c.server.Do(ctx, http.MethodPost, c.url, c.header(session, spec.NoteInitialized, nil), body)
	if err == nil && resp.StatusCode >= 300 {
		err = httpcall.ReadRefusal(resp, b)
	}
	if err == nil {
		c.session.Store(&session)
	}
	return err
}

// errSessionGone means that the server ended or lost the session.
var errSessionGone = fault.New(fault.NotFound, "the session has ended")

// sessionID returns the id of the client's session, or "" if it has no session.
func (c *Client) sessionID() string {
	if open := c.session.Load(); open != nil {
		return *open
	}
	return ""
}

// call sends a request, decodes the result, and returns the header of the HTTP response. In a revision of MCP with sessions, it first
// starts a session if the client has no session. If the session has ended, call starts a new one and sends the request again.
func (c *Client) call(ctx context.Context, method string, params map[string]any, result any) (http.Header, error) {
	session := c.session.Load()
	if c.isStateless() {
		return c.exchangeIn(ctx, "", method, params, result)
	}
	if session != nil {
		header, err := c.exchangeIn(ctx, *session, method, params, result)
		if !errors.Is(err, errSessionGone) {
			return header, err
		}
		c.log.Warn("session ended, starting a new one")
	}
	session, err := c.renewSession(ctx, session)
	if err != nil {
		return nil, err
	}
	header, err := c.exchangeIn(ctx, *session, method, params, result)
	if errors.Is(err, errSessionGone) {
		err = fault.New(fault.Unavailable, "%s: the new session has ended, too", method)
	}
	return header, err
}

// renewSession starts a new session in place of one that has ended, and returns its id. The parameter gone points to the id of the ended
// session, or is nil if there was no session. If another goroutine has already started a new session, renewSession returns the id of that
// session.
func (c *Client) renewSession(ctx context.Context, gone *string) (*string, error) {
	c.renewing.Lock()
	defer c.renewing.Unlock()
	if open := c.session.Load(); open != nil && open != gone {
		return open, nil
	}
	err := c.startSession(ctx)
	return c.session.Load(), err
}

func orDiscard(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}

func (c *Client) chooseStore(o SubscribeOptions) Store {
	switch {
	case o.Store != nil:
		return o.Store
	case c.options.Store != nil:
		return c.options.Store
	}
	return &c.memory
}

// Close ends the session, if there is one. It takes at most five seconds. Close the subscriptions first, because a running subscription
// would start a new session.
func (c *Client) Close() error {
	if c.sessionID() == "" {
		return nil
	}
	ctx, cancel := closingContext(context.Background())
	defer cancel()
	_, _, err := c.server.Do(ctx, http.MethodDelete, c.url, c.header(c.sessionID(), "", nil), nil)
	return err
}

// Call sends an MCP request, for example tools/call. It decodes the result into the parameter result, unless that is nil. It does not
// change params.
//
// The client waits for the response for at most a minute, even if ctx allows more. If the server has not answered by then, the error is
// [ErrUnavailable], which is [Retryable]. But the server may still carry out the call. So repeat the call only if a repetition is
// harmless.
func (c *Client) Call(ctx context.Context, method string, params map[string]any, result any) error {
	_, err := c.call(ctx, method, params, result)
	return err
}

// drainTime limits how long it takes to close a handler, a session or a subscription.
const drainTime = 5 * time.Second

// closingContext returns the context for requests that end a session or a subscription. It ends after drainTime, and not when ctx ends.
func closingContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), drainTime)
}

// maxTries is how many times a request is sent if each try fails with a [Retryable] error, for example because the server does not
// answer.
const maxTries = 5

// retry calls the function do until it succeeds, fails permanently, or has failed maxTries times.
//
// If the deadline of ctx ends a try, retry returns the error of the previous try, which says what is wrong with the server. The error of
// the last try would only say that the time is over.
func (c *Client) retry(ctx context.Context, do func() error) error {
	var last error
	for try := 0; ; try++ {
		err := do()
		if last != nil && errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
			return last
		}
		if err == nil || !Retryable(err) || try+1 >= maxTries {
			return err
		}
		last = err
		c.log.Warn("request failed, retrying", "try", try+2, "of", maxTries, "error", err)
		_ = httpcall.Sleep(ctx, try, 0)
	}
}

// EventType describes an event type (SEP-3415, "Listing Available Events").
type EventType struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	// Delivery lists the modes in which this caller can receive events of the type: "webhook", "push" or "poll".
	Delivery []string `json:"delivery"`
	// InputSchema is the JSON schema of [SubscribeOptions.Arguments]. PayloadSchema is the JSON schema of [Event.Data].
	InputSchema   json.RawMessage `json:"inputSchema"`
	PayloadSchema json.RawMessage `json:"payloadSchema"`
}

// maxPages limits how many pages of a list the client reads, because a faulty server could send cursors without end.
const maxPages = 1000

// EventTypes lists the event types that the caller may receive.
func (c *Client) EventTypes(ctx context.Context) (types []EventType, err error) {
	params := map[string]any{}
	for range maxPages {
		var page struct {
			Events []EventType `json:"events"`
			Next   string      `json:"nextCursor"`
		}
		if err := c.retry(ctx, func() error { return c.Call(ctx, spec.MethodEvents, params, &page) }); err != nil {
			return nil, err
		}
		types = append(types, page.Events...)
		if page.Next == "" {
			return types, nil
		}
		params = map[string]any{"cursor": page.Next}
	}
	return nil, fault.New(fault.Unavailable, "the server's list of event types has more than %d pages", maxPages)
}

// exchangeIn sends a request in the given session and returns the header of the response. It does not use the client's current session,
// because a concurrent call may replace it meanwhile. If the given session has ended, the error is errSessionGone.
func (c *Client) exchangeIn(ctx context.Context, session, method string, params map[string]any, result any) (http.Header, error) {
	request, err := c.request(method, params)
	if err != nil {
		return nil, err
	}
	resp, body, err := c.server.DoRead(ctx, http.MethodPost, c.url, c.header(session, method, params), request, readAnswer)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusNotFound && session != "" {
		return nil, errSessionGone // in revisions with sessions, 404 means an unknown session
	}
	if body == nil {
		return nil, fault.New(fault.Unavailable, "the server's stream ended without a response")
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

// readAnswer returns the body of an HTTP response. If the body is a stream, readAnswer returns the first JSON-RPC response in the stream
// and skips all other messages. It returns nil if the stream ends before a response.
//
// It does not wait for the end of the stream, because a server may keep the stream open after the response.
func readAnswer(resp *http.Response) ([]byte, error) {
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), sse.ContentType) {
		return io.ReadAll(resp.Body)
	}
	for r := sse.NewReader(resp.Body, httpcall.MaxAnswer); ; {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if !json.Valid(e.Data) {
			continue
		}
		if m, bad := jsonrpc.Decode(e.Data); bad == nil && m.Kind == jsonrpc.Response {
			return e.Data, nil
		}
	}
}

// request encodes a JSON-RPC request. For revision 2026-07-28, it adds the required _meta to a copy of params, because the caller may use
// the same map in concurrent calls.
func (c *Client) request(method string, params map[string]any) ([]byte, error) {
	if params == nil {
		params = map[string]any{}
	}
	if c.isStateless() {
		meta, err := cloneObject(params["_meta"])
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "encode the _meta of %s", method)
		}
		meta[spec.MetaVersion] = c.version
		meta[spec.MetaClient] = c.clientInfo()
		meta[spec.MetaCapabilities] = map[string]any{}
		params = maps.Clone(params)
		params["_meta"] = meta
	}
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": c.seq.Add(1), "method": method, "params": params})
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "encode the parameters of %s", method)
	}
	return b, nil
}

// cloneObject returns a new map with the members of a value that encodes as a JSON object, for example of a map[string]string. For nil,
// the map is empty.
func cloneObject(value any) (map[string]any, error) {
	object := map[string]any{}
	text, err := json.Marshal(value)
	if err != nil || value == nil {
		return object, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()                               // keeps large integers exact
	if err = d.Decode(&object); object == nil { // the value encodes as null, for example a nil map
		object = map[string]any{}
	}
	return object, err
}

// header returns the HTTP header of a request. The parameter session is empty for a request outside of a session.
func (c *Client) header(session, method string, params map[string]any) http.Header {
	h := http.Header{}
	h.Set("Accept", "application/json, "+sse.ContentType)
	if method != spec.MethodInitialize { // initialize negotiates the revision, so it is not known yet
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

// These are the kinds of errors of this package. Test for them with [errors.Is].
var (
	// ErrInvalid is the error for malformed options, arguments or data.
	ErrInvalid error = fault.Invalid
	// ErrUnauthenticated is the error for a missing or wrong key.
	ErrUnauthenticated error = fault.Unauthenticated
	// ErrForbidden is the error for a caller who lacks the permission for a request.
	ErrForbidden error = fault.Forbidden
	// ErrNotFound is the error for an event type or URI that does not exist, or that this caller may not see.
	ErrNotFound error = fault.NotFound
	// ErrUnsupported is the error for a mode or method that the server or this package does not support.
	ErrUnsupported error = fault.Unsupported
	// ErrExhausted is the error for a reached limit or quota. It is [Retryable].
	ErrExhausted error = fault.Exhausted
	// ErrUnavailable is the error for a server that does not answer, and for a [Store] that fails. It is [Retryable].
	ErrUnavailable error = fault.Unavailable
	// ErrConflict is the error for a [File] that has the cursor of another subscription. It is also the error for a second subscription
	// to the same events with the same [Handler].
	ErrConflict error = fault.Conflict
	// ErrTooLarge is the error for data that exceeds a limit of the server.
	ErrTooLarge error = fault.TooLarge
	// ErrSchema is the error for an event that does not match the JSON schema of its type.
	ErrSchema error = fault.Unprocessable
)

// Retryable reports whether a call that failed with err may succeed when it is repeated.
func Retryable(err error) bool { return httpcall.Retryable(err) }

// Terminated is the error of a subscription that the server has ended, for example because access was revoked or the event type was
// removed (SEP-3415, "Subscription Termination").
type Terminated struct {
	Name string
	// Err is the server's reason for ending the subscription.
	Err error
}

func (t *Terminated) Error() string { return "the server ended the subscription: " + t.Err.Error() }

// Unwrap returns the server's reason for ending the subscription.
func (t *Terminated) Unwrap() error { return t.Err }

// newTerminated returns the error of a subscription that the server has ended. The parameter e is the server's reason, or nil if the
// server gave no reason.
func newTerminated(name string, e *rpcError) *Terminated {
	if e == nil {
		return &Terminated{Name: name, Err: fault.New(fault.Forbidden, "it gave no reason")}
	}
	return &Terminated{Name: name, Err: e.fault(http.StatusOK)}
}

type rpcError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

// fault converts a JSON-RPC error to a [fault.Error]. The kind depends on the error's code. If the code is unknown, the kind depends on
// the HTTP status.
func (e *rpcError) fault(status int) error {
	f := &fault.Error{Kind: e.kind(status), Message: fmt.Sprintf("the server refused (%d): %.1000s", e.Code, e.Message)}
	if e.Data != nil && string(e.Data) != "null" {
		f.Data = e.Data
	}
	if e.Code == -32015 || e.Code == -32027 {
		return &endpointError{f}
	}
	return f
}

// endpointError is the error CallbackEndpointError (SEP-3415): the server could not verify the URL to which it should send webhooks.
type endpointError struct{ error }

func (e *endpointError) Unwrap() error { return e.error }

func (e *rpcError) kind(status int) fault.Kind {
	if kind, ok := kinds[e.Code]; ok {
		return kind
	}
	if e.Code >= 400 && e.Code <= 599 { // our server uses the HTTP status as the code of errors without a standard code
		return httpcall.KindOfStatus(e.Code)
	}
	if status >= 300 {
		return httpcall.KindOfStatus(status)
	}
	return fault.Invalid
}

// kinds maps known JSON-RPC error codes to kinds of errors. Most kinds have two codes: one from SEP-3415, and one from the earlier draft
// of MCP Events, which released clients implement (see [spec.Profile]).
var kinds = map[int]fault.Kind{
	-32011: fault.NotFound, -32023: fault.NotFound, spec.CodeResourceNotFound: fault.NotFound,
	-32012: fault.Forbidden, -32024: fault.Forbidden,
	-32013: fault.Exhausted, -32025: fault.Exhausted,
	-32014: fault.Unsupported, -32026: fault.Unsupported, jsonrpc.MethodNotFound: fault.Unsupported,
	jsonrpc.InternalError: fault.Unavailable,
}
