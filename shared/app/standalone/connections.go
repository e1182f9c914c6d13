package standalone

import (
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
)

// connections is a listener with a limited number of connections.
//
// When the limit is reached, it makes room for new connections by closing old connections on which the server only waits for the client.
// These are idle connections, connections without a complete request header, and connections whose client is slow to send a request body
// or to read a response. It closes connections of the client address that has most of them, so that one client cannot lock out the
// others.
//
// It never closes a connection while the server works on a request, or while a stream is open whose client keeps up. It reserves a few
// connections for health checks and operators.
type connections struct {
	net.Listener
	most     int // maximum number of concurrent connections
	reserved int // how many of the connections are only for health checks and operators

	mu   sync.Mutex
	open map[*connection]struct{}
}

const (
	// slowClient is how long a client may take to send the body of a request, or to read a response, while the server has too few free
	// connections.
	slowClient = 5 * time.Second
	// refusedClient is how long a client may take to send the rest of a request that was refused on a reserved connection.
	refusedClient = 500 * time.Millisecond
	// readTime is how long a client may take to read writeSize bytes of a response. Streams set deadlines of their own.
	readTime  = time.Minute
	writeSize = 64 << 10
)

func limitConnections(l net.Listener, most int) *connections {
	return &connections{Listener: l, most: most, open: map[*connection]struct{}{}}
}

// reserveLast reserves about a sixteenth of the connections, but at most 64, for health checks and operators. It returns l.
func (l *connections) reserveLast() *connections {
	l.reserved = min(64, l.most/16+1)
	return l
}

// connection is an accepted connection. Its fields are guarded by connections.mu.
type connection struct {
	net.Conn
	all      *connections
	client   netip.Prefix
	reserved bool // true if it serves only health checks and operators

	state http.ConnState
	body  bool      // true if the client is still sending the body of a request
	since time.Time // when state or body changed last

	writing atomic.Int64 // nanoseconds since 1970: when the current write started, minus blocked; 0 if no write is running
	bounded atomic.Bool  // true if the handler has set a deadline for writes

	// Only the method Write uses the fields below. They add up the time that small writes take. Otherwise a client that reads only a few
	// bytes at a time would never exceed readTime.
	blocked time.Duration // how long the client has taken to read the current writeSize bytes, without the time between writes
	written int           // how many of the current writeSize bytes have been written
	wrote   time.Time     // when the last write ended
}

// Accept implements [net.Listener].
func (l *connections) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if admitted := l.admit(c); admitted != nil {
			return admitted, nil
		}
		_ = c.Close()
	}
}

// admit counts an accepted connection as open. If the limit is reached, it first makes room for the connection. It returns nil if there
// is still no room.
func (l *connections) admit(c net.Conn) *connection {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= l.most-l.reserved {
		l.makeRoom()
	}
	if len(l.open) >= l.most {
		return nil
	}
	k := &connection{
		Conn: c, all: l, client: auth.ClientNetwork(c.RemoteAddr().String()), reserved: len(l.open) >= l.most-l.reserved,
		state: http.StateNew, since: time.Now(),
	}
	l.open[k] = struct{}{}
	return k
}

// makeRoom closes connections on which the server waits for the client. It begins with the client that has most of them, and with the
// oldest ones of that client. It closes several at a time, because each call has to look at all connections.
//
// At first, makeRoom spares running requests that have waited for their client for less than [slowClient]. It closes these, too, if it
// finds no other connection. It also closes them if such waiting requests have more than a quarter of all connections, because a client
// could otherwise fill the server with new requests. The caller holds l.mu.
func (l *connections) makeRoom() {
	busy, now := 0, time.Now()
	for k := range l.open {
		if k.waitTime(now) > 0 {
			busy++
		}
	}
	if busy > l.most/4 || l.closeWaiting(now, slowClient) == 0 {
		l.closeWaiting(now, 0)
	}
}

// closeWaiting closes up to about 1/64 of all connections, and returns their number. It closes idle connections, connections without a
// complete request header, and connections whose request has waited for its client for longer than the parameter patience. The caller
// holds l.mu.
func (l *connections) closeWaiting(now time.Time, patience time.Duration) int {
	var waiting []*connection
	byPrefix := map[netip.Prefix]int{}
	for k := range l.open {
		if k.state == http.StateNew || k.state == http.StateIdle || k.waitTime(now) > patience {
			waiting = append(waiting, k)
			byPrefix[k.client]++
		}
	}
	slices.SortFunc(waiting, func(a, b *connection) int {
		return cmp.Or(cmp.Compare(byPrefix[b.client], byPrefix[a.client]), a.since.Compare(b.since))
	})
	closing := waiting[:min(len(waiting), l.most/64+1)]
	for _, k := range closing {
		delete(l.open, k)
		_ = k.Conn.Close()
	}
	return len(closing)
}

// waitTime returns how long the server has waited for the client of a running request to send the body or to read the response. It
// returns 0 if the server does not wait for the client. The caller holds the mutex of k.all.
func (k *connection) waitTime(now time.Time) time.Duration {
	var since time.Time
	if at := k.writing.Load(); at != 0 {
		since = time.Unix(0, at)
	}
	if k.body && (since.IsZero() || k.since.Before(since)) {
		since = k.since
	}
	if since.IsZero() {
		return 0
	}
	return max(now.Sub(since), 1)
}

// Write implements [net.Conn]. It returns an error if the client takes longer than [readTime] to read writeSize bytes. This does not
// apply if the handler has set a deadline.
func (k *connection) Write(p []byte) (n int, err error) {
	defer k.writing.Store(0)
	now := time.Now()
	if k.blocked -= now.Sub(k.wrote); k.blocked <= 0 {
		k.blocked, k.written = 0, 0
	}
	for {
		k.writing.Store(now.Add(-k.blocked).UnixNano())
		part := p[n:]
		if !k.bounded.Load() {
			part = part[:min(len(part), writeSize-k.written)]
			if err := k.Conn.SetWriteDeadline(now.Add(readTime - k.blocked)); err != nil {
				return n, err
			}
		}
		written, err := k.Conn.Write(part)
		k.wrote = time.Now()
		k.blocked, k.written = k.blocked+k.wrote.Sub(now), k.written+written
		if k.written >= writeSize {
			k.blocked, k.written = 0, 0
		}
		if n += written; err != nil || n == len(p) {
			return n, err
		}
		now = k.wrote
	}
}

// SetWriteDeadline implements [net.Conn]. It records whether the handler has set a deadline, because Write then sets none itself.
// [http.Server] removes the deadline at the end of each request, so the record does not affect the next request.
func (k *connection) SetWriteDeadline(t time.Time) error {
	k.bounded.Store(!t.IsZero())
	return k.Conn.SetWriteDeadline(t)
}

// Close implements [net.Conn].
func (k *connection) Close() error {
	k.all.mu.Lock()
	delete(k.all.open, k)
	k.all.mu.Unlock()
	return k.Conn.Close()
}

// recordState records the state that net/http reports for a connection. The server calls it as its [http.Server.ConnState].
func (l *connections) recordState(c net.Conn, state http.ConnState) {
	if k, ok := c.(*connection); ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		k.state, k.body, k.since = state, false, time.Now()
	}
}

// recordBody records whether the client is still sending the body of a request. It does nothing if the request did not arrive through a
// [connections] listener.
func recordBody(r *http.Request, body bool) {
	if k, ok := r.Context().Value(connectionKey{}).(*connection); ok {
		k.all.mu.Lock()
		defer k.all.mu.Unlock()
		k.body, k.since = body, time.Now()
	}
}

type connectionKey struct{}

// attach makes an HTTP server report the states of its connections to l. On a reserved connection, the server then serves only health
// checks and operators, and refuses all other requests.
func (l *connections) attach(s *http.Server) {
	s.ConnState = l.recordState
	s.RegisterOnShutdown(l.closeUnused)
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connectionKey{}, c)
	}
	rest := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k, ok := r.Context().Value(connectionKey{}).(*connection)
		if ok && k.reserved && !forOperators(r.URL.Path) {
			// After the response, net/http reads the rest of the request body. Without a deadline, it would wait for a slow client
			// forever.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedClient))
			w.Header().Set("Connection", "close")
			w.Header().Set("Retry-After", "5")
			http.Error(w, "too many connections", http.StatusServiceUnavailable)
			return
		}
		rest.ServeHTTP(w, r)
	})
}

// closeUnused closes the connections on which no request has arrived. Otherwise [http.Server.Shutdown] would wait five seconds for them.
func (l *connections) closeUnused() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k := range l.open {
		if k.state == http.StateNew {
			_ = k.Conn.Close()
		}
	}
}

// clientLeft closes the connection of a client that has disconnected while its request continues on the server. The MCP endpoint calls it
// as [mcp.Options.Left].
func clientLeft(r *http.Request) {
	if k, ok := r.Context().Value(connectionKey{}).(*connection); ok {
		_ = k.Close()
	}
}

// forOperators reports whether only health checks and operators request a path.
func forOperators(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return slices.Contains([]string{"healthz", "readyz", "metrics", "admin", "console"}, first)
}

// bodyTime is how long a client may take to send the body of a request. For the largest body, 5 MiB, that is about 85 KiB per
// second.
const bodyTime = time.Minute

// refusedBodyTime limits how long the server waits for the rest of a body that a handler did not read completely. net/http sends the
// response only after it has read up to 256 KiB of the rest. Without the limit, a slow client would get the response late.
const refusedBodyTime = time.Second

// boundBodies returns a handler that ends requests whose bodies do not arrive in time. http.Server.ReadTimeout would end streams, too. So
// boundBodies sets a read deadline, and removes it when the body has arrived. If a handler responds without reading the body, the client
// gets the response within [refusedBodyTime].
func boundBodies(h http.Handler, limit time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := newTimedBody(w, r, limit)
		h.ServeHTTP(w, r)
		if body != nil && !body.whole {
			_ = body.control.SetReadDeadline(time.Now().Add(min(limit, refusedBodyTime)))
		}
	})
}

// timedBody is a request body that must arrive before the read deadline of its connection. When the whole body has been read, it removes
// the deadline, which would otherwise end a stream that answers the request.
type timedBody struct {
	io.ReadCloser
	control  *http.ResponseController
	left     int64 // bytes that have not been read; negative if the length is unknown
	whole    bool
	received func()
}

// newTimedBody replaces the body of a request with a body that must arrive within the limit. It returns nil if there is no body, or if
// the connection cannot have a deadline.
//
// It is a separate function, so that its variables take no space on the stack of boundBodies. An open stream keeps that stack until the
// stream ends.
func newTimedBody(w http.ResponseWriter, r *http.Request, limit time.Duration) *timedBody {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return nil
	}
	recordBody(r, true)
	body := &timedBody{ReadCloser: r.Body, control: control, left: r.ContentLength, received: func() { recordBody(r, false) }}
	r.Body = body
	return body
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left > 0 {
		b.left -= int64(n)
	}
	if !b.whole && (err == io.EOF || b.left == 0) {
		b.whole = true
		_ = b.control.SetReadDeadline(time.Time{})
		b.received()
	}
	return n, err
}
