package mcp

import (
	"net/http"
	"sync"
	"time"

	"mcpevents/shared/mcp/jsonrpc"
	"mcpevents/shared/mcp/sse"
)

// lateAnswer is the answer to a request that may have to wait for others. It is JSON
// when it comes soon. Else it becomes a stream, so that nobody on the way takes the
// connection for dead, with the response at its end. Both are answers that every client has
// to understand (2025-11-25, Transports, "Sending Messages to the Server"; 2026-07-28, Streamable
// HTTP, "Sending Messages").
type lateAnswer struct {
	endpoint *Endpoint
	w        http.ResponseWriter

	mu    sync.Mutex
	timer *time.Timer
	out   *sse.Writer // nil while it may still be JSON
	over  bool
}

// late is the answer to a request that gathers, or nil for a client that wants no streams.
func (e *Endpoint) late(w http.ResponseWriter, c *call) *lateAnswer {
	if !accepts(c.request.Header, sse.ContentType) {
		return nil
	}
	return &lateAnswer{endpoint: e, w: w}
}

// waits says that from now on the answer waits for others.
func (l *lateAnswer) waits() {
	if l == nil {
		return
	}
	after := l.endpoint.options.AnswerStreamAfter
	if after < 0 {
		l.beat()
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(after, l.beat)
}

// beat begins the stream, and comes again while it is quiet.
func (l *lateAnswer) beat() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return
	}
	if l.out == nil {
		l.out = sse.NewWriter(l.w, l.endpoint.options.WriteTimeout)
		l.out.Start()
	}
	if l.out.Write(sse.Append(nil, sse.Event{Comment: " "})) != nil {
		return // the client is gone
	}
	l.timer = time.AfterFunc(l.endpoint.options.Heartbeat, l.beat)
}

// end ends the stream with the response that build appends to nothing, and reports
// whether there is a stream.
func (l *lateAnswer) end(build func([]byte) []byte) bool {
	if !l.stop() {
		return false
	}
	_ = l.out.Write(sse.Append(nil, sse.Event{Data: build(nil)})) // the stream ends either way
	return true
}

// stop leaves the response to its handler, which may end then. It reports whether it
// has become a stream.
func (l *lateAnswer) stop() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	if l.timer != nil {
		l.timer.Stop()
	}
	return l.out != nil
}

// answerLate serves a request that may have to wait for others.
func (e *Endpoint) answerLate(w http.ResponseWriter, c *call, m method) {
	late := e.late(w, c)
	defer late.stop()
	c.waits = late.waits
	r, err := m.answer(c.request.Context(), c)
	if err != nil {
		streamed := late.end(func(b []byte) []byte {
			return jsonrpc.AppendError(b, c.msg.ID, e.translate(c.request.Context(), err, c.version, m.family))
		})
		if !streamed {
			e.answerFault(w, c, m, err)
		}
		return
	}
	build := func(b []byte) []byte { return e.appendResult(b, c, r) }
	if !late.end(build) {
		send(w, http.StatusOK, build)
	}
}
