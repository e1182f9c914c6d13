//go:build unix

package harness

import (
	"bytes"
	"context"
	"io"
	"log"
	"mime"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

// Wire is the network between one client and a target: it can be cut, and tells
// what went over it.
type Wire struct {
	// Target is the target as it is reached over the wire.
	Target

	mu      sync.Mutex
	held    chan struct{} // closed when requests may continue; nil while they are not held
	under   map[*passage]struct{}
	session string
	version string
	resumed []string
}

// passage is a request under way.
type passage struct {
	cut    context.CancelFunc
	stream bool
}

// passageKey is the context key of a request's passage.
type passageKey struct{}

// Wire starts a wire to the target. It ends with the test.
func (t *Target) Wire(tb testing.TB) *Wire {
	tb.Helper()
	target, err := url.Parse(t.MCP)
	expect.OK(tb, err)
	target.Path = ""
	w := &Wire{Target: *t, under: map[*passage]struct{}{}}
	proxy := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:      &http.Transport{MaxIdleConnsPerHost: 16},
		FlushInterval:  -1,
		ModifyResponse: w.answered,
		// If the connection was cut before the response, abort the client's connection, too.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:     log.New(io.Discard, "", 0),
	}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		ctx, cancel := context.WithCancel(req.Context())
		p := &passage{cut: cancel}
		defer w.ended(p)
		w.begun(p, req)
		// The whole body first: a stream that is answered while the proxy still looks for
		// the end of the body would break.
		body, err := io.ReadAll(req.Body)
		if err == nil && w.free(ctx) {
			req.Body = io.NopCloser(bytes.NewReader(body))
			proxy.ServeHTTP(rw, req.WithContext(context.WithValue(ctx, passageKey{}, p)))
		}
	}))
	tb.Cleanup(func() {
		w.Release()
		server.CloseClientConnections()
		w.Cut()
		server.Close()
	})
	w.MCP = server.URL + "/mcp"
	return w
}

func (w *Wire) begun(p *passage, req *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.under[p] = struct{}{}
	w.version = req.Header.Get("Mcp-Protocol-Version")
	if id := req.Header.Get("Last-Event-ID"); id != "" {
		w.resumed = append(w.resumed, id)
	}
}

// answered remembers the session, and that a passage is a stream.
func (w *Wire) answered(resp *http.Response) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
		w.session = id
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	resp.Request.Context().Value(passageKey{}).(*passage).stream = kind == "text/event-stream"
	return nil
}

func (w *Wire) ended(p *passage) {
	p.cut()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.under, p)
}

// free waits while requests are held, and reports whether the request is still wanted.
func (w *Wire) free(ctx context.Context) bool {
	for {
		w.mu.Lock()
		held := w.held
		w.mu.Unlock()
		if held == nil {
			return ctx.Err() == nil
		}
		select {
		case <-held:
		case <-ctx.Done():
			return false
		}
	}
}

// Hold keeps all requests from now on waiting for [Wire.Release].
func (w *Wire) Hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held == nil {
		w.held = make(chan struct{})
	}
}

// Release lets requests through.
func (w *Wire) Release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held != nil {
		close(w.held)
		w.held = nil
	}
}

// Cut breaks all open streams off in the middle, and returns how many there were.
func (w *Wire) Cut() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.under {
		if p.stream {
			p.cut()
			n++
		}
	}
	return n
}

// Streams returns the number of open streams.
func (w *Wire) Streams() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.under {
		if p.stream {
			n++
		}
	}
	return n
}

// Resumed returns the Last-Event-ID headers so far.
func (w *Wire) Resumed() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.resumed)
}

// Session returns the latest session id from the server.
func (w *Wire) Session() string { return read(&w.mu, &w.session) }

// Version returns the protocol revision in the last request's header.
func (w *Wire) Version() string { return read(&w.mu, &w.version) }
