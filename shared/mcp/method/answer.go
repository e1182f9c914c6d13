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

// Timing limits how long streams and answers may be quiet.
type Timing struct {
	Heartbeat    time.Duration // the longest time without a message on a stream
	AnswerAfter  time.Duration // after which a waiting answer becomes a stream
	WriteTimeout time.Duration
}

// answer is the answer to a request that may have to wait for backends or events. It is JSON if it is ready soon. Otherwise it becomes a
// stream with the response at its end, so that no proxy closes the connection as dead. Every client must understand both
// (2025-11-25, Transports, "Sending Messages to the Server"; 2026-07-28, Streamable HTTP, "Sending Messages").
//
// Heartbeats, a backend's messages and the cut-off at a shutdown come from different goroutines. The lock orders them, and over makes sure
// that nothing follows the response. life.go tells how long the call itself runs.
type answer struct {
	W       http.ResponseWriter
	timing  Timing
	streams bool // the client accepts a stream

	mu    sync.Mutex
	timer *time.Timer // until the next heartbeat; nil while the answer does not wait
	out   *sse.Writer // nil while the answer may still become JSON
	err   error       // of the last write
	over  bool        // the response was written, or is left to the handler
}

func (t Timing) answer(w http.ResponseWriter, c *Call) *answer {
	return &answer{timing: t, W: w, streams: Accepts(c.Request.Header, sse.ContentType)}
}

// Wait begins the wait for backends or events. If the answer is not ready after [Timing.AnswerAfter], it becomes a stream.
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

// sendHeartbeat begins the stream if necessary. It runs again whenever the stream is quiet.
func (a *answer) sendHeartbeat() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.over {
		_ = a.write(Comment) // the answer keeps the error
	}
}

// write writes to the stream, and begins it if necessary. The caller holds the lock.
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

// finish ends the stream with the response that build appends to an empty buffer. It reports false if there is no stream and no response
// yet, so that the handler must write the response.
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

// Stop leaves the response to the handler.
func (a *answer) Stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.close()
}

// close stops the heartbeats. The caller holds the lock.
func (a *answer) close() {
	a.over = true
	if a.timer != nil {
		a.timer.Stop()
	}
}

// Progress notifies a client that asked for progress of how long a call has waited, in seconds of total.
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
		_ = a.write(sse.Append(nil, sse.Event{Data: jsonrpc.AppendNotification(nil, spec.NoteProgress, params)})) // the answer keeps the error
	}
}

// Comment is a heartbeat.
var Comment = sse.Append(nil, sse.Event{Comment: " "})

// ErrWriting is the error for a response that cannot be written.
var ErrWriting = errors.New("mcp: the client is gone or does not read")

// relayed is the answer to a call that a backend answers. It passes on the backend's messages as they arrive.
type relayed struct {
	*answer
	faults   Faults
	call     *Call
	buffered bool // the response was written, but may still be in a buffer
}

// Relay returns the answer to a call that a backend answers.
func (t Timing) Relay(w http.ResponseWriter, c *Call, f Faults) *relayed {
	return &relayed{answer: t.answer(w, c), faults: f, call: c}
}

// Begin begins the wait for the backend, and returns the context of the call. At a shutdown, the call is answered with an error
// immediately, although notifying the backend may take longer.
func (r *relayed) Begin() (ctx context.Context, end func()) {
	ctx, release := r.call.backendContext(r.refuse)
	r.streamAfter(r.timing.Heartbeat)
	return ctx, func() {
		release()
		r.Stop()
	}
}

// errShutdown is the answer to a call that a shutdown cuts off.
var errShutdown = &jsonrpc.Error{
	Code: CodeUnavailable, Message: "the server is shutting down; the call may still take effect at the backend",
}

// refuse answers with errShutdown unless the response was written.
func (r *relayed) refuse() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	_ = r.send(jsonrpc.AppendError(nil, r.call.Msg.ID, errShutdown), true) // the call ends either way
	_ = http.NewResponseController(r.W).Flush()                            // as above
}

// StreamsMessages reports whether the client accepts messages before the response.
func (r *relayed) StreamsMessages() bool { return r.streams }

// Send sends a backend's message to the client.
func (r *relayed) Send(message json.RawMessage, response bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over { // the call was cut off
		return ErrWriting
	}
	return r.send(message, response)
}

// send does what [relayed.Send] does. The caller holds the lock.
func (r *relayed) send(message json.RawMessage, response bool) error {
	h := r.call.Request.Header
	switch {
	case response:
		r.close()
	case !r.streams:
		return nil // the client accepts only the response
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
	return nil // the call of a session continues without its client
}

// Flush sends a response to the client that would otherwise wait in a buffer for the end of the handler.
func (r *relayed) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.buffered {
		_ = http.NewResponseController(r.W).Flush() // the end of the handler sends it too
	}
}

// Failed ends an answer that has begun with the error, and reports whether the response was written.
func (r *relayed) Failed(err error) bool {
	if errors.Is(err, ErrWriting) {
		return true
	}
	return r.finish(func(b []byte) []byte {
		return jsonrpc.AppendError(b, r.call.Msg.ID, r.faults.Translate(r.call.Request.Context(), err, r.call.Version, r.call.Profile))
	})
}

// statusOf returns the HTTP status of a backend's response in the stateless revisions.
func statusOf(message json.RawMessage) int {
	failure := jsonrpc.Member(message, "error")
	if failure == nil {
		return http.StatusOK
	}
	var code int
	_ = json.Unmarshal(jsonrpc.Member(failure, "code"), &code) // without a code, the status is 200
	return httpStatus(&jsonrpc.Error{Code: code})
}
