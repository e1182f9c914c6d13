package method

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// responseRelay is the answer to a call: a backend's messages as they come, and comments while it is quiet. It is JSON
// when the response comes first and soon, else a stream.
type responseRelay struct {
	*lateAnswer
	faults Faults
	c      *Call
}

// Relay makes the answer to a call that a backend answers.
func (t Timing) Relay(w http.ResponseWriter, c *Call, f Faults) *responseRelay {
	return &responseRelay{lateAnswer: t.late(w, c), faults: f, c: c}
}

// CallReserve is what a call leaves of its invocation's deadline on Lambda: for notifying the backend that
// the client does not wait any more, which takes five seconds at most, for two seconds of tidying up, and for answering the client.
const CallReserve = 9 * time.Second

// Begin says that the answer waits from now on, and returns the context of the call. Closing the connection cancels it in
// 2026-07-28 and not before (2025-11-25, Transports). It ends before the function is ended, which would
// leave the client without an answer and cut off whatever else the process does; and when [Endpoint.Close] lets it
// run no longer, which is answered at once.
func (r *responseRelay) Begin(shut context.Context) (ctx context.Context, end func()) {
	ctx, ends := r.c.Request.Context(), r.c.ends
	if r.c.Version.Stateless() {
		ends, _ = ctx.Deadline()
	} else {
		ctx = context.WithoutCancel(ctx)
	}
	var cancel context.CancelFunc
	if ends.IsZero() {
		ctx, cancel = context.WithCancel(ctx)
	} else {
		ctx, cancel = context.WithDeadline(ctx, ends.Add(-CallReserve))
	}
	stop := context.AfterFunc(shut, func() {
		r.refuse()
		cancel()
	})
	r.Waits(r.Timing.Heartbeat)
	return ctx, func() {
		stop()
		cancel()
		r.Stop()
	}
}

// errShutdown is the answer to a call that the end of the server cuts off.
var errShutdown = &jsonrpc.Error{
	Code: CodeUnavailable, Message: "the server shuts down; whether the backend did what it was asked is not known",
}

// refuse answers that the server ends, unless the response is out. Notifying the backend may take longer.
func (r *responseRelay) refuse() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	_ = r.put(jsonrpc.AppendError(nil, r.c.Msg.ID, errShutdown), true) // the call ends either way
	_ = http.NewResponseController(r.W).Flush()                        // as above
}

// Send hands a message to the client.
func (r *responseRelay) Send(message json.RawMessage, response bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over { // refused
		return ErrWriting
	}
	return r.put(message, response)
}

// put is send with the lock held.
func (r *responseRelay) put(message json.RawMessage, response bool) error {
	h := r.c.Request.Header
	switch {
	case response:
		r.close()
	case !r.Streams:
		return nil // it takes nothing in between
	}
	if response && r.out == nil && (Accepts(h, "application/json") || !r.Streams) {
		status := http.StatusOK
		if r.c.Version.Stateless() {
			status = statusOf(message)
		}
		Send(r.W, status, func(b []byte) []byte { return append(b, message...) })
		return nil
	}
	if err := r.write(sse.Append(nil, sse.Event{Data: message})); err != nil && r.c.Version.Stateless() {
		return errors.Join(ErrWriting, err)
	}
	return nil // without its client the call goes on in the earlier revisions
}

// Failed ends an answer that has begun with an error, and reports whether the
// response is out.
func (r *responseRelay) Failed(err error) bool {
	if errors.Is(err, ErrWriting) {
		return true
	}
	return r.end(func(b []byte) []byte {
		return jsonrpc.AppendError(b, r.c.Msg.ID, r.faults.Translate(r.c.Request.Context(), err, r.c.Version, r.c.Profile))
	})
}

// statusOf is the HTTP status of a backend's response in the stateless revisions.
func statusOf(message json.RawMessage) int {
	failure := jsonrpc.Member(message, "error")
	if failure == nil {
		return http.StatusOK
	}
	var code int
	_ = json.Unmarshal(jsonrpc.Member(failure, "code"), &code) // 0 is none of those below
	return HTTPStatus(&jsonrpc.Error{Code: code})
}
