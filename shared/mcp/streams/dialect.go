package streams

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/json"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// dialectStream implements [Framing] for a session's GET stream in the named-event dialect, an older transport (see dialect.go in package
// mcp).
type dialectStream struct {
	basicFraming
	stream  *Stream
	session *sessionStream
	release func() // records that the stream is closed
}

// OpenDialect opens the GET stream of a session in the named-event dialect. Unlike the stream of a session at /mcp, it also
// carries answers to POSTs and events about the connection, and its SSE events have names.
func (st *Streams) OpenDialect(ctx context.Context, c *method.Call, last Position) (*Stream, error) {
	s := &dialectStream{session: st.newSessionStream(c, kindDialect, last)}
	s.stream = s.session.stream
	s.stream.Framing, s.stream.eventName = s, eventNotification
	if err := s.session.open(ctx); err != nil {
		return s.stream, err
	}
	return s.stream, s.recordOpen(ctx)
}

// recordOpen records in the store that the session's stream is open, so that answers to POSTs are sent on it.
func (s *dialectStream) recordOpen(ctx context.Context) error {
	until, ok := ctx.Deadline() // the deadline, if there is one, comes before the maximum age of the stream
	if !ok {
		until = time.Now().Add(s.stream.Streams.Admission.maxAge)
	}
	sessions := s.stream.Streams.Sessions
	lease, err := sessions.RecordStreamOpen(ctx, s.session.sess.Key, until)
	if err != nil {
		return err
	}
	closed := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reserve/2)
		defer cancel()
		if err := sessions.RecordStreamClosed(ctx, s.session.sess.Key, lease); err != nil {
			s.stream.Streams.Faults.LogError(ctx, "end of stream not recorded", err)
		}
	}
	s.release = sync.OnceFunc(func() { s.stream.Streams.Admission.cleanUp(closed) })
	s.stream.ends = append(s.stream.ends, s.release)
	return nil
}

// lifecycleEvent returns an SSE event about the connection itself, for example "streamOpened". The parameter params must encode as a JSON
// object. The parameter retry is how long the client should wait before it reconnects, or 0 to leave that open.
func (s *dialectStream) lifecycleEvent(method string, params any, retry time.Duration) []byte {
	return sse.Append(nil, sse.Event{
		Name: eventLifecycle, ID: s.session.position.next(s.stream.ResumeAt()), Retry: retry,
		Data: jsonrpc.AppendNotification(nil, method, jsonrpc.Encode(params)),
	})
}

func timestamp() map[string]string {
	return map[string]string{"timestamp": time.Now().UTC().Format(time.RFC3339)}
}

func (s *dialectStream) Begin(ctx context.Context) error {
	if err := s.stream.write(s.lifecycleEvent("streamOpened", timestamp(), 0)); err != nil {
		return err
	}
	if err := s.session.sendGap(); err != nil {
		return err
	}
	s.session.recordBegun(ctx)
	return nil
}

func (s *dialectStream) Heartbeat(ctx context.Context) error {
	if err := s.stream.CheckCredentials(ctx); err != nil {
		return err
	}
	return s.stream.write(s.lifecycleEvent("ping", timestamp(), 0))
}

func (s *dialectStream) Deliver(ctx context.Context, d stream.Delivery) error {
	var n ResponseNotice
	if d.Topic != stream.TopicSession(s.session.sess.Key) || json.Unmarshal(d.Notice, &n) != nil || n.Response == nil {
		return s.session.Deliver(ctx, d)
	}
	if err := s.stream.verify(ctx, d); err != nil {
		return err
	}
	return s.respond(ctx, n, d.Cursor)
}

func (s *dialectStream) End(_ *method.Call, why error) {
	s.release() // first, so that answers become the responses of their POSTs from now on
	reason, retry := reasonError, reconnect
	if x := endingOf(why); x != nil {
		reason = x.closing
	}
	if reason == "superseded" {
		retry = 0 // reconnecting would end the newer stream
	}
	_ = s.stream.write(s.lifecycleEvent("streamClosed", map[string]string{"reason": reason}, retry)) // the stream ends either way
}

func (s *dialectStream) respond(ctx context.Context, n ResponseNotice, cursor string) error {
	text, err := OpenResponse(s.session.sess.ID, n.Response)
	if err != nil { // report the error, and continue without this answer
		s.stream.Streams.Faults.LogError(ctx, "sealed answer not opened", err)
		return nil
	}
	return s.stream.write(AppendResponses(nil, text, func(last bool) string {
		if last {
			return s.session.position.next(cursor)
		}
		return s.session.position.next(s.stream.completedCursor) // a client that is cut off before the last response gets all of them again
	}))
}

// ResponseNotice carries an answer to a POST, through the event log, to the instance that holds the session's stream. The
// answer is encrypted, because the event log stores it.
type ResponseNotice struct {
	Response []byte `json:"response,omitempty"`
}

func responseCipher(session string) cipher.AEAD {
	key := sha256.Sum256([]byte("response\x00" + session))
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // cannot happen, because the key has the right size
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // cannot happen for AES
	}
	return aead
}

// SealResponse encrypts an answer with a key that is derived from the session's id.
func SealResponse(session string, text []byte) []byte {
	return responseCipher(session).Seal(nil, nil, text, nil)
}

// OpenResponse decrypts an answer that [SealResponse] has encrypted.
func OpenResponse(session string, sealed []byte) ([]byte, error) {
	return responseCipher(session).Open(nil, nil, sealed, nil)
}

const (
	eventResponse     = "response"
	eventNotification = "notification"
	eventLifecycle    = "lifecycle"
)

// AppendResponses appends SSE events to dst: one event for the JSON-RPC response in body or, if body is a batch, one event for each
// response.
//
// The function id returns the id of an SSE event. Its argument is true for the last event. If id is nil, the events have no ids.
func AppendResponses(dst, body []byte, id func(last bool) string) []byte {
	responses := [][]byte{body}
	if len(body) > 0 && body[0] == '[' {
		responses = nil
		for text := range jsonrpc.Elements(body) {
			responses = append(responses, text)
		}
	}
	for i, text := range responses {
		ev := sse.Event{Name: eventResponse, Data: text}
		if id != nil {
			ev.ID = id(i == len(responses)-1)
		}
		dst = sse.Append(dst, ev)
	}
	return dst
}
