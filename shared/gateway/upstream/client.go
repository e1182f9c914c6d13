// Package upstream speaks MCP with a backend, in any of its revisions, without
// taking messages apart: what a backend sends is handed on as the bytes that
// came, one message at a time, as soon as it came.
//
//	client.go     requests, and the connections that they go over
//	exchange.go   the messages of an answer, JSON or stream
//	ask.go        what the gateway asks on its own behalf: discover, initialize, lists
//
// Everything that a backend sends is untrusted: messages are bounded in size and
// depth, redirects are not followed, and an answer of another media type is an
// error. What the messages mean is the business of shared/gateway.
package upstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/sse"
	"github.com/mcp-events/mcpevents/shared/trace"
)

// MaxMessage bounds a message of a backend in bytes.
const MaxMessage = 8 << 20

// maxSession bounds the name of a session, which is kept, in bytes.
const maxSession = 4096

// Client sends messages to one backend. It may be used concurrently.
type Client struct {
	URL string
	// HTTP must not follow redirects: credentials would go along. [NewHTTP] makes one.
	HTTP *http.Client
	// Credentials are added to each request; may be nil.
	Credentials func(ctx context.Context, h http.Header) error
	// Dropped gets why something that the backend sent was not handed on; may be nil.
	Dropped func(ctx context.Context, reason string)

	// Observer counts and traces requests.
	Observer Observer

	// Server is what the client calls itself in requests of its own: an MCP Implementation.
	// AskTimeout bounds such a request. See ask.go.
	Server     json.RawMessage
	AskTimeout time.Duration
}

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

// Request is one message to a backend.
type Request struct {
	Body []byte
	// Version is the revision that is spoken; empty before it is settled.
	Version mcpspec.Version
	// Session is the session of a session-based revision.
	Session string
	// Header are further headers, the mirrored ones of revision 2026-07-28.
	Header http.Header
}

// Post sends a message. A status other than success without a JSON-RPC message is
// a [StatusError], or [ErrSession]; a backend that cannot be reached is a fault of kind Unavailable.
func (c *Client) Post(ctx context.Context, r Request) (*Exchange, error) {
	request, where := c.Observer.begin(ctx, &r)
	x, err := c.post(ctx, r, where)
	if err != nil {
		request.end()
		return nil, err
	}
	x.request = request
	return x, nil
}

func (c *Client) post(ctx context.Context, r Request, where trace.Context) (*Exchange, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(r.Body))
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "make a request to a backend")
	}
	req.Header.Set("Content-Type", "application/json")
	where.AddTo(req.Header)
	req.Header.Set("Accept", "application/json, text/event-stream")
	return c.do(ctx, req, r)
}

// Get opens a notification stream of the earlier revisions, or goes on with one
// from an event's id.
func (c *Client) Get(ctx context.Context, r Request, lastEventID string) (*Exchange, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "make a request to a backend")
	}
	req.Header.Set("Accept", sse.ContentType)
	if lastEventID != "" {
		req.Header.Set(mcpspec.HeaderLastEvent, lastEventID)
	}
	return c.do(ctx, req, r)
}

// Delete ends a session of the earlier revisions.
func (c *Client) Delete(ctx context.Context, r Request) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, c.URL, nil)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "make a request to a backend")
	}
	x, err := c.do(ctx, req, r)
	if err == nil {
		x.Close()
	}
	return err
}

func (c *Client) do(ctx context.Context, req *http.Request, r Request) (*Exchange, error) {
	for name, values := range r.Header {
		req.Header[name] = values
	}
	if r.Version != "" {
		req.Header.Set(mcpspec.HeaderVersion, string(r.Version))
	}
	if r.Session != "" {
		req.Header.Set(mcpspec.HeaderSession, r.Session)
	}
	if c.Credentials != nil {
		if err := c.Credentials(ctx, req.Header); err != nil {
			return nil, err
		}
	}
	resp, err := c.send(req)
	if err != nil {
		if where, ok := errors.AsType[*url.Error](err); ok {
			err = where.Err // the URL may hold a secret, and errors are logged
		}
		return nil, fault.Wrap(fault.Unavailable, err, "reach the backend")
	}
	if len(resp.Header.Get(mcpspec.HeaderSession)) > maxSession {
		_ = resp.Body.Close()
		return nil, fault.New(fault.Unavailable, "the backend's session has a name of over %d bytes", maxSession)
	}
	x := &Exchange{Session: resp.Header.Get(mcpspec.HeaderSession), Status: resp.StatusCode, body: resp.Body, dropped: c.Dropped}
	if err := x.begin(resp, r.Session); err != nil {
		x.Close()
		return nil, err
	}
	return x, nil
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

	conn  counts // nil if its bytes are not counted
	first int64  // byte
}

// counts is a connection that knows how much was written to it.
type counts interface{ written() int64 }

// counted is the connection of [NewHTTP].
type counted struct {
	net.Conn
	n atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.n.Add(int64(n))
	return n, err
}

func (c *counted) written() int64 { return c.n.Load() }

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
			if w.conn, _ = to.Conn.(counts); w.conn != nil {
				w.first = w.conn.written()
			}
		},
		WroteHeaders: func() { w.sent.Store(true) },
	}
}

// wasClosed reports whether the request found a connection closed, and nothing of it could be read. What
// was written, net/http says of a buffer; the connection knows what left it.
func (w *way) wasClosed() bool {
	return w.reused.Load() && (!w.sent.Load() || w.conn != nil && w.conn.written() == w.first)
}
