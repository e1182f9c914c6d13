// Package trace traces an event from its publisher to its webhooks, and a request through the gateway to its backend. The [Context] of an
// event is stored with the event: in queue messages, the event log, stored bodies, dead letters and replays. Package trace/otlp exports
// the spans.
package trace

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	otel "go.opentelemetry.io/otel/trace"
)

// Kind is a span's role in OpenTelemetry.
type Kind = otel.SpanKind

const (
	Producer = otel.SpanKindProducer
	Consumer = otel.SpanKindConsumer
	Client   = otel.SpanKindClient
)

// Tracer creates spans. A nil Tracer creates no spans and allocates nothing, but still passes on the trace context of an incoming
// request. The methods may be called concurrently.
type Tracer struct{ tracer otel.Tracer }

// New returns a tracer that creates spans with the given provider.
func New(p otel.TracerProvider) *Tracer {
	return &Tracer{p.Tracer("github.com/mcp-events/mcpevents")}
}

// Start starts a span whose parent is the context c. If c is zero, the span starts a new trace.
func (t *Tracer) Start(c Context, name string, kind Kind) Span {
	if t == nil {
		return Span{Context: c}
	}
	ctx := context.Background()
	if c.Parent != "" {
		ctx = otel.ContextWithRemoteSpanContext(ctx, c.toRemote())
	}
	_, span := t.tracer.Start(ctx, name, otel.WithSpanKind(kind))
	if !span.IsRecording() { // not sampled
		return Span{Context: c}
	}
	sc := span.SpanContext()
	return Span{Context: Context{
		Parent: formatParent(otel.SpanContextConfig{TraceID: sc.TraceID(), SpanID: sc.SpanID(), TraceFlags: sc.TraceFlags() & otel.FlagsSampled}),
		State:  sc.TraceState().String(),
	}, span: span}
}

// Continue starts a span like [Tracer.Start], but only within an existing trace. If c is zero, it returns the zero Span.
func (t *Tracer) Continue(c Context, name string, kind Kind) Span {
	if c.Parent == "" {
		return Span{}
	}
	return t.Start(c, name, kind)
}

// Span is an operation in a trace. Pass its Context to the operations that it causes, so that their spans become its children.
type Span struct {
	Context Context
	span    otel.Span
}

// Recording reports whether the span is exported. Check it before you create attributes, because creating them is expensive.
func (s Span) Recording() bool { return s.span != nil }

// Set adds attributes to the span, which operators can see. They must not contain payloads or secrets.
func (s Span) Set(attributes ...attribute.KeyValue) {
	if s.Recording() {
		s.span.SetAttributes(attributes...)
	}
}

// End ends the span. The parameter failure is empty if the operation succeeded, and otherwise a category or message that operators
// may see.
func (s Span) End(failure string) {
	if s.span == nil {
		return
	}
	if failure != "" {
		s.span.SetStatus(codes.Error, failure)
	}
	s.span.End()
}

// Event returns the attributes that identify an event in spans.
func Event(workspace, id, name string) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("mcpevents.workspace", workspace), attribute.String("messaging.message.id", id), attribute.String("mcpevents.event", name),
	}
}

// Spans is a group of spans that end together. The zero value is ready to use.
type Spans []Span

// Add adds a span to the group if the span is recorded. It returns the context of the span.
func (all *Spans) Add(s Span) Context {
	if s.Recording() {
		*all = append(*all, s)
	}
	return s.Context
}

// End ends all spans of the group with the same failure; see [Span.End].
func (all Spans) End(failure string) {
	for _, s := range all {
		s.End(failure)
	}
}

// The names of the headers of W3C Trace Context. CloudEvents' extension attributes, SQS message attributes and members of MCP's _meta
// (SEP-414) have the same names.
const (
	Parent = "traceparent"
	State  = "tracestate"
)

const (
	// maxState is the maximum length of a tracestate that we pass on, in bytes. W3C requires a limit of at least 512. From a longer
	// tracestate we drop members until it fits, and first the members that are longer than largeEntry.
	maxState   = 512
	largeEntry = 128
	// maxRead is the maximum length of a tracestate that we parse, in bytes. We ignore longer ones.
	maxRead = 8 << 10
	// parentSize is the length of a traceparent of version 00.
	parentSize = 55
)

// Context is a position in a trace, at which the next span continues. The zero value means that there is no trace. Use [Parse] for
// headers from other systems.
type Context struct {
	// Parent has the value of a traceparent header. State has the value of a tracestate header, and may be empty.
	Parent, State string
}

// Parse returns the trace context for the headers of a request from another system. It ignores a malformed traceparent or tracestate, and
// converts a traceparent of a later version to version 00 (W3C Trace Context, sections 2.2 and 4.3).
func Parse(parent, state string) Context {
	c, ok := parseParent(parent)
	if !ok {
		return Context{}
	}
	out := Context{Parent: formatParent(c)}
	if state != "" && len(state) <= maxRead {
		if _, err := otel.ParseTraceState(state); err == nil {
			out.State = shorten(state)
		}
	}
	return out
}

// FromHeader parses the trace context in a request's headers like [Parse]. It joins repeated tracestate headers. If traceparent is
// repeated, it ignores the trace context.
func FromHeader(h map[string][]string) Context {
	parent := h["Traceparent"]
	if len(parent) != 1 {
		return Context{}
	}
	return Parse(parent[0], strings.Join(h["Tracestate"], ","))
}

// AddTo sets the headers traceparent and tracestate of a request, so that the receiver continues the trace.
func (c Context) AddTo(h map[string][]string) {
	if c.Parent == "" {
		return
	}
	h["Traceparent"] = []string{c.Parent}
	if c.State != "" {
		h["Tracestate"] = []string{c.State}
	}
}

func parseParent(s string) (c otel.SpanContextConfig, ok bool) {
	if len(s) < parentSize || s[2] != '-' || s[35] != '-' || s[52] != '-' || !isHex(s[:2]) || !isHex(s[53:55]) || s[:2] == "ff" {
		return c, false
	}
	if len(s) > parentSize && (s[:2] == "00" || s[parentSize] != '-') {
		return c, false
	}
	var err error
	if c.TraceID, err = otel.TraceIDFromHex(s[3:35]); err != nil {
		return c, false
	}
	if c.SpanID, err = otel.SpanIDFromHex(s[36:52]); err != nil {
		return c, false
	}
	flags, err := strconv.ParseUint(s[53:55], 16, 8)
	c.TraceFlags = otel.TraceFlags(flags) & otel.FlagsSampled
	return c, err == nil
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

func formatParent(c otel.SpanContextConfig) string {
	return "00-" + c.TraceID.String() + "-" + c.SpanID.String() + "-" + c.TraceFlags.String()
}

// shorten drops members of a tracestate until it fits into [maxState]. It drops members longer than [largeEntry] first, and
// then the last members (W3C Trace Context, section 3.3.1.5).
func shorten(state string) string {
	for len(state) > maxState {
		members := strings.Split(state, ",")
		i := slices.IndexFunc(members, func(m string) bool { return len(m) > largeEntry })
		if i < 0 {
			i = len(members) - 1
		}
		state = strings.Join(slices.Delete(members, i, i+1), ",")
	}
	return state
}

// toRemote converts c to OpenTelemetry's type. The result is invalid if c does not come from [Parse] or a span.
func (c Context) toRemote() otel.SpanContext {
	config, _ := parseParent(c.Parent)
	config.TraceState, _ = otel.ParseTraceState(c.State)
	config.Remote = true
	return otel.NewSpanContext(config)
}

type contextKey struct{}

// With returns a copy of ctx that carries c, or ctx itself if c is zero.
func With(ctx context.Context, c Context) context.Context {
	if c.Parent == "" {
		return ctx
	}
	return context.WithValue(ctx, contextKey{}, c)
}

// From returns the trace context that [With] added to ctx, or the zero Context.
func From(ctx context.Context) Context {
	c, _ := ctx.Value(contextKey{}).(Context)
	return c
}
