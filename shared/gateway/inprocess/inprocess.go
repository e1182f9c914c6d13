// Package inprocess connects the gateway to a backend that is an [http.Handler] in the same process.
//
// The gateway uses it as the transport of its HTTP client, so that the rest of the code sees an ordinary backend. The transport
// does not buffer bodies: the handler waits until the reader has read its bytes.
package inprocess

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
)

// Scheme is the scheme of [URL]. A configured backend cannot have it, because the configuration accepts only http and https.
const Scheme = "inprocess"

// URL is the URL at which the gateway reaches the handler. The handler sees only the path, /mcp.
const URL = Scheme + "://upstream/mcp"

// Transport is an [http.RoundTripper] that calls a handler. It is safe for concurrent use.
type Transport struct {
	Handler http.Handler
	Log     *slog.Logger

	mu      sync.Mutex
	running int
	idle    chan struct{} // closed when no handler runs; nil unless Wait needs it
}

// RoundTrip calls the handler, and returns as soon as the handler writes or flushes. The handler's context ends with the
// request's context, or when the response body is closed.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	// The handler does not inherit the values of the request's context, which may belong to the server that received the caller's request.
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := context.AfterFunc(req.Context(), func() { cancel(context.Cause(req.Context())) })
	body, pipe := io.Pipe()
	w := &writer{header: http.Header{}, pipe: pipe, begun: make(chan struct{})}
	t.count(1)
	go func() {
		defer t.count(-1)
		defer stop()
		defer cancel(nil)
		defer context.AfterFunc(ctx, func() { _ = pipe.CloseWithError(context.Cause(ctx)) })()
		t.serve(w, toIncoming(ctx, req))
	}()
	select {
	case <-w.begun:
	case <-req.Context().Done(): // not ctx, which also ends when the handler returns
		return nil, context.Cause(req.Context())
	}
	if w.failed != nil {
		return nil, w.failed
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)), StatusCode: w.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: w.sent, ContentLength: -1, Request: req,
		Body: &closer{body, func() { cancel(context.Canceled) }},
	}, nil
}

// count adds n to the number of running handlers, and wakes Wait when it becomes zero. A [sync.WaitGroup] would not work, because requests
// may begin while Wait waits.
func (t *Transport) count(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running += n; t.running == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// Wait waits until no handler is running, or until ctx ends.
func (t *Transport) Wait(ctx context.Context) error {
	t.mu.Lock()
	if t.running > 0 && t.idle == nil {
		t.idle = make(chan struct{})
	}
	idle := t.idle
	t.mu.Unlock()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errAborted is the error that a reader of the response gets if the handler panicked.
var errAborted = errors.New("the handler aborted its answer")

// serve runs the handler and ends the answer. As in net/http, a panic of the handler does not end the process.
func (t *Transport) serve(w *writer, r *http.Request) {
	defer func() {
		p := recover()
		if p == nil {
			w.end(nil)
			return
		}
		if p != http.ErrAbortHandler {
			t.Log.Error("upstream panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
		w.end(errAborted)
	}()
	t.Handler.ServeHTTP(w, r)
}

// toIncoming converts a client's request to the form in which a server receives a request from the same machine.
func toIncoming(ctx context.Context, req *http.Request) *http.Request {
	r := req.Clone(ctx)
	r.RequestURI = req.URL.RequestURI()
	r.URL.Scheme, r.URL.Host, r.Host = "", "", "localhost"
	r.RemoteAddr = "127.0.0.1:0"
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	if r.Body == nil {
		r.Body = http.NoBody
	}
	return r
}

// closer is a response body. Closing it cancels the handler.
type closer struct {
	*io.PipeReader
	closed func()
}

func (c *closer) Close() error {
	c.closed()
	return c.PipeReader.Close()
}

// writer is the [http.ResponseWriter] of a handler. Writes are not buffered, so that a flush only has to send the header.
type writer struct {
	header http.Header
	pipe   *io.PipeWriter

	once  sync.Once
	begun chan struct{} // closed when the following fields are set
	sent  http.Header
	// If failed is set, the handler panicked before it answered, and status has no meaning.
	status int
	failed error
}

func (w *writer) Header() http.Header { return w.header }

func (w *writer) WriteHeader(status int) {
	if status < http.StatusOK { // informational responses are not needed
		return
	}
	w.begin(status, nil)
}

func (w *writer) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if len(b) == 0 {
		return 0, nil
	}
	return w.pipe.Write(b)
}

func (w *writer) Flush() { w.WriteHeader(http.StatusOK) }

func (w *writer) begin(status int, failed error) {
	w.once.Do(func() {
		w.sent, w.status, w.failed = w.header.Clone(), status, failed
		close(w.begun)
	})
}

// end ends the answer. If the handler wrote nothing, the answer is an empty response with status 200.
func (w *writer) end(failed error) {
	w.begin(http.StatusOK, failed)
	_ = w.pipe.CloseWithError(failed) // io.EOF for nil
}
