package streams

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// reconnect is how long a client should wait before it reconnects to a stream that the server closed.
const reconnect = time.Second

// Position generates and parses the SSE ids of a stream:
//
//	nonce.sequence.cursor
//
// The nonce identifies the stream across reconnections. It contains a hash of the session, so that an id of another session is refused. The
// sequence makes ids unique if two cursors are equal.
type Position struct {
	session  string // the session's key
	nonce    string
	sequence uint64
	cursor   string // where the last connection ended; empty on a new stream
}

func (p *Position) next(cursor string) string {
	p.sequence++
	return p.nonce + "." + strconv.FormatUint(p.sequence, 36) + "." + cursor
}

func (p *Position) parse(id string) bool {
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

// sessionStream implements [Framing] for the GET stream of a session.
type sessionStream struct {
	basicFraming
	stream     *Stream
	sess       *session.Session
	position   Position
	connection string
	begun      bool      // the store already knows that a stream of the session has begun
	known      time.Time // when the subscriptions were read last
	taken      bool      // the session has ended or has a newer stream
}

// OpenSession opens the GET stream of a session. The parameter last is the position at which the client's previous connection ended, or
// zero.
func (st *Streams) OpenSession(ctx context.Context, c *method.Call, last Position) (*Stream, error) {
	s := st.newSessionStream(c, kindSession, last)
	s.stream.interests.roots = true
	return s.stream, s.open(ctx)
}

// newSessionStream returns the stream of a session. The stream always notifies the client of changes to the lists of tools, prompts and
// resources. Only the client of a subscriptions/listen can choose among these notifications.
func (st *Streams) newSessionStream(c *method.Call, kind string, last Position) *sessionStream {
	last.session = c.Session.Key
	s := &sessionStream{position: last}
	s.stream = st.New(c, Options{Kind: kind, Framing: s})
	s.stream.ids = &s.position
	s.stream.interests = interests{
		resources: st.Methods.Has(spec.MethodResources), tools: st.Methods.Has(spec.MethodToolsList), prompts: st.Methods.Has(spec.MethodPromptsList),
	}
	s.setSession(c.Session)
	return s
}

func (s *sessionStream) setSession(sess *session.Session) {
	s.sess = sess
	wants := &s.stream.interests
	wants.events = sess.Events && s.stream.Streams.Methods.Has(spec.MethodEvents)
	wants.payloads, wants.level = sess.Payloads, sess.Level
}

func (s *sessionStream) Deliver(ctx context.Context, d stream.Delivery) error {
	if err := s.stream.verify(ctx, d); err != nil {
		return err
	}
	switch {
	case d.Event != nil:
		if ok, err := s.isSubscribed(ctx, d); !ok || err != nil {
			return err
		}
	case d.Topic == stream.TopicSession(s.sess.Key) && bytes.HasPrefix(d.Notice, contextPrefix):
		return s.stream.sendContext(ctx, d)
	case d.Topic == stream.TopicSession(s.sess.Key):
		return s.refresh(ctx)
	}
	return s.stream.notify(ctx, d)
}

func (s *sessionStream) Heartbeat(ctx context.Context) error { return s.stream.sendComment(ctx) }

// open makes this the newest stream of its session and opens the feed from which it reads. If the client subscribes to further URIs
// later, a notice on the session's topic in the event log tells the stream.
func (s *sessionStream) open(ctx context.Context) error {
	began := s.stream.Streams.Feeds.Log.Position()
	s.connection = randomText(8)
	earlier, err := s.stream.Streams.Sessions.TakeOver(ctx, s.sess, s.connection)
	if err != nil {
		return err
	}
	s.begun = earlier.Begun
	if s.position.nonce == "" {
		s.position.nonce, s.position.cursor = streamNonce(randomText(8), s.sess.Key), earlier.QuietEnd
	}
	s.recordQuietEnd(ctx)
	_, subscribed, err := s.subscriptions(ctx)
	if err != nil {
		return err
	}
	request := stream.Request{
		Workspace: s.stream.Caller.Principal.Workspace, Cursor: s.position.cursor, TopicsAfter: began,
		Topics: []string{stream.TopicSession(s.sess.Key), stream.TopicCatalog, stream.TopicPrincipal(s.stream.Caller.Principal.ID)},
	}
	// The first stream that begins in a session sends, for each subscription, the events since the client subscribed, because
	// clients may subscribe before they open the stream. Later streams continue from their cursor or from now.
	first := !earlier.Begun && s.position.cursor == ""
	if !first {
		request.Topics = append(request.Topics, s.stream.backendTopics(ctx)...)
	}
	for uri, t := range subscribed {
		s.stream.targets[uri] = t.Target
		if !first {
			t.addTo(&request)
		}
	}
	if err := s.stream.Open(ctx, request); err != nil {
		return err
	}
	if first {
		// Add the subscribed URIs in the order in which the client subscribed. Several of them may use the same topic of a backend, and
		// the feed reads a topic from the position of the first of them.
		for _, t := range slices.SortedFunc(maps.Values(subscribed), compareAfter) {
			if err := s.add(ctx, t); err != nil {
				return err
			}
		}
		for _, topic := range s.stream.backendTopics(ctx) {
			s.stream.Feed.Follow(topic, began)
		}
	}
	if !earlier.Exists {
		return nil
	}
	// Notify the previous stream of the session, so that it ends. This stream receives the notice too, and stays open because
	// it is the newest.
	return s.stream.Streams.Feeds.Log.Notify(ctx, s.stream.Caller.Principal.Workspace, stream.TopicSession(s.sess.Key), SessionNotice)
}

// recordQuietEnd registers a function that records the stream's position when the stream ends without having sent an event
// id. Before 2025-11-25, streams cannot send an id without a message. A client without an id reconnects without a
// Last-Event-ID, and its next stream then begins at the recorded position.
func (s *sessionStream) recordQuietEnd(ctx context.Context) {
	sequence := s.position.sequence
	s.stream.ends = append(s.stream.ends, func() {
		cursor := s.position.cursor
		if s.stream.Feed != nil {
			cursor = s.stream.ResumeAt()
		}
		if s.taken || s.position.sequence != sequence || cursor == "" {
			return
		}
		s.stream.Streams.Admission.cleanUp(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reserve/2)
			defer cancel()
			if err := s.stream.Streams.Sessions.RecordQuietEnd(ctx, s.sess, s.connection, cursor); err != nil {
				s.stream.Streams.Faults.LogError(ctx, "position of stream not recorded", err)
			}
		})
	})
}

type subscribed struct {
	Target
	after int64 // the position of the event log when the client subscribed
}

func compareAfter(a, b *subscribed) int { return cmp.Compare(a.after, b.after) }

// subscriptions reads the session's subscriptions. The map uris has the URIs of all subscriptions. The map fresh has the subscriptions
// that the stream does not have yet, or that another backend serves now, except for URIs that are unknown or forbidden now.
func (s *sessionStream) subscriptions(ctx context.Context) (uris map[string]bool, fresh map[string]*subscribed, err error) {
	stored, err := s.stream.Streams.Sessions.ListSubscriptions(ctx, s.sess.Key)
	if err != nil {
		return nil, nil, err
	}
	cat, err := s.stream.Streams.Catalogs.CatalogOf(ctx, s.stream.Caller.Principal)
	if err != nil {
		return nil, nil, err
	}
	uris, fresh = make(map[string]bool, len(stored)), map[string]*subscribed{}
	for _, u := range stored {
		uris[u.URI] = true
		if t, has := s.stream.targets[u.URI]; has && t.Backend == u.Backend {
			continue
		}
		if u.Backend != "" {
			// Keep the backend from the session's record and do not look it up again. The session stays subscribed at the backend even
			// while the backend does not list the resource.
			fresh[u.URI] = &subscribed{Target{URI: u.URI, asked: u.URI, Backend: u.Backend}, u.After}
			continue
		}
		t, err := s.stream.Streams.Resolve(ctx, cat, s.stream.Caller.Principal, u.URI)
		switch {
		case err == nil:
			fresh[u.URI] = &subscribed{t, u.After}
		case fault.Is(err, fault.Unavailable), fault.Is(err, fault.Internal):
			return nil, nil, err
		}
	}
	return uris, fresh, nil
}

// add makes the feed read the messages for a subscribed URI. If the feed already follows the URI's topic, it keeps its position in the
// topic.
func (s *sessionStream) add(ctx context.Context, t *subscribed) error {
	switch {
	case t.topic != "":
		s.stream.Feed.Follow(t.topic, t.after)
		return nil
	case t.Backend != "":
		s.stream.Feed.Follow(stream.TopicBackend(t.Backend), t.after)
		return nil
	}
	for _, p := range t.Patterns {
		if err := s.stream.Feed.Add(ctx, p, t.after); err != nil {
			return err
		}
	}
	return nil
}

// Begin sends the first messages. In revision 2025-11-25, the first one is an event with only an id, from which the client can
// resume even if no other event follows.
func (s *sessionStream) Begin(ctx context.Context) error {
	at := s.stream.ResumeAt()
	first := method.Comment // an SSE comment, which sends the headers of the response
	if s.sess.Version >= spec.V20251125 {
		first = sse.Append(nil, sse.Event{ID: s.position.next(at), Data: []byte{}})
	}
	if err := s.stream.write(first); err != nil {
		return err
	}
	if err := s.sendGap(); err != nil {
		return err
	}
	s.recordBegun(ctx)
	return nil
}

func (s *sessionStream) recordBegun(ctx context.Context) {
	if s.begun {
		return
	}
	if err := s.stream.Streams.Sessions.RecordStreamBegun(ctx, s.sess, s.connection); err != nil {
		s.stream.Streams.Faults.LogError(ctx, "first stream not recorded", err) // the session's next stream will repeat the events of this one
	}
}

// sendGap notifies the client that all of its resources may have changed, if the event log no longer has all events since the client's
// cursor. The notifications carry the position before the gap, so that a client that is disconnected in between gets them again.
func (s *sessionStream) sendGap() error {
	if !s.stream.Feed.Truncated {
		return nil
	}
	cursor := s.stream.ResumeAt()
	for _, t := range s.stream.targets {
		if err := s.stream.sendGapOf(t.asked, cursor); err != nil {
			return err
		}
	}
	if err := s.stream.sendLog("warning", "the log does not reach back to where the stream ended; events are missing", ""); err != nil {
		return err
	}
	return s.stream.Send(spec.NoteResourcesChange, nil, nil, cursor)
}

// End sends an SSE event with only an id, from which the client can resume the stream. Revisions before 2025-11-25 do not have such
// events.
func (s *sessionStream) End(_ *method.Call, why error) {
	if s.sess.Version >= spec.V20251125 && !errors.Is(why, errTaken) {
		_ = s.stream.write(sse.Append(nil, sse.Event{ID: s.position.next(s.stream.ResumeAt()), Retry: reconnect, Data: []byte{}}))
	}
}

// refresh applies the changes that other requests made to the session. It returns errTaken if the session has ended or has a
// newer stream.
func (s *sessionStream) refresh(ctx context.Context) error {
	began := time.Now()
	sess, err := s.stream.Streams.Sessions.ReloadForStream(ctx, s.sess, s.connection)
	if err != nil {
		return err
	}
	if sess == nil {
		s.taken = true
		return errTaken
	}
	s.setSession(sess)
	wanted, fresh, err := s.subscriptions(ctx)
	if err != nil {
		return err
	}
	for uri, t := range fresh {
		s.drop(s.stream.targets[uri]) // remove the target that the URI had at another backend, if any
		if err := s.add(ctx, t); err != nil {
			return err
		}
		s.stream.targets[uri] = t.Target
	}
	for uri, t := range s.stream.targets {
		if !wanted[uri] {
			s.drop(t)
			delete(s.stream.targets, uri)
		}
	}
	s.known = began
	return nil
}

// isSubscribed reports whether the stream is still subscribed to the URI of an event that it has read. If [stream.Delivery.InOrder] is
// false, the notice that the client has unsubscribed may arrive later than the event. Then isSubscribed reads the session's subscriptions
// from the store, once for all events that were read together.
func (s *sessionStream) isSubscribed(ctx context.Context, d stream.Delivery) (bool, error) {
	if d.InOrder {
		return true, nil
	}
	if s.known.Before(d.Read) {
		if err := s.refresh(ctx); err != nil {
			return false, err
		}
	}
	for _, t := range s.stream.targets {
		for _, p := range t.Patterns {
			if match.Matches(p.Key, d.Event.URI) {
				return true, nil
			}
		}
	}
	return false, nil
}

func (s *sessionStream) drop(t Target) {
	if t.topic != "" {
		s.stream.Feed.Unfollow(t.topic)
	}
	for _, p := range t.Patterns {
		s.stream.Feed.Remove(p)
	}
}

// LastEvent returns the position in the header Last-Event-ID, or the zero position without the header.
func LastEvent(c *method.Call) (Position, error) {
	last := c.Request.Header.Get(spec.HeaderLastEvent)
	if c.Session == nil || last == "" {
		return Position{}, nil
	}
	p := Position{session: c.Session.Key}
	if !p.parse(last) {
		return p, fault.New(fault.Invalid, "Last-Event-ID is not one of this session")
	}
	return p, nil
}
