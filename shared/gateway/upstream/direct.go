package upstream

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"time"
)

// direct sends HTTP requests without TLS in the goroutine of the caller. [http.Transport] would pass a request to one goroutine of the
// connection and get the response from another one. Switching between these goroutines takes a sixth of the time that the gateway adds to
// a call.
//
// direct is registered with the transport and uses its settings. It leaves some requests to the transport, for example requests with TLS,
// with a large body, or through a proxy. Unlike the transport, it does not ask backends to compress their answers.
type direct struct {
	transport *http.Transport

	mu      sync.Mutex
	resting map[string][]*directConn // the idle connections by address, the latest last
}

const (
	// maxDirect is the largest request body that direct sends, in bytes. The buffers of a connection hold that much. So if a backend
	// responds without reading the body, direct can still write the whole body and then read the response.
	maxDirect = 64 << 10
	// maxInterim is the maximum number of interim responses, with a status of 1xx, before the final one, as in net/http.
	maxInterim = 5
)

func (d *direct) RoundTrip(req *http.Request) (*http.Response, error) {
	address, ok := d.addressOf(req)
	if !ok {
		return nil, http.ErrSkipAltProtocol
	}
	ctx := req.Context()
	c, reused, err := d.connect(ctx, address)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	release := context.AfterFunc(ctx, func() { _ = c.Close() })
	resp, err := c.exchange(req)
	if err != nil {
		release()
		_ = c.Close()
		if reused && !c.answered && req.Method == http.MethodGet && ctx.Err() == nil { // net/http also repeats a GET request in this case
			return d.RoundTrip(req)
		}
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	body := &directBody{ReadCloser: resp.Body, ctx: ctx, conn: c, release: release, reusable: !resp.Close}
	if resp.Body == http.NoBody {
		body.end(true)
	}
	resp.Body = body
	return resp, nil
}

// addressOf returns the address to which direct sends a request. It returns false if direct leaves the request to [http.Transport].
func (d *direct) addressOf(req *http.Request) (string, bool) {
	host := req.URL.Hostname()
	unknown := req.ContentLength <= 0 && req.Body != nil && req.Body != http.NoBody
	international := strings.ContainsFunc(host, func(r rune) bool { return r > '~' })
	if host == "" || unknown || international || req.ContentLength > maxDirect {
		return "", false
	}
	if d.transport.Proxy != nil {
		if proxy, err := d.transport.Proxy(req); proxy != nil || err != nil {
			return "", false
		}
	}
	return net.JoinHostPort(host, cmp.Or(req.URL.Port(), "80")), true
}

// connect returns a connection to the address: an idle one that the backend has not closed, or otherwise a new one.
func (d *direct) connect(ctx context.Context, address string) (c *directConn, reused bool, err error) {
	got := func(c net.Conn, reused bool) {
		if t := httptrace.ContextClientTrace(ctx); t != nil && t.GotConn != nil {
			t.GotConn(httptrace.GotConnInfo{Conn: c, Reused: reused})
		}
	}
	if ctx.Err() != nil {
		return nil, false, context.Cause(ctx)
	}
	for idle := d.take(address); idle != nil; idle = d.take(address) {
		got(idle.Conn, true)
		if isSilent(idle.Conn) {
			return idle, true, nil
		}
		_ = idle.Close()
	}
	dialed, err := d.transport.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, false, cmp.Or(context.Cause(ctx), err)
	}
	got(dialed, false)
	c = &directConn{Conn: dialed, direct: d, address: address}
	c.r, c.w = bufio.NewReader(c), bufio.NewWriter(dialed)
	return c, false, nil
}

// take removes the most recently used idle connection to an address from the idle ones and returns it. It returns nil if there is no idle
// connection.
func (d *direct) take(address string) *directConn {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n := len(d.resting[address]); n > 0; n-- {
		c := d.resting[address][n-1]
		d.drop(c)
		if c.timer != nil {
			c.timer.Stop()
		}
		// While a Lambda function is frozen, the connection's timer stands still. The wall clock continues, so take checks the
		// idle time with it.
		if limit := d.transport.IdleConnTimeout; limit == 0 || time.Now().Round(0).Sub(c.since) < limit {
			return c
		}
		_ = c.Close()
	}
	return nil
}

// drop removes a connection from the idle connections. It returns false if the connection is not idle. The caller holds the lock.
func (d *direct) drop(c *directConn) bool {
	all := d.resting[c.address]
	i := slices.Index(all, c)
	if i < 0 {
		return false
	}
	if d.resting[c.address] = slices.Delete(all, i, i+1); len(all) == 1 {
		delete(d.resting, c.address)
	}
	return true
}

// keepIdle keeps a connection for the next request, or closes it if its address has the maximum number of idle connections.
func (d *direct) keepIdle(c *directConn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.resting[c.address]) >= d.transport.MaxIdleConnsPerHost {
		_ = c.Close()
		return
	}
	c.since = time.Now().Round(0)
	d.resting[c.address] = append(d.resting[c.address], c)
	switch limit := d.transport.IdleConnTimeout; {
	case limit == 0:
	case c.timer == nil:
		c.timer = time.AfterFunc(limit, func() { d.expire(c) })
	default:
		c.timer.Reset(limit)
	}
}

func (d *direct) expire(c *directConn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.drop(c) {
		_ = c.Close()
	}
}

// directConn is a connection to a backend. One request at a time uses it.
type directConn struct {
	net.Conn
	direct   *direct
	address  string
	r        *bufio.Reader
	w        *bufio.Writer
	answered bool  // whether a part of the response has arrived
	header   bool  // whether the header of a response is being read
	left     int64 // the number of bytes that the header may still have

	// The lock direct.mu guards the fields below.
	since time.Time   // when it became idle
	timer *time.Timer // closes it when it was idle for too long; nil without a limit
}

func (c *directConn) exchange(req *http.Request) (*http.Response, error) {
	if err := req.Write(c.w); err != nil {
		return nil, err
	}
	if err := c.w.Flush(); err != nil {
		return nil, err
	}
	c.answered, c.header = false, true
	defer func() { c.header = false }()
	for range maxInterim + 1 {
		c.left = c.direct.transport.MaxResponseHeaderBytes // NewHTTP sets this limit
		resp, err := http.ReadResponse(c.r, req)
		switch {
		case err != nil:
			return nil, err
		case resp.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("upstream: the backend switches protocols")
		case resp.StatusCode >= http.StatusOK:
			return resp, nil
		}
	}
	return nil, errors.New("upstream: too many 1xx responses")
}

// Read reads from the connection, and limits the length of a response's header.
func (c *directConn) Read(p []byte) (int, error) {
	if !c.header {
		return c.Conn.Read(p)
	}
	if c.left <= 0 {
		return 0, fmt.Errorf("upstream: the header of the response is longer than %d bytes", c.direct.transport.MaxResponseHeaderBytes)
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	c.answered = c.answered || n > 0
	return n, err
}

// directBody is the body of a response. One goroutine may close it while another one reads it.
type directBody struct {
	io.ReadCloser
	ctx      context.Context // the context of the request
	conn     *directConn
	release  func() bool // call this function so that the end of ctx no longer closes the connection
	reusable bool
	once     sync.Once
}

func (b *directBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		cause := context.Cause(b.ctx)
		b.end(err == io.EOF)
		if err != io.EOF {
			err = cmp.Or(cause, err)
		}
	}
	return n, err
}

// Close implements [io.Closer]. It closes the connection unless the body was read to its end.
func (b *directBody) Close() error {
	b.end(false)
	return nil
}

// end keeps the connection for the next request if the response was read to its end, and otherwise closes it.
func (b *directBody) end(whole bool) {
	b.once.Do(func() {
		live := b.release()
		if whole && live && b.reusable && b.conn.r.Buffered() == 0 {
			b.conn.direct.keepIdle(b.conn)
			return
		}
		_ = b.conn.Close()
	})
}
