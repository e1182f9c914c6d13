package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// PathWorkspace is the name of the wildcard in "/mcp/{workspace}", the route of the named-event dialect (see dialect.go).
const PathWorkspace = "workspace"

// pathEndpoint is the path that requests of the named-event dialect get when the endpoint forwards them to another service.
const pathEndpoint = "/mcp"

// ServeHTTP serves the endpoint. It checks a request in this order, which docs/reference/protocol.md promises: origin, caller, size,
// JSON, message, version, headers, method, params.
//
// ServeHTTP does not return while a stream is open, and thousands of streams may be open, so the stacks of their goroutines must stay
// small. The garbage collector halves a stack of 16 KiB only if the frames of the waiting stream take less than 3.2 KiB. So the code
// that runs only when a stream begins is in separate functions, whose frames are gone while the stream waits.
func (e *Endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer e.recoverPanic(w, r)
	if r.Method == http.MethodDelete {
		var stop func()
		r, stop = method.DetachRequest(r, method.NoticeFor)
		defer stop()
	}
	switch c := e.admit(w, r); {
	case c == nil: // admit has answered the request
	case r.Method == http.MethodPost && r.PathValue(PathWorkspace) == "":
		e.post(w, c)
	default:
		e.route(w, c)
	}
}

// recoverPanic answers with an error after a panic, because lambdaurl, unlike net/http, does not recover from panics.
func (e *Endpoint) recoverPanic(w http.ResponseWriter, r *http.Request) {
	p := recover()
	if p == nil || p == http.ErrAbortHandler {
		return
	}
	e.options.Logger.ErrorContext(r.Context(), "MCP request panicked",
		slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
	if w.Header().Get("Content-Type") == sse.ContentType {
		return // the response is a stream that has begun, so an error cannot be sent in it
	}
	method.SendError(w, http.StatusInternalServerError, nil, &jsonrpc.Error{Code: jsonrpc.InternalError, Message: "internal error"})
}

// admit checks the origin and the credentials of a request. It returns nil if it has answered the request, which happens if it refuses
// the request or if the request is a browser's preflight.
func (e *Endpoint) admit(w http.ResponseWriter, r *http.Request) *method.Call {
	if err := e.options.Guard.Check(r); err != nil {
		method.SendError(w, http.StatusForbidden, nil, &jsonrpc.Error{Code: method.CodeForbidden, Message: fault.Public(err)})
		return nil
	}
	allowOrigin(w, r)
	if r.Method == http.MethodOptions && r.Header.Get("Origin") != "" {
		answerPreflight(w, r)
		return nil
	}
	p, err := e.options.Auth.Authenticate(r.Context(), r.Header)
	if err != nil {
		e.refuse(w, r, err)
		return nil
	}
	c := method.NewCall(r, e.shut)
	c.Principal = p
	return c
}

// route serves all requests except POSTs to /mcp.
func (e *Endpoint) route(w http.ResponseWriter, c *method.Call) {
	r := c.Request
	if workspace := r.PathValue(PathWorkspace); workspace != "" {
		if e.dialect == nil {
			http.NotFound(w, r)
			return
		}
		e.dialect(w, c, workspace)
		return
	}
	sessions := e.sessions != nil && !spec.Version(r.Header.Get(spec.HeaderVersion)).Stateless()
	switch {
	case sessions && r.Method == http.MethodGet:
		e.get(w, c)
	case sessions && r.Method == http.MethodDelete:
		e.delete(w, c)
	default:
		e.notAllowed(w, sessions)
	}
}

func (e *Endpoint) refuse(w http.ResponseWriter, r *http.Request, err error) {
	code := http.StatusUnauthorized
	switch fault.KindOf(err) {
	case fault.Unauthenticated:
	case fault.Forbidden:
		code = http.StatusForbidden
	default:
		e.faults.LogError(r.Context(), "caller authentication failed", err)
		w.Header().Set("Retry-After", "5")
		method.SendError(w, http.StatusServiceUnavailable, nil, &jsonrpc.Error{Code: method.CodeUnavailable, Message: "callers cannot be authenticated now; try again"})
		return
	}
	scope, rpc := auth.ScopeRead, &jsonrpc.Error{Code: code, Message: fault.Public(err)}
	name := r.Header.Get(spec.HeaderMethod) // the body, which has the name too, has not been read yet
	if m := e.methods[name]; m.Scope != "" {
		scope = m.Scope
	}
	if name == spec.MethodEventsSub || name == spec.MethodEventsUnsub {
		rpc = e.faults.Translate(r.Context(), err, spec.V20260728, e.defaultProfile(r.Context(), auth.Principal{}))
	}
	if challenge := auth.Challenge(err, e.options.ResourceMetadata, scope); challenge != "" {
		w.Header().Set("WWW-Authenticate", challenge)
	}
	method.SendError(w, code, nil, rpc)
}

func (e *Endpoint) notAllowed(w http.ResponseWriter, sessions bool) {
	allow := http.MethodPost
	if sessions {
		allow = "GET, POST, DELETE"
	}
	w.Header().Set("Allow", allow)
	method.SendError(w, http.StatusMethodNotAllowed, nil, method.InvalidRequest("the HTTP method is not allowed here"))
}

// allowOrigin lets the web page that sent the request read the answer (CORS). [Options.Guard] has already accepted the page's origin.
func allowOrigin(w http.ResponseWriter, r *http.Request) {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", "Mcp-Session-Id, WWW-Authenticate, Retry-After")
	h.Set("Vary", "Origin")
}

func answerPreflight(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
	h.Set("Access-Control-Allow-Headers",
		"Authorization, Content-Type, Accept, Last-Event-ID, Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name, Traceparent, Tracestate")
	// Clients repeat tool arguments in headers such as Mcp-Param-Region. The names depend on the backends' tools and are not
	// known here, so preflight allows every requested header with this prefix.
	for name := range method.MediaTypes(r.Header.Values("Access-Control-Request-Headers")) {
		if parameterHeader.MatchString(name) {
			h.Add("Access-Control-Allow-Headers", name)
		}
	}
	h.Set("Access-Control-Max-Age", "3600")
	w.WriteHeader(http.StatusNoContent)
}

// parameterHeader matches the name of a header that repeats an argument of a tool.
var parameterHeader = regexp.MustCompile(`(?i)^Mcp-Param-[A-Za-z0-9!#$%&'*+.^_|~-]{1,128}$`)

const (
	maxBody = 1 << 20 // bytes
	// firstRead is the most memory, in bytes, that is reserved for a body before any of it has arrived. It is small because a
	// client may announce a large body and never send it.
	firstRead = 16 << 10
)

var errTooLarge = errors.New("mcp: body too large")

func readBody(r *http.Request) ([]byte, error) {
	if r.ContentLength > maxBody {
		return nil, errTooLarge
	}
	if r.Body == nil {
		return nil, nil
	}
	var body bytes.Buffer
	if r.ContentLength > 0 { // ReadFrom needs MinRead free bytes even to find the end of the body
		body.Grow(int(min(r.ContentLength, firstRead)) + bytes.MinRead)
	}
	_, err := body.ReadFrom(io.LimitReader(r.Body, maxBody+1))
	if err == nil && body.Len() > maxBody {
		return nil, errTooLarge
	}
	return body.Bytes(), err
}

func isJSON(contentType string) bool {
	if contentType == "application/json" {
		return true
	}
	t, _, err := mime.ParseMediaType(contentType)
	return err == nil && t == "application/json"
}

func (e *Endpoint) post(w http.ResponseWriter, c *method.Call) {
	batch, ok := e.receive(w, c)
	switch {
	case !ok: // receive has answered the request
	case batch != nil:
		e.batch(w, c, batch)
	case isStateless(c):
		e.postStateless(w, c)
	default:
		e.postSessionBased(w, c)
	}
}

// receive reads the body of a POST. It stores a single message in c, and returns the elements of a batch. If it refuses the
// body, it answers the request and returns false.
func (e *Endpoint) receive(w http.ResponseWriter, c *method.Call) (batch []json.RawMessage, ok bool) {
	r := c.Request
	refuse := func(status int, id []byte, rpc *jsonrpc.Error) ([]json.RawMessage, bool) {
		method.SendError(w, status, id, rpc)
		return nil, false
	}
	if !isJSON(r.Header.Get("Content-Type")) {
		return refuse(http.StatusUnsupportedMediaType, nil, method.InvalidRequest("Content-Type must be application/json"))
	}
	if err := httpjson.CheckEncoding(r.Header); err != nil {
		return refuse(http.StatusUnsupportedMediaType, nil, method.InvalidRequest(fault.Public(err)))
	}
	if !method.Accepts(r.Header, "application/json") && !method.Accepts(r.Header, sse.ContentType) {
		return refuse(http.StatusNotAcceptable, nil, method.InvalidRequest("Accept must list application/json and text/event-stream"))
	}
	body, err := readBody(r)
	switch {
	case errors.Is(err, errTooLarge):
		e.options.Metrics.LimitReached("body")
		return refuse(http.StatusRequestEntityTooLarge, nil, &jsonrpc.Error{
			Code: method.CodeTooLarge, Message: "the body is too large", Data: fault.Limit{Limit: "body", Max: maxBody},
		})
	case err != nil:
		return refuse(http.StatusBadRequest, nil, &jsonrpc.Error{Code: jsonrpc.ParseError, Message: "the body could not be read"})
	}
	parts, isBatch, bad := jsonrpc.Split(body)
	if bad != nil {
		return refuse(http.StatusBadRequest, nil, bad)
	}
	c.Body = body
	if isBatch {
		return parts, true
	}
	if c.Msg, bad = jsonrpc.Decode(parts[0]); bad != nil {
		return refuse(http.StatusBadRequest, c.Msg.ID, bad)
	}
	c.Meta = jsonrpc.Member(c.Msg.Params, "_meta")
	joinTrace(c)
	return nil, true
}

// joinTrace makes the call part of the caller's distributed trace. It reads the trace context from the message's _meta (SEP-414) or, if
// _meta has no trace context, from the HTTP headers.
func joinTrace(c *method.Call) {
	parent, _ := jsonrpc.String(jsonrpc.Member(c.Meta, trace.Parent))
	state, _ := jsonrpc.String(jsonrpc.Member(c.Meta, trace.State))
	where := trace.Parse(parent, state)
	if where.Parent == "" {
		where = trace.FromHeader(c.Request.Header)
	}
	if where.Parent != "" {
		c.Request = c.Request.WithContext(trace.With(c.Request.Context(), where))
	}
}

func isStateless(c *method.Call) bool {
	return spec.Version(c.Request.Header.Get(spec.HeaderVersion)).Stateless() || namesStateless(c.Meta)
}

// namesStateless reports whether _meta names a stateless protocol version or an unknown one. An unknown version counts as
// stateless, because only the stateless revisions require clients to name their version in _meta.
func namesStateless(meta []byte) bool {
	v, ok := jsonrpc.String(jsonrpc.Member(meta, spec.MetaVersion))
	return ok && (spec.Version(v).Stateless() || !spec.Version(v).Known())
}

const (
	maxBatch = 50 // messages
	// maxBatchBytes limits the total size of a batch's responses. Once they exceed it, the remaining requests of the batch fail.
	maxBatchBytes = 2 << 20
)

// batch serves an array of messages, which only protocol revision 2025-03-26 allows.
func (e *Endpoint) batch(w http.ResponseWriter, c *method.Call, parts []json.RawMessage) {
	stateless := spec.Version(c.Request.Header.Get(spec.HeaderVersion)).Stateless()
	if !stateless && !e.enterSession(w, c) {
		return
	}
	if stateless || c.Version != spec.V20250326 {
		method.SendError(w, http.StatusBadRequest, nil, method.InvalidRequest("this revision has no batches"))
		return
	}
	defer c.Detach(method.DetachedFor)()
	c.JoinBatch()
	c.Request = c.Request.Clone(c.Request.Context())
	c.Request.Header.Set("Accept", "application/json") // parts of an array cannot be streams
	e.serveParts(w, c, parts, func(w http.ResponseWriter, c *method.Call) {
		if c.Msg.Kind == jsonrpc.Request {
			e.dispatch(w, c)
		} else {
			e.accept(w, c)
		}
	})
}

// serveParts calls the function serve for each message of a batch, and answers with the array of their responses. A batch of only
// notifications and responses gets no array. The HTTP response is then the error of the first message that failed, or 202 (2025-03-26,
// Streamable HTTP).
func (e *Endpoint) serveParts(w http.ResponseWriter, c *method.Call, parts []json.RawMessage, serve func(http.ResponseWriter, *method.Call)) {
	if len(parts) > maxBatch {
		method.SendError(w, http.StatusBadRequest, nil, method.InvalidRequest("a batch has at most "+strconv.Itoa(maxBatch)+" messages"))
		return
	}
	var answers [][]byte
	var failed *httpjson.Recorder
	size := 0
	for _, raw := range parts {
		one, kept := *c, httpjson.NewRecorder()
		msg, bad := jsonrpc.Decode(raw)
		one.Msg, one.Meta, one.Body = msg, jsonrpc.Member(msg.Params, "_meta"), msg.Raw
		joinTrace(&one)
		switch {
		case bad != nil:
			method.SendError(kept, http.StatusBadRequest, msg.ID, bad)
		case msg.Kind == jsonrpc.Request && msg.Method == spec.MethodInitialize:
			method.SendError(kept, http.StatusOK, msg.ID, method.InvalidRequest("initialize cannot be part of a batch"))
		case size > maxBatchBytes && msg.Kind == jsonrpc.Request:
			full := fault.New(fault.Exhausted, "the responses of the batch have more than %d bytes; send this request again", maxBatchBytes).AtLimit("batchBytes", maxBatchBytes)
			method.SendError(kept, http.StatusOK, msg.ID, e.faults.Translate(c.Request.Context(), full, c.Version, ""))
		default:
			serve(kept, &one)
		}
		if bad == nil && msg.Kind != jsonrpc.Request {
			if failed == nil && kept.Status >= http.StatusBadRequest {
				failed = kept
			}
			continue
		}
		if body := kept.Body.Bytes(); json.Valid(body) {
			answers = append(answers, body)
			size += len(body)
		}
	}
	switch {
	case len(answers) > 0:
	case failed != nil:
		maps.Copy(w.Header(), failed.Header())
		w.WriteHeader(failed.Status)
		_, _ = w.Write(failed.Body.Bytes()) // a disconnected client is not an error
		return
	default:
		w.WriteHeader(http.StatusAccepted)
		return
	}
	release, err := e.replies.HoldBytes(c, 2*size)
	if err != nil {
		e.replies.SendStatus(w, c, nil, err)
		return
	}
	defer release()
	method.Send(w, http.StatusOK, func(b []byte) []byte {
		b = append(append(b, '['), bytes.Join(answers, []byte(","))...)
		return append(b, ']')
	})
}

func (e *Endpoint) postStateless(w http.ResponseWriter, c *method.Call) {
	if c.Msg.Kind == jsonrpc.Response {
		method.SendError(w, http.StatusBadRequest, nil, method.InvalidRequest("this revision has no requests to clients, so it has no responses"))
		return
	}
	bad := checkVersion(c, e.supportedVersions())
	if bad == nil {
		bad = checkHeaders(c)
	}
	switch {
	case bad != nil:
		method.SendError(w, http.StatusBadRequest, c.Msg.ID, bad)
	case c.Msg.Kind == jsonrpc.Notification:
		e.accept(w, c)
	default:
		e.dispatch(w, c)
	}
}

// checkVersion checks that the version header and _meta name the same supported revision, and that _meta has the required members. A
// notification may lack either the header or the members of _meta.
func checkVersion(c *method.Call, supported []spec.Version) *jsonrpc.Error {
	headers := c.Request.Header[spec.HeaderVersion]
	raw := jsonrpc.Member(c.Meta, spec.MetaVersion)
	version, isText := jsonrpc.String(raw)
	switch {
	case len(headers) > 1:
		return headerMismatch("%s was sent more than once", "MCP-Protocol-Version")
	case len(headers) == 0 && c.Msg.Kind == jsonrpc.Request:
		return headerMismatch("%s is missing", "MCP-Protocol-Version")
	case raw == nil && c.Msg.Kind == jsonrpc.Request:
		return method.InvalidParams("_meta must name %s", spec.MetaVersion)
	case raw != nil && !isText:
		return method.InvalidParams("%s must be a string", spec.MetaVersion)
	case raw != nil && len(headers) == 1 && headers[0] != version:
		return headerMismatch("MCP-Protocol-Version is %q and _meta names %q", method.Clip(headers[0]), method.Clip(version))
	}
	if c.Msg.Kind == jsonrpc.Request {
		if declared := jsonrpc.Member(c.Meta, spec.MetaCapabilities); len(declared) == 0 || declared[0] != '{' {
			return method.InvalidParams("_meta must have the object %s", spec.MetaCapabilities)
		}
	}
	if len(headers) == 1 {
		version = headers[0]
	}
	if c.Version = spec.Version(version); c.Version != spec.V20260728 {
		c.Version = spec.V20260728 // the error response needs a known revision
		return &jsonrpc.Error{
			Code: spec.CodeUnsupportedVersion, Message: "Unsupported protocol version",
			Data: map[string]any{"supported": supported, "requested": method.Clip(version)},
		}
	}
	return checkLogLevel(c)
}

func headerMismatch(format string, args ...any) *jsonrpc.Error {
	bad := method.InvalidParams("Header mismatch: "+format, args...)
	bad.Code = spec.CodeHeaderMismatch
	return bad
}

// checkHeaders checks that the headers Mcp-Method and Mcp-Name have the same values as the body. A notification may omit them.
func checkHeaders(c *method.Call) *jsonrpc.Error {
	if bad := checkHeader(c, spec.HeaderMethod, c.Msg.Method); bad != nil {
		return bad
	}
	member, ok := spec.Mirrored[c.Msg.Method]
	if !ok {
		return nil
	}
	name, _ := jsonrpc.String(c.Param(member))
	return checkHeader(c, spec.HeaderName, name)
}

func checkHeader(c *method.Call, header, want string) *jsonrpc.Error {
	values := c.Request.Header[header]
	switch {
	case len(values) == 0 && c.Msg.Kind == jsonrpc.Notification:
		return nil
	case len(values) == 0:
		return headerMismatch("%s is missing", header)
	case len(values) > 1:
		return headerMismatch("%s was sent more than once", header)
	}
	got := strings.Trim(values[0], " \t")
	if header == spec.HeaderName { // the client may have encoded the name in Base64
		var err error
		if got, err = spec.DecodeHeader(got); err != nil {
			return headerMismatch("%s is malformed", header)
		}
	}
	if got != want {
		return headerMismatch("%s is %q and the body has %q", header, method.Clip(got), method.Clip(want))
	}
	return nil
}

// checkLogLevel checks the log level in _meta, with which a client asks for log messages of the backends. In 2026-07-28, this server sends
// no log messages of its own, because that revision deprecates them.
func checkLogLevel(c *method.Call) *jsonrpc.Error {
	raw := jsonrpc.Member(c.Meta, spec.MetaLogLevel)
	if raw == nil {
		return nil
	}
	if level, ok := jsonrpc.String(raw); !ok || !spec.KnownSeverity(level) {
		return method.InvalidParams("%s must be one of the severities of RFC 5424", spec.MetaLogLevel)
	}
	return nil
}
