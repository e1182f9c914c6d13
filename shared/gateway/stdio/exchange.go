package stdio

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// exchange is a request to a process and the messages that answer it, or a GET stream, which has no request. It is the body of a response:
// a stream of events, one for each message. The queue is bounded, see [process.push].
type exchange struct {
	p   *process
	ctx context.Context
	// id and method are empty for a GET stream.
	id     json.RawMessage
	method string
	// token is the caller's progress token, and sent is the one that the process got instead.
	token, sent json.RawMessage
	asksLog     bool // the request asks for log messages
	number      int  // counts the requests of the process

	wake chan struct{} // receives after a change of the following fields, which the lock of the process guards
	// queue has the messages that were not read yet, and size is their length.
	queue    [][]byte
	size     int
	answered bool  // the response is in the queue
	err      error // why no further messages arrive
	closed   bool

	rest []byte // the part of an event that was not read yet
}

// errTooSlow is the error of a request whose messages arrive faster than they are read.
var errTooSlow = errors.New("stdio: the messages of the request are not read fast enough")

// Read implements [io.Reader]. Only one goroutine may read.
func (x *exchange) Read(b []byte) (int, error) {
	for len(x.rest) == 0 {
		message, err := x.next()
		if err != nil {
			return 0, err
		}
		x.rest = sse.Append(nil, sse.Event{Data: message})
	}
	n := copy(b, x.rest)
	x.rest = x.rest[n:]
	return n, nil
}

// next waits for the next message. It returns io.EOF after the response.
func (x *exchange) next() ([]byte, error) {
	for {
		x.p.mu.Lock()
		if len(x.queue) > 0 {
			message := x.queue[0]
			x.queue = x.queue[1:]
			x.size -= len(message) + messageCost
			x.p.queued -= len(message) + messageCost
			x.p.mu.Unlock()
			return message, nil
		}
		err := x.err
		x.p.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-x.wake:
		case <-x.ctx.Done():
			return nil, context.Cause(x.ctx)
		}
	}
}

// end records that no further messages arrive. The caller holds the lock of the process.
func (x *exchange) end(err error) {
	if x.err == nil {
		x.err = err
	}
	x.signal()
}

func (x *exchange) signal() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// Close implements [io.Closer]. A request without a response is cancelled.
func (x *exchange) Close() error {
	x.p.close(x)
	return nil
}

// await returns the response, for a request of this package.
func (x *exchange) await() (json.RawMessage, error) {
	for {
		message, err := x.next()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil || methodOf(message) == "" {
			return message, err
		}
	}
}
