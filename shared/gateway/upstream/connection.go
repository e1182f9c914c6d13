package upstream

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// NewHTTP makes a client for backends. Nothing bounds the time of an exchange but
// its context: a call may take long before it says anything.
func NewHTTP() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost, t.IdleConnTimeout = maxResting, RestTime
	t.MaxResponseHeaderBytes = 64 << 10
	t.DialContext = counting(t.DialContext)
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// A server may close a connection at which nothing goes on at any time, also while a request
// is on its way to it. What was sent then may or may not have been read, and a call
// must not be made twice. So connections rest for a short time only, and a request that found its
// connection closed before it was sent is sent over another one, which net/http does for
// GET and not for POST.

// RestTime is how long a connection may rest and be used again. It is below what servers in use wait for
// before they close it: 2 s and 5 s by default. A function that was frozen does not count on what it left open.
const RestTime = time.Second

// maxResting is how many connections may rest to one host.
const maxResting = 32

// send sends a request, again for as long as it did not leave because the server had closed the connection.
func (c *Client) send(req *http.Request) (*http.Response, error) {
	for range maxResting {
		var way way
		resp, err := c.HTTP.Do(req.WithContext(httptrace.WithClientTrace(req.Context(), way.trace())))
		if err == nil || !way.wasClosed() || req.Context().Err() != nil {
			return resp, err
		}
		if req.GetBody != nil {
			if req.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
	}
	return c.HTTP.Do(req)
}

// way is how far a request came.
type way struct {
	reused, sent atomic.Bool

	conn  *counted // nil if its bytes are not counted
	first int64    // byte
}

// counted is a connection that knows how much was written to it.
type counted struct {
	net.Conn
	n atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// counting dials connections that count.
func counting(dial func(ctx context.Context, network, addr string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &counted{Conn: c}, nil
	}
}

func (w *way) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn: func(to httptrace.GotConnInfo) {
			// HTTP/2 says by itself what was not served, and net/http repeats it.
			over, ok := to.Conn.(*tls.Conn)
			w.reused.Store(to.Reused && !(ok && over.ConnectionState().NegotiatedProtocol == "h2"))
			w.sent.Store(false)
			conn := to.Conn
			if over != nil {
				conn = over.NetConn()
			}
			if w.conn, _ = conn.(*counted); w.conn != nil {
				w.first = w.conn.n.Load()
			}
		},
		WroteHeaders: func() { w.sent.Store(true) },
	}
}

// wasClosed reports whether the request found a connection closed, and nothing of it could be read. What
// was written, net/http says of a buffer; the connection knows what left it.
func (w *way) wasClosed() bool {
	return w.reused.Load() && (!w.sent.Load() || w.conn != nil && w.conn.n.Load() == w.first)
}
