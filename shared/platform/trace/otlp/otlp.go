// Package otlp exports spans, and the metrics of functions, to an OpenTelemetry collector with OTLP over HTTP and bodies in JSON.
//
// OpenTelemetry's own exporters write protobuf, which would make the functions larger than our limit, see docs/internals/decisions.md.
// Its SDK does the sampling, batching and aggregation.
package otlp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
)

// Path is the collector's path for spans, and PathMetrics its path for metrics.
const (
	Path        = "/v1/traces"
	PathMetrics = "/v1/metrics"
)

// MetricNotSent counts lost batches of spans, and MetricMetricsNotSent lost batches of metrics.
const (
	MetricNotSent        = "SpansNotSent"
	MetricMetricsNotSent = "MetricsNotSent"
)

const (
	// sendTime limits a request.
	sendTime = 5 * time.Second
	// queued is the largest number of spans that wait for the collector. More are dropped. A busy server's spans of a second fit.
	queued, batch = 16_384, 2048
)

// Options are the settings of an exporter.
type Options struct {
	// Endpoint is the collector's URL without a path. A nil HTTP is a client with a timeout.
	Endpoint string
	HTTP     *http.Client
	// Ratio is the exported share of the traces that start in this process. Other traces are exported if their start was sampled.
	Ratio float64
	// Version is the version of the product.
	Version string
	Log     *slog.Logger
}

// Provider returns the provider for a tracer. Shut it down when the process ends. In a function, flush it after each invocation
// because Lambda may freeze the process.
func Provider(o Options) (*sdk.TracerProvider, error) {
	c, err := newCollector(o, Path, &metric.Tally{Name: MetricNotSent, Text: "spans not sent", Log: o.Log})
	if err != nil {
		return nil, err
	}
	return sdk.NewTracerProvider(
		sdk.WithBatcher(exporter{c}, sdk.WithMaxQueueSize(queued), sdk.WithMaxExportBatchSize(batch), sdk.WithBatchTimeout(time.Second)),
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(o.Ratio))),
		sdk.WithResource(resource.NewSchemaless(product(o)...)),
	), nil
}

// product returns the attributes of the product.
func product(o Options) []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String("service.name", "mcp-events"), attribute.String("service.version", o.Version)}
}

// exporter implements [sdk.SpanExporter].
type exporter struct{ *collector }

// ExportSpans sends spans. If the collector rejects them, they are lost and counted, because no caller waits for them.
func (e exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	if len(spans) > 0 {
		e.export(ctx, requestOf(spans))
	}
	return nil
}

// Shutdown implements [sdk.SpanExporter].
func (exporter) Shutdown(context.Context) error { return nil }

// collector sends requests to a path of a collector.
type collector struct {
	url     string
	options Options
	failed  *metric.Tally
}

func newCollector(o Options, path string, failed *metric.Tally) (*collector, error) {
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fault.New(fault.Invalid, "--otlp-endpoint %q is not the URL of a collector, such as http://127.0.0.1:4318", o.Endpoint)
	}
	if o.HTTP == nil {
		o.HTTP = &http.Client{Timeout: sendTime}
	}
	return &collector{url: strings.TrimSuffix(o.Endpoint, "/") + path, options: o, failed: failed}, nil
}

// export sends a request, and counts and logs a failure.
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
		return errUnreachable // err may contain the URL with a secret, and the log counts lines by reason
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the collector answered %d", resp.StatusCode)
	}
	return nil
}
