package mcp

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/sse"
	"github.com/mcp-events/mcpevents/shared/stream"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

// reconnect is how long a client is asked to wait before it comes back to a
// stream that the server closed.
const reconnect = time.Second

// get serves GET: the stream of a session of the earlier revisions.
func (e *Endpoint) get(w http.ResponseWriter, r *http.Request, p auth.Principal) {
	if e.sessions == nil || e.options.Feeds == nil || mcpspec.Version(r.Header.Get(mcpspec.HeaderVersion)).Stateless() {
		e.notAllowed(w, r)
		return
	}
	if !accepts(r.Header, sse.ContentType) {
		sendError(w, http.StatusNotAcceptable, nil, &jsonrpc.Error{Code: jsonrpc.InvalidRequest, Message: "Accept must list text/event-stream"})
		return
	}
	c := call{request: r, principal: p}
	if !e.enterSession(w, &c) {
		return
	}
	if err := p.Require(auth.ScopeRead); err != nil {
		e.replies.fault(w, &c, method{}, err)
		return
	}
	from := position{session: c.session.Key}
	last := r.Header.Get(mcpspec.HeaderLastEvent)
	if last != "" && !from.parse(last) {
		sendError(w, http.StatusBadRequest, nil, &jsonrpc.Error{Code: jsonrpc.InvalidRequest, Message: "Last-Event-ID is not one of this session"})
		return
	}
	ctx, leave := e.admission.admit(w, r, p, nil)
	if leave == nil {
		return
	}
	defer leave()
	s := &sessionStream{streamWriter: e.streams.sessionWriter(&c), sess: c.session, position: from}
	s.framing, s.roots = s, true
	if err := s.open(ctx); err != nil {
		if fault.Is(err, fault.Invalid) {
			sendError(w, http.StatusBadRequest, nil, e.faults.translate(ctx, err, c.version, coreMethods))
			return
		}
		e.replies.sessionFailed(w, &c, err)
		return
	}
	defer s.feed.Close()
	var done func() bool
	s.out, done = e.admission.writer(w)
	defer done()
	err := s.begin()
	if err == nil {
		err = s.run(ctx)
	}
	s.ended(r, err)
	if errors.Is(err, errWriting) || errors.Is(err, errTaken) || r.Context().Err() != nil {
		return
	}
	s.finish()
}

// position makes the SSE ids of a stream and reads them back:
//
//	nonce.sequence.cursor
//
// The nonce names the stream and stays over reconnections; it holds a hash with
// the session, so that an id of another session is refused. The sequence makes
// ids unique where two cursors are equal.
type position struct {
	session  string // its key, which is known here alone
	nonce    string
	sequence uint64
	cursor   string // where the last connection ended; empty on a new stream
}

func (p *position) next(cursor string) string {
	p.sequence++
	return p.nonce + "." + strconv.FormatUint(p.sequence, 36) + "." + cursor
}

func (p *position) parse(id string) bool {
	nonce, rest, _ := strings.Cut(id, ".")
	sequence, cursor, ok := strings.Cut(rest, ".")
	n, err := strconv.ParseUint(sequence, 36, 64)
	if !ok || err != nil || cursor == "" || len(nonce) != 2*nonceSize || nonce != streamNonce(nonce[:nonceSize], p.session) {
		return false
	}
	p.nonce, p.sequence, p.cursor = nonce, n, cursor
	return true
}

const nonceSize = 11 // characters of 8 bytes in base64url

func streamNonce(random, session string) string {
	h := sha256.Sum256([]byte("stream\x00" + random + "\x00" + session))
	return random + base64.RawURLEncoding.EncodeToString(h[:8])
}

func randomText(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (Go 1.24)
	return base64.RawURLEncoding.EncodeToString(b)
}

// sessionStream is the GET stream of a session.
type sessionStream struct {
	streamWriter
	sess       *session.Session
	position   position
	connection string
	known      time.Time // when the subscriptions were read last
}

// sessionWriter is the stream writer of a session's stream: it notifies of all lists that there are.
func (st *streams) sessionWriter(c *call) streamWriter {
	return streamWriter{
		kind: kindSession, streams: st, principal: c.principal, header: c.request.Header,
		resources: st.methods.has(mcpspec.MethodResources), events: c.session.Events && st.methods.has(mcpspec.MethodEvents),
		tools: st.methods.has(mcpspec.MethodToolsList), prompts: st.methods.has(mcpspec.MethodPromptsList),
		payloads: c.session.Payloads, targets: map[string]target{},
	}
}

// deliver sends a delivery, or follows what other requests did to the session.
func (s *sessionStream) deliver(ctx context.Context, d stream.Delivery) error {
	if err := s.verify(ctx, d); err != nil {
		return err
	}
	switch {
	case d.Event != nil:
		if ok, err := s.certain(ctx, d); !ok || err != nil {
			return err
		}
	case d.Topic == stream.TopicSession(s.sess.Key) && isContext(d.Notice):
		return s.sendContext(ctx, d)
	case d.Topic == stream.TopicSession(s.sess.Key):
		return s.refresh(ctx)
	}
	return s.notify(ctx, d)
}

func (s *sessionStream) due(quiet time.Time) time.Time { return quiet }

func (s *sessionStream) heartbeat(ctx context.Context) error {
	if err := s.look(ctx); err != nil {
		return err
	}
	return s.write(comment)
}

func (s *sessionStream) failed(_ context.Context, err error) error { return err }

func (s *sessionStream) event(cursor string) sse.Event { return sse.Event{ID: s.position.next(cursor)} }

// open makes this the newest stream of its session and opens its feed. What was
// subscribed after that reaches the stream as a notice.
func (s *sessionStream) open(ctx context.Context) error {
	began := s.streams.log.Position()
	s.connection = randomText(8)
	before, err := s.streams.sessions.TakeOver(ctx, s.sess, s.connection)
	if err != nil {
		return err
	}
	if s.position.nonce == "" {
		s.position.nonce = streamNonce(randomText(8), s.sess.Key)
	}
	uris, err := s.streams.sessions.Subscriptions(ctx, s.sess.Key)
	if err != nil {
		return err
	}
	cat, err := s.streams.catalogs.of(ctx, s.principal)
	if err != nil {
		return err
	}
	request := stream.Request{
		Workspace: s.principal.Workspace, Cursor: s.position.cursor, TopicsAfter: began,
		Topics: append(
			[]string{stream.TopicSession(s.sess.Key), stream.TopicCatalog, stream.TopicPrincipal(s.principal.ID)}, s.backendTopics(ctx)...,
		),
	}
	// The first stream of a session brings what happened since each subscription, for
	// a client may subscribe before its stream is open. Later ones go on from their cursor or from now.
	first := !before && s.position.cursor == ""
	var late []session.URI
	for _, u := range uris {
		t, err := s.streams.targets.resolve(ctx, cat, s.principal, u.URI)
		if err != nil {
			if fault.Is(err, fault.Unavailable) || fault.Is(err, fault.Internal) {
				return err
			}
			continue // gone from the catalog, or no longer the caller's to have
		}
		s.targets[t.uri] = t
		if first {
			late = append(late, u)
			continue
		}
		request.Patterns = append(request.Patterns, t.patterns...)
		if t.topic != "" {
			request.Topics = append(request.Topics, t.topic)
		}
	}
	if s.feed, err = s.streams.feeds.Open(ctx, request); err != nil {
		return err
	}
	for _, u := range late {
		if err := s.add(ctx, s.targets[u.URI], u.Position()); err != nil {
			s.feed.Close()
			return err
		}
	}
	// Tell the stream that was the newest before; its own notice does nothing.
	if before {
		if err := s.streams.log.Notify(ctx, s.principal.Workspace, stream.TopicSession(s.sess.Key), sessionNotice); err != nil {
			s.feed.Close()
			return err
		}
	}
	return nil
}

func (s *sessionStream) add(ctx context.Context, t target, after int64) error {
	if t.topic != "" {
		s.feed.Follow(t.topic, after)
		return nil
	}
	for _, p := range t.patterns {
		if err := s.feed.Add(ctx, p, after); err != nil {
			return err
		}
	}
	return nil
}

// begin writes the first frames: from 2025-11-25 on an event that is only an id, from which
// the client can come back before anything happened.
func (s *sessionStream) begin() error {
	if s.sess.Version >= mcpspec.V20251125 {
		if err := s.write(sse.Append(nil, sse.Event{ID: s.position.next(s.resumeAt()), Data: []byte{}})); err != nil {
			return err
		}
	} else if err := s.write(comment); err != nil { // so that the headers leave
		return err
	}
	return s.tellGap()
}

// tellGap says after a gap in the log that all may have changed.
func (s *sessionStream) tellGap() error {
	if !s.feed.Truncated {
		return nil
	}
	cursor := s.resumeAt()
	truncated := func(b []byte) []byte { return append(b, `"`+MetaTruncated+`":true`...) }
	for _, t := range s.targets {
		uri := func(b []byte) []byte { return jsonrpc.AppendString(append(b, `"uri":`...), t.asked) }
		if err := s.send(mcpspec.NoteUpdated, uri, truncated, cursor); err != nil {
			return err
		}
	}
	if err := s.say("warning", "the log does not reach back to where the stream ended; events are missing", ""); err != nil {
		return err
	}
	return s.send(mcpspec.NoteResourcesChange, nil, nil, cursor)
}

// finish ends the connection, not the stream: the client may come back with the
// id of the last frame. Before 2025-11-25 there is no such frame.
func (s *sessionStream) finish() {
	if s.sess.Version >= mcpspec.V20251125 {
		_ = s.write(sse.Append(nil, sse.Event{ID: s.position.next(s.resumeAt()), Retry: reconnect, Data: []byte{}}))
	}
}

// refresh follows what other requests did to the session: it ended, has a newer
// stream, or is subscribed to other URIs.
func (s *sessionStream) refresh(ctx context.Context) error {
	began := time.Now()
	sess, err := s.streams.sessions.Served(ctx, s.sess, s.connection)
	if err != nil {
		return err
	}
	if sess == nil {
		return errTaken
	}
	s.sess, s.payloads, s.events = sess, sess.Payloads, sess.Events && s.streams.methods.has(mcpspec.MethodEvents)
	uris, err := s.streams.sessions.Subscriptions(ctx, s.sess.Key)
	if err != nil {
		return err
	}
	cat, err := s.streams.catalogs.of(ctx, s.principal)
	if err != nil {
		return err
	}
	wanted := make(map[string]bool, len(uris))
	for _, u := range uris {
		wanted[u.URI] = true
		if _, has := s.targets[u.URI]; has {
			continue
		}
		t, err := s.streams.targets.resolve(ctx, cat, s.principal, u.URI)
		if err != nil {
			if fault.Is(err, fault.Unavailable) || fault.Is(err, fault.Internal) {
				return err
			}
			continue
		}
		if err := s.add(ctx, t, u.Position()); err != nil {
			return err
		}
		s.targets[u.URI] = t
	}
	for uri, t := range s.targets {
		if !wanted[uri] {
			s.drop(t)
			delete(s.targets, uri)
		}
	}
	s.known = began
	return nil
}

// certain makes sure that nothing is sent that was published after the answer to its
// unsubscribe. Where the log is polled, an event can be read before the notice that
// says so; so the subscriptions are read again, once for what was read together.
func (s *sessionStream) certain(ctx context.Context, d stream.Delivery) (bool, error) {
	if s.streams.sessions.DB.Ordered() {
		return true, nil // a notice is here at once, an event only after its queue
	}
	if s.known.Before(d.Read) {
		if err := s.refresh(ctx); err != nil {
			return false, err
		}
	}
	for _, t := range s.targets {
		for _, p := range t.patterns {
			if subscription.Matches(p.Key, d.Event.URI) {
				return true, nil
			}
		}
	}
	return false, nil
}

func (s *sessionStream) drop(t target) {
	if t.topic != "" {
		s.feed.Unfollow(t.topic)
	}
	for _, p := range t.patterns {
		s.feed.Remove(p)
	}
}

// delete serves DELETE: it ends a session and its stream.
func (e *Endpoint) delete(w http.ResponseWriter, r *http.Request, p auth.Principal) {
	if e.sessions == nil || mcpspec.Version(r.Header.Get(mcpspec.HeaderVersion)).Stateless() {
		e.notAllowed(w, r)
		return
	}
	c := call{request: r, principal: p}
	if !e.enterSession(w, &c) {
		return
	}
	if e.backends.Any(r.Context()) {
		if err := e.backends.End(r.Context(), c.client()); err != nil {
			e.faults.log(r.Context(), "backend sessions left to expire", err)
		}
	}
	uris, err := e.sessions.Remove(r.Context(), c.session)
	e.session.unsubscribeAll(r.Context(), c.session, uris)
	if err == nil && e.options.Log != nil {
		err = e.options.Log.Notify(r.Context(), p.Workspace, stream.TopicSession(c.session.Key), sessionNotice)
	}
	if err != nil {
		e.replies.sessionFailed(w, &c, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
