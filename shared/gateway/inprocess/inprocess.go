// Package inprocess reaches a backend of the gateway that is an [http.Handler] of the same process.
//
// The gateway sees one more server behind an HTTP client, so that nothing else knows the difference. A
// body flows as the handler writes it: nothing is kept between the handler and the reader, and a handler
// waits while its reader does. What the messages are is the business of shared/gateway/upstream.
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

// Scheme is that of the URLs that reach the handler. The configuration's backends are http and https.
const Scheme = "inprocess"

// URL is where the handler is. It gets the path.
const URL = Scheme + "://upstream/mcp"

// Transport is an [http.RoundTripper] that has a handler answer. It may be used concurrently.
type Transport struct {
	Handler http.Handler
	Log     *slog.Logger

	mu      sync.Mutex
	running int
	idle    chan struct{} // closed when none runs; nil while no one waits
}

// RoundTrip returns with the header of the answer, as soon as the handler writes or flushes. The handler's context
// ends with the request's, and when the body is closed.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	// Not the values: those of a server that the gateway's caller came by are not about this request.
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
		t.serve(w, incoming(ctx, req))
	}()
	select {
	case <-w.begun:
	case <-req.Context().Done(): // not ctx, which ends with the handler too
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

// count counts handlers that run. Not a [sync.WaitGroup]: requests may begin while someone waits.
func (t *Transport) count(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running += n; t.running == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// Wait waits until no handler runs, or ctx ends.
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

// errAborted is what a reader gets of a handler that did not come to its end.
var errAborted = errors.New("the handler aborted its answer")

// serve ends the answer with the handler, which may panic as under net/http.
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

// incoming is a request as a server has it. It comes from this machine.
func incoming(ctx context.Context, req *http.Request) *http.Request {
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

// closer ends the handler with its answer.
type closer struct {
	*io.PipeReader
	closed func()
}

func (c *closer) Close() error {
	c.closed()
	return c.PipeReader.Close()
}

// writer is the answer of a handler. What is written is what the reader takes at that moment, so a flush has nothing to do
// but to send the header.
type writer struct {
	header http.Header
	pipe   *io.PipeWriter

	once  sync.Once
	begun chan struct{} // closed when these hold
	sent  http.Header
	// status is set unless the handler failed before it answered.
	status int
	failed error
}

func (w *writer) Header() http.Header { return w.header }

func (w *writer) WriteHeader(status int) {
	if status < http.StatusOK {
		return // informational, of which nothing here makes use
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

// Flush implements [http.Flusher].
func (w *writer) Flush() { w.WriteHeader(http.StatusOK) }

func (w *writer) begin(status int, failed error) {
	w.once.Do(func() {
		w.sent, w.status, w.failed = w.header.Clone(), status, failed
		close(w.begun)
	})
}

// end ends the answer, which is empty if the handler wrote nothing.
func (w *writer) end(failed error) {
	w.begin(http.StatusOK, failed)
	_ = w.pipe.CloseWithError(failed) // io.EOF for nil
}
