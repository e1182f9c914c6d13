// Package publish is the way in: it checks events against the catalog and puts the
// accepted ones on the events queue, where fanout takes over.
//
//	POST /events ─▶ [Handler] ──┐
//	                            ├─▶ [Service] ─▶ events queue (FIFO)
//	inbox queue ──▶ [Inbox] ────┘        └─▶ dead queue (what the inbox cannot take)
//
// What comes in by either way is all or nothing: a request, or a message. Nothing of
// subscriptions enters here. Go on in shared/events/delivery.
package publish

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// Limits of a request.
const (
	// MaxEvents is the largest number of events.
	MaxEvents = 1000
	// MaxBody is the largest body in bytes.
	MaxBody = 5 << 20
	// maxID bounds an identifier of another alphabet before it is hashed.
	maxID = 4096
)

// Input is one event as its publisher gives it.
type Input struct {
	// URI is the event:// URI, in any spelling.
	URI string
	// ID is chosen by the publisher, who thereby makes repetition harmless: a
	// second event with the same URI and id within five minutes is dropped.
	// Empty is a new id. One outside of the alphabet of [event.ValidID], or that
	// begins with "msg_", is mapped by [event.ForeignID].
	ID string
	// Source is the CloudEvents source, which an id is unique in; may be empty.
	Source string
	// Time is when it happened; zero is now.
	Time time.Time
	// Data is the payload, valid JSON of any spacing.
	Data json.RawMessage
	// Trace is the trace that it belongs to; may be none.
	Trace trace.Context
	// Workspace is for the inbox only. A caller's events belong to the workspace of its principal.
	Workspace string
	// Resend is for the inbox only. It names the dead letter that is sent back to its queue. The queue has accepted the
	// event before, perhaps within the last five minutes, and would drop it as a repetition.
	Resend string

	// URIAt and DataAt are the JSON Pointers of the two in what was sent, for faults. An empty URIAt is /uri of the event.
	URIAt, DataAt string

	at string // the pointer of the event
	// cloud is true for a CloudEvent.
	cloud bool
}

// Accepted says what became of an input.
type Accepted struct {
	ID  string `json:"id"`
	URI string `json:"uri"`
}

// Service accepts events. Its methods may be called concurrently.
type Service struct {
	Catalog catalog.Source
	Queue   queue.Sender
	// Rate limits what a principal publishes; nil does not.
	Rate *quota.Rate
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Metrics counts accepted events and dead letters; may be nil.
	Metrics *metric.Set
	// Tracer makes a span of each accepted event; may be nil.
	Tracer *trace.Tracer
}

// NewRate limits to a number of events per second, with bursts of two seconds' worth
// and at least one full request.
func NewRate(of quota.Of) *quota.Rate {
	return quota.New(quota.PublishRate, "events", of, func(perSecond float64) float64 { return max(2*perSecond, MaxEvents) })
}

func (s *Service) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

// Accept checks the events and, if all are good, puts them on the events queue, in
// the order of in. It returns when they are durable. Otherwise nothing is accepted,
// and the error is of kind
//
//   - fault.Forbidden: the principal lacks the scope events:publish
//   - fault.Invalid: something is malformed
//   - fault.TooLarge: a payload over [event.MaxPayload], or over [MaxEvents] events
//   - fault.NotFound: a URI belongs to no event type
//   - fault.Unprocessable: a payload breaks its schema
//   - fault.Exhausted: the principal's publish rate is reached
//   - fault.Unavailable: the queue did not take them all. Some may have been sent: events
//     that carry an id can be published again without being delivered twice.
//
// Where several apply, the first in this list; all faults are in the data, a [Refusal].
func (s *Service) Accept(ctx context.Context, p auth.Principal, in []Input) ([]Accepted, error) {
	if err := p.Require(auth.ScopePublish); err != nil {
		return nil, err
	}
	if len(in) > MaxEvents {
		return nil, fault.New(fault.TooLarge, "a request with %d events (at most %d)", len(in), MaxEvents).AtLimit("eventsPerRequest", MaxEvents)
	}
	if len(in) == 0 {
		return []Accepted{}, nil
	}
	cat, err := s.Catalog.Catalog(ctx, p.Workspace)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "look up the event types")
	}
	var spans trace.Spans
	out, accepted, err := s.prepare(cat, p.Workspace, in, &spans)
	if err != nil {
		spans.End(fault.KindOf(err).String())
		return nil, err
	}
	if err := s.Rate.Take(ctx, p, len(in), s.now()); err != nil {
		spans.End(fault.KindOf(err).String())
		return nil, err
	}
	if err := s.queue(ctx, out, spans); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "queue the events")
	}
	return accepted, nil
}

// queue puts accepted events on the events queue, and ends their spans.
func (s *Service) queue(ctx context.Context, events []queue.Outgoing, spans trace.Spans) error {
	if err := s.Queue.Send(ctx, queue.Events, events...); err != nil {
		spans.End(fault.Unavailable.String())
		return err
	}
	spans.End("")
	s.Metrics.Published(len(events))
	return nil
}

// prepare checks inputs against a catalog, begins their spans and encodes them for the events queue.
func (s *Service) prepare(cat *catalog.Catalog, workspace string, in []Input, spans *trace.Spans) ([]queue.Outgoing, []Accepted, error) {
	now := s.now()
	out := make([]queue.Outgoing, 0, len(in))
	accepted := make([]Accepted, 0, len(in))
	var r refused
	for i := range in {
		e, ok := r.check(cat, &in[i])
		if !ok {
			continue
		}
		e.Workspace, e.Published = workspace, now.UTC()
		if e.Time = in[i].Time; e.Time.IsZero() {
			e.Time = e.Published
		}
		span := s.Tracer.Start(in[i].Trace, "publish", trace.Producer)
		if e.Trace = spans.Add(span); span.On() {
			span.Set(trace.Event(workspace, e.ID, e.Name)...)
		}
		body := e.AppendJSON(nil)
		if len(body) > queue.MaxBody { // the limits of its parts leave room; nothing else may pass
			r.add(fault.TooLarge, in[i].at, "is larger than %d bytes in the queue", queue.MaxBody)
			continue
		}
		dedup := digest(workspace, e.URI, e.ID)
		if in[i].Resend != "" {
			dedup = digest(workspace, e.URI, e.ID, in[i].Resend)
		}
		out = append(out, queue.Outgoing{Body: body, Group: group(cat, workspace, e), Dedup: dedup})
		accepted = append(accepted, Accepted{ID: e.ID, URI: e.URI})
	}
	if err := r.err(len(in)); err != nil {
		return nil, nil, err
	}
	return out, accepted, nil
}

// groups is over how many FIFO groups the events of an unordered URI are spread. A group is
// worked on by one batch of ten at a time, about 125 events a second.
const groups = 16

// group is the FIFO group of an event: that of its URI or, if the order is given up, one of several. An id
// always has the same one, because the queue drops repetitions within a group.
func group(cat *catalog.Catalog, workspace string, e event.Event) string {
	if !cat.ByName(e.Name).Unordered() {
		return digest(workspace, e.URI)
	}
	h := fnv.New32a()
	h.Write([]byte(e.ID))
	return digest(workspace, e.URI, strconv.Itoa(int(h.Sum32()%groups)))
}

// Check makes the event of an input, without workspace and times, and queues nothing. Errors are those of [Service.Accept]
// for what is wrong with the input.
func Check(cat *catalog.Catalog, in Input) (event.Event, error) {
	var r refused
	e, _ := r.check(cat, &in)
	return e, r.err(1)
}

// check turns one input into an event without workspace and times, or reports its faults.
func (r *refused) check(cat *catalog.Catalog, in *Input) (event.Event, bool) {
	before := r.count
	uriAt := cmp.Or(in.URIAt, in.at+"/uri")
	uri, err := catalog.Canonical(in.URI)
	if err != nil {
		r.refuse(uriAt, err)
	} else if strings.Contains(in.URI, catalog.Wildcard) && slices.Contains(strings.Split(uri, "/"), escapedWildcard) {
		r.add(fault.Invalid, uriAt, "is a pattern: %q stands for any value there, and an event needs a concrete URI", catalog.Wildcard)
	}
	id := in.ID
	switch {
	case id == "":
		id = event.NewID()
	case len(id) > maxID:
		r.add(fault.Invalid, in.at+"/id", "is longer than %d bytes", maxID)
	default:
		id = event.ForeignID(in.Source, id)
	}
	data, err := normal(in.Data)
	if err != nil {
		r.refuse(in.DataAt, err)
	} else if at, found := twice(data); found {
		r.add(fault.Invalid, in.DataAt+at, "is given twice")
	}
	if r.count > before {
		return event.Event{}, false
	}
	entry, vars, ok := cat.Match(uri)
	if !ok {
		r.unknown(uriAt, uri)
		return event.Event{}, false
	}
	if err := entry.ValidateParams(vars); err != nil {
		r.schema(uriAt, err, false)
	}
	if err := entry.ValidatePayload(data); err != nil {
		r.schema(in.DataAt, err, true)
	}
	return event.Event{ID: id, URI: uri, Name: entry.Name, Data: data}, r.count == before
}

// escapedWildcard is the segment that [catalog.Canonical] makes of one that stands for any value.
const escapedWildcard = "%2A"

// normal checks a payload and gives it the form in which it travels: compact, and
// with what other parties cannot bear written as an escape.
func normal(data json.RawMessage) (json.RawMessage, error) {
	if depth := jsonrpc.Depth(data); depth > event.MaxDepth {
		return nil, fault.New(fault.Invalid, "is nested deeper than %d levels", event.MaxDepth).AtLimit("nesting", event.MaxDepth)
	}
	if len(data) == 0 {
		return nil, fault.New(fault.Invalid, "is missing")
	}
	data, err := escape(data)
	if err != nil {
		return nil, err
	}
	if len(data) > event.MaxPayload {
		return nil, fault.New(fault.TooLarge, "has %d bytes when escaped (at most %d)", len(data), event.MaxPayload).AtLimit("payload", event.MaxPayload)
	}
	return data, nil
}

// digest names a FIFO group or a message: base64url SHA-256, 43 characters, of
// the parts with their lengths, so that no two lists of parts give the same.
func digest(parts ...string) string {
	buf := make([]byte, 0, 1536)
	for _, p := range parts {
		buf = binary.AppendUvarint(buf, uint64(len(p)))
		buf = append(buf, p...)
	}
	sum := sha256.Sum256(buf)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
