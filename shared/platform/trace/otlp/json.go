package otlp

import (
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// The messages of OTLP (opentelemetry/proto/collector/trace/v1 and metrics/v1) in its JSON encoding: ids in hexadecimal, 64-bit
// numbers as strings, enumerations as numbers.

type request struct {
	ResourceSpans   []resourceData `json:"resourceSpans,omitempty"`
	ResourceMetrics []resourceData `json:"resourceMetrics,omitempty"`
}

type resourceData struct {
	Resource     attributes  `json:"resource"`
	ScopeSpans   []scopeData `json:"scopeSpans,omitempty"`
	ScopeMetrics []scopeData `json:"scopeMetrics,omitempty"`
}

type scopeData struct {
	Scope   scope        `json:"scope"`
	Spans   []span       `json:"spans,omitempty"`
	Metrics []instrument `json:"metrics,omitempty"`
}

type attributes struct {
	Attributes []keyValue `json:"attributes"`
}

type scope struct {
	Name string `json:"name"`
}

type span struct {
	TraceID           string     `json:"traceId"`
	SpanID            string     `json:"spanId"`
	ParentSpanID      string     `json:"parentSpanId,omitempty"`
	TraceState        string     `json:"traceState,omitempty"`
	Name              string     `json:"name"`
	Kind              int        `json:"kind"`
	StartTimeUnixNano string     `json:"startTimeUnixNano"`
	EndTimeUnixNano   string     `json:"endTimeUnixNano"`
	Attributes        []keyValue `json:"attributes,omitempty"`
	Status            status     `json:"status"`
}

type status struct {
	Message string `json:"message,omitempty"`
	Code    int    `json:"code,omitempty"`
}

type keyValue struct {
	Key   string `json:"key"`
	Value value  `json:"value"`
}

type value struct {
	String *string  `json:"stringValue,omitempty"`
	Int    *string  `json:"intValue,omitempty"`
	Bool   *bool    `json:"boolValue,omitempty"`
	Double *float64 `json:"doubleValue,omitempty"`
}

// statusError is STATUS_CODE_ERROR.
const statusError = 2

// requestOf returns the request for spans of the same provider, so they have the same resource and scope.
func requestOf(spans []sdk.ReadOnlySpan) request {
	out := make([]span, len(spans))
	for i, s := range spans {
		sc := s.SpanContext()
		out[i] = span{
			TraceID: sc.TraceID().String(), SpanID: sc.SpanID().String(), TraceState: sc.TraceState().String(),
			Name: s.Name(), Kind: int(s.SpanKind()), // OpenTelemetry's numbers are the same
			StartTimeUnixNano: nano(s.StartTime()), EndTimeUnixNano: nano(s.EndTime()),
			Attributes: keyValues(s.Attributes()),
		}
		if parent := s.Parent(); parent.HasSpanID() {
			out[i].ParentSpanID = parent.SpanID().String()
		}
		if st := s.Status(); st.Code == codes.Error {
			out[i].Status = status{Message: st.Description, Code: statusError}
		}
	}
	return request{ResourceSpans: []resourceData{{
		Resource:   attributes{keyValues(spans[0].Resource().Attributes())},
		ScopeSpans: []scopeData{{Scope: scope{spans[0].InstrumentationScope().Name}, Spans: out}},
	}}}
}

func keyValues(all []attribute.KeyValue) []keyValue {
	out := make([]keyValue, len(all))
	for i, a := range all {
		out[i].Key = string(a.Key)
		switch v := &out[i].Value; a.Value.Type() {
		case attribute.INT64:
			n := strconv.FormatInt(a.Value.AsInt64(), 10)
			v.Int = &n
		case attribute.BOOL:
			b := a.Value.AsBool()
			v.Bool = &b
		case attribute.FLOAT64:
			f := a.Value.AsFloat64()
			v.Double = &f
		default:
			s := a.Value.String()
			v.String = &s
		}
	}
	return out
}
