package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

type stream struct {
	*upstream.Exchange
	uris map[string]bool // the resources in a listen request; nil for a GET stream

	mu      sync.Mutex
	ended   bool            // whether the relay has closed it
	open    bool            // true for a GET from the start, and for a listen after its acknowledgment
	opened  chan struct{}   // closed when the stream is open or has failed
	honored json.RawMessage // the content of the acknowledgment, or nil
	err     error           // why the stream ended before it was open
}

// end closes the stream deliberately, so that its end does not count as a failure of the connection.
func (s *stream) end() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.Close()
}

// begin records that the stream is open. The parameter honored is the content of the backend's acknowledgment, or nil if there is no
// acknowledgment.
func (s *stream) begin(honored json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.open && s.err == nil {
		s.open, s.honored = true, honored
		close(s.opened)
	}
}

// start reads a stream in the background. The map listen has the resources of the stream's listen request. It is nil for a GET stream,
// which is open immediately.
func (f *following) start(x *upstream.Exchange, listen map[string]bool) *stream {
	s := &stream{Exchange: x, uris: listen, opened: make(chan struct{})}
	if listen == nil {
		s.begin(nil)
	}
	f.running.Go(func() {
		err := f.read(s)
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case s.ended:
		case s.open:
			f.fail(err)
		default:
			s.err = err
			close(s.opened)
		}
	})
	return s
}

// maxPings limits how many pings of a backend are answered concurrently.
const maxPings = 4

func (f *following) read(s *stream) error {
	for {
		m, err := s.Next(f.ctx)
		if err != nil {
			return err
		}
		if m.Response() {
			if m.Error != nil {
				return upstream.ErrAnswer
			}
			return errors.New("gateway: the backend ended its notifications")
		}
		if m.Method == spec.NoteAcknowledged {
			s.begin(jsonrpc.Member(jsonrpc.Member(m.Raw, "params"), "notifications"))
			continue
		}
		s.begin(nil) // without an acknowledgment, the first message opens the stream
		select {
		case <-f.begun:
		case <-f.ctx.Done():
			return f.ctx.Err()
		}
		switch {
		case m.ID != nil && m.Method == "ping":
			f.pong(m)
		case m.ID != nil:
			f.Client().Dropped(f.ctx, dropElicitation)
		default:
			if err := f.handle(f.ctx, m); err != nil {
				return err
			}
		}
	}
}

// pong answers a backend's ping in the background, so that a slow answer does not delay notifications.
func (f *following) pong(m upstream.Message) {
	select {
	case f.pings <- struct{}{}:
	default:
		f.Client().Dropped(f.ctx, dropPing)
		return
	}
	f.running.Go(func() {
		defer func() { <-f.pings }()
		ctx, cancel := context.WithTimeout(f.ctx, f.Client().AskTimeout)
		defer cancel()
		r := f.request()
		r.Body = jsonrpc.AppendResult(nil, m.ID, json.RawMessage(`{}`))
		if err := f.Client().Send(ctx, r); err != nil {
			f.relay.log(f).DebugContext(ctx, "ping of backend not answered", "error", err)
		}
	})
}

func (f *following) get() (*stream, error) {
	x, err := f.open(func(ctx context.Context) (*upstream.Exchange, error) {
		return f.Client().Get(ctx, f.request(), "")
	})
	status := upstream.StatusOf(err)
	if x != nil {
		status = x.Status
	}
	if status >= http.StatusBadRequest { // if there is an exchange despite the error status, its body only has the reason as JSON
		if x != nil {
			x.Close()
		}
		if slices.Contains(noStreamStatus, status) {
			return nil, fmt.Errorf("%w: the GET is answered with %d", errNoStream, status)
		}
		if err == nil {
			err = fault.New(fault.Unavailable, "the GET is answered with %d", status)
		}
	}
	if err != nil {
		return nil, err
	}
	return f.start(x, nil), nil
}

// openTime limits how long a backend may take to begin a stream.
const openTime = time.Minute

// open calls the function send, which sends the request that begins a stream. It limits how long the stream takes to begin, but not how
// long the stream lives after that.
func (f *following) open(send func(context.Context) (*upstream.Exchange, error)) (*upstream.Exchange, error) {
	ctx, cancel := context.WithCancel(f.ctx)
	late := time.AfterFunc(openTime, cancel)
	x, err := send(ctx)
	if !late.Stop() && err == nil {
		x.Close()
		return nil, fault.New(fault.Unavailable, "the backend did not begin its stream within %s", openTime)
	}
	if err != nil {
		cancel()
	}
	return x, err
}
