package trace

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	otel "go.opentelemetry.io/otel/trace"
)

// Kind is a span's role in OpenTelemetry.
type Kind = otel.SpanKind

// The kinds that are used here.
const (
	Producer = otel.SpanKindProducer
	Consumer = otel.SpanKindConsumer
	Client   = otel.SpanKindClient
)

// Tracer makes spans. A nil one makes none, allocates nothing, and hands contexts on as they came. Its methods may be
// called concurrently.
type Tracer struct{ tracer otel.Tracer }

// New makes a tracer.
func New(p otel.TracerProvider) *Tracer {
	return &Tracer{p.Tracer("github.com/mcp-events/mcpevents")}
}

// Start begins a span below c, or a trace if c is none.
func (t *Tracer) Start(c Context, name string, kind Kind) Span {
	if t == nil {
		return Span{Context: c}
	}
	ctx := context.Background()
	if c.Parent != "" {
		ctx = otel.ContextWithRemoteSpanContext(ctx, c.remote())
	}
	_, span := t.tracer.Start(ctx, name, otel.WithSpanKind(kind))
	if !span.IsRecording() { // not sampled
		return Span{Context: c}
	}
	sc := span.SpanContext()
	return Span{Context: Context{
		Parent: text(otel.SpanContextConfig{TraceID: sc.TraceID(), SpanID: sc.SpanID(), TraceFlags: sc.TraceFlags() & otel.FlagsSampled}),
		State:  sc.TraceState().String(),
	}, span: span}
}

// Continue is Start within a trace: without one it begins none.
func (t *Tracer) Continue(c Context, name string, kind Kind) Span {
	if c.Parent == "" {
		return Span{}
	}
	return t.Start(c, name, kind)
}

// Span is a piece of work. The Context is that of what it leads to.
type Span struct {
	Context Context
	span    otel.Span
}

// On reports whether anyone will see the span. Ask before attributes are made: they cost.
func (s Span) On() bool { return s.span != nil }

// Set adds what an operator wants to know: no payload, no secret.
func (s Span) Set(attributes ...attribute.KeyValue) {
	if s.On() {
		s.span.SetAttributes(attributes...)
	}
}

// End ends the span. Failure is why it failed, a category or a message that may be shown; empty if it did not.
func (s Span) End(failure string) {
	if s.span == nil {
		return
	}
	if failure != "" {
		s.span.SetStatus(codes.Error, failure)
	}
	s.span.End()
}

// Event are the attributes of what is done with an event.
func Event(workspace, id, name string) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("mcpevents.workspace", workspace), attribute.String("messaging.message.id", id), attribute.String("mcpevents.event", name),
	}
}

// Spans are pieces of work that end together. The zero value is ready.
type Spans []Span

// Add keeps a span that anyone will see, and returns where what it leads to belongs.
func (all *Spans) Add(s Span) Context {
	if s.On() {
		*all = append(*all, s)
	}
	return s.Context
}

// End ends all spans.
func (all Spans) End(failure string) {
	for _, s := range all {
		s.End(failure)
	}
}
