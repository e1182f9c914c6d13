package mcp

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
	faults faults
	c      *call
}

// relay makes the answer to a call that a backend answers.
func (t timing) relay(w http.ResponseWriter, c *call, f faults) *responseRelay {
	return &responseRelay{lateAnswer: t.late(w, c), faults: f, c: c}
}

// callReserve is what a call leaves of its invocation's deadline on Lambda: for notifying the backend that
// the client does not wait any more, which takes five seconds at most, for two seconds of tidying up, and for answering the client.
const callReserve = 9 * time.Second

// begin says that the answer waits from now on, and returns the context of the call. Closing the connection cancels it in
// 2026-07-28 and not before (2025-11-25, Transports). It ends before the function is ended, which would
// leave the client without an answer and cut off whatever else the process does; and when [Endpoint.Close] lets it
// run no longer, which is answered at once.
func (r *responseRelay) begin(shut context.Context) (ctx context.Context, end func()) {
	ctx, ends := r.c.request.Context(), r.c.ends
	if r.c.version.Stateless() {
		ends, _ = ctx.Deadline()
	} else {
		ctx = context.WithoutCancel(ctx)
	}
	var cancel context.CancelFunc
	if ends.IsZero() {
		ctx, cancel = context.WithCancel(ctx)
	} else {
		ctx, cancel = context.WithDeadline(ctx, ends.Add(-callReserve))
	}
	stop := context.AfterFunc(shut, func() {
		r.refuse()
		cancel()
	})
	r.waits(r.timing.heartbeat)
	return ctx, func() {
		stop()
		cancel()
		r.stop()
	}
}

// errShutdown is the answer to a call that the end of the server cuts off.
var errShutdown = &jsonrpc.Error{
	Code: codeUnavailable, Message: "the server shuts down; whether the backend did what it was asked is not known",
}

// refuse answers that the server ends, unless the response is out. Notifying the backend may take longer.
func (r *responseRelay) refuse() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	_ = r.put(jsonrpc.AppendError(nil, r.c.msg.ID, errShutdown), true) // the call ends either way
	_ = http.NewResponseController(r.w).Flush()                        // as above
}

// send hands a message to the client.
func (r *responseRelay) send(message json.RawMessage, response bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over { // refused
		return errWriting
	}
	return r.put(message, response)
}

// put is send with the lock held.
func (r *responseRelay) put(message json.RawMessage, response bool) error {
	h := r.c.request.Header
	switch {
	case response:
		r.close()
	case !r.streams:
		return nil // it takes nothing in between
	}
	if response && r.out == nil && (accepts(h, "application/json") || !r.streams) {
		status := http.StatusOK
		if r.c.version.Stateless() {
			status = statusOf(message)
		}
		send(r.w, status, func(b []byte) []byte { return append(b, message...) })
		return nil
	}
	if err := r.write(sse.Append(nil, sse.Event{Data: message})); err != nil && r.c.version.Stateless() {
		return errors.Join(errWriting, err)
	}
	return nil // without its client the call goes on in the earlier revisions
}

// failed ends an answer that has begun with an error, and reports whether the
// response is out.
func (r *responseRelay) failed(err error) bool {
	if errors.Is(err, errWriting) {
		return true
	}
	return r.end(func(b []byte) []byte {
		return jsonrpc.AppendError(b, r.c.msg.ID, r.faults.translate(r.c.request.Context(), err, r.c.version, r.c.profile))
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
	return status(&jsonrpc.Error{Code: code})
}
