package events

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/streams"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// maxBeat is the longest time between two heartbeats of an events/stream. SEP-3415 requires one every 30 s, even while events
// are sent. The other five seconds are for delays in the network.
const maxBeat = 25 * time.Second

// recovery is how long a stream waits after a temporary failure before it continues.
const recovery = time.Second

// pushFraming implements [streams.Framing] for the method events/stream. It sends the events of one subscription as the notifications that
// SEP-3415 defines.
type pushFraming struct {
	selected
	stream  *streams.Stream
	version spec.Version
	profile spec.Profile
	// unchecked makes the next [pushFraming.check] compare the subscription with the caller's current rights even if the catalog is
	// unchanged.
	unchecked bool
}

// NewPush returns the handler of events/stream (SEP-3415).
func NewPush(st *streams.Streams) method.Handler {
	return streams.Streaming{Streams: st, Open: func(ctx context.Context, c *method.Call) (*streams.Stream, error) { return openPush(ctx, st, c) }}
}

func openPush(ctx context.Context, st *streams.Streams, c *method.Call) (*streams.Stream, error) {
	w, err := readSelected(ctx, st.Catalogs, c, spec.ModePush)
	if err != nil {
		return nil, err
	}
	// The arguments may be a part of the request's body. A copy lets the body's memory be freed while the stream is open.
	w.Arguments = bytes.Clone(w.Arguments)
	p := &pushFraming{selected: w, version: c.Version, profile: c.Profile}
	p.stream = st.New(c, streams.Options{Kind: streams.KindEvents, Framing: p, MaxBeat: maxBeat})
	return p.stream, p.stream.Open(c.WithToken(ctx), stream.Request{
		Workspace: c.Principal.Workspace, Principal: c.Principal.ID, Patterns: []match.Pattern{w.Pattern}, Topics: []string{stream.TopicCatalog},
		Cursor: w.cursor, MaxAge: w.maxAge, Sole: true, Wants: p.Wants,
	})
}

func (p *pushFraming) Begin(context.Context) error {
	return p.notify(spec.NoteEventsActive, p.stream.ResumeAt(), func(b []byte) []byte {
		return strconv.AppendBool(append(b, `,"truncated":`...), p.stream.Feed.Truncated)
	})
}

// notify sends a notification with a cursor. The function more appends further members of the params; it may be nil.
func (p *pushFraming) notify(name, cursor string, more func([]byte) []byte) error {
	return p.stream.Send(name, func(b []byte) []byte {
		b = jsonrpc.AppendString(append(b, `"cursor":`...), cursor)
		if more != nil {
			b = more(b)
		}
		return b
	}, nil, "")
}

func (p *pushFraming) Deliver(ctx context.Context, d stream.Delivery) error {
	pattern := p.Pattern
	for { // repeat the check while the store is unavailable, so that the event is not lost
		err := p.check(ctx, d.Event == nil || p.stream.CheckDue())
		if err == nil {
			break
		}
		if err := p.Recover(ctx, err); err != nil {
			return err
		}
	}
	if d.Lost != "" {
		return p.notify(spec.NoteEventsActive, d.Cursor, func(b []byte) []byte { return append(b, `,"truncated":true`...) })
	}
	if d.Event == nil {
		return nil
	}
	cursor := d.Cursor
	if p.Pattern != pattern { // check has added partitions, which d.Cursor does not cover
		cursor = p.stream.ResumeAt()
	}
	data, err := p.RedactedData(d.Event)
	if err != nil { // report the error, and continue the stream without this event
		return p.fail(spec.NoteEventsError, p.stream.Streams.Faults.Translate(ctx, err, p.version, p.profile))
	}
	return p.stream.Send(spec.NoteEventsEvent, func(b []byte) []byte {
		b = jsonrpc.AppendString(append(b, `"cursor":`...), cursor)
		return appendOccurrence(append(b, ','), d.Event, data)
	}, func(b []byte) []byte { return match.AppendOccurrenceMeta(b, d.Event, p.Entry) }, "")
}

func (p *pushFraming) Heartbeat(ctx context.Context) error {
	if err := p.check(ctx, true); err != nil {
		if err = p.Recover(ctx, err); err != nil {
			return err
		}
	}
	return p.notify(spec.NoteEventsHeartbeat, p.stream.ResumeAt(), nil)
}

func (p *pushFraming) SendCursor() error {
	return p.notify(spec.NoteEventsHeartbeat, p.stream.ResumeAt(), nil)
}

// Recover notifies the client of a temporary failure and waits a moment, so that the stream can continue. It returns any other error,
// which ends the stream.
func (p *pushFraming) Recover(ctx context.Context, err error) error {
	if !fault.Is(err, fault.Unavailable) || errors.Is(err, stream.ErrClosed) || errors.Is(err, method.ErrWriting) {
		return err
	}
	if err := p.fail(spec.NoteEventsError, p.stream.Streams.Faults.Translate(ctx, err, p.version, p.profile)); err != nil {
		return err
	}
	if periodic.Sleep(ctx, recovery) != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (p *pushFraming) fail(name string, rpc *jsonrpc.Error) error {
	return p.stream.Send(name, func(b []byte) []byte { return jsonrpc.AppendErrorObject(append(b, `"error":`...), rpc) }, nil, "")
}

// End ends the stream with the response to the request. If the subscription has ended, it first notifies the client of the reason. It
// sends no cursor, because the client has the cursor of the previous notification.
func (p *pushFraming) End(c *method.Call, why error) {
	if end, ok := errors.AsType[*streams.Ended](why); ok {
		rpc := p.stream.Streams.Faults.Translate(c.Request.Context(), end.Reason, p.version, p.profile)
		_ = p.fail(spec.NoteEventsTerminated, rpc) // the stream ends either way
	}
	p.stream.Complete(c, "")
}

// check returns a [streams.Ended] error if the current catalog no longer allows the subscription. If the parameter credentials is true,
// it also returns this error if the caller's credentials are no longer valid.
//
// An event type that becomes ordered or unordered uses other partitions of the event log from then on. In this case, check adds these
// partitions to the stream's feed.
func (p *pushFraming) check(ctx context.Context, credentials bool) error {
	if credentials {
		if p.stream.CheckCredentials(ctx) != nil {
			return &streams.Ended{Reason: subscription.AccessRevoked()}
		}
		p.unchecked = true
	}
	cat, err := p.stream.Streams.Catalogs.CatalogOf(ctx, p.stream.Caller.Principal)
	if err != nil {
		return err
	}
	if cat == p.catalog && !p.unchecked {
		return nil
	}
	chosen, err := Choose(cat, p.Entry.Name, p.Arguments, p.stream.Caller.Principal, p.mode)
	if now := cat.ByName(p.Entry.Name); now != nil && now != p.Entry {
		if feature := catalog.FindBreakingFeature(p.Entry, now); feature != "" {
			return &streams.Ended{Reason: subscription.SchemaChanged(p.Entry.Name, feature)}
		}
	}
	switch kind := fault.KindOf(err); {
	case err == nil:
		if chosen.Pattern != p.Pattern {
			if err := p.stream.Feed.Add(ctx, chosen.Pattern, p.stream.Streams.Feeds.PositionAfterChange(chosen.Pattern)); err != nil {
				return err
			}
		}
		p.Selection, p.catalog, p.unchecked = chosen, cat, false
		return nil
	case kind == fault.Forbidden:
		return &streams.Ended{Reason: subscription.AccessRevoked()}
	case kind == fault.Invalid:
		return &streams.Ended{Reason: subscription.SchemaChanged(p.Entry.Name, catalog.FeatureInput)}
	case kind == fault.NotFound, kind == fault.Unsupported:
		return &streams.Ended{Reason: err}
	}
	return err
}

// Limits of one result of events/poll.
const (
	defaultPoll  = 50      // events in the result if maxEvents is absent
	maxPoll      = 500     // events in the result if maxEvents is greater
	maxPollBytes = 1 << 20 // total size of the events' payloads
)

// quietShare is the number by which the time since the latest event is divided to suggest the time until the next poll. For
// example, a client should wait for 15 s after a minute without events.
const quietShare = 4

// Polls serves events/poll.
type Polls struct {
	Catalogs    method.Catalogs
	Feeds       *stream.Tails
	Least, Most time.Duration // limits of the time until the next poll
	Metrics     *metric.Set
}

// Poll serves events/poll (SEP-3415). The server keeps no state between two polls: the client sends back the cursor, which says where
// to continue.
func (h *Polls) Poll(ctx context.Context, c *method.Call) (method.Result, error) {
	w, err := readSelected(ctx, h.Catalogs, c, spec.ModePoll)
	if err != nil {
		return method.Result{}, err
	}
	most, err := readMaxEvents(c)
	if err != nil {
		return method.Result{}, err
	}
	page, err := h.Feeds.Poll(c.WithToken(ctx), stream.PollRequest{
		Workspace: c.Principal.Workspace, Principal: c.Principal.ID, Pattern: w.Pattern, Cursor: w.cursor, MaxAge: w.maxAge,
		Wants: w.Wants, Most: most, Bytes: maxPollBytes,
	})
	if err != nil {
		return method.Result{}, err
	}
	b := []byte(`"events":[`)
	for i, ev := range page.Events {
		data, err := w.RedactedData(ev)
		if err != nil {
			return method.Result{}, err
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = appendOccurrence(append(b, '{'), ev, data)
		b = match.AppendOccurrenceMeta(append(b, `,"_meta":{`...), ev, w.Entry)
		b = append(b, `}}`...)
	}
	b = jsonrpc.AppendString(append(b, `],"cursor":`...), page.Cursor)
	b = strconv.AppendBool(append(b, `,"truncated":`...), page.Truncated)
	b = strconv.AppendBool(append(b, `,"hasMore":`...), page.More)
	b = strconv.AppendInt(append(b, `,"nextPollMs":`...), min(max(page.Quiet/quietShare, h.Least), h.Most).Milliseconds(), 10)
	h.Metrics.PollAnswered()
	return method.Result{Members: [][]byte{b}}, nil
}

func readMaxEvents(c *method.Call) (int, error) {
	raw := c.Param("maxEvents")
	if raw == nil {
		return defaultPoll, nil
	}
	var n float64 // JSON may spell the integer 10 as 1e1 or 10.0, which do not decode to an int
	if json.Unmarshal(raw, &n) != nil || n < 1 || n < maxPoll && n != float64(int(n)) {
		return 0, method.InvalidParams("maxEvents must be an integer of at least 1")
	}
	return int(min(n, maxPoll)), nil
}

// selected is the subscription in the params of events/poll and events/stream (SEP-3415).
type selected struct {
	match.Selection
	catalog *catalog.Catalog
	mode    string
	cursor  string        // the position after which to read; empty to read only new events
	maxAge  time.Duration // how old the events may be; 0 for no limit
}

// readSelected reads the params that events/poll and events/stream share, and checks the caller's right to the events.
func readSelected(ctx context.Context, cs method.Catalogs, c *method.Call, mode string) (w selected, err error) {
	name, err := c.RequiredString("name")
	if err != nil {
		return w, err
	}
	arguments, err := c.Arguments()
	if err != nil {
		return w, err
	}
	var given bool
	if w.cursor, given, err = c.OptionalString("cursor"); err != nil {
		return w, err
	}
	if given && w.cursor == "" {
		return w, method.InvalidParams("cursor must be null or a cursor of this server")
	}
	if w.maxAge, err = readMaxAge(c); err != nil {
		return w, err
	}
	w.mode = mode
	if w.catalog, err = cs.CatalogOf(ctx, c.Principal); err != nil {
		return w, err
	}
	w.Selection, err = Choose(w.catalog, name, arguments, c.Principal, mode)
	return w, err
}

// Choose returns the selection of events that match an event type and its arguments. It returns an error if the principal may not
// receive these events, or if the event type does not support the delivery mode.
func Choose(cat *catalog.Catalog, name string, arguments json.RawMessage, p auth.Principal, mode string) (match.Selection, error) {
	entry := cat.ByName(name)
	if entry == nil {
		return match.Selection{}, UnknownEvent(name)
	}
	s, err := match.Select(entry, arguments, p)
	if err != nil {
		return s, err
	}
	if err := s.CheckAccess(p); err != nil {
		return s, err
	}
	if mode == spec.ModePoll && !entry.PollAllowed() || mode == spec.ModePush && !entry.PushAllowed() {
		return s, fault.New(fault.Unsupported, "%s is not delivered by %s", name, mode).
			With(map[string]any{"feature": "deliveryMode", "value": mode})
	}
	return s, nil
}

// UnknownEvent returns the error for an event type that does not exist for the caller.
func UnknownEvent(name string) error {
	return fault.New(fault.NotFound, "unknown event type %.128q", name).With(map[string]any{"kind": "event"})
}

// appendOccurrence appends the members of an EventOccurrence (SEP-3415) except its cursor and its _meta.
func appendOccurrence(b []byte, ev *event.Event, data json.RawMessage) []byte {
	b = jsonrpc.AppendString(append(b, `"eventId":`...), ev.ID)
	b = jsonrpc.AppendString(append(b, `,"name":`...), ev.Name)
	b = jsonrpc.AppendString(append(b, `,"timestamp":`...), ev.Timestamp())
	b = append(b, `,"data":`...)
	return append(b, data...)
}
