package server

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// connections is a listener that holds a bounded number of connections.
//
// When it is full, it makes room for new connections by closing old ones on which the server only waits for the client: those
// without a complete request header, idle ones, and those whose request body is slow. It takes them from the client address that
// has most of them, so that one client cannot lock out the others. Streams and running requests are never closed. The last places
// are for health checks and operators.
type connections struct {
	net.Listener
	most     int // connections at the same time
	reserved int // how many of them are for health checks and operators

	mu   sync.Mutex
	open map[*connection]struct{}
}

// slowBody is how long a client may take to send the body of a request before its connection may be closed to make room.
const slowBody = 5 * time.Second

func limitConnections(l net.Listener, most int) *connections {
	return &connections{Listener: l, most: most, reserved: min(64, most/16+1), open: map[*connection]struct{}{}}
}

// connection is an accepted connection. Its fields are guarded by connections.mu.
type connection struct {
	net.Conn
	all      *connections
	client   netip.Prefix
	reserved bool // it has one of the last places

	state http.ConnState
	body  bool      // the client is still sending the body of a request
	since time.Time // when state or body changed
}

// Accept implements [net.Listener]. It closes connections for which it has no room.
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

// admit returns the connection with a place, or nil if all places are taken.
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
		Conn: c, all: l, client: clientOf(c.RemoteAddr()), reserved: len(l.open) >= l.most-l.reserved,
		state: http.StateNew, since: time.Now(),
	}
	l.open[k] = struct{}{}
	return k
}

// makeRoom closes the oldest waiting connections of the client that has most of them. It closes several, because it looks at all
// connections. The caller holds the lock.
func (l *connections) makeRoom() {
	waiting := map[netip.Prefix][]*connection{}
	var most []*connection
	now := time.Now()
	for k := range l.open {
		waits := k.state == http.StateNew || k.state == http.StateIdle || k.body && now.Sub(k.since) > slowBody
		if !waits {
			continue
		}
		list := append(waiting[k.client], k)
		if waiting[k.client] = list; len(list) > len(most) {
			most = list
		}
	}
	slices.SortFunc(most, func(a, b *connection) int { return a.since.Compare(b.since) })
	for _, k := range most[:min(len(most), l.most/64+1)] {
		delete(l.open, k)
		_ = k.Conn.Close()
	}
}

// Close implements [net.Conn].
func (k *connection) Close() error {
	k.all.mu.Lock()
	delete(k.all.open, k)
	k.all.mu.Unlock()
	return k.Conn.Close()
}

// clientOf returns the address that connections are counted by. A client with IPv6 usually has a network of 64 bits.
func clientOf(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap()
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	p, _ := ip.Prefix(bits) // a zone is dropped; an invalid address counts as one client
	return p
}

// changed is the [http.Server.ConnState] of the server.
func (l *connections) changed(c net.Conn, state http.ConnState) {
	if k, ok := c.(*connection); ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		k.state, k.body, k.since = state, false, time.Now()
	}
}

// sending notes whether the client of a request is still sending its body. r may be a request of another listener.
func sending(r *http.Request, body bool) {
	if k, ok := r.Context().Value(connectionKey{}).(*connection); ok {
		k.all.mu.Lock()
		defer k.all.mu.Unlock()
		k.body, k.since = body, time.Now()
	}
}

type connectionKey struct{}

// serveBy has a server tell l of its connections.
func (l *connections) serveBy(s *http.Server) {
	s.ConnState = l.changed
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connectionKey{}, c)
	}
	rest := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if k, ok := r.Context().Value(connectionKey{}).(*connection); ok && k.reserved && !forOperators(r.URL.Path) {
			w.Header().Set("Connection", "close")
			w.Header().Set("Retry-After", "5")
			http.Error(w, "too many connections", http.StatusServiceUnavailable)
			return
		}
		rest.ServeHTTP(w, r)
	})
}

// forOperators reports whether a path is served on the reserved connections.
func forOperators(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return slices.Contains([]string{"healthz", "readyz", "metrics", "admin", "console"}, first)
}
