package trace

import (
	"context"

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

// Tracer creates spans. A nil Tracer creates none, does not allocate, and passes contexts on unchanged. Its methods may be called
// concurrently.
type Tracer struct{ tracer otel.Tracer }

// New returns a tracer.
func New(p otel.TracerProvider) *Tracer {
	return &Tracer{p.Tracer("github.com/mcp-events/mcpevents")}
}

// Start starts a span below c, or a new trace if c is zero.
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
		Parent: formatParent(otel.SpanContextConfig{TraceID: sc.TraceID(), SpanID: sc.SpanID(), TraceFlags: sc.TraceFlags() & otel.FlagsSampled}),
		State:  sc.TraceState().String(),
	}, span: span}
}

// Continue starts a span like [Tracer.Start], but only within an existing trace.
func (t *Tracer) Continue(c Context, name string, kind Kind) Span {
	if c.Parent == "" {
		return Span{}
	}
	return t.Start(c, name, kind)
}

// Span is an operation in a trace. Operations that it causes are below Context.
type Span struct {
	Context Context
	span    otel.Span
}

// Recording reports whether the span is exported. Check it before creating attributes, because they are expensive.
func (s Span) Recording() bool { return s.span != nil }

// Set adds attributes for operators. They must not contain payloads or secrets.
func (s Span) Set(attributes ...attribute.KeyValue) {
	if s.Recording() {
		s.span.SetAttributes(attributes...)
	}
}

// End ends the span. Unless the operation succeeded, failure is a category or message that operators may see.
func (s Span) End(failure string) {
	if s.span == nil {
		return
	}
	if failure != "" {
		s.span.SetStatus(codes.Error, failure)
	}
	s.span.End()
}

// Event returns the attributes for operations on an event.
func Event(workspace, id, name string) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("mcpevents.workspace", workspace), attribute.String("messaging.message.id", id), attribute.String("mcpevents.event", name),
	}
}

// Spans are spans that end together. The zero value is ready to use.
type Spans []Span

// Add adds a span and returns its context.
func (all *Spans) Add(s Span) Context {
	if s.Recording() {
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
