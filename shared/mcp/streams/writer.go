package streams

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
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

// The reasons for which the server ends a stream.
var (
	errAge        = errors.New("mcp: the stream reached its maximum age")
	errExpired    = errors.New("mcp: the caller's token has expired")
	errRevoked    = errors.New("mcp: the caller's credentials are no longer valid")
	errEnding     = errors.New("mcp: the server is shutting down")
	errSuperseded = errors.New("mcp: the principal opened too many newer streams")
	errTaken      = errors.New("mcp: the session ended or has a newer stream")
)

// Writer writes the deliveries of a feed to one open stream, in the stream's framing.
type Writer struct {
	Kind      string // for the log
	Streams   *Streams
	Caller    Caller
	targets   map[string]Target // by canonical URI
	interests interests
	Framing   Framing

	Feed            *stream.Feed
	out             *sse.Writer
	began           time.Time
	wrote           time.Time // of the latest write
	completedCursor string    // the cursor after the last completed delivery
	incomplete      bool      // the feed's latest delivery was not completed
	// gathered has messages that [Writer.pass] has not written yet. It is nil between two passes, so that a quiet stream keeps
	// no memory.
	gathered  *[]byte
	gathering bool
	// subscriptionID is the id of the request subscriptions/listen or events/stream, which every message of the stream
	// repeats. It is nil in the stream of a session.
	subscriptionID json.RawMessage
	tasks          <-chan *api.Task // states of the tasks that a listen names; nil without any
	ends           []func()         // are called in reverse order when the stream ends
}

// interests are the changes and messages, other than events, of which a stream notifies its client.
type interests struct {
	resources, events, tools, prompts bool // changes of lists
	roots                             bool // a backend's question for roots
	contexts                          bool // context to messages that were sent outside of sessions
	payloads                          bool // repeat payloads in _meta
}

// run sends deliveries and heartbeats until the stream ends, and returns the cause. Its stack must be small while it waits,
// because a process may have thousands of streams.
func (w *Writer) run(ctx context.Context) error {
	w.wrote = time.Now()
	w.Caller.checked, w.began = w.wrote, w.wrote
	quiet := time.NewTimer(w.Streams.Timing.Heartbeat)
	defer quiet.Stop()
	for {
		if err := w.pass(ctx); err != nil {
			return err
		}
		if w.Feed.CursorMoved() && w.Framing.Moved != nil {
			if err := w.Framing.Moved(); err != nil {
				return err
			}
		}
		left := w.untilHeartbeat()
		if left <= 0 {
			if err := w.heartbeat(ctx); err != nil {
				return err
			}
			continue
		}
		quiet.Reset(left)
		select {
		case <-w.Feed.Ready():
		case task := <-w.tasks:
			if err := w.sendTask(ctx, task); err != nil {
				return err
			}
		case <-quiet.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// untilHeartbeat returns the time until the next heartbeat must be sent.
func (w *Writer) untilHeartbeat() time.Duration {
	due := w.wrote.Add(w.Streams.Timing.Heartbeat)
	if w.Framing.Due != nil {
		due = w.Framing.Due(due)
	}
	return time.Until(due)
}

// maxGathered is the number of bytes at which the gathered messages are written before the end of the pass.
const maxGathered = 16 << 10

// pass sends the deliveries that the feed has ready. It returns early if a heartbeat is due.
//
// If the framing has no Deliver function, pass writes all messages together, because a write takes longer than everything else
// that a stream does for a message. A Deliver function may have to wait, e.g. for the store, so its messages are written
// immediately.
func (w *Writer) pass(ctx context.Context) error {
	w.gathering = w.Framing.Deliver == nil
	err := w.sendReady(ctx)
	w.gathering = false
	if failed := w.flush(); failed != nil {
		return failed
	}
	return err
}

func (w *Writer) sendReady(ctx context.Context) error {
	for ctx.Err() == nil {
		d, ok, err := w.Feed.Poll(ctx)
		switch {
		case err == nil && !ok:
			return nil
		case err == nil:
			if err = w.deliver(ctx, d); err == nil {
				w.completedCursor = d.Cursor
			}
			w.incomplete = err != nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case w.Framing.Failed != nil:
			err = w.Framing.Failed(ctx, err)
		}
		if err != nil {
			return err
		}
		if w.untilHeartbeat() <= 0 {
			return nil
		}
	}
	return context.Cause(ctx)
}

// ResumeAt returns the position from which the client can resume: the feed's position or, if the latest delivery was not
// completed, the position before that delivery.
func (w *Writer) ResumeAt() string {
	if w.incomplete {
		return w.completedCursor
	}
	w.completedCursor = w.Feed.Cursor()
	return w.completedCursor
}

func (w *Writer) write(b []byte) error {
	if !w.gathering {
		return w.writeNow(b)
	}
	if w.gathered == nil {
		w.gathered = method.Buffers.Get().(*[]byte)
		*w.gathered = (*w.gathered)[:0]
	}
	if *w.gathered = append(*w.gathered, b...); len(*w.gathered) < maxGathered {
		return nil
	}
	return w.flush()
}

// flush writes the gathered messages.
func (w *Writer) flush() error {
	if w.gathered == nil {
		return nil
	}
	all := w.gathered
	w.gathered = nil
	defer putBuffer(all)
	return w.writeNow(*all)
}

// putBuffer returns a buffer to the pool unless it is large.
func putBuffer(b *[]byte) {
	if cap(*b) <= 1<<20 {
		method.Buffers.Put(b)
	}
}

func (w *Writer) writeNow(b []byte) error {
	if err := w.out.Write(b); err != nil {
		return errors.Join(method.ErrWriting, err)
	}
	w.wrote = time.Now()
	return nil
}

// verify checks the caller's credentials again if a check is due or the catalog has changed.
func (w *Writer) verify(ctx context.Context, d stream.Delivery) error {
	if d.Topic != stream.TopicCatalog && !w.CheckDue() {
		return nil
	}
	if err := w.flush(); err != nil { // the check may take long
		return err
	}
	return w.CheckCredentials(ctx)
}

// resolveAgain resolves the stream's URIs after a change of the catalog. A URI may now be the parent of a new event type. URIs that are no
// longer in the catalog stay, without events.
func (w *Writer) resolveAgain(ctx context.Context) error {
	cat, err := w.Streams.Catalogs.CatalogOf(ctx, w.Caller.Principal)
	if err != nil {
		return err
	}
	for uri, t := range w.targets {
		if t.topic != "" || t.Backend != "" {
			continue
		}
		again, err := w.Streams.Targets.Resolve(ctx, cat, w.Caller.Principal, t.asked)
		if err != nil {
			if !t.lost && w.Framing.lost != nil {
				if err := w.Framing.lost(t); err != nil {
					return err
				}
			}
			t.lost = true
			w.targets[uri] = t
			continue
		}
		t.lost = false
		for _, p := range again.Patterns {
			if slices.ContainsFunc(t.Patterns, func(q match.Pattern) bool { return q.Key == p.Key && q.Unordered == p.Unordered }) {
				continue
			}
			if err := w.Feed.Add(ctx, p, w.Streams.Feeds.AfterChange(p)); err != nil {
				return err
			}
			t.Patterns = append(t.Patterns, p)
		}
		w.targets[uri] = t
	}
	return nil
}

// extraTopics returns the topics that the stream follows in addition to the topics of its targets.
func (w *Writer) extraTopics(ctx context.Context) []string {
	var out []string
	lists := w.interests.resources || w.interests.tools || w.interests.prompts
	if lists || w.interests.events || len(w.targets) > 0 {
		out = append(out, stream.TopicCatalog)
	}
	if w.interests.resources {
		out = append(out, stream.TopicPrincipal(w.Caller.Principal.ID))
	}
	if w.interests.contexts {
		out = append(out, stream.TopicConversation(w.Caller.Principal.ID))
	}
	if lists {
		return append(out, w.backendTopics(ctx)...)
	}
	for _, t := range w.targets {
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
func (w *Writer) CheckDue() bool {
	return time.Since(w.Caller.checked) >= w.Streams.Timing.Heartbeat
}

// CheckCredentials authenticates the caller again. It returns errRevoked if the credentials are no longer valid. If the
// authenticator is unavailable, it returns no error, so that the stream continues.
func (w *Writer) CheckCredentials(ctx context.Context) error {
	w.Caller.checked = time.Now()
	now, err := Recheck(ctx, w.Streams.Auth, w.Caller.Header, w.Caller.Principal)
	if err == nil {
		w.Caller.Principal = now
	}
	return err
}

// Recheck authenticates an admitted caller again with the headers of its request, and returns the current principal. If the
// credentials are no longer valid, it returns errRevoked. If the authenticator is unavailable, it returns the previous
// principal, before, without an error.
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

// Framing defines how a kind of stream writes its messages. There is a framing for subscriptions/listen, for events/stream, for the
// streams of sessions, and for the stream of the named-event dialect. All of them share the loop in [Writer.run].
// Begin and End must be set. If another hook is nil, the loop uses its default.
type Framing struct {
	// Begin sends the first message. If it succeeds, [Streams.Hold] calls began.
	Begin func() error
	began func()
	// Deliver sends a delivery. The default sends it with [Writer.notify], and first checks the credentials if a check is due.
	Deliver func(ctx context.Context, d stream.Delivery) error
	// Due returns when the next heartbeat is due. quiet, which is the default, is one heartbeat interval after the latest
	// write. Due must not return a later time.
	Due func(quiet time.Time) time.Time
	// Heartbeat keeps a quiet stream alive. The default checks the credentials and sends a comment.
	Heartbeat func(ctx context.Context) error
	// Moved is called when the feed has moved its cursor past events that the client does not receive.
	Moved func() error
	// Failed handles an error of the feed. The stream continues if it returns nil. The default returns the error.
	Failed func(ctx context.Context, err error) error
	// event returns an SSE event without data, to which the message is added. The cursor is the position after the message.
	event func(cursor string) sse.Event
	// lost is called once if a URI is no longer in the catalog or the caller may no longer read it.
	lost func(t Target) error
	// End sends the last message. It is not called if the client has closed the stream.
	End func(c *method.Call, why error)
}

// deliver sends one delivery with the framing's Deliver function, or in the default way.
func (w *Writer) deliver(ctx context.Context, d stream.Delivery) error {
	if w.Framing.Deliver != nil {
		return w.Framing.Deliver(ctx, d)
	}
	if err := w.verify(ctx, d); err != nil {
		return err
	}
	return w.notify(ctx, d)
}

// heartbeat sends a heartbeat with the framing's Heartbeat function, or in the default way.
func (w *Writer) heartbeat(ctx context.Context) error {
	if w.Framing.Heartbeat != nil {
		return w.Framing.Heartbeat(ctx)
	}
	if err := w.CheckCredentials(ctx); err != nil {
		return err
	}
	return w.write(method.Comment)
}

// The kinds of streams, in the log.
const (
	kindSession = "session" // the GET stream of a session
	kindListen  = "subscriptions/listen"
	KindEvents  = "events/stream"
	kindDialect = "named_events"
)

// ending describes why a stream ended: its cause err, the reason for operators (in the log and the metrics), and the reason
// closing for clients of the named-event dialect (in streamClosed).
type ending struct {
	err             error
	reason, closing string
}

// endings lists the causes for which streams end.
var endings = []ending{
	{os.ErrDeadlineExceeded, "slow_reader", reasonError}, // of a write; must precede ErrWriting, which wraps it
	{stream.ErrSlow, "slow_reader", "tooSlow"},
	{method.ErrWriting, reasonClient, reasonError},
	{context.Canceled, reasonClient, reasonError},
	{errAge, "max_age", "maxAge"},
	{errExpired, "credentials_expired", "maxAge"},
	{errRevoked, "credentials_revoked", "revoked"},
	{stream.ErrToken, "backend_token", "revoked"},
	{errEnding, "shutdown", "shutdown"},
	{stream.ErrClosed, "shutdown", "shutdown"},
	{errSuperseded, "superseded", "superseded"},
	{errTaken, "session_taken", "superseded"},
}

const (
	reasonClient       = "client_closed"
	reasonSubscription = "subscription_ended"
	reasonError        = "error"
)

// endingOf returns the ending with the given cause, or nil for any other error.
func endingOf(why error) *ending {
	for i, x := range endings {
		if errors.Is(why, x.err) {
			return &endings[i]
		}
	}
	return nil
}

// endReason returns the reason, for operators, for which a stream ended.
func endReason(r *http.Request, why error) string {
	_, subscription := errors.AsType[*Ended](why)
	switch x := endingOf(why); {
	case x != nil:
		return x.reason
	case subscription:
		return reasonSubscription
	case r.Context().Err() != nil: // the client disconnected, which caused the failure
		return reasonClient
	}
	return reasonError
}

// finish logs why the stream ended, and notifies a client that still reads.
func (w *Writer) finish(c *method.Call, why error) {
	w.logEnd(c.Request, why)
	if !errors.Is(why, method.ErrWriting) && c.Request.Context().Err() == nil { // otherwise the client has closed the stream
		w.Framing.End(c, why)
	}
}

// logEnd logs and counts the end of the stream.
func (w *Writer) logEnd(r *http.Request, why error) {
	reason := endReason(r, why)
	w.Streams.Faults.Metrics.StreamEnded(reason)
	level, attrs := slog.LevelInfo, make([]slog.Attr, 0, 6)
	attrs = append(attrs, slog.String("reason", reason), slog.String("kind", w.Kind), slog.String("workspace", w.Caller.Principal.Workspace),
		slog.String("principal", w.Caller.Principal.LogName()))
	if !w.began.IsZero() {
		attrs = append(attrs, slog.Float64("open_s", time.Since(w.began).Round(time.Millisecond).Seconds()))
	}
	if reason == reasonError {
		level, attrs = slog.LevelWarn, append(attrs, slog.Any("error", why))
	}
	w.Streams.Faults.Logger.LogAttrs(context.WithoutCancel(r.Context()), level, "stream ended", attrs...)
}

// Ended is the error that ends an events/stream because the caller may no longer receive its events, or because the event type
// was removed or has changed incompatibly.
type Ended struct{ Reason error }

// Error implements error.
func (e *Ended) Error() string { return "mcp: the subscription ends: " + e.Reason.Error() }
