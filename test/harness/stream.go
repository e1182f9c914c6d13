//go:build unix

package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Message is a JSON-RPC message as it came on a stream.
type Message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
	Result  json.RawMessage `json:"result"`
	Error   *RPCError       `json:"error"`

	// EventID is the id of the server-sent event, Event its name.
	EventID string `json:"-"`
	Event   string `json:"-"`
	// Raw is the message as it was sent.
	Raw []byte `json:"-"`
}

// Update is notifications/resources/updated.
type Update struct {
	URI     string          `json:"uri"`
	Payload json.RawMessage `json:"payload"`
	Meta    map[string]any  `json:"_meta"`
	// EventID, Time and Cursor are the values of our _meta keys.
	EventID, Time, Cursor string `json:"-"`
	// SSE is the id of the server-sent event.
	SSE string `json:"-"`
}

const updated = "notifications/resources/updated"

// Update decodes the message, which must be a resource update.
func (m *Message) Update() (*Update, error) {
	if m.Method != updated {
		return nil, fmt.Errorf("method %q is not %s", m.Method, updated)
	}
	u := &Update{SSE: m.EventID}
	if err := json.Unmarshal(m.Params, u); err != nil {
		return nil, err
	}
	u.EventID, _ = u.Meta[Prefix+"eventId"].(string)
	u.Time, _ = u.Meta[Prefix+"time"].(string)
	u.Cursor, _ = u.Meta[Prefix+"cursor"].(string)
	return u, nil
}

// Stream is an open stream of server-sent events. It reads all the time.
type Stream struct {
	Header http.Header

	cancel context.CancelFunc
	ended  chan struct{} // closed when the stream has ended

	mu       sync.Mutex
	messages []*Message
	read     int // messages that Next has returned
	err      error
	change   chan struct{} // closed and replaced at each message
}

// Listen opens subscriptions/listen with the request id given, and waits for its
// acknowledgment, which is the first message and is returned by [Stream.Next] too.
func (c *Client) Listen(tb testing.TB, id any, notifications, meta map[string]any) *Stream {
	tb.Helper()
	s, err := c.TryListen(tb.Context(), id, notifications, meta)
	if err != nil {
		tb.Fatalf("subscriptions/listen: %v", err)
	}
	tb.Cleanup(s.Close)
	return s
}

// TryListen works like [Client.Listen], but returns an error if the server is down.
func (c *Client) TryListen(ctx context.Context, id any, notifications, meta map[string]any) (*Stream, error) {
	params := map[string]any{"notifications": notifications}
	if meta != nil {
		params["_meta"] = meta
	}
	return c.TryStream(ctx, id, "subscriptions/listen", params)
}

// Stream opens a stream by any method of the revision without sessions, and waits for
// its first message.
func (c *Client) Stream(tb testing.TB, id any, method string, params map[string]any) *Stream {
	tb.Helper()
	s, err := c.TryStream(tb.Context(), id, method, params)
	if err != nil {
		tb.Fatalf("%s: %v", method, err)
	}
	tb.Cleanup(s.Close)
	return s
}

// TryStream works like [Client.Stream], but returns an error if the server is down.
func (c *Client) TryStream(ctx context.Context, id any, method string, params map[string]any) (*Stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	req, err := c.Request(ctx, method, params, id)
	if err != nil {
		cancel()
		return nil, err
	}
	return open(req, cancel, true)
}

// Open opens the GET stream of a session, from behind lastEventID unless
// it is empty.
func (c *Client) Open(tb testing.TB, lastEventID string) *Stream {
	tb.Helper()
	s, err := c.TryOpen(tb.Context(), lastEventID)
	if err != nil {
		tb.Fatalf("GET stream: %v", err)
	}
	tb.Cleanup(s.Close)
	return s
}

// TryOpen works like [Client.Open], but returns an error if the server is down.
func (c *Client) TryOpen(ctx context.Context, lastEventID string) (*Stream, error) {
	return c.get(ctx, lastEventID, false)
}

func (c *Client) get(ctx context.Context, lastEventID string, acknowledged bool) (*Stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	if err != nil {
		cancel()
		return nil, err
	}
	c.header(req.Header)
	req.Header.Set("Accept", "text/event-stream")
	if lastEventID != "" {
		req.Header.Set("Last-Event-ID", lastEventID)
	}
	return open(req, cancel, acknowledged)
}

// streams have a connection each and no time limit.
var streams = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ResponseHeaderTimeout: Patience}}

func open(req *http.Request, cancel context.CancelFunc, acknowledged bool) (*Stream, error) {
	resp, err := streams.Do(req)
	if err != nil {
		cancel()
		return nil, err
	}
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		resp.Body.Close()
		cancel()
		return nil, fmt.Errorf("status %d, %s: %s", resp.StatusCode, resp.Header.Get("Content-Type"), b)
	}
	s := &Stream{Header: resp.Header, cancel: cancel, ended: make(chan struct{}), change: make(chan struct{})}
	go s.run(resp.Body)
	if acknowledged && !s.has(Patience, 1) {
		s.Close()
		return nil, fmt.Errorf("no message came: %w", s.Err())
	}
	return s, nil
}

func (s *Stream) run(body io.ReadCloser) {
	defer close(s.ended)
	defer body.Close()
	events := newEventReader(body)
	for {
		ev, err := events.next()
		s.mu.Lock()
		switch {
		case err != nil:
			s.err = err
		case len(ev.data) > 0: // not only an id
			m := &Message{EventID: ev.id, Event: ev.name, Raw: ev.data}
			if s.err = json.Unmarshal(ev.data, m); s.err == nil {
				s.messages = append(s.messages, m)
			}
			err = s.err
		}
		close(s.change)
		s.change = make(chan struct{})
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Close ends the stream and waits for its reader.
func (s *Stream) Close() {
	s.cancel()
	<-s.ended
}

// Ended returns a channel that is closed when the stream has ended.
func (s *Stream) Ended() <-chan struct{} { return s.ended }

// Err returns the reason why the stream ended, or io.EOF if the server ended it in order.
func (s *Stream) Err() error { return read(&s.mu, &s.err) }

// Messages returns all messages so far.
func (s *Stream) Messages() []*Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Message(nil), s.messages...)
}

// has waits for at least n messages in all.
func (s *Stream) has(within time.Duration, n int) bool {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return s.Await(ctx, n)
}

// Next waits for the next message.
func (s *Stream) Next(tb testing.TB) *Message {
	tb.Helper()
	s.mu.Lock()
	n := s.read
	s.mu.Unlock()
	if !s.has(Patience, n+1) {
		tb.Fatalf("no message number %d on the stream: %v", n+1, s.Err())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read++
	return s.messages[n]
}

// Updates returns the resource updates so far.
func (s *Stream) Updates() (updates []*Update) {
	for _, m := range s.Messages() {
		if u, err := m.Update(); err == nil {
			updates = append(updates, u)
		}
	}
	return updates
}

// Wait waits until the stream has sent n resource updates.
func (s *Stream) Wait(tb testing.TB, n int) []*Update {
	tb.Helper()
	if !Within(tb, Patience, func() bool { return len(s.Updates()) >= n }) {
		tb.Fatalf("the stream sent %d updates, want %d (%v)", len(s.Updates()), n, s.Err())
	}
	return s.Updates()
}

// Await waits for at least n messages in all. It reports false when the stream
// ended or ctx did before.
func (s *Stream) Await(ctx context.Context, n int) bool {
	return s.await(ctx, func() bool { return len(s.messages) >= n })
}

func (s *Stream) await(ctx context.Context, come func() bool) bool {
	for {
		s.mu.Lock()
		have, err, change := come(), s.err, s.change
		s.mu.Unlock()
		switch {
		case have:
			return true
		case err != nil:
			return false
		}
		select {
		case <-change:
		case <-ctx.Done():
			return false
		}
	}
}

// From returns the messages after the first n.
func (s *Stream) From(n int) []*Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Message(nil), s.messages[n:]...)
}

// Meta finds a member of a _meta object by its full name.
func Meta(raw json.RawMessage, key string) json.RawMessage {
	var v struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	if json.Unmarshal(raw, &v) != nil {
		return nil
	}
	return v.Meta[key]
}
