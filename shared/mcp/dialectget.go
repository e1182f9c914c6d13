package mcp

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// dialectStream is the framing of the GET stream of a session in the dialect.
type dialectStream struct {
	*sessionStream
	release func() // says that the stream is not open any more
}

// get serves GET: it opens the stream of a session, which begins with it
// unless the request names one.
func (d dialect) get(w http.ResponseWriter, c *call) {
	d.endpoint.sessionStream(w, c, d.enter, func(ctx context.Context, last position) (*streamWriter, error) {
		if c.session == nil {
			var err error
			if c.session, err = d.endpoint.session.create(ctx, c.principal, session.Session{
				Workspace: c.principal.Workspace, Principal: c.principal.ID, Version: dialectVersion, Dialect: true,
			}); err != nil {
				return nil, err
			}
		}
		s := &dialectStream{sessionStream: d.endpoint.streams.newSessionStream(c, kindDialect, last)}
		s.framing = s
		if err := s.open(ctx); err != nil {
			return s.streamWriter, err
		}
		if err := s.hold(ctx); err != nil {
			return s.streamWriter, err
		}
		w.Header().Set(spec.HeaderSession, s.sess.ID)
		streamHeaders(w.Header(), c.request)
		return s.streamWriter, nil
	})
}

// hold records that the stream is open, until it is released.
func (s *dialectStream) hold(ctx context.Context) error {
	until, ok := ctx.Deadline() // there is one: the maximum age
	if !ok {
		until = time.Now().Add(s.streams.admission.maxAge)
	}
	sessions := s.streams.sessions
	lease, err := sessions.Opened(ctx, s.sess.Key, until)
	if err != nil {
		return err
	}
	closed := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reserve/2)
		defer cancel()
		if err := sessions.Closed(ctx, s.sess.Key, lease); err != nil {
			s.streams.faults.log(ctx, "end of stream not recorded", err)
		}
	}
	s.release = sync.OnceFunc(func() { s.streams.admission.tidy(closed) })
	s.ends = append(s.ends, s.release)
	return nil
}

// lifecycle returns an event about the connection. params is a JSON object.
func (s *dialectStream) lifecycle(method string, params any, retry time.Duration) []byte {
	return sse.Append(nil, sse.Event{
		Name: eventLifecycle, ID: s.position.next(s.resumeAt()), Retry: retry,
		Data: jsonrpc.AppendNotification(nil, method, jsonrpc.Encode(params)),
	})
}

func timestamp() map[string]string {
	return map[string]string{"timestamp": time.Now().UTC().Format(time.RFC3339)}
}

func (s *dialectStream) begin() error {
	if err := s.write(s.lifecycle("streamOpened", timestamp(), 0)); err != nil {
		return err
	}
	return s.sendGap()
}

func (s *dialectStream) heartbeat(ctx context.Context) error {
	if err := s.look(ctx); err != nil {
		return err
	}
	return s.write(s.lifecycle("ping", timestamp(), 0))
}

func (s *dialectStream) event(cursor string) sse.Event {
	return sse.Event{Name: eventNotification, ID: s.position.next(cursor)}
}

// deliver is that of other sessions, but for answers to POSTs.
func (s *dialectStream) deliver(ctx context.Context, d stream.Delivery) error {
	var n responseNotice
	if d.Topic != stream.TopicSession(s.sess.Key) || json.Unmarshal(d.Notice, &n) != nil || n.Response == nil {
		return s.sessionStream.deliver(ctx, d)
	}
	if err := s.verify(ctx, d); err != nil {
		return err
	}
	return s.respond(ctx, n, d.Cursor)
}

// end notifies why the server closes.
func (s *dialectStream) end(_ *call, why error) {
	s.release() // before that, so that no answer goes to a stream that is over, but to its POST
	reason, retry := reasonError, reconnect
	if x := endingOf(why); x != nil {
		reason = x.closing
	}
	if reason == "superseded" {
		retry = 0 // coming back would end the newer stream
	}
	_ = s.write(s.lifecycle("streamClosed", map[string]string{"reason": reason}, retry)) // the stream ends either way
}

// respond sends an answer to one of the session's POSTs.
func (s *dialectStream) respond(ctx context.Context, n responseNotice, cursor string) error {
	text, err := openResponse(s.sess.ID, n.Response)
	if err != nil { // not written by this program; the others are still good
		s.streams.faults.log(ctx, "sealed answer not opened", err)
		return nil
	}
	return s.write(appendResponses(nil, text, func(last bool) string {
		if last {
			return s.position.next(cursor)
		}
		return s.position.next(s.reached) // a client that is cut off within the batch gets the batch again
	}))
}
