// Package trace follows an event from its publisher to its webhooks, and a call to a backend: [Context] is where
// in a trace something happens, as W3C Trace Context has it, and [Tracer] makes spans.
//
// A context travels in the event itself, so that it is wherever the event is: in messages, the log, stored bodies,
// dead letters and replays. How spans are exported does not enter here; go on in trace/otlp.
package trace

import (
	"context"
	"slices"
	"strconv"
	"strings"

	otel "go.opentelemetry.io/otel/trace"
)

// The names of the two headers, which are also those of the extension attributes of a CloudEvent, of SQS message
// attributes, and of members of MCP's _meta (SEP-414).
const (
	Parent = "traceparent"
	State  = "tracestate"
)

const (
	// maxState is how much of a tracestate is handed on in bytes, the least that W3C asks for, and largeEntry from
	// which length its members go first.
	maxState   = 512
	largeEntry = 128
	// maxRead bounds what is looked at.
	maxRead = 8 << 10
	// parentSize is the length of a traceparent of version 00.
	parentSize = 55
)

// Context is a place in a trace. The zero value is none. [Parse] makes one of what others sent.
type Context struct {
	// Parent is a traceparent, State a tracestate, which may be empty.
	Parent, State string
}

// Parse checks what came from outside. A malformed traceparent is as none, and so is a malformed tracestate; a
// traceparent of a later version becomes one of ours (W3C Trace Context, sections 2.2 and 4.3).
func Parse(parent, state string) Context {
	c, ok := parseParent(parent)
	if !ok {
		return Context{}
	}
	out := Context{Parent: text(c)}
	if state != "" && len(state) <= maxRead {
		if _, err := otel.ParseTraceState(state); err == nil {
			out.State = bound(state)
		}
	}
	return out
}

// FromHeader is [Parse] for the headers of a request. Two traceparents are as none; the parts of a tracestate are
// put together.
func FromHeader(h map[string][]string) Context {
	parent := h["Traceparent"]
	if len(parent) != 1 {
		return Context{}
	}
	return Parse(parent[0], strings.Join(h["Tracestate"], ","))
}

// AddTo sets the headers of a request.
func (c Context) AddTo(h map[string][]string) {
	if c.Parent == "" {
		return
	}
	h["Traceparent"] = []string{c.Parent}
	if c.State != "" {
		h["Tracestate"] = []string{c.State}
	}
}

// parseParent reads a traceparent: version, trace id, parent id and flags.
func parseParent(s string) (c otel.SpanContextConfig, ok bool) {
	if len(s) < parentSize || s[2] != '-' || s[35] != '-' || s[52] != '-' || !hex(s[:2]) || !hex(s[53:55]) || s[:2] == "ff" {
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

func hex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

func text(c otel.SpanContextConfig) string {
	return "00-" + c.TraceID.String() + "-" + c.SpanID.String() + "-" + c.TraceFlags.String()
}

// bound shortens a tracestate to [maxState]: large members go first, then the last ones (section 3.3.1.5).
func bound(state string) string {
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

// remote is the context as OpenTelemetry has it; that of a Context which was not made by [Parse] may be invalid.
func (c Context) remote() otel.SpanContext {
	config, _ := parseParent(c.Parent)
	config.TraceState, _ = otel.ParseTraceState(c.State)
	config.Remote = true
	return otel.NewSpanContext(config)
}

type contextKey struct{}

// With has what is done under ctx belong to c, unless c is none.
func With(ctx context.Context, c Context) context.Context {
	if c.Parent == "" {
		return ctx
	}
	return context.WithValue(ctx, contextKey{}, c)
}

// From is what [With] put there.
func From(ctx context.Context) Context {
	c, _ := ctx.Value(contextKey{}).(Context)
	return c
}
