// Package otlp exports spans, and the metrics of functions, to an OpenTelemetry collector, by OTLP over HTTP with
// bodies in JSON.
//
// OpenTelemetry's own exporters write protobuf, which makes the functions too large for their goal; see
// docs/explanation/decisions.md. Sampling, batches, aggregation and limits are those of OpenTelemetry's SDK.
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

// Path is where a collector takes spans by HTTP, and PathMetrics metrics.
const (
	Path        = "/v1/traces"
	PathMetrics = "/v1/metrics"
)

// MetricNotSent is the metric of batches of spans that were lost, and MetricMetricsNotSent of metrics.
const (
	MetricNotSent        = "SpansNotSent"
	MetricMetricsNotSent = "MetricsNotSent"
)

const (
	// sendTime bounds one request.
	sendTime = 5 * time.Second
	// queued is how many spans wait for the collector at most; further ones are dropped. With
	// a batch of an eighth, a second's spans of a busy server fit.
	queued, batch = 16_384, 2048
)

// Options say where spans and metrics go.
type Options struct {
	// Endpoint is the collector's URL without a path; HTTP is a client for it, nil one with a timeout.
	Endpoint string
	HTTP     *http.Client
	// Ratio is the share of traces that begin here that is exported. What began elsewhere is exported if it was
	// sampled there.
	Ratio float64
	// Version is that of the product.
	Version string
	Log     *slog.Logger
}

// Provider makes what spans are made with. Shut it down, or flush it where the process may be frozen.
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

// product is what spans and metrics are of.
func product(o Options) []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String("service.name", "mcp-events"), attribute.String("service.version", o.Version)}
}

// exporter implements [sdk.SpanExporter].
type exporter struct{ *collector }

// ExportSpans sends spans. Those that the collector does not take are lost, and logged: nothing waits for them.
func (e exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	if len(spans) > 0 {
		e.export(ctx, requestOf(spans))
	}
	return nil
}

// Shutdown implements [sdk.SpanExporter].
func (exporter) Shutdown(context.Context) error { return nil }

// collector takes requests of one kind.
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

// export sends a request, and logs if the collector does not take it.
func (c *collector) export(ctx context.Context, request any) {
	body, _ := json.Marshal(request) // texts and numbers
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
		return errUnreachable // not the error itself: the URL may hold a secret, and lines are counted by reason
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the collector answered %d", resp.StatusCode)
	}
	return nil
}
