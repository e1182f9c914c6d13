// Package otlp exports spans and metrics to an OpenTelemetry collector. It uses OTLP over HTTP with JSON bodies.
//
// OpenTelemetry's own exporters write protobuf, which would make the Lambda functions larger than our limit (see
// docs/internals/decisions.md). OpenTelemetry's SDK still does the sampling, batching and aggregation.
package otlp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
)

// The paths of OTLP over HTTP. They are appended to the collector's URL, as OpenTelemetry does with OTEL_EXPORTER_OTLP_ENDPOINT.
const (
	path        = "/v1/traces"
	PathMetrics = "/v1/metrics"
)

const (
	// sendTime is the timeout of a request to the collector, unless [Options.HTTP] is set.
	sendTime = 5 * time.Second
	// queued is the maximum number of spans that wait to be sent. Further spans are dropped, but there is room for all spans that a busy
	// server creates until the next batch is sent, at most one second later. The constant batch is the maximum number of spans per
	// request.
	queued, batch = 16_384, 2048
)

// Options are the settings of [Provider] and [Metrics].
type Options struct {
	// Endpoint is the collector's URL, to which the exporter adds "/v1/traces" or "/v1/metrics". HTTP sends the requests; nil means a
	// client with a timeout of 5 s.
	Endpoint string
	HTTP     *http.Client
	// Ratio is the share of this process's own traces that are sent, from 0 to 1. If another system began a trace, its decision whether
	// to sample the trace is kept.
	Ratio   float64
	Version string
	Log     *slog.Logger
	Metrics *metric.Set // counts batches that could not be sent; may be nil
}

// Provider returns a provider for a tracer of package trace. Shut it down when the process ends. A Lambda function must also flush it
// after each invocation, because Lambda may freeze the process.
//
// Provider also returns the counter of batches that could not be sent. A process that creates its [metric.Set] later must assign it to
// the counter's field Set before the first span.
func Provider(o Options) (*sdk.TracerProvider, *metric.Tally, error) {
	failed := &metric.Tally{Name: metric.SpansNotSent, Text: "spans not sent", Log: o.Log, Set: o.Metrics}
	c, err := newCollector(o, path, failed)
	if err != nil {
		return nil, nil, err
	}
	return sdk.NewTracerProvider(
		sdk.WithBatcher(exporter{c}, sdk.WithMaxQueueSize(queued), sdk.WithMaxExportBatchSize(batch), sdk.WithBatchTimeout(time.Second)),
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(o.Ratio))),
		sdk.WithResource(resource.NewSchemaless(productAttributes(o)...)),
	), failed, nil
}

func productAttributes(o Options) []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String("service.name", "mcp-events"), attribute.String("service.version", o.Version)}
}

type exporter struct{ *collector }

// ExportSpans sends a batch of spans. It never returns an error, but counts lost batches as [metric.SpansNotSent].
func (e exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	if len(spans) > 0 {
		e.export(ctx, requestOf(spans))
	}
	return nil
}

func (exporter) Shutdown(context.Context) error { return nil }

type collector struct {
	url     string
	options Options
	failed  *metric.Tally
}

func newCollector(o Options, path string, failed *metric.Tally) (*collector, error) {
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fault.New(fault.Invalid, "--otlp-endpoint is not the URL of a collector, such as http://127.0.0.1:4318") // it may contain a password
	}
	if o.HTTP == nil {
		o.HTTP = &http.Client{Timeout: sendTime}
	}
	return &collector{url: u.JoinPath(path).String(), options: o, failed: failed}, nil
}

// export sends a request to the collector. It counts and logs a failure instead of returning it, because no caller waits for the result.
func (c *collector) export(ctx context.Context, request any) {
	body, _ := json.Marshal(request) // cannot fail with texts and numbers
	if err := c.send(ctx, body); err != nil {
		c.failed.Add(ctx, slog.String("reason", err.Error()))
	}
}

var errUnreachable = errors.New("the collector cannot be reached")

func (c *collector) send(ctx context.Context, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return errUnreachable
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := c.options.HTTP.Do(r)
	if err != nil {
		return errUnreachable // err may contain a secret of the URL, and failures with different texts would be counted separately
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the collector answered %d", resp.StatusCode)
	}
	return nil
}

// The messages of OTLP (opentelemetry/proto/collector/trace/v1 and metrics/v1) as JSON. Ids are hexadecimal, and 64-bit numbers are
// strings.

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

// statusError is OTLP's number for STATUS_CODE_ERROR.
const statusError = 2

// requestOf returns the request that sends spans. All spans come from one provider, so they share the resource and the scope of the first
// span.
func requestOf(spans []sdk.ReadOnlySpan) request {
	out := make([]span, len(spans))
	for i, s := range spans {
		sc := s.SpanContext()
		out[i] = span{
			TraceID: sc.TraceID().String(), SpanID: sc.SpanID().String(), TraceState: sc.TraceState().String(),
			Name: s.Name(), Kind: int(s.SpanKind()), // OTLP numbers the kinds like the SDK
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

// Metrics returns a function that sends the metrics of a process, for use as [metric.EMF.Export]. The parameter stack is the value of the
// attribute "stack", which distinguishes deployments that use the same collector. The instance id is different in each process, because
// the collector must not mix the gauges of two processes.
func Metrics(o Options, stack string) (func(context.Context, *metricdata.ResourceMetrics), error) {
	c, err := newCollector(o, PathMetrics, &metric.Tally{Name: metric.MetricsNotSent, Text: "metrics not sent", Log: o.Log, Set: o.Metrics})
	if err != nil {
		return nil, err
	}
	from := attributes{keyValues(append(productAttributes(o), attribute.String("service.instance.id", rand.Text()), attribute.String("stack", stack)))}
	return func(ctx context.Context, all *metricdata.ResourceMetrics) {
		c.export(context.WithoutCancel(ctx), request{ResourceMetrics: []resourceData{{Resource: from, ScopeMetrics: scopesOf(all)}}})
	}, nil
}

// instrument is OTLP's message Metric. Exactly one of Sum, Gauge and Histogram is set.
type instrument struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Unit        string `json:"unit,omitempty"`
	Sum         *data  `json:"sum,omitempty"`
	Gauge       *data  `json:"gauge,omitempty"`
	Histogram   *data  `json:"histogram,omitempty"`
}

type data struct {
	DataPoints             []point `json:"dataPoints"`
	AggregationTemporality int     `json:"aggregationTemporality,omitempty"`
	IsMonotonic            bool    `json:"isMonotonic,omitempty"`
}

// point is OTLP's message HistogramDataPoint if Count is set, and otherwise the message NumberDataPoint.
type point struct {
	Attributes        []keyValue `json:"attributes,omitempty"`
	StartTimeUnixNano string     `json:"startTimeUnixNano"`
	TimeUnixNano      string     `json:"timeUnixNano"`
	AsDouble          *float64   `json:"asDouble,omitempty"`
	Count             string     `json:"count,omitempty"`
	Sum               *float64   `json:"sum,omitempty"`
	BucketCounts      []string   `json:"bucketCounts,omitempty"`
	ExplicitBounds    []float64  `json:"explicitBounds,omitempty"`
}

// temporalities maps OpenTelemetry's temporalities to their numbers in OTLP's enumeration AggregationTemporality.
var temporalities = map[metricdata.Temporality]int{metricdata.DeltaTemporality: 1, metricdata.CumulativeTemporality: 2}

func scopesOf(all *metricdata.ResourceMetrics) (scopes []scopeData) {
	for _, s := range all.ScopeMetrics {
		out := scopeData{Scope: scope{s.Scope.Name}}
		for _, m := range s.Metrics {
			i := instrument{Name: m.Name, Description: m.Description, Unit: m.Unit}
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				i.Sum = &data{numbers(d.DataPoints), temporalities[d.Temporality], d.IsMonotonic}
			case metricdata.Sum[float64]:
				i.Sum = &data{numbers(d.DataPoints), temporalities[d.Temporality], d.IsMonotonic}
			case metricdata.Gauge[float64]:
				i.Gauge = &data{DataPoints: numbers(d.DataPoints)}
			case metricdata.Histogram[float64]:
				i.Histogram = &data{DataPoints: histograms(d.DataPoints), AggregationTemporality: temporalities[d.Temporality]}
			default: // metric.Table has no metrics of other types
				continue
			}
			out.Metrics = append(out.Metrics, i)
		}
		scopes = append(scopes, out)
	}
	return scopes
}

func numbers[N int64 | float64](points []metricdata.DataPoint[N]) []point {
	out := make([]point, len(points))
	for i, p := range points {
		value := float64(p.Value)
		out[i] = point{Attributes: keyValues(p.Attributes.ToSlice()), StartTimeUnixNano: nano(p.StartTime), TimeUnixNano: nano(p.Time), AsDouble: &value}
	}
	return out
}

func histograms(points []metricdata.HistogramDataPoint[float64]) []point {
	out := make([]point, len(points))
	for i, p := range points {
		out[i] = point{
			Attributes: keyValues(p.Attributes.ToSlice()), StartTimeUnixNano: nano(p.StartTime), TimeUnixNano: nano(p.Time),
			Count: strconv.FormatUint(p.Count, 10), Sum: &p.Sum, ExplicitBounds: p.Bounds,
		}
		for _, n := range p.BucketCounts {
			out[i].BucketCounts = append(out[i].BucketCounts, strconv.FormatUint(n, 10))
		}
	}
	return out
}

// nano returns a time in nanoseconds since 1970, or 0 for the zero time.
func nano(t time.Time) string {
	if t.IsZero() {
		return "0"
	}
	return strconv.FormatInt(t.UnixNano(), 10)
}
