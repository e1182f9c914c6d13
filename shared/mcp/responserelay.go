package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/sse"
)

// responseRelay is the answer to a call: a backend's messages as they come, and comments while it is quiet. It is JSON
// when the response comes first and soon, else a stream.
type responseRelay struct {
	*lateAnswer
	calls *calls
	c     *call
}

// callReserve is what a call leaves of its invocation's deadline on Lambda: for telling the backend that
// nobody waits any more, which takes five seconds at most, for two seconds of tidying up, and for telling the client.
const callReserve = 9 * time.Second

// lifetime is the context of the call. Closing the connection cancels it in
// 2026-07-28 and not before (2025-11-25, Transports). It ends before the function is ended, which would
// leave the client without an answer and cut off whatever else the process does; and when [Endpoint.Close] lets it
// run no longer, which the client is told at once.
func (p *responseRelay) lifetime() (ctx context.Context, end func()) {
	ctx, ends := p.c.request.Context(), p.c.ends
	if p.c.version.Stateless() {
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
	stop := context.AfterFunc(p.calls.shut, func() {
		p.refuse()
		cancel()
	})
	return ctx, func() {
		stop()
		cancel()
	}
}

// errShutdown is what a client is told of a call that the end of the server cuts off.
var errShutdown = &jsonrpc.Error{
	Code: codeUnavailable, Message: "the server shuts down; whether the backend did what it was asked is not known",
}

// refuse answers that the server ends, unless the response is out. The backend may take longer to be told.
func (p *responseRelay) refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	_ = p.put(jsonrpc.AppendError(nil, p.c.msg.ID, errShutdown), true) // the call ends either way
	_ = http.NewResponseController(p.w).Flush()                        // as above
}

// send hands a message to the client.
func (p *responseRelay) send(message json.RawMessage, response bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over { // refused
		return errWriting
	}
	return p.put(message, response)
}

// put is send with the lock held.
func (p *responseRelay) put(message json.RawMessage, response bool) error {
	h := p.c.request.Header
	switch {
	case response:
		p.close()
	case !p.streams:
		return nil // it did not ask to be told in between
	}
	if response && p.out == nil && (accepts(h, "application/json") || !p.streams) {
		status := http.StatusOK
		if p.c.version.Stateless() {
			status = statusOf(message)
		}
		send(p.w, status, func(b []byte) []byte { return append(b, message...) })
		return nil
	}
	if err := p.write(sse.Append(nil, sse.Event{Data: message})); err != nil && p.c.version.Stateless() {
		return errors.Join(errWriting, err)
	}
	return nil // without its client the call goes on in the earlier revisions
}

// failed ends an answer that has begun with an error, and reports whether the
// response is out.
func (p *responseRelay) failed(err error) bool {
	if err == nil || p.answered() || errors.Is(err, errWriting) {
		p.stop()
		return true
	}
	return p.end(func(b []byte) []byte {
		return jsonrpc.AppendError(b, p.c.msg.ID, p.calls.faults.translate(p.c.request.Context(), err, p.c.version, coreMethods))
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
