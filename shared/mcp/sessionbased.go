package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
)

// postSessionBased serves one message of the revisions that have sessions.
func (e *Endpoint) postSessionBased(w http.ResponseWriter, c *call) {
	if c.msg.Kind == jsonrpc.Request && c.msg.Method == mcpspec.MethodInitialize {
		e.session.initialize(w, c)
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
	if !ok || !m.sessionBased {
		sendError(w, http.StatusOK, c.msg.ID, unknownMethod(c.msg.Method))
		return
	}
	defer c.detach(e.shut)()
	e.dispatch(w, c, m)
}

// detachedFor bounds a request whose client may be gone.
const detachedFor = time.Minute

// detach lets the request go on when its client disconnects, which in these
// revisions is no cancellation (2025-11-25, Transports, Sending Messages). It ends with the endpoint.
func (c *call) detach(shut context.Context) (stop func()) {
	ctx := c.request.Context()
	until := time.Now().Add(detachedFor)
	if c.ends, _ = ctx.Deadline(); !c.ends.IsZero() && c.ends.Before(until) {
		until = c.ends
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	c.request = c.request.WithContext(ctx)
	attached := context.AfterFunc(shut, cancel)
	return func() {
		attached()
		cancel()
	}
}

// enterSession finds the session and the revision of a request, or answers.
func (e *Endpoint) enterSession(w http.ResponseWriter, c *call) bool {
	c.version = mcpspec.V20250326 // what a client without the header speaks
	if header := c.request.Header.Get(mcpspec.HeaderVersion); header != "" {
		if c.version = mcpspec.Version(header); !c.version.Known() || len(c.request.Header[mcpspec.HeaderVersion]) > 1 {
			sendError(w, http.StatusBadRequest, c.msg.ID, &jsonrpc.Error{
				Code: jsonrpc.InvalidRequest, Message: "Bad Request: unsupported protocol version",
				Data: map[string]any{"supported": e.about.supported(), "requested": clip(header)},
			})
			return false
		}
	}
	if e.sessions == nil {
		return true
	}
	id := c.request.Header.Get(mcpspec.HeaderSession)
	switch {
	case id == "" && c.request.Header.Get(mcpspec.HeaderVersion) == "":
		sendError(w, http.StatusBadRequest, c.msg.ID, &jsonrpc.Error{
			Code: jsonrpc.InvalidRequest, Message: "Bad Request: the header MCP-Protocol-Version is missing: send " + string(mcpspec.V20260728) +
				", or begin a session of an earlier revision with initialize",
			Data: map[string]any{"supported": e.about.supported()},
		})
		return false
	case id == "":
		sendError(w, http.StatusBadRequest, c.msg.ID, &jsonrpc.Error{
			Code: jsonrpc.InvalidRequest, Message: "Bad Request: the header Mcp-Session-Id is missing; begin with initialize",
		})
		return false
	}
	s, err := e.sessions.load(c.request.Context(), id, c.principal, false)
	if err != nil {
		e.replies.sessionFailed(w, c, err)
		return false
	}
	c.session, c.version = s, s.Version
	return true
}

// sessionFailed answers a request whose session could not be had. A 404 has no
// JSON-RPC body: clients take the status alone as the sign to initialize again.
func (r *replies) sessionFailed(w http.ResponseWriter, c *call, err error) {
	if errors.Is(err, errNoSession) {
		http.Error(w, "session not found", http.StatusNotFound)
		return
	}
	rpc := r.faults.translate(c.request.Context(), err, c.version, coreMethods)
	w.Header().Set("Retry-After", "1")
	sendError(w, http.StatusServiceUnavailable, c.msg.ID, rpc)
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
		sendError(w, http.StatusBadRequest, nil, &jsonrpc.Error{Code: jsonrpc.InvalidRequest, Message: text})
	}
	if mcpspec.Version(c.request.Header.Get(mcpspec.HeaderVersion)).Stateless() {
		refuse("this revision has no batches")
		return
	}
	if !e.enterSession(w, c) {
		return
	}
	switch {
	case c.version != mcpspec.V20250326:
		refuse("this revision has no batches")
		return
	case len(parts) > maxBatch:
		refuse("a batch has at most " + strconv.Itoa(maxBatch) + " messages")
		return
	}
	defer c.detach(e.shut)()
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
			answers = append(answers, jsonrpc.AppendError(nil, nil, e.faults.translate(c.request.Context(), err, c.version, coreMethods)))
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
	if !ok || !m.sessionBased || c.msg.Method == mcpspec.MethodInitialize {
		return jsonrpc.AppendError(nil, c.msg.ID, unknownMethod(c.msg.Method))
	}
	kept := &recorder{header: http.Header{}}
	c.body = c.msg.Raw
	e.dispatch(kept, c, m)
	return bytes.TrimSpace(kept.body.Bytes())
}

// takeOne serves what needs no response in a batch.
func (e *Endpoint) takeOne(c *call) error {
	if e.conversations.handles(c) {
		return e.conversations.handle(c)
	}
	return e.calls.handle(c)
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

// Unreachable answers a forwarded request whose service cannot be reached.
func Unreachable(w http.ResponseWriter, id json.RawMessage) {
	w.Header().Set("Retry-After", "1")
	send(w, http.StatusServiceUnavailable, func(b []byte) []byte {
		return jsonrpc.AppendError(b, id, &jsonrpc.Error{Code: codeUnavailable, Message: "the service cannot be reached now"})
	})
}
