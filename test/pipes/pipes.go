// Package pipes starts servers for tests that run on the clock of testing/synctest. Connections to the servers are pipes, so
// that synctest notices when all goroutines wait, and a lease of seconds or a pause of a minute passes immediately.
//
// Clients reach a server at its address through [http.DefaultTransport] and its clones.
package pipes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
)

// listener is the address of one server.
type listener struct {
	address string
	conns   chan net.Conn
	close   func()
	closed  chan struct{}
}

var (
	listeners sync.Map // by address
	made      atomic.Int64
)

func init() {
	transport := http.DefaultTransport.(*http.Transport)
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if _, ok := listeners.Load(address); ok {
			return Dial(ctx, address)
		}
		return dial(ctx, network, address)
	}
}

// Serve serves a handler until the end of the test.
func Serve(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	n := made.Add(1)
	l := &listener{address: fmt.Sprintf("127.1.%d.%d:80", n>>8&0xff, n&0xff), conns: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	listeners.Store(l.address, l)
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server
}

// Dial connects to a server by its address.
func Dial(ctx context.Context, address string) (net.Conn, error) {
	v, ok := listeners.Load(address)
	if !ok {
		return nil, fmt.Errorf("no server listens at %s", address)
	}
	l := v.(*listener)
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error   { l.close(); return nil }
func (l *listener) Addr() net.Addr { return l }

func (l *listener) Network() string { return "pipe" }
func (l *listener) String() string  { return l.address }
