// Package publish accepts events from publishers, through POST /events and from the inbox queue. It checks them against the catalog of
// event types and puts them on the events queue, from which package fanout takes them.
//
//	POST /events ─▶ [Handler] ──┐
//	                            ├─▶ [Service] ─▶ events queue (FIFO)
//	inbox queue ──▶ [Inbox] ────┘        └─▶ dead queue (messages that the inbox cannot accept)
//
// A request or message is accepted as a whole or not at all. The package does not know about subscriptions. Read shared/events/delivery
// next.
package publish

import (
	"bytes"
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
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// These constants limit the size of a request.
const (
	maxEvents = 1000 // in one request or message
	// MaxBody is the maximum size of a request's body in bytes.
	MaxBody = 5 << 20
	maxID   = 4096 // bytes of a publisher's id
)

// Input is one event as the publisher sent it.
type Input struct {
	// URI is the event:// URI, not necessarily in canonical form.
	URI string
	// ID is chosen by the publisher. With an ID, the publisher can safely publish the event again, because a second event with the same
	// URI and ID within five minutes is dropped. If ID is empty, the event gets a new id. [event.ForeignID] replaces an ID with
	// unsupported characters.
	ID string
	// Source is the CloudEvents attribute source, within which ids are unique. It may be empty.
	Source string
	// Time is when the event happened. Zero means the time of publication.
	Time time.Time
	// Data is the payload. It must be valid JSON, and may have white space.
	Data json.RawMessage
	// Trace is the distributed trace to which the event belongs. It may be empty.
	Trace trace.Context
	// Workspace is set only for events from the inbox queue. The events in a POST /events request belong to the workspace of the
	// principal.
	Workspace string
	// Resend is set only for events from the inbox queue. It identifies a dead letter that is being sent back to its queue. It becomes
	// part of the event's deduplication id, because otherwise the queue would drop the event as a repetition.
	Resend string

	// OfBackend permits an event whose type belongs to a backend. Only [BackendPublisher] sets it.
	OfBackend bool

	// At, URIAt and DataAt are JSON Pointers to the event, its URI and its data in the request, for error messages. An empty URIAt means
	// the member uri of the event.
	At, URIAt, DataAt string

	parsed bool // Data is a part of JSON text that was already checked
	cloud  bool // the event is a CloudEvent
}

// Accepted is the result of an accepted [Input].
type Accepted struct {
	ID  string `json:"id"`
	URI string `json:"uri"`
}

// Service accepts events from publishers. It is safe for concurrent use.
type Service struct {
	Catalog catalog.Source
	Queue   queue.Sender
	// Rate limits the events of each principal. Nil means no limit.
	Rate *quota.Rate
	// Now returns the current time. Nil means time.Now.
	Now func() time.Time
	// Metrics counts accepted events and dead letters. It may be nil.
	Metrics *metric.Set
	// Tracer starts a span for each accepted event. It may be nil.
	Tracer *trace.Tracer
}

// NewRate returns a limit on each principal's events per second. A burst may have the events of two seconds or of one full request
// (1,000), whichever is more.
func NewRate(limitOf quota.LimitFunc) *quota.Rate {
	return quota.NewRate(quota.PublishRate, "events", limitOf, func(perSecond float64) float64 { return max(2*perSecond, maxEvents) })
}

// WithoutQuota returns a service that publishes like s, but without its quota.
func (s *Service) WithoutQuota() *Service {
	own := *s
	own.Rate = nil
	return &own
}

func (s *Service) now() time.Time { return periodic.Clock(s.Now)() }

// Accept checks the events and, if all are valid, puts them on the events queue in the order of the parameter in. It returns when they
// are durable. After an error, no event was accepted, except if the error is of kind fault.Unavailable. The kinds of errors are
//
//   - fault.Forbidden: the principal lacks the scope events:publish
//   - fault.Invalid: an event is malformed
//   - fault.TooLarge: a payload is larger than [event.MaxPayload], or there are more than [maxEvents] events
//   - fault.NotFound: a URI matches no event type
//   - fault.Unprocessable: a payload does not match its schema
//   - fault.Exhausted: the principal's publish quota is used up
//   - fault.Unavailable: the queue did not accept all events. It may have accepted some. Events with an id can be published again without
//     being delivered twice.
//
// If several kinds apply, the error has the first of them in this list. If events are faulty, the error's data is a [Refusal], which
// lists up to [maxFaults] faults.
func (s *Service) Accept(ctx context.Context, p auth.Principal, in []Input) ([]Accepted, error) {
	if err := p.Require(auth.ScopePublish); err != nil {
		return nil, err
	}
	if len(in) > maxEvents {
		return nil, fault.New(fault.TooLarge, "a request with %d events (at most %d)", len(in), maxEvents).AtLimit("eventsPerRequest", maxEvents)
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
	if err := s.enqueue(ctx, out, spans); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "queue the events")
	}
	return accepted, nil
}

// enqueue puts accepted events on the events queue and ends their trace spans. In the stand-alone server, fanout begins before the events
// are written to disk. An event in the queue and its entry in the log can then be written in one commit.
func (s *Service) enqueue(ctx context.Context, events []queue.Outgoing, spans trace.Spans) error {
	if err := queue.Forward(ctx, s.Queue, queue.Events, events...); err != nil {
		spans.End(fault.Unavailable.String())
		return err
	}
	spans.End("")
	s.Metrics.Published(len(events))
	return nil
}

func (s *Service) prepare(cat *catalog.Catalog, workspace string, in []Input, spans *trace.Spans) ([]queue.Outgoing, []Accepted, error) {
	now := s.now()
	out := make([]queue.Outgoing, 0, len(in))
	accepted := make([]Accepted, 0, len(in))
	var r faultList
	for i := range in {
		e, ok := r.check(cat, &in[i])
		if !ok {
			continue
		}
		e.Workspace, e.Published = workspace, now.UTC().Truncate(time.Microsecond)
		if e.Time = in[i].Time.Truncate(time.Microsecond); in[i].Time.IsZero() {
			e.Time = e.Published
		}
		span := s.Tracer.Start(in[i].Trace, "publish", trace.Producer)
		if e.Trace = spans.Add(span); span.Recording() {
			span.Set(trace.Event(workspace, e.ID, e.Name)...)
		}
		body := e.AppendJSON(nil)
		if len(body) > queue.MaxBody { // the limits of the parts should prevent this
			r.add(fault.TooLarge, in[i].At, "is larger than %d bytes in the queue", queue.MaxBody)
			continue
		}
		dedup := digest(workspace, e.URI, e.ID)
		if in[i].Resend != "" {
			dedup = digest(workspace, e.URI, e.ID, in[i].Resend)
		}
		e.Data = body[len(body)-1-len(e.Data) : len(body)-1] // points into body, so that the message does not keep the request in memory
		out = append(out, queue.Outgoing{Body: body, Value: e, Group: groupOf(cat, workspace, e), Dedup: dedup})
		accepted = append(accepted, Accepted{ID: e.ID, URI: e.URI})
	}
	if err := r.err(len(in)); err != nil {
		return nil, nil, err
	}
	return out, accepted, nil
}

// groups is the number of FIFO groups over which the events of a URI are spread if their type is unordered. One group processes about 125
// events per second.
const groups = 16

// OrderedGroup returns the FIFO group of a URI whose event type is ordered.
func OrderedGroup(workspace, uri string) string { return digest(workspace, uri) }

// groupOf returns the FIFO group of an event. Events with the same URI and id are always in the same group, because the queue drops
// repetitions only within a group.
func groupOf(cat *catalog.Catalog, workspace string, e event.Event) string {
	if !cat.ByName(e.Name).Unordered() {
		return OrderedGroup(workspace, e.URI)
	}
	h := fnv.New32a()
	h.Write([]byte(e.ID))
	return digest(workspace, e.URI, strconv.Itoa(int(h.Sum32()%groups)))
}

// Check converts an input into an event that has no workspace and no times yet. It returns the same errors for a faulty input as
// [Service.Accept].
func Check(cat *catalog.Catalog, in Input) (event.Event, error) {
	var r faultList
	e, _ := r.check(cat, &in)
	return e, r.err(1)
}

// check converts an input into an event that has no workspace and no times yet. If the input has faults, check adds them to r and returns
// false.
func (r *faultList) check(cat *catalog.Catalog, in *Input) (event.Event, bool) {
	before := r.count
	uriAt := cmp.Or(in.URIAt, in.At+"/uri")
	uri, err := catalog.Canonical(in.URI)
	if err != nil {
		r.addError(uriAt, err)
	} else if strings.Contains(in.URI, catalog.Wildcard) && slices.Contains(strings.Split(uri, "/"), escapedWildcard) {
		r.add(fault.Invalid, uriAt, "is a pattern: %q stands for any value there, and an event needs a concrete URI", catalog.Wildcard)
	}
	id := in.ID
	switch {
	case id == "":
		id = event.NewID()
	case len(id) > maxID:
		r.add(fault.Invalid, in.At+"/id", "has %d bytes (allowed: up to %d)", len(id), maxID)
	default:
		id = event.ForeignID(in.Source, id)
	}
	if !event.ValidTime(in.Time) {
		r.add(fault.Invalid, in.At+"/time", "cannot be written as an RFC 3339 time")
	}
	data, err := normalize(in.Data, in.parsed)
	if err != nil {
		r.addError(in.DataAt, err)
	} else if at, found := jsonrpc.FindRepeated(data); found { // parsers differ in which of two members with the same name they use
		r.add(fault.Invalid, in.DataAt+fault.Clip(at, maxPointer), "is given twice")
	}
	if r.count > before {
		return event.Event{}, false
	}
	entry, vars, ok := cat.Match(uri)
	if !ok || entry.Backend != "" && !in.OfBackend {
		r.addUnknown(uriAt, uri)
		return event.Event{}, false
	}
	if err := entry.ValidateParams(vars); err != nil {
		r.addSchemaFaults(uriAt, err, false)
	}
	if err := entry.ValidatePayload(data); err != nil {
		r.addSchemaFaults(in.DataAt, err, true)
	}
	return event.Event{ID: id, URI: uri, Name: entry.Name, Data: data}, r.count == before
}

// escapedWildcard is how [catalog.Canonical] writes a part of a URI that is the wildcard `*`.
const escapedWildcard = "%2A"

// normalize checks a payload and returns the form that is stored: compact, and with characters escaped that would cause problems later
// (see escapeData).
func normalize(data json.RawMessage, parsed bool) (json.RawMessage, error) {
	if depth := jsonrpc.Depth(data); depth > event.MaxDepth {
		return nil, fault.New(fault.Invalid, "is nested deeper than %d levels", event.MaxDepth).AtLimit("nesting", event.MaxDepth)
	}
	if len(data) == 0 {
		return nil, fault.New(fault.Invalid, "is missing")
	}
	data, err := escapeData(data, parsed)
	if err != nil {
		return nil, err
	}
	if len(data) > event.MaxPayload {
		return nil, fault.New(fault.TooLarge, "has %d bytes when escaped (at most %d)", len(data), event.MaxPayload).AtLimit("payload", event.MaxPayload)
	}
	return data, nil
}

// digest returns a name for a FIFO group or a deduplication id. It is the SHA-256 of the parts and their lengths in base64url, with 43
// characters. With the lengths, different lists of parts have different results.
func digest(parts ...string) string {
	buf := make([]byte, 0, 1536)
	for _, p := range parts {
		buf = binary.AppendUvarint(buf, uint64(len(p)))
		buf = append(buf, p...)
	}
	sum := sha256.Sum256(buf)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// escapeData compacts JSON and writes these characters as \u escapes:
//
//   - U+FFFE and U+FFFF, which SQS refuses because XML 1.0 does not allow them;
//   - <, >, &, U+2028 and U+2029, which encoding/json would otherwise escape later, wherever it copies the raw JSON. After this, the size
//     no longer changes. Otherwise 240 KiB of HTML would pass the size check and then become too large for the queue.
//
// The value does not change, not even the digits of numbers. For text that is not UTF-8 or not JSON, escapeData returns an error of kind
// fault.Invalid.
func escapeData(data json.RawMessage, parsed bool) (json.RawMessage, error) {
	if !utf8.Valid(data) {
		return nil, fault.New(fault.Invalid, "is not UTF-8")
	}
	if !parsed && !json.Valid(data) {
		return nil, fault.New(fault.Invalid, "is not valid JSON")
	}
	if !jsonrpc.HasSpace(data) && !needsEscape(data) {
		return data, nil
	}
	var b bytes.Buffer
	b.Grow(len(data))
	if err := json.Compact(&b, data); err != nil {
		return nil, fault.New(fault.Invalid, "is not valid JSON")
	}
	if !needsEscape(b.Bytes()) {
		return b.Bytes(), nil
	}
	var out bytes.Buffer
	out.Grow(b.Len() + b.Len()/8)
	json.HTMLEscape(&out, b.Bytes())
	return queue.Escape(out.Bytes()), nil
}

func needsEscape(b []byte) bool {
	return slices.ContainsFunc([]byte{'<', '>', '&', 0xE2, 0xEF}, func(c byte) bool { return bytes.IndexByte(b, c) >= 0 })
}

// maxPointer is the maximum length, in bytes, of a JSON Pointer in an error. Longer pointers are cut. They can be long because names of a
// payload's members are part of them.
const maxPointer = 1024
