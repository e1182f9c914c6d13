package method

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// Timing is how long streams and answers may be quiet.
type Timing struct {
	Heartbeat    time.Duration // the longest quiet of a stream
	AnswerAfter  time.Duration // after which an answer that waits becomes a stream
	WriteTimeout time.Duration
}

// lateAnswer is the answer to a request that may have to wait for others. It is JSON
// when it comes soon. Else it becomes a stream, so that no proxy on the way takes the
// connection for dead, with the response at its end. Both are answers that every client has
// to understand (2025-11-25, Transports, "Sending Messages to the Server"; 2026-07-28, Streamable
// HTTP, "Sending Messages").
type lateAnswer struct {
	Timing  Timing
	W       http.ResponseWriter
	Streams bool // the client takes a stream

	mu    sync.Mutex
	timer *time.Timer // of the next beat; nil while nothing waits
	out   *sse.Writer // nil while it may still be JSON
	err   error       // of the last write
	over  bool        // the response is out, or left to the handler
}

// late is the answer to a request that may have to wait.
func (t Timing) late(w http.ResponseWriter, c *Call) *lateAnswer {
	return &lateAnswer{Timing: t, W: w, Streams: Accepts(c.Request.Header, sse.ContentType)}
}

// Waits says that from now on the answer waits for others. It begins as a stream after that time.
func (l *lateAnswer) Waits(after time.Duration) {
	switch {
	case !l.Streams:
	case after == 0:
		l.beat()
	default:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.timer = time.AfterFunc(after, l.beat)
	}
}

// beat begins the stream, and comes again while it is quiet.
func (l *lateAnswer) beat() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		_ = l.write(Comment) // it is kept
	}
}

// write writes to the stream, which it begins. The lock is held.
func (l *lateAnswer) write(events []byte) error {
	if l.err != nil {
		return l.err
	}
	if l.out == nil {
		l.out = sse.NewWriter(l.W, l.Timing.WriteTimeout)
		l.out.Start()
	}
	l.err = l.out.Write(events)
	quiet := l.Timing.Heartbeat
	switch {
	case l.over || l.err != nil:
	case l.timer == nil:
		l.timer = time.AfterFunc(quiet, l.beat)
	default:
		l.timer.Reset(quiet)
	}
	return l.err
}

// end ends the stream with the response that build appends to nothing, and reports
// whether there is a stream, or the response was out. If not, it is left to the handler.
func (l *lateAnswer) end(build func([]byte) []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return true
	}
	l.close()
	if l.out == nil {
		return false
	}
	_ = l.write(sse.Append(nil, sse.Event{Data: build(nil)})) // the stream ends either way
	return true
}

// Stop leaves the response to its handler, which may end then.
func (l *lateAnswer) Stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.close()
}

// close lets no beat come any more. The lock is held.
func (l *lateAnswer) close() {
	l.over = true
	if l.timer != nil {
		l.timer.Stop()
	}
}

// Progress tells a client that asked for progress how long a call has waited, in seconds of total.
func (l *lateAnswer) Progress(c *Call, waited time.Duration, total int, message string) {
	token := jsonrpc.Member(c.Meta, "progressToken")
	if len(token) == 0 || len(token) > jsonrpc.MaxID || token[0] == '{' || token[0] == '[' {
		return
	}
	params := jsonrpc.Encode(map[string]any{
		"progressToken": token, "progress": int(waited.Seconds()), "total": total, "message": message,
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Streams && !l.over {
		_ = l.write(sse.Append(nil, sse.Event{Data: jsonrpc.AppendNotification(nil, spec.NoteProgress, params)})) // it is kept
	}
}

var Comment = sse.Append(nil, sse.Event{Comment: " "})

// ErrWriting is the error of a response that cannot be written.
var ErrWriting = errors.New("mcp: the client is gone or does not read")
