package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/sse"
	"github.com/mcp-events/mcpevents/shared/stream"
)

// dialectStream is the GET stream of a session in the dialect.
type dialectStream struct {
	sessionStream
}

// get serves GET: it opens the stream of a session, which begins with it
// unless the request names one.
func (d dialect) get(w http.ResponseWriter, r *http.Request, p auth.Principal) {
	if !accepts(r.Header, sse.ContentType) {
		sendError(w, http.StatusNotAcceptable, nil, invalidRequest("Accept must list text/event-stream"))
		return
	}
	c := call{request: r, principal: p}
	if !d.enter(w, &c) {
		return
	}
	if err := p.Require(auth.ScopeRead); err != nil {
		d.endpoint.replies.fault(w, &c, method{}, err)
		return
	}
	ctx, leave := d.endpoint.admission.admit(w, r, p, nil)
	if leave == nil {
		return
	}
	defer leave()
	s, err := d.open(ctx, &c)
	if err != nil {
		if fault.Is(err, fault.Invalid) {
			sendError(w, http.StatusBadRequest, nil, d.endpoint.faults.translate(ctx, err, c.version, coreMethods))
			return
		}
		d.endpoint.replies.sessionFailed(w, &c, err)
		return
	}
	defer s.feed.Close()
	end, err := s.hold(ctx)
	if err != nil {
		d.endpoint.replies.sessionFailed(w, &c, err)
		return
	}
	w.Header().Set(mcpspec.HeaderSession, s.sess.ID)
	streamHeaders(w.Header(), r)
	var done func() bool
	s.out, done = d.endpoint.admission.writer(w)
	defer done()
	if err = s.begin(); err == nil {
		err = s.run(ctx)
	}
	s.ended(r, err)
	// From here on answers go to their POSTs, so that none is sent to a stream that is over.
	d.endpoint.admission.tidy(end)
	if errors.Is(err, errWriting) || r.Context().Err() != nil {
		return
	}
	s.finish(err)
}

// open finds or makes the session and opens its feed.
func (d dialect) open(ctx context.Context, c *call) (*dialectStream, error) {
	from := position{}
	if c.session == nil {
		var err error
		if c.session, err = d.endpoint.sessions.Create(ctx, session.Session{
			Workspace: c.principal.Workspace, Principal: c.principal.ID, Version: dialectVersion, Dialect: true,
		}); err != nil {
			return nil, err
		}
		from.session = c.session.Key
	} else {
		from.session = c.session.Key
		if last := c.request.Header.Get(mcpspec.HeaderLastEvent); last != "" && !from.parse(last) {
			return nil, fault.New(fault.Invalid, "Last-Event-ID is not one of this session")
		}
	}
	s := &dialectStream{sessionStream{streamWriter: d.endpoint.streams.sessionWriter(c), sess: c.session, position: from}}
	s.framing, s.kind = s, kindDialect
	return s, s.open(ctx)
}

// hold records that the stream is open until the function that it returns is called.
func (s *dialectStream) hold(ctx context.Context) (end func(), err error) {
	until, ok := ctx.Deadline() // there is one: the maximum age
	if !ok {
		until = time.Now().Add(s.streams.maxAge)
	}
	sessions := s.streams.sessions
	lease, err := sessions.Opened(ctx, s.sess.Key, until)
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reserve/2)
		defer cancel()
		if err := sessions.Closed(ctx, s.sess.Key, lease); err != nil {
			s.streams.faults.log(ctx, "end of stream not recorded", err)
		}
	}, err
}

// lifecycle makes an event about the connection; params is a JSON object.
func (s *dialectStream) lifecycle(method string, params any, retry time.Duration) []byte {
	return sse.Append(nil, sse.Event{
		Name: eventLifecycle, ID: s.position.next(s.resumeAt()), Retry: retry,
		Data: jsonrpc.AppendNotification(nil, method, mustJSON(params)),
	})
}

func timestamp() map[string]string {
	return map[string]string{"timestamp": time.Now().UTC().Format(time.RFC3339)}
}

func (s *dialectStream) begin() error {
	if err := s.write(s.lifecycle("streamOpened", timestamp(), 0)); err != nil {
		return err
	}
	return s.tellGap()
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

// closings are the reasons that streamClosed can give, by what ended the stream.
var closings = []struct {
	err    error
	reason string
}{
	{errAge, "maxAge"},
	{errExpired, "maxAge"},
	{errEnding, "shutdown"},
	{stream.ErrClosed, "shutdown"},
	{errTaken, "superseded"},
	{errSuperseded, "superseded"},
	{stream.ErrSlow, "tooSlow"},
	{errRevoked, "revoked"},
}

// finish notifies why the server closes.
func (s *dialectStream) finish(why error) {
	reason, retry := "error", reconnect
	for _, c := range closings {
		if errors.Is(why, c.err) {
			reason = c.reason
			break
		}
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
	return s.write(appendResponses(nil, text, func() string { return s.position.next(cursor) }))
}
