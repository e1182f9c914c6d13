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

// NewHTTP returns an HTTP client for requests to backends. It has no timeout, because a call may take long before its first byte. The
// context of a request limits its time.
func NewHTTP() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost, t.IdleConnTimeout = maxResting, RestTime
	t.MaxResponseHeaderBytes = 64 << 10
	t.DialContext = countBytes(t.DialContext)
	t.RegisterProtocol("http", &direct{transport: t, resting: map[string][]*directConn{}})
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// A server may close an idle connection at any time, even while a request is on its way. The client then cannot know whether the server
// has read the request. It must not repeat the request, because a call must not be made twice. So connections stay idle only for a short
// time.
//
// If a connection was closed before any byte of the request was sent, the client sends the request over another connection. net/http does
// that for GET but not for POST.

// RestTime is how long a connection may stay idle before the client closes it. It is shorter than the default idle timeouts of common
// servers, for example 2 s for Gunicorn and 5 s for Node.js. After a Lambda function was frozen, it also keeps the function from using
// connections that servers have closed meanwhile.
const RestTime = time.Second

// maxResting limits the idle connections to each host.
const maxResting = 32

// send sends a request, and repeats it if the server had closed the idle connection before any byte of the request was sent. It calls the
// transport of the [http.Client] directly, because requests to backends follow no redirects.
func (c *Client) send(req *http.Request, progress *requestProgress) (resp *http.Response, err error) {
	transport := c.HTTP.Transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	for range maxResting + 1 {
		progress.reused.Store(false)
		resp, err = transport.RoundTrip(req)
		if err == nil || !progress.wasClosed() || req.Context().Err() != nil {
			break
		}
		if req.Body, err = req.GetBody(); err != nil {
			break
		}
	}
	return resp, err
}

// requestProgress records whether a request was sent on its connection.
type requestProgress struct {
	reused, sent atomic.Bool // whether the request uses a connection that was idle, and whether its header was written

	conn  *countingConn // nil if the connection does not count its bytes
	first int64         // the connection's byte count when the request began
}

type countingConn struct {
	net.Conn
	n atomic.Int64
}

func (c *countingConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.n.Add(int64(n))
	return n, err
}

func countBytes(dial func(ctx context.Context, network, addr string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &countingConn{Conn: c}, nil
	}
}

func (p *requestProgress) clientTrace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn: func(to httptrace.GotConnInfo) {
			// Over HTTP/2, a server reports the requests that it did not process, and net/http repeats them. So send must not repeat
			// them, and HTTP/2 connections do not count as reused.
			over, ok := to.Conn.(*tls.Conn)
			p.reused.Store(to.Reused && !(ok && over.ConnectionState().NegotiatedProtocol == "h2"))
			p.sent.Store(false)
			conn := to.Conn
			if over != nil {
				conn = over.NetConn()
			}
			if p.conn, _ = conn.(*countingConn); p.conn != nil {
				p.first = p.conn.n.Load()
			}
		},
		WroteHeaders: func() { p.sent.Store(true) },
	}
}

// wasClosed reports whether the request found its connection closed, so that the server cannot have read any of it. net/http calls
// WroteHeaders as soon as the header is in its buffer. So wasClosed also checks whether the connection has sent any byte of the request.
func (p *requestProgress) wasClosed() bool {
	return p.reused.Load() && (!p.sent.Load() || p.conn != nil && p.conn.n.Load() == p.first)
}
