package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/jsonrpc"
)

// postLegacy serves one message of the revisions that have sessions.
func (e *Endpoint) postLegacy(w http.ResponseWriter, c *call) {
	if c.msg.Kind == jsonrpc.Request && c.msg.Method == methodInitialize {
		e.initializeSession(w, c)
		return
	}
	if !e.enterSession(w, c) {
		return
	}
	if c.msg.Kind != jsonrpc.Request {
		e.takeIn(w, c)
		return
	}
	m, ok := e.method(c.request.Context(), c.msg.Method)
	if !ok || !m.legacy {
		e.fail(w, http.StatusOK, c.msg.ID, unknownMethod(c.msg.Method))
		return
	}
	defer e.detach(c)()
	e.dispatch(w, c, m)
}

// detachedFor bounds a request whose client may be gone.
const detachedFor = time.Minute

// detach lets the request go on when its client disconnects, which in these
// revisions is no cancellation (2025-11-25, Transports, Sending Messages). It ends with the endpoint.
func (e *Endpoint) detach(c *call) (stop func()) {
	ctx := c.request.Context()
	until := time.Now().Add(detachedFor)
	if c.ends, _ = ctx.Deadline(); !c.ends.IsZero() && c.ends.Before(until) {
		until = c.ends
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	c.request = c.request.WithContext(ctx)
	attached := context.AfterFunc(e.shut, cancel)
	return func() {
		attached()
		cancel()
	}
}

// enterSession finds the session and the revision of a request, or answers.
func (e *Endpoint) enterSession(w http.ResponseWriter, c *call) bool {
	c.version = V20250326 // what a client without the header speaks
	if header := c.request.Header.Get(headerVersion); header != "" {
		if c.version = Version(header); !c.version.known() || len(c.request.Header[headerVersion]) > 1 {
			e.fail(w, http.StatusBadRequest, c.msg.ID, &jsonrpc.Error{
				Code: jsonrpc.InvalidRequest, Message: "Bad Request: unsupported protocol version",
				Data: map[string]any{"supported": e.supported(), "requested": clip(header)},
			})
			return false
		}
	}
	if e.sessions == nil {
		return true
	}
	id := c.request.Header.Get(headerSession)
	switch {
	case id == "" && c.request.Header.Get(headerVersion) == "":
		e.fail(w, http.StatusBadRequest, c.msg.ID, &jsonrpc.Error{
			Code: jsonrpc.InvalidRequest, Message: "Bad Request: the header MCP-Protocol-Version is missing: send " + string(V20260728) +
				", or begin a session of an earlier revision with initialize",
			Data: map[string]any{"supported": e.supported()},
		})
		return false
	case id == "":
		e.fail(w, http.StatusBadRequest, c.msg.ID, &jsonrpc.Error{
			Code: jsonrpc.InvalidRequest, Message: "Bad Request: the header Mcp-Session-Id is missing; begin with initialize",
		})
		return false
	}
	s, err := e.sessions.load(c.request.Context(), id, c.principal, false)
	if err != nil {
		e.sessionFailed(w, c, err)
		return false
	}
	c.session, c.version = s, s.Version
	return true
}

// sessionFailed answers a request whose session could not be had. A 404 has no
// JSON-RPC body: clients take the status alone as the sign to initialize again.
func (e *Endpoint) sessionFailed(w http.ResponseWriter, c *call, err error) {
	if errors.Is(err, errNoSession) {
		http.Error(w, "session not found", http.StatusNotFound)
		return
	}
	rpc := e.translate(c.request.Context(), err, c.version, coreMethods)
	w.Header().Set("Retry-After", "1")
	e.fail(w, http.StatusServiceUnavailable, c.msg.ID, rpc)
}

// initializeSession serves initialize: it settles the revision and makes the
// session.
func (e *Endpoint) initializeSession(w http.ResponseWriter, c *call) {
	c.version = latestLegacy
	if e.sessions == nil {
		e.fail(w, http.StatusOK, c.msg.ID, unknownMethod(c.msg.Method))
		return
	}
	asked, err := c.required("protocolVersion")
	if err != nil {
		e.answerFault(w, c, method{}, err)
		return
	}
	// One that we do not serve in this era is answered with the latest that we do.
	if v := Version(asked); v.known() && !v.modern() {
		c.version = v
	}
	declared := c.param("capabilities")
	s := session{
		Workspace: c.principal.Workspace, Principal: c.principal.ID, Version: c.version, Dialect: c.dialect,
		Payloads: declares(declared, Extension), Events: declares(declared, EventsExtension),
	}
	if e.options.Gateway != nil {
		s.Client = declaration(c.param("clientInfo"))
		if !c.dialect { // which has no way to ask a client, whatever it could answer
			s.Capabilities = declaration(declared)
		}
	}
	if c.session != nil { // the dialect lets a session begin without initialize
		err = e.redeclare(c, s)
	} else if c.session, err = e.sessions.create(c.request.Context(), s); err == nil {
		w.Header().Set(headerSession, c.session.id)
	}
	if err != nil {
		e.sessionFailed(w, c, err)
		return
	}
	version := append(append([]byte(`"protocolVersion":"`), c.version...), '"')
	about := e.initialize
	if e.personal(c.request.Context()) {
		about = e.describeInitialize(e.offersTo(c.request.Context(), c))
	}
	send(w, http.StatusOK, func(b []byte) []byte {
		return e.appendResult(b, c, result{members: [][]byte{version, about}})
	})
}

// declares reports whether a client's capabilities name the extension; up to
// 2025-11-25 that may be among the experimental ones.
func declares(capabilities json.RawMessage, extension string) bool {
	for _, member := range []string{"extensions", "experimental"} {
		if jsonrpc.Member(jsonrpc.Member(capabilities, member), extension) != nil {
			return true
		}
	}
	return false
}

// maxBatch is the number of messages in one batch.
const maxBatch = 50

// batch serves an array of messages: part of 2025-03-26 and of no revision
// since.
func (e *Endpoint) batch(w http.ResponseWriter, c *call, parts []json.RawMessage) {
	refuse := func(text string) {
		e.fail(w, http.StatusBadRequest, nil, &jsonrpc.Error{Code: jsonrpc.InvalidRequest, Message: text})
	}
	if Version(c.request.Header.Get(headerVersion)).modern() {
		refuse("this revision has no batches")
		return
	}
	if !e.enterSession(w, c) {
		return
	}
	switch {
	case c.version != V20250326:
		refuse("this revision has no batches")
		return
	case len(parts) > maxBatch:
		refuse("a batch has at most " + strconv.Itoa(maxBatch) + " messages")
		return
	}
	defer e.detach(c)()
	c.request = c.request.Clone(c.request.Context())
	c.request.Header.Set("Accept", "application/json") // parts of an array cannot be streams
	var answers []json.RawMessage
	for _, raw := range parts {
		one := *c
		msg, bad := jsonrpc.Decode(raw)
		one.msg, one.meta = msg, jsonrpc.Member(msg.Params, "_meta")
		if bad != nil {
			answers = append(answers, jsonrpc.AppendError(nil, msg.ID, bad))
		} else if msg.Kind == jsonrpc.Request {
			answers = append(answers, e.answerOne(&one))
		} else if err := e.takeOne(&one); err != nil {
			answers = append(answers, jsonrpc.AppendError(nil, nil, e.translate(c.request.Context(), err, c.version, coreMethods)))
		}
	}
	if len(answers) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	sendBatch(w, answers)
}

func sendBatch(w http.ResponseWriter, answers []json.RawMessage) {
	send(w, http.StatusOK, func(b []byte) []byte {
		b = append(b, '[')
		b = append(b, bytes.Join(rawBytes(answers), []byte(","))...)
		return append(b, ']')
	})
}

func rawBytes(raw []json.RawMessage) [][]byte {
	out := make([][]byte, len(raw))
	for i, r := range raw {
		out[i] = r
	}
	return out
}

// answerOne serves a request of a batch and returns its response.
func (e *Endpoint) answerOne(c *call) json.RawMessage {
	m, ok := e.method(c.request.Context(), c.msg.Method)
	if !ok || !m.legacy || c.msg.Method == methodInitialize {
		return jsonrpc.AppendError(nil, c.msg.ID, unknownMethod(c.msg.Method))
	}
	kept := &recorder{header: http.Header{}}
	c.body = c.msg.Raw
	e.dispatch(kept, c, m)
	return bytes.TrimSpace(kept.body.Bytes())
}

// takeOne serves what needs no response in a batch.
func (e *Endpoint) takeOne(c *call) error {
	if e.hears(c) {
		return e.heard(c)
	}
	return e.taken(c)
}

// recorder keeps a response that goes on in another form.
type recorder struct {
	header http.Header
	status int // 0 until it is known
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(b)
}

// forward hands the whole request to who serves the method.
func (e *Endpoint) forward(w http.ResponseWriter, c *call, m method) {
	r := c.request.Clone(c.request.Context())
	r.Body = io.NopCloser(bytes.NewReader(c.body))
	r.ContentLength = int64(len(c.body))
	r.Header.Del("Content-Length")
	if c.dialect {
		r.URL.Path, r.URL.RawPath = pathEndpoint, ""
	}
	if !c.version.modern() {
		// The other side has no sessions; it serves the revision that was settled here.
		r.Header.Del(headerSession)
		r.Header.Set(headerVersion, string(c.version))
	}
	m.forward.ServeHTTP(w, r)
}

// Unreachable answers a forwarded request whose service cannot be reached.
func Unreachable(w http.ResponseWriter, id json.RawMessage) {
	w.Header().Set("Retry-After", "1")
	send(w, http.StatusServiceUnavailable, func(b []byte) []byte {
		return jsonrpc.AppendError(b, id, &jsonrpc.Error{Code: codeUnavailable, Message: "the service cannot be reached now"})
	})
}
