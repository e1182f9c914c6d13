// Package inprocess connects the gateway to a backend that is an [http.Handler] in the same process.
//
// An HTTP server serves the handler over connections in memory, so that the rest of the code sees an ordinary backend.
package inprocess

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"

	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
)

// Scheme is the scheme of [URL]. A configured backend cannot have it, because the configuration accepts only http and https.
const Scheme = "inprocess"

// URL is the URL at which the gateway reaches the handler. The handler sees only the path, /mcp, and the host localhost.
const URL = Scheme + "://localhost/mcp"

// Transport is an [http.RoundTripper] that calls a handler. It is safe for concurrent use. Create it with [New].
type Transport struct {
	server http.Server
	client http.Transport
	dialed chan net.Conn
	closed context.Context
	close  context.CancelFunc
}

// New returns a transport to a handler.
func New(h http.Handler, l *slog.Logger) *Transport {
	t := &Transport{dialed: make(chan net.Conn)}
	t.closed, t.close = context.WithCancel(context.Background())
	t.server = http.Server{Handler: logPanics(h, l), ErrorLog: log.New(io.Discard, "", 0)}
	t.client = http.Transport{DialContext: t.dial, DisableCompression: true, MaxIdleConnsPerHost: 32, IdleConnTimeout: upstream.RestTime}
	go func() { _ = t.server.Serve(listener{t}) }() // ends with Shutdown
	return t
}

// logPanics logs panics of a handler, because the caller of the handler only sees that the connection ends.
func logPanics(h http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p != http.ErrAbortHandler {
				log.ErrorContext(r.Context(), "upstream panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			}
			panic(http.ErrAbortHandler)
		}()
		h.ServeHTTP(w, r)
	})
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.URL.Scheme = "http"
	return t.client.RoundTrip(req)
}

// Shutdown refuses further requests, and waits until no handler is running or until ctx ends.
func (t *Transport) Shutdown(ctx context.Context) error {
	t.client.CloseIdleConnections()
	return t.server.Shutdown(ctx)
}

func (t *Transport) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case t.dialed <- conn{server}:
		return client, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-t.closed.Done():
		return nil, net.ErrClosed
	}
}

// conn is the server's end of a connection in memory. It reports loopback addresses, so that handlers see a client on the same machine.
type conn struct{ net.Conn }

func (conn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
func (conn) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// listener is the server's [net.Listener]. It accepts the connections that the transport makes.
type listener struct{ *Transport }

func (l listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.dialed:
		return c, nil
	case <-l.closed.Done():
		return nil, errors.New("inprocess: shut down")
	}
}

func (l listener) Close() error {
	l.close()
	return nil
}

func (listener) Addr() net.Addr { return conn{}.LocalAddr() }
