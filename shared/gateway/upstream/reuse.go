package upstream

import (
	"crypto/tls"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

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
}

func (w *way) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn: func(to httptrace.GotConnInfo) {
			// HTTP/2 tells by itself what was not served, and net/http repeats it.
			over, ok := to.Conn.(*tls.Conn)
			w.reused.Store(to.Reused && !(ok && over.ConnectionState().NegotiatedProtocol == "h2"))
			w.sent.Store(false)
		},
		WroteHeaders: func() { w.sent.Store(true) },
	}
}

// wasClosed reports whether the request found a connection closed, and nothing of it could be read.
func (w *way) wasClosed() bool { return w.reused.Load() && !w.sent.Load() }
