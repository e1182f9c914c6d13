package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

// What an endpoint may send on a connection: answerQuota for each exchange under way
// and one for the time between (a handshake, the rest of an answer that was not read to its
// end). A whole answer is a header of [maxAnswerHeader], a body of [maxAnswer] and what
// fits into an HTTP/2 stream's window. Each read costs readCost too, so that
// single bytes use the quota up as well.
//
// An HTTP/2 connection outlives the exchange that timed out, and frames
// without content (empty DATA, SETTINGS, PING) have no other bound: reading
// them takes most of a core.
const (
	answerQuota = 128 << 10
	readCost    = 64
)

// errExcess ends a connection on which more came than answers hold.
var errExcess = errors.New("the endpoint sends without end")

// conn is a connection to an endpoint, below TLS.
type conn struct {
	net.Conn
	closed func() // called once

	once sync.Once
	mu   sync.Mutex
	left int // what may still be read
	busy int // exchanges under way
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	c.left -= n + readCost
	excess := c.left < 0
	c.mu.Unlock()
	if excess {
		_ = c.Close()
		return 0, errExcess
	}
	return n, err
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.closed)
	return err
}

// begin and end say that an exchange starts and that it is over. What was not used is not kept.
func (c *conn) begin() { c.count(1) }
func (c *conn) end()   { c.count(-1) }

func (c *conn) count(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy += n
	c.left = min(c.left+max(0, n)*answerQuota, (c.busy+1)*answerQuota)
}

// exchange follows one exchange through the transport, which neither tells which
// connection it takes nor how far it got.
type exchange struct {
	trace   httptrace.ClientTrace
	ctx     context.Context // of the exchange; the transport dials with another
	half    time.Time       // when half of its time is over
	reached atomic.Bool     // it had a connection, or leave to make one, before half
	conn    *conn
}

type exchangeKey struct{}

func follow(ctx context.Context, timeout time.Duration) (context.Context, *exchange) {
	x := &exchange{ctx: ctx, half: time.Now().Add(timeout / 2)}
	x.trace.GotConn = x.got
	return httptrace.WithClientTrace(context.WithValue(ctx, exchangeKey{}, x), &x.trace), x
}

// got runs in the goroutine of RoundTrip; again when the transport repeats a request.
func (x *exchange) got(info httptrace.GotConnInfo) {
	x.end()
	x.reach()
	below := info.Conn
	if t, ok := below.(*tls.Conn); ok {
		below = t.NetConn()
	}
	if c, ok := below.(*conn); ok {
		x.conn = c
		c.begin()
	}
}

// reach says that the rest is up to the endpoint. One that is left less than half
// of the time is not to blame that it was too short.
func (x *exchange) reach() {
	if time.Now().Before(x.half) {
		x.reached.Store(true)
	}
}

func (x *exchange) end() {
	if x.conn != nil {
		x.conn.end()
		x.conn = nil
	}
}

// places bounds the connections that are open, idle ones included. net/http bounds
// neither those to all hosts together nor idle ones of HTTP/2.
type places struct {
	free chan struct{}
	turn chan struct{}
	// reclaim closes idle connections.
	reclaim func()
}

func newPlaces(n int, reclaim func()) *places {
	return &places{free: make(chan struct{}, n), turn: make(chan struct{}, 1), reclaim: reclaim}
}

var errNoPlace = errors.New("all connections are in use")

// take waits until there may be one connection more, as long as the exchange that
// wants it lasts.
func (p *places) take(x *exchange) error {
	select {
	case p.free <- struct{}{}:
		return nil
	default:
	}
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-x.ctx.Done():
		return errNoPlace
	}
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		p.reclaim()
		select {
		case p.free <- struct{}{}:
			return nil
		case <-x.ctx.Done():
			return errNoPlace
		case <-again.C: // what became idle meanwhile
		}
	}
}

func (p *places) give() { <-p.free }

// bounded dials within the sender's bound on connections.
func (s *Sender) bounded(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		x := ctx.Value(exchangeKey{}).(*exchange) // the transport keeps the values of the request's context
		if err := s.places.take(x); err != nil {
			return nil, err
		}
		x.reach()
		c, err := dial(ctx, network, address)
		if err != nil {
			s.places.give()
			return nil, &stageError{stageDial, err}
		}
		return &conn{Conn: c, closed: s.places.give, left: answerQuota}, nil
	}
}
