package streams

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
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

	Feed    *stream.Feed
	out     *sse.Writer
	began   time.Time
	wrote   time.Time // of the latest write
	reached string    // the cursor after the last completed delivery
	cut     bool      // the feed's latest delivery was not completed
	// gathered has messages of a pass that were not written yet. It is nil between passes, so that a quiet stream keeps no memory.
	gathered  *[]byte
	gathering bool
	// subscriptionID is the id of the listen, which every message repeats. It is nil in the stream of a session.
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

// run sends deliveries and heartbeats until the stream ends, and returns the cause. Its stack is small while it waits, because a process has
// thousands of streams.
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

// maxGathered is the number of bytes from which on gathered messages are written.
const maxGathered = 16 << 10

// pass sends the deliveries that the feed has ready. It returns early if a heartbeat is due. The default framing sends them with one
// write, because a write takes longer than everything else that a stream does for a message. Other framings may wait in a delivery.
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
				w.reached = d.Cursor
			}
			w.cut = err != nil
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

// ResumeAt returns the position from which a client can resume. It is the feed's position or, if the latest delivery was not completed, the
// position before that.
func (w *Writer) ResumeAt() string {
	if w.cut {
		return w.reached
	}
	w.reached = w.Feed.Cursor()
	return w.reached
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

// verify checks the caller's credentials again if a check is due.
func (w *Writer) verify(ctx context.Context, d stream.Delivery) error {
	if d.Topic != stream.TopicCatalog && !w.CheckDue() {
		return nil
	}
	if err := w.flush(); err != nil { // the check may take long
		return err
	}
	return w.CheckCredentials(ctx)
}

// notify sends a delivery in the form that all streams except events/stream share.
func (w *Writer) notify(ctx context.Context, d stream.Delivery) error {
	switch {
	case d.Event != nil:
		return w.sendEvent(ctx, d)
	case d.Lost != "":
		return w.sendLost(d)
	case d.Topic == stream.TopicCatalog && stream.OfBackends(d.Notice):
		return w.sendOtherBackends(ctx, d.Cursor)
	case d.Topic == stream.TopicCatalog:
		if err := w.sendChanges(d.Cursor, spec.NoteResourcesChange, spec.NoteEventsChange); err != nil {
			return err
		}
		return w.resolveAgain(ctx)
	case d.Topic == stream.TopicPrincipal(w.Caller.Principal.ID):
		return w.sendChanges(d.Cursor, spec.NoteResourcesChange)
	case strings.HasPrefix(d.Topic, topicSubscriptions):
		return w.sendState(d)
	case strings.HasPrefix(d.Topic, topicBackends):
		return w.sendBackend(ctx, d)
	case strings.HasPrefix(d.Topic, topicConversations):
		return w.sendContext(ctx, d)
	}
	return nil
}

// asks reports whether the client asked for a notification of a list's changes.
func (w *Writer) asks(note string) bool {
	switch note {
	case spec.NoteResourcesChange:
		return w.interests.resources
	case spec.NoteEventsChange:
		return w.interests.events
	case spec.NoteToolsChange:
		return w.interests.tools
	case spec.NotePromptsChange:
		return w.interests.prompts
	case spec.NoteRootsChange:
		return w.interests.roots
	}
	return false
}

// sendChanges sends the notifications of a delivery that the client asked for. cursor is the position after the delivery. Only the
// last notification carries it: a client that was cut off before must get the delivery again.
func (w *Writer) sendChanges(cursor string, notes ...string) error {
	asked := slices.DeleteFunc(notes, func(note string) bool { return !w.asks(note) })
	for i, note := range asked {
		at := w.reached
		if i == len(asked)-1 {
			at = cursor
		}
		if err := w.Send(note, nil, nil, at); err != nil {
			return err
		}
	}
	return nil
}

var topicSubscriptions = stream.TopicSubscription("")

// sendEvent sends an event if the current catalog still allows it.
func (w *Writer) sendEvent(ctx context.Context, d stream.Delivery) error {
	ev := d.Event
	cat, err := w.Streams.Catalogs.With(ctx, w.Caller.Principal, ev.Name)
	if err != nil {
		return err
	}
	if !Allowed(cat, w.Caller.Principal, ev) || !cat.ByName(ev.Name).PushAllowed() {
		return nil
	}
	members := func(b []byte) []byte {
		b = jsonrpc.AppendString(append(b, `"uri":`...), ev.URI)
		b = append(b, `,"payload":`...)
		return append(b, ev.Data...)
	}
	return w.Send(spec.NoteUpdated, members, func(b []byte) []byte { return w.eventMeta(b, ev) }, d.Cursor)
}

func (w *Writer) eventMeta(b []byte, ev *event.Event) []byte {
	b = jsonrpc.AppendString(append(b, `"`+spec.MetaEventID+`":`...), ev.ID)
	b = jsonrpc.AppendString(append(b, `,"`+spec.MetaTime+`":`...), ev.Timestamp())
	if w.interests.payloads {
		b = append(b, `,"`+spec.MetaPayload+`":`...)
		b = append(b, ev.Data...)
	}
	return b
}

// sendLost notifies the client of the URIs some of whose events cannot be read. Only the last notification carries the cursor,
// so that a client that is cut off before it gets all of them again.
func (w *Writer) sendLost(d stream.Delivery) error {
	var uris []string
	for _, t := range w.targets {
		if slices.ContainsFunc(t.Patterns, func(p match.Pattern) bool { return p.Key == d.Lost }) {
			uris = append(uris, t.asked)
		}
	}
	for i, uri := range uris {
		cursor := w.reached
		if i == len(uris)-1 {
			cursor = d.Cursor
		}
		if err := w.sendGapOf(uri, cursor); err != nil {
			return err
		}
	}
	return nil
}

// sendGapOf notifies the client that events of a URI are missing.
func (w *Writer) sendGapOf(uri, cursor string) error {
	return w.Send(spec.NoteUpdated, func(b []byte) []byte {
		return jsonrpc.AppendString(append(b, `"uri":`...), uri)
	}, text(metaTruncated), cursor)
}

// sendState notifies that the state of a subscription changed.
func (w *Writer) sendState(d stream.Delivery) error {
	for _, t := range w.targets {
		if t.topic != d.Topic {
			continue
		}
		var notice struct {
			State string `json:"state"`
		}
		_ = json.Unmarshal(d.Notice, &notice) // written by this program; without a state, the client reads the resource
		return w.Send(spec.NoteUpdated, func(b []byte) []byte {
			b = jsonrpc.AppendString(append(b, `"uri":`...), t.asked)
			if notice.State != "" {
				b = jsonrpc.AppendString(append(b, `,"payload":{"state":`...), notice.State)
				b = append(b, '}')
			}
			return b
		}, nil, d.Cursor)
	}
	return nil
}

const metaTruncated = `"` + spec.MetaTruncated + `":true`

// text returns a function that appends s, or nil if s is empty.
func text[T string | []byte](s T) func([]byte) []byte {
	if len(s) == 0 {
		return nil
	}
	return func(b []byte) []byte { return append(b, s...) }
}

// Send writes a notification. members and meta append the members of params and of its _meta without braces. Both may be nil.
func (w *Writer) Send(name string, members, meta func([]byte) []byte, cursor string) error {
	text, wire := method.Buffers.Get().(*[]byte), method.Buffers.Get().(*[]byte)
	defer putBuffer(text)
	defer putBuffer(wire)
	b := append((*text)[:0], `{"jsonrpc":"2.0","method":"`...)
	b = append(b, name...)
	b = append(b, `","params":{`...)
	if members != nil {
		b = members(b)
	}
	if meta != nil || w.subscriptionID != nil {
		if members != nil {
			b = append(b, ',')
		}
		b = append(b, `"_meta":{`...)
		if w.subscriptionID != nil {
			b = w.appendIDs(b, cursor)
			if meta != nil {
				b = append(b, ',')
			}
		} else if name == spec.NoteUpdated && cursor != "" && meta != nil {
			b = jsonrpc.AppendString(append(b, `"`+spec.MetaCursor+`":`...), cursor)
			b = append(b, ',')
		}
		if meta != nil {
			b = meta(b)
		}
		b = append(b, '}')
	}
	b = append(b, `}}`...)
	e := sse.Event{}
	if w.Framing.event != nil {
		e = w.Framing.event(cursor)
	}
	e.Data = b
	*text = b
	*wire = sse.Append((*wire)[:0], e)
	return w.write(*wire)
}

// appendIDs appends the members of _meta that every message of a listen or an events/stream carries. The cursor is empty for an
// events/stream, which has it in params.
func (w *Writer) appendIDs(b []byte, cursor string) []byte {
	b = append(b, `"`+spec.MetaSubscription+`":`...)
	b = append(b, w.subscriptionID...)
	if cursor == "" {
		return b
	}
	b = append(b, `,"`+spec.MetaCursor+`":`...)
	return jsonrpc.AppendString(b, cursor)
}

// resolveAgain resolves the stream's URIs after a change of the catalog. A URI may now be the parent of a new event type. URIs that are no
// longer in the catalog stay, without events.
func (w *Writer) resolveAgain(ctx context.Context) error {
	cat, err := w.Streams.Catalogs.Of(ctx, w.Caller.Principal)
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

// topics returns the topics that the stream follows in addition to the topics of its targets.
func (w *Writer) topics(ctx context.Context) []string {
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

// CheckCredentials authenticates the caller again. It fails with errRevoked if the credentials are no longer valid. If the authenticator is
// unavailable, it assumes that they still are.
func (w *Writer) CheckCredentials(ctx context.Context) error {
	w.Caller.checked = time.Now()
	now, err := Recheck(ctx, w.Streams.Auth, w.Caller.Header, w.Caller.Principal)
	if err == nil {
		w.Caller.Principal = now
	}
	return err
}

// Recheck authenticates the credentials of an admitted caller again, as [Writer.CheckCredentials] does.
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
