package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

// An endpoint may send at most answerQuota bytes per running exchange on a connection, plus answerQuota for the time
// between exchanges, e.g. for a handshake or the unread rest of a response. A complete response consists of a header
// of at most [maxAnswerHeader], a body of at most [maxAnswer], and whatever fits into the window of an HTTP/2 stream.
// Each read also costs readCost, so that an endpoint which sends single bytes uses up its quota too.
//
// Without this limit, an HTTP/2 connection stays open after its exchange has timed out, and an endpoint could send
// empty frames (DATA, SETTINGS, PING) without limit. Reading them keeps most of a core busy.
const (
	answerQuota = 128 << 10
	readCost    = 64
)

// errExcess ends a connection on which the endpoint sent more than its quota.
var errExcess = errors.New("the endpoint sends without end")

// conn is a connection to an endpoint, below TLS. It enforces the quota.
type conn struct {
	net.Conn
	closed func() // called once

	once sync.Once
	mu   sync.Mutex
	left int // bytes that may still be read
	busy int // running exchanges
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

// begin and end count running exchanges. The unused quota of an exchange that has ended is lost.
func (c *conn) begin() { c.count(1) }
func (c *conn) end()   { c.count(-1) }

func (c *conn) count(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy += n
	c.left = min(c.left+max(0, n)*answerQuota, (c.busy+1)*answerQuota)
}

// exchange tracks one exchange through the transport, which does not reveal the exchange's connection and progress.
type exchange struct {
	trace   httptrace.ClientTrace
	ctx     context.Context // of the exchange; the transport dials with a different context
	half    time.Time       // when half of the timeout is over
	reached atomic.Bool     // whether it had a connection, or permission to open one, before half
	conn    *conn
}

type exchangeKey struct{}

func follow(ctx context.Context, timeout time.Duration) (context.Context, *exchange) {
	x := &exchange{ctx: ctx, half: time.Now().Add(timeout / 2)}
	x.trace.GotConn = x.got
	return httptrace.WithClientTrace(context.WithValue(ctx, exchangeKey{}, x), &x.trace), x
}

// got notes the connection of a request. It runs in the goroutine of RoundTrip, and again each time the transport repeats a request.
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

// reach records that the exchange no longer waits for us and depends on the endpoint. If less than half of the
// timeout is left then, a timeout is not the endpoint's fault, so reach does not record it.
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

// connLimit limits the number of open connections, including idle ones. net/http has no limit for the
// total of all hosts, and none for the idle connections of HTTP/2.
type connLimit struct {
	free chan struct{}
	turn chan struct{}
	// reclaim closes idle connections.
	reclaim func()
}

func newConnLimit(n int, reclaim func()) *connLimit {
	return &connLimit{free: make(chan struct{}, n), turn: make(chan struct{}, 1), reclaim: reclaim}
}

var errNoConn = errors.New("all connections are in use")

// acquire waits until another connection may be opened, or until the exchange's context ends.
func (l *connLimit) acquire(x *exchange) error {
	select {
	case l.free <- struct{}{}:
		return nil
	default:
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-x.ctx.Done():
		return errNoConn
	}
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		l.reclaim()
		select {
		case l.free <- struct{}{}:
			return nil
		case <-x.ctx.Done():
			return errNoConn
		case <-again.C: // reclaim connections that became idle meanwhile
		}
	}
}

func (l *connLimit) release() { <-l.free }

// limitDial wraps a dial function so that it respects the limit of connections.
func (s *Sender) limitDial(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		x := ctx.Value(exchangeKey{}).(*exchange) // the transport keeps the context's values
		if err := s.conns.acquire(x); err != nil {
			return nil, err
		}
		x.reach()
		c, err := dial(ctx, network, address)
		if err != nil {
			s.conns.release()
			return nil, &stageError{stageDial, err}
		}
		return &conn{Conn: c, closed: s.conns.release, left: answerQuota}, nil
	}
}

// MuteTransport keeps net/http's messages about endpoints out of the standard log. net/http logs a line for each
// unexpected type of HTTP/2 frame, and the first bytes of unsolicited responses. An endpoint must not be able to
// fill our log (SRF-07) or to put text into it (SRF-05). Call it once, after [slog.SetDefault], which replaces the
// standard log's writer.
func MuteTransport() { log.SetOutput(muted{log.Writer()}) }

// muted drops the lines of the transport, because net/http has no setting for it.
type muted struct{ io.Writer }

var transportLines = [][]byte{
	[]byte("Transport: "), []byte("http2: Transport "), []byte("protocol error: "), []byte("Unsolicited response "),
	[]byte("http2: 1xx "),
}

func (m muted) Write(line []byte) (int, error) {
	for _, prefix := range transportLines {
		if bytes.Contains(line, prefix) { // the line may begin with the time
			return len(line), nil
		}
	}
	return m.Writer.Write(line)
}
