package method

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// Timing has the durations after which a waiting answer becomes an event stream, a quiet stream sends a heartbeat, and a write fails.
type Timing struct {
	Heartbeat    time.Duration // the longest time without a message on a stream
	AnswerAfter  time.Duration // how long an answer may wait before it becomes a stream
	WriteTimeout time.Duration
}

// answer is the answer to a request that may have to wait for backends or events. If it is ready soon, it is JSON. Otherwise it becomes a
// stream with the response at its end, so that no proxy closes the connection as dead. Every client must understand both forms
// (2025-11-25, Transports, "Sending Messages to the Server"; 2026-07-28, Streamable HTTP, "Sending Messages").
//
// Heartbeats, a backend's messages and the error that a shutdown causes are written by different goroutines. The field over keeps them
// from writing after the response.
type answer struct {
	W       http.ResponseWriter
	timing  Timing
	streams bool // the client accepts a stream

	mu    sync.Mutex
	timer *time.Timer // until the next heartbeat; nil while the answer does not wait
	out   *sse.Writer // nil while the answer may still become JSON
	err   error       // the error of the first failed write, which later writes return
	over  bool        // the response was written, or the handler will write it
}

func (t Timing) answer(w http.ResponseWriter, c *Call) *answer {
	return &answer{timing: t, W: w, streams: Accepts(c.Request.Header, sse.ContentType)}
}

// Wait announces that the handler now waits for backends or events, and returns immediately. If the answer is not ready after
// [Timing.AnswerAfter], it becomes a stream.
func (a *answer) Wait() { a.streamAfter(a.timing.AnswerAfter) }

func (a *answer) streamAfter(d time.Duration) {
	switch {
	case !a.streams:
	case d == 0:
		a.sendHeartbeat()
	default:
		a.mu.Lock()
		defer a.mu.Unlock()
		a.timer = time.AfterFunc(d, a.sendHeartbeat)
	}
}

// sendHeartbeat sends a heartbeat, and begins the stream if necessary.
func (a *answer) sendHeartbeat() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.over {
		_ = a.write(Comment) // a.err keeps the error
	}
}

// write sends events on the stream, and begins the stream if necessary. The caller holds the lock.
func (a *answer) write(events []byte) error {
	if a.err != nil {
		return a.err
	}
	if a.out == nil {
		a.out = sse.NewWriter(a.W, a.timing.WriteTimeout)
		a.out.Start()
	}
	a.err = a.out.Write(events)
	quiet := a.timing.Heartbeat
	switch {
	case a.over || a.err != nil:
	case a.timer == nil:
		a.timer = time.AfterFunc(quiet, a.sendHeartbeat)
	default:
		a.timer.Reset(quiet)
	}
	return a.err
}

// finish ends the stream with the response, which the function build appends to an empty buffer. If no stream has begun and no response
// was written, it returns false. The handler must then write the response.
func (a *answer) finish(build func([]byte) []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return true
	}
	a.close()
	if a.out == nil {
		return false
	}
	_ = a.write(sse.Append(nil, sse.Event{Data: build(nil)})) // the stream ends either way
	return true
}

// Stop stops the heartbeats. From then on, only the handler writes to the response.
func (a *answer) Stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.close()
}

// close stops the heartbeats. From then on, the answer sends only the response. The caller holds the lock.
func (a *answer) close() {
	a.over = true
	if a.timer != nil {
		a.timer.Stop()
	}
}

// Progress sends a progress notification if the client asked for progress. The parameter waited is how long the call has waited so far.
// The parameter total is how long the call may wait, in seconds.
func (a *answer) Progress(c *Call, waited time.Duration, total int, message string) {
	token := jsonrpc.Member(c.Meta, "progressToken")
	if len(token) == 0 || len(token) > jsonrpc.MaxID || token[0] == '{' || token[0] == '[' {
		return
	}
	params := jsonrpc.Encode(map[string]any{
		"progressToken": token, "progress": int(waited.Seconds()), "total": total, "message": message,
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.streams && !a.over {
		_ = a.write(sse.Append(nil, sse.Event{Data: jsonrpc.AppendNotification(nil, spec.NoteProgress, params)})) // a.err keeps the error
	}
}

// Comment is the SSE comment that is sent as a heartbeat.
var Comment = sse.Append(nil, sse.Event{Comment: " "})

// ErrWriting is the error for a response that cannot be written to the client.
var ErrWriting = errors.New("mcp: the client is gone or does not read")

// relayed is the answer to a call that a backend serves. It passes the backend's messages on to the client as they arrive.
type relayed struct {
	*answer
	faults   Faults
	call     *Call
	buffered bool // the response was written, but may still be in a buffer
}

// NewRelayed returns the answer to a call that a backend serves.
func (t Timing) NewRelayed(w http.ResponseWriter, c *Call, f Faults) *relayed {
	return &relayed{answer: t.answer(w, c), faults: f, call: c}
}

// Begin starts the heartbeats and returns the context for the call to the backend. The caller must call end when the call has returned.
// If the server shuts down during the call, the context ends and the client immediately gets an error, even before the backend has been
// notified.
func (r *relayed) Begin() (ctx context.Context, end func()) {
	ctx, release := r.call.backendContext(r.answerShutdown)
	r.streamAfter(r.timing.Heartbeat)
	return ctx, func() {
		release()
		r.Stop()
	}
}

// errShutdown is the error for a client whose call to a backend is ended by a shutdown.
var errShutdown = &jsonrpc.Error{
	Code: CodeUnavailable, Message: "the server is shutting down; the call may still take effect at the backend",
}

func (r *relayed) answerShutdown() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	_ = r.send(jsonrpc.AppendError(nil, r.call.Msg.ID, errShutdown), true) // the call ends either way
	_ = http.NewResponseController(r.W).Flush()                            // the call ends either way
}

// StreamsMessages reports whether the client accepts messages before the response.
func (r *relayed) StreamsMessages() bool { return r.streams }

// Send sends a backend's message to the client. The parameter response is true if the message is the response to the call.
func (r *relayed) Send(message json.RawMessage, response bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over { // the call was cut off
		return ErrWriting
	}
	return r.send(message, response)
}

// send sends a backend's message to the client. The response is JSON if no stream has begun and the client accepts JSON. Otherwise the
// message is an event on the stream, and messages before the response are dropped if the client accepts no stream. The caller holds the
// lock.
func (r *relayed) send(message json.RawMessage, response bool) error {
	h := r.call.Request.Header
	switch {
	case response:
		r.close()
	case !r.streams:
		return nil // drop the message, because the client does not accept a stream
	}
	if response && r.out == nil && (Accepts(h, "application/json") || !r.streams) {
		status := http.StatusOK
		if r.call.Version.Stateless() {
			status = statusOf(message)
		}
		Send(r.W, status, func(b []byte) []byte { return append(b, message...) })
		r.buffered = true
		return nil
	}
	if err := r.write(sse.Append(nil, sse.Event{Data: message})); err != nil && r.call.Version.Stateless() {
		return errors.Join(ErrWriting, err)
	}
	return nil // in a session, the call continues even if the client is gone
}

// Flush sends a response that is still in a buffer. Otherwise the client would get it only at the end of the handler.
func (r *relayed) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.buffered {
		_ = http.NewResponseController(r.W).Flush() // if this fails, the buffer is sent when the handler returns
	}
}

// Fail ends the call's stream with the error as the response. It returns false if no stream has begun, so that the handler must send the
// error.
func (r *relayed) Fail(err error) bool {
	if errors.Is(err, ErrWriting) {
		return true
	}
	return r.finish(func(b []byte) []byte {
		return jsonrpc.AppendError(b, r.call.Msg.ID, r.faults.Translate(r.call.Request.Context(), err, r.call.Version, r.call.Profile))
	})
}

// statusOf returns the HTTP status with which the server passes a backend's JSON-RPC response on to a client. It is for the MCP revisions
// without sessions, in which the status depends on the error code. For a response without an error, the status is 200.
func statusOf(message json.RawMessage) int {
	failure := jsonrpc.Member(message, "error")
	if failure == nil {
		return http.StatusOK
	}
	var code int
	_ = json.Unmarshal(jsonrpc.Member(failure, "code"), &code) // without a code, the status is 200
	return httpStatus(&jsonrpc.Error{Code: code})
}

// How long a call runs depends on its revision and on what it does. At the end of a shutdown, the server also ends the calls that
// still run:
//
//	kind of call                       if the client disconnects   time limit                             at the end of a shutdown
//	stateless revisions                its context ends            the request's deadline                 it continues
//	in a session                       it continues                [DetachedFor], or the deadline         its context ends
//	notification, response, DELETE     it continues                [NoticeFor], or the deadline           its context ends
//	to a backend, stateless            its context ends            [CallReserve] before the deadline      it is answered with an error
//	to a backend, in a session         it continues                [CallReserve] before the deadline      it is answered with an error
//
// In the revisions with sessions, a disconnect does not cancel a request (2025-11-25, Transports, "Sending Messages to the
// Server"). Only Lambda sets a deadline for the request; a stand-alone server does not.

const (
	// DetachedFor limits how long a call in a session may run, unless it is a call to a backend.
	DetachedFor = time.Minute
	// NoticeFor limits how long the server works on a notification, a response or a DELETE of a session. A disconnect does not end
	// the work, because a client that cancels a call or ends its session often closes the connection right after that message.
	NoticeFor = 10 * time.Second
	// CallReserve is the time between the end of a call to a backend and the end of the Lambda invocation. It suffices for
	// notifying the backend (at most five seconds), for two seconds of cleaning up, and for answering the client.
	CallReserve = 9 * time.Second
)

// life has the contexts and times that limit how long a call may run.
type life struct {
	cutOff   context.Context // ends when the server cuts off calls
	detached bool
	client   context.Context // ends when the client of a detached call disconnects; nil for a message of a batch
	deadline time.Time       // when Lambda ends the invocation; zero in a stand-alone server
}

// NewCall returns the [Call] of an HTTP request. The parameter cutOff is a context that ends when the server must end its running calls.
func NewCall(r *http.Request, cutOff context.Context) *Call {
	return &Call{Request: r, life: life{cutOff: cutOff}}
}

// DetachRequest returns the request with a context that ends after the given time, but not when the client disconnects. Clients often close
// the connection right after a DELETE, and net/http would then cancel its work. The caller calls stop when the request has been served.
func DetachRequest(r *http.Request, limit time.Duration) (detached *http.Request, stop func()) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), limit)
	return r.WithContext(ctx), cancel
}

// Detach gives the call a context that does not end when the client disconnects. The context ends after the given time, at the request's
// deadline, or when a shutdown ends running calls. The caller must call stop after the call.
func (c *Call) Detach(limit time.Duration) (stop func()) {
	if c.life.detached {
		return func() {}
	}
	ctx := c.Request.Context()
	c.life.detached, c.life.client = true, ctx
	until := time.Now().Add(limit)
	if c.life.deadline, _ = ctx.Deadline(); !c.life.deadline.IsZero() && c.life.deadline.Before(until) {
		until = c.life.deadline
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	c.Request = c.Request.WithContext(ctx)
	attached := context.AfterFunc(c.life.cutOff, cancel)
	return func() {
		attached()
		cancel()
	}
}

// JoinBatch prepares a detached call for a batch, whose messages are served with copies of this call. The copies share the batch's time
// limit, and [Call.OnDisconnect] has no effect on them.
func (c *Call) JoinBatch() { c.life.client = nil }

// ConnectionContext returns a context that ends when the client disconnects, even if the call is detached. The exception is a message of
// a batch. Its context does not end at a disconnect, but at the time limit of the batch.
func (c *Call) ConnectionContext() context.Context {
	if c.life.client != nil {
		return c.life.client
	}
	return c.Request.Context()
}

// OnDisconnect calls f if the client of a detached call disconnects while the call is being served. It has no effect on other calls,
// whose contexts end anyway. The caller must always call stop at the end of the call.
func (c *Call) OnDisconnect(f func()) (stop func() bool) {
	if c.life.client == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(c.life.client, f)
}

// backendContext returns the context of a call to a backend. If the server has to end the call early, for example at a shutdown, it
// calls the function cutOff and then ends the context. The caller must call end after the call.
func (c *Call) backendContext(cutOff func()) (ctx context.Context, end func()) {
	ctx, deadline := c.Request.Context(), c.life.deadline
	if c.Version.Stateless() {
		deadline, _ = ctx.Deadline()
	} else {
		ctx = context.WithoutCancel(ctx)
	}
	var cancel context.CancelFunc
	if deadline.IsZero() {
		ctx, cancel = context.WithCancel(ctx)
	} else {
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-CallReserve))
	}
	stop := context.AfterFunc(c.life.cutOff, func() {
		cutOff()
		cancel()
	})
	return ctx, func() {
		stop()
		cancel()
	}
}
