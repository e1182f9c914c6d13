// Package sessionstream reads the GET stream of a client's session with a backend while calls run in the session, and hands its messages
// to these calls.
//
// A session-based backend should send its question to a client on the response stream of the call that needs the answer. Many servers
// send it on the stream that a GET request opens instead. For example, server.elicitInput of version 1 of the official TypeScript SDK
// does so, and waits for an answer even if no such stream is open.
//
// A backend knows only one GET stream per session, so all calls of a session share it. A message on the stream does not say to which call
// it belongs, so the newest call that accepts the message gets it. If no call is running, questions, cancellations of questions, and log
// messages wait for the next call.
package sessionstream

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Receiver handles a message of a session's GET stream for one call, and reports whether the message was for this call.
type Receiver func(m upstream.Message) bool

const (
	// openWait limits how long a call waits until the stream is open. Some servers begin their answer to a GET only with the first
	// message, although the stream is already open.
	openWait = 500 * time.Millisecond
	// slowWait replaces openWait after a call to the same backend has waited in vain. Otherwise, all calls to this backend would be slow.
	slowWait = 50 * time.Millisecond
	// A broken stream is opened again after minPause, or after the time for which the backend asks. The pause grows up to maxPause with
	// each further attempt.
	minPause, maxPause = time.Second, 10 * time.Second
	// conflictPause is the pause before the second attempt to open a stream if the backend says that the session already has one. The
	// backend may not have noticed yet that the stream of an earlier call is closed.
	conflictPause = 50 * time.Millisecond
	// askAgain is how long the package remembers that a backend offers no streams, that it has refused a session's stream, or that calls
	// to it wait only for slowWait.
	askAgain = 5 * time.Minute
	// maxEarly limits the messages of a session that wait for the next call. Half of them may be log messages. A question waits for at
	// most earlyTime. A notification of up to maxNote bytes waits as long as the stream is open.
	maxEarly  = 16
	maxNote   = 64 << 10
	earlyTime = 10 * time.Second
	// maxLingering limits the open streams. If there are more, each stream is closed immediately after its last call, without
	// [Streams.Linger].
	maxLingering = 1000
)

// dropUnasked is the reason for dropping a question that no running call accepts.
const dropUnasked = "it asks a client that makes no call"

var errNoStream = errors.New("sessionstream: the backend offers no GET stream")

// Streams has the GET streams of the sessions in which this process makes calls. The zero value is ready for use.
type Streams struct {
	// Linger is how long a stream stays open after the last call of its session, so that the next call need not open it again. It must be 0
	// where the process may be frozen after a call, because the backend would send its questions to the frozen process.
	Linger time.Duration

	mu      sync.Mutex
	streams map[session]*stream
	// refused has the times until which the gateway does not ask for the stream of a session again. An entry without a session id stands
	// for all sessions of a backend.
	refused bounded.Map[session, time.Time]
	slow    bounded.Map[string, time.Time] // by the backend's URL, until when calls to it wait only for slowWait
}

type session struct{ url, id string }

type stream struct {
	in     *Streams
	of     session
	cancel context.CancelFunc
	opened chan struct{} // closed when the stream is open or cannot be opened, or when a call has waited long enough for it
	open   func()        // closes opened, once
	done   chan struct{} // closed when the stream is no longer read

	// The lock Streams.mu guards the fields below.
	calls  []*call            // the newest is the last
	early  []upstream.Message // the messages that wait for the next call, see waits
	joined int                // the number of calls that have joined so far
	client *upstream.Client
	with   upstream.Request // has the version and the id of the session
}

type call struct{ receive Receiver }

// Join opens the GET stream of the session that r names, unless the stream is already open. From then on, the function receive gets the
// stream's messages. Join returns when the stream is open, or after at most openWait.
//
// The caller must call leave at the end of its call. The function leave reports whether this was the last running call of the session.
func (s *Streams) Join(ctx context.Context, c *upstream.Client, r upstream.Request, receive Receiver) (leave func() (last bool)) {
	for _, of := range []session{{url: c.URL}, {c.URL, r.Session}} {
		if until, ok := s.refused.Get(of); ok && time.Now().Before(until) {
			return func() bool { return true }
		}
	}
	own := &call{receive}
	s.mu.Lock()
	st := s.streams[session{c.URL, r.Session}]
	if st == nil {
		st = s.begin(c, r)
	}
	st.calls, st.client, st.with = append(st.calls, own), c, r
	st.joined++
	s.mu.Unlock()
	limit := openWait
	if until, ok := s.slow.Get(c.URL); ok && time.Now().Before(until) {
		limit = slowWait
	}
	wait := time.NewTimer(limit)
	defer wait.Stop()
	select {
	case <-st.opened:
	case <-wait.C:
		if limit == openWait {
			s.slow.Put(c.URL, time.Now().Add(askAgain))
		}
		st.open()
	case <-ctx.Done():
	}
	st.deliverEarly(own)
	return func() bool { return s.leave(st, own) }
}

// deliverEarly gives the call c the messages that arrived while no call was running, and refuses the questions that c does not accept.
func (st *stream) deliverEarly(c *call) {
	st.in.mu.Lock()
	early := st.early
	st.early = nil
	st.in.mu.Unlock()
	for _, m := range early {
		if !c.receive(m) {
			go st.refuse(context.Background(), m) // concurrently, because the backend may be slow to accept the refusal
		}
	}
}

// begin adds the stream of a session and starts to read it. The caller holds the lock.
func (s *Streams) begin(c *upstream.Client, r upstream.Request) *stream {
	ctx, cancel := context.WithCancel(context.Background())
	st := &stream{
		in: s, of: session{c.URL, r.Session}, cancel: cancel, opened: make(chan struct{}), done: make(chan struct{}), client: c, with: r,
	}
	st.open = sync.OnceFunc(func() { close(st.opened) })
	if s.streams == nil {
		s.streams = map[session]*stream{}
	}
	s.streams[st.of] = st
	go st.run(ctx)
	return st
}

func (s *Streams) leave(st *stream, own *call) (last bool) {
	s.mu.Lock()
	st.calls = slices.DeleteFunc(st.calls, func(c *call) bool { return c == own })
	last = len(st.calls) == 0
	closing := last && (s.Linger == 0 || len(s.streams) > maxLingering)
	switch joined := st.joined; {
	case closing:
		s.remove(st)
	case last:
		time.AfterFunc(s.Linger, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if st.joined == joined {
				s.remove(st)
			}
		})
	}
	s.mu.Unlock()
	if closing {
		<-st.done // wait until the backend sees the end of the stream, because the process may be frozen after the call
	}
	return last
}

// Close closes the streams that no call uses. From now on, each stream is closed immediately after its last call.
func (s *Streams) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Linger = 0
	for _, st := range s.streams {
		if len(st.calls) == 0 {
			s.remove(st)
		}
	}
}

// remove closes a stream. The caller holds the lock.
func (s *Streams) remove(st *stream) {
	if s.streams[st.of] == st {
		delete(s.streams, st.of)
	}
	st.cancel()
}

func (st *stream) run(ctx context.Context) {
	defer close(st.done)
	lastID, first := "", true
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		began := time.Now()
		x, err := st.get(ctx, lastID)
		if upstream.StatusOf(err) == http.StatusConflict { // the session already has a stream, perhaps at another instance of the gateway
			if pause = minPause; first && periodic.Sleep(ctx, conflictPause) == nil {
				x, err = st.get(ctx, lastID)
			}
		}
		first = false
		st.open()
		if err == nil {
			if time.Since(began) < openWait {
				st.in.slow.Put(st.of.url, time.Time{})
			}
			err = st.read(ctx, x)
			if x.Events > 0 {
				pause, lastID = cmp.Or(x.Retry, minPause), cmp.Or(x.EventID, lastID)
			}
			x.Close()
		}
		switch {
		case errors.Is(err, errNoStream):
			st.in.refused.Put(session{url: st.of.url}, time.Now().Add(askAgain))
		case refuses(err) && lastID == "": // with a lastID, the backend may have refused only that id
			st.in.refused.Put(st.of, time.Now().Add(askAgain))
		}
		if !st.reopens(err) || periodic.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// reopens reports whether to open the stream again after it has ended with err. If not, it also removes the stream.
func (st *stream) reopens(err error) bool {
	st.in.mu.Lock()
	defer st.in.mu.Unlock()
	again := len(st.calls) > 0 && retries(err)
	if !again {
		st.in.remove(st)
	}
	return again
}

// retries reports whether a later attempt to open the stream may succeed after one that ended with err.
func retries(err error) bool {
	if status := upstream.StatusOf(err); status != 0 {
		return status >= http.StatusInternalServerError || status == http.StatusConflict || status == http.StatusTooManyRequests
	}
	return !errors.Is(err, errNoStream) && !errors.Is(err, upstream.ErrSession)
}

// refuses reports whether the backend will probably answer the session's next GET with err, too. For example, many servers that accept
// only POST answer 404, although this status means that the session is unknown.
func refuses(err error) bool {
	status := upstream.StatusOf(err)
	unauthorized := status == http.StatusUnauthorized || status == http.StatusForbidden // a later call may have other credentials
	return err != nil && !retries(err) && !unauthorized
}

// target returns the HTTP client and the request of the newest call, for further requests in the session.
func (st *stream) target() (*upstream.Client, upstream.Request) {
	st.in.mu.Lock()
	defer st.in.mu.Unlock()
	return st.client, st.with
}

func (st *stream) get(ctx context.Context, lastID string) (*upstream.Exchange, error) {
	c, r := st.target()
	x, err := c.Get(ctx, r, lastID)
	if err == nil && x.Status >= http.StatusBadRequest { // despite the error status there is no error, because the body has JSON
		x.Close()
		err = &upstream.StatusError{Status: x.Status}
	}
	switch upstream.StatusOf(err) {
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return nil, errNoStream
	}
	return x, err
}

func (st *stream) read(ctx context.Context, x *upstream.Exchange) error {
	for {
		m, err := x.Next(ctx)
		switch {
		case err != nil:
			return err
		case m.Response(): // ignored, because only the resumed stream of a call may have responses
		case m.ID != nil && m.Method == spec.MethodPing:
			st.reply(ctx, jsonrpc.AppendResult(nil, m.ID, []byte(`{}`)))
		case st.deliver(m):
		case m.Method == spec.NoteCancelled && st.takeEarly(jsonrpc.Member(jsonrpc.Member(m.Raw, "params"), "requestId")):
		case waits(m) && !st.keepEarly(m):
			st.refuse(ctx, m)
		}
	}
}

// waits reports whether a message may wait for the next call: a question, the cancellation of a question, or a log message.
func waits(m upstream.Message) bool {
	return m.ID != nil || (m.Method == spec.NoteCancelled || m.Method == spec.NoteMessage) && len(m.Raw) <= maxNote
}

// keepEarly keeps a message for the next call, and reports whether it did. If too many messages wait, it does not keep the message. If
// calls are running, it also does not, because they have already declined the message.
func (st *stream) keepEarly(m upstream.Message) bool {
	st.in.mu.Lock()
	defer st.in.mu.Unlock()
	room := maxEarly
	if m.Method == spec.NoteMessage {
		room /= 2
	}
	if len(st.calls) > 0 || len(st.early) >= room {
		return false
	}
	st.early = append(st.early, m)
	if m.ID == nil {
		return true
	}
	time.AfterFunc(earlyTime, func() {
		if st.takeEarly(m.ID) {
			st.refuse(context.Background(), m)
		}
	})
	return true
}

func (st *stream) takeEarly(id json.RawMessage) bool {
	st.in.mu.Lock()
	defer st.in.mu.Unlock()
	before := len(st.early)
	st.early = slices.DeleteFunc(st.early, func(m upstream.Message) bool { return m.ID != nil && bytes.Equal(m.ID, id) })
	return len(st.early) < before
}

// refuse answers a question with an error, because no call accepts the question. It ignores notifications.
func (st *stream) refuse(ctx context.Context, m upstream.Message) {
	if m.ID == nil {
		return
	}
	c, _ := st.target()
	c.Dropped(ctx, dropUnasked)
	refusal := &jsonrpc.Error{Code: jsonrpc.InvalidRequest, Message: "no running call can answer " + m.Method}
	st.reply(ctx, jsonrpc.AppendError(nil, m.ID, refusal))
}

func (st *stream) deliver(m upstream.Message) bool {
	st.in.mu.Lock()
	calls := slices.Clone(st.calls)
	st.in.mu.Unlock()
	slices.Reverse(calls)
	return slices.ContainsFunc(calls, func(c *call) bool { return c.receive(m) })
}

// reply sends an answer to the backend. It ignores a failure, because the backend stops waiting for the answer after its own time limit.
func (st *stream) reply(ctx context.Context, body []byte) {
	c, r := st.target()
	ctx, cancel := context.WithTimeout(ctx, c.AskTimeout)
	defer cancel()
	r.Body = body
	_ = c.Send(ctx, r)
}
