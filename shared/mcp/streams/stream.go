package streams

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// Stream is an open stream. It sends the events and notices that its feed reads to the client, in the form that its [Framing] defines.
type Stream struct {
	Options
	Streams   *Streams
	Caller    Caller
	Feed      *stream.Feed      // set by [Stream.Open]
	targets   map[string]Target // by canonical URI
	interests interests
	// ids generates the ids of SSE events. It is nil except in the streams of sessions, because other streams have no such ids.
	ids       *Position
	eventName string // the name of SSE events with notifications; empty except in the named-event dialect

	out             *sse.Writer
	began           time.Time
	wrote           time.Time // the time of the latest write
	beaten          time.Time // the time of the latest heartbeat; before the first one, when the stream began
	completedCursor string    // the cursor after the last completed delivery
	incomplete      bool      // the feed's latest delivery was not completed
	// gathered has messages that [Stream.sendPending] has not written yet. It is nil between two calls, so that a quiet stream keeps
	// no memory.
	gathered  *[]byte
	gathering bool
	// subscriptionID is the id of the request subscriptions/listen or events/stream, which every message of the stream
	// repeats. It is nil in the stream of a session.
	subscriptionID json.RawMessage
	tasks          <-chan *api.Task // receives the states of the tasks that a subscriptions/listen names; nil without tasks
	ends           []func()         // are called in reverse order when the stream ends
}

// Options are the settings in which the kinds of streams differ.
type Options struct {
	Kind    string // the value of the attribute "kind" in log lines
	Framing Framing
	// MaxBeat is the longest time between two heartbeats, even while messages are sent. If it is 0, a heartbeat is due only
	// when no message was sent for [method.Timing.Heartbeat].
	MaxBeat time.Duration
	// Gather makes the stream write all messages that are ready with one write, because a write takes longer than everything else that a
	// stream does for a message. The framing's Deliver must not wait while there are gathered messages, because the wait would delay
	// them.
	Gather bool
}

// Framing defines the messages of a kind of stream, for example of subscriptions/listen.
type Framing interface {
	Begin(ctx context.Context) error
	// Deliver sends an event, or handles a notice, that the feed has read.
	Deliver(ctx context.Context, d stream.Delivery) error
	// Heartbeat checks the caller's credentials, and sends a message that keeps a quiet stream alive.
	Heartbeat(ctx context.Context) error
	// SendCursor is called when the feed has moved its cursor past events that the client does not receive, so that the
	// client can resume after them.
	SendCursor() error
	// Recover handles an error of the feed. The stream continues if it returns nil.
	Recover(ctx context.Context, err error) error
	// End sends the last message. It is not called if the client has closed the stream.
	End(c *method.Call, why error)
}

// basicFraming implements two methods of [Framing] for framings that embed it: SendCursor sends no cursor to the client, and Recover
// lets an error of the feed end the stream.
type basicFraming struct{}

func (basicFraming) SendCursor() error                          { return nil }
func (basicFraming) Recover(_ context.Context, err error) error { return err }

// New returns a stream for the caller of a request.
func (st *Streams) New(c *method.Call, o Options) *Stream {
	return &Stream{Options: o, Streams: st, Caller: Caller{Principal: c.Principal, Header: c.Request.Header}, targets: map[string]Target{}}
}

// interests are the changes and messages, other than events, of which a stream notifies its client.
type interests struct {
	resources, events, tools, prompts bool   // changes of lists
	roots                             bool   // roots/list_changed notifications of backends
	contexts                          bool   // contexts of conversation messages that were sent outside of sessions
	payloads                          bool   // whether _meta repeats the payloads of events
	level                             string // the lowest severity of log messages that the client asked for, or empty
}

// run sends events, notices and heartbeats until the stream ends, and returns the cause. Its stack must be small while it waits, because
// a process may have thousands of streams.
func (s *Stream) run(ctx context.Context) error {
	s.wrote = time.Now()
	s.Caller.checked, s.began, s.beaten = s.wrote, s.wrote, s.wrote
	quiet := time.NewTimer(s.Streams.Timing.Heartbeat)
	defer quiet.Stop()
	for {
		if err := s.sendPending(ctx); err != nil {
			return err
		}
		if s.Feed.CursorMoved() {
			if err := s.Framing.SendCursor(); err != nil {
				return err
			}
		}
		left := s.untilHeartbeat()
		if left <= 0 {
			if err := s.Framing.Heartbeat(ctx); err != nil {
				return err
			}
			s.beaten = time.Now()
			continue
		}
		quiet.Reset(left)
		select {
		case <-s.Feed.Ready():
		case task := <-s.tasks:
			if err := s.sendTask(ctx, task); err != nil {
				return err
			}
		case <-quiet.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *Stream) untilHeartbeat() time.Duration {
	due := s.wrote.Add(s.Streams.Timing.Heartbeat)
	if latest := s.beaten.Add(s.MaxBeat); s.MaxBeat > 0 && latest.Before(due) {
		due = latest
	}
	return time.Until(due)
}

// maxGathered is the size in bytes at which gathered messages are written without waiting for further messages.
const maxGathered = 16 << 10

// sendPending sends the events and notices that the feed has ready. It returns early if a heartbeat is due.
func (s *Stream) sendPending(ctx context.Context) error {
	s.gathering = s.Gather
	err := s.sendReady(ctx)
	s.gathering = false
	if failed := s.flush(); failed != nil {
		return failed
	}
	return err
}

func (s *Stream) sendReady(ctx context.Context) error {
	for ctx.Err() == nil {
		d, ok, err := s.Feed.Poll(ctx)
		switch {
		case err == nil && !ok:
			return nil
		case err == nil:
			if err = s.Framing.Deliver(ctx, d); err == nil {
				s.completedCursor = d.Cursor
			}
			s.incomplete = err != nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		default:
			err = s.Framing.Recover(ctx, err)
		}
		if err != nil {
			return err
		}
		if s.untilHeartbeat() <= 0 {
			return nil
		}
	}
	return context.Cause(ctx)
}

// ResumeAt returns the position from which the client can resume the stream: the feed's position or, if the latest event or notice was
// not sent completely, the position before it.
func (s *Stream) ResumeAt() string {
	if s.incomplete {
		return s.completedCursor
	}
	s.completedCursor = s.Feed.Cursor()
	return s.completedCursor
}

func (s *Stream) write(b []byte) error {
	if !s.gathering {
		return s.writeNow(b)
	}
	if s.gathered == nil {
		s.gathered = method.Buffers.Get().(*[]byte)
		*s.gathered = (*s.gathered)[:0]
	}
	if *s.gathered = append(*s.gathered, b...); len(*s.gathered) < maxGathered {
		return nil
	}
	return s.flush()
}

func (s *Stream) flush() error {
	if s.gathered == nil {
		return nil
	}
	all := s.gathered
	s.gathered = nil
	defer putBuffer(all)
	return s.writeNow(*all)
}

func putBuffer(b *[]byte) {
	if cap(*b) <= 1<<20 {
		method.Buffers.Put(b)
	}
}

func (s *Stream) writeNow(b []byte) error {
	if err := s.out.Write(b); err != nil {
		return errors.Join(method.ErrWriting, err)
	}
	s.wrote = time.Now()
	return nil
}

// verify checks the caller's credentials again if a check is due or the catalog has changed.
func (s *Stream) verify(ctx context.Context, d stream.Delivery) error {
	if d.Topic != stream.TopicCatalog && !s.CheckDue() {
		return nil
	}
	if err := s.flush(); err != nil { // send the gathered messages first, because the check may take long
		return err
	}
	return s.CheckCredentials(ctx)
}

// resolveAgain looks up the stream's URIs again after a change of the catalog, because a URI may now be the parent of a new event type.
// URIs that are no longer in the catalog stay subscribed, but the client receives no events for them.
func (s *Stream) resolveAgain(ctx context.Context) error {
	cat, err := s.Streams.Catalogs.CatalogOf(ctx, s.Caller.Principal)
	if err != nil {
		return err
	}
	for uri, t := range s.targets {
		if t.topic != "" || t.Backend != "" {
			continue
		}
		again, err := s.Streams.Resolve(ctx, cat, s.Caller.Principal, t.asked)
		if err != nil {
			if !t.lost {
				if err := s.sendLog("warning", "the catalog no longer has this URI for you, so it brings no further events", t.asked); err != nil {
					return err
				}
			}
			t.lost = true
			s.targets[uri] = t
			continue
		}
		t.lost = false
		for _, p := range again.Patterns {
			if slices.ContainsFunc(t.Patterns, func(q match.Pattern) bool { return q.Key == p.Key && q.Unordered == p.Unordered }) {
				continue
			}
			if err := s.Feed.Add(ctx, p, s.Streams.Feeds.PositionAfterChange(p)); err != nil {
				return err
			}
			t.Patterns = append(t.Patterns, p)
		}
		s.targets[uri] = t
	}
	return nil
}

func (s *Stream) extraTopics(ctx context.Context) []string {
	var out []string
	lists := s.interests.resources || s.interests.tools || s.interests.prompts
	if lists || s.interests.events || len(s.targets) > 0 {
		out = append(out, stream.TopicCatalog)
	}
	if s.interests.resources {
		out = append(out, stream.TopicPrincipal(s.Caller.Principal.ID))
	}
	if s.interests.contexts {
		out = append(out, stream.TopicConversation(s.Caller.Principal.ID))
	}
	if lists {
		return append(out, s.backendTopics(ctx)...)
	}
	for _, t := range s.targets {
		if t.Backend != "" {
			out = append(out, stream.TopicBackend(t.Backend))
		}
	}
	return out
}

// Caller is the principal of a stream, with the credentials of the request that opened it.
type Caller struct {
	Principal auth.Principal
	Header    http.Header
	checked   time.Time // when the credentials were last checked
}

// A stream stays open for a long time, so it checks the caller's credentials again: with every heartbeat, when the catalog has changed, and
// before an event if the latest check is older than the heartbeat interval.

// CheckDue reports whether the credentials must be checked before an event is sent.
func (s *Stream) CheckDue() bool {
	return time.Since(s.Caller.checked) >= s.Streams.Timing.Heartbeat
}

// CheckCredentials authenticates the caller again. It returns errRevoked if the credentials are no longer valid. If the
// authenticator is unavailable, it returns no error, so that the stream continues.
func (s *Stream) CheckCredentials(ctx context.Context) error {
	s.Caller.checked = time.Now()
	now, err := Recheck(ctx, s.Streams.Auth, s.Caller.Header, s.Caller.Principal)
	if err == nil {
		s.Caller.Principal = now
	}
	return err
}

// Recheck authenticates the caller of an open stream again with the headers of its request, and returns the current principal. It returns
// errRevoked if the credentials are no longer valid, or if they no longer stand for the same principal with [auth.ScopeRead]. If the
// authenticator is unavailable, it returns the parameter before, which is the previous principal, and no error.
func Recheck(ctx context.Context, a auth.Authenticator, header http.Header, before auth.Principal) (auth.Principal, error) {
	now, err := a.Authenticate(ctx, header)
	switch {
	case fault.Is(err, fault.Unauthenticated), fault.Is(err, fault.Forbidden):
		return before, errRevoked
	case err != nil:
		return before, nil
	case now.ID != before.ID || now.Workspace != before.Workspace || !now.Has(auth.ScopeRead):
		return before, errRevoked
	}
	return now, nil
}

// sendComment sends an SSE comment on the stream as a heartbeat. Before that, it checks that the caller's credentials are still valid, and
// returns an error if they are not.
func (s *Stream) sendComment(ctx context.Context) error {
	if err := s.CheckCredentials(ctx); err != nil {
		return err
	}
	return s.write(method.Comment)
}

// The kinds of streams, as they appear in the attribute "kind" of log lines.
const (
	kindSession = "session" // the GET stream of a session
	kindListen  = "subscriptions/listen"
	KindEvents  = "events/stream"
	kindDialect = "named_events"
)
