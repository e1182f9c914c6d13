// Package otlp exports spans to an OpenTelemetry collector, by OTLP over HTTP with bodies in JSON.
//
// OpenTelemetry's own exporter writes protobuf, which makes the functions too large for their goal; see
// docs/explanation/decisions.md. Sampling, batches and limits are those of OpenTelemetry's SDK.
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

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/metric"
)

// Path is where a collector takes spans by HTTP.
const Path = "/v1/traces"

// MetricNotSent is the metric of batches of spans that were lost.
const MetricNotSent = "SpansNotSent"

const (
	// sendTime bounds one request.
	sendTime = 5 * time.Second
	// queued is how many spans wait for the collector at most; further ones are dropped. With
	// a batch of an eighth, a second's spans of a busy server fit.
	queued, batch = 16_384, 2048
)

// Options say where spans go.
type Options struct {
	// Endpoint is the collector's URL without [Path]; HTTP is a client for it, nil one with a timeout.
	Endpoint string
	HTTP     *http.Client
	// Header is sent with each request, such as a key.
	Header http.Header
	// Ratio is the share of traces that begin here that is exported. What began elsewhere is exported if it was
	// sampled there.
	Ratio float64
	// Version is that of the product.
	Version string
	Log     *slog.Logger
}

// Provider makes what spans are made with. Shut it down, or flush it where the process may be frozen.
func Provider(o Options) (*sdk.TracerProvider, error) {
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fault.New(fault.Invalid, "--otlp-endpoint %q is not the URL of a collector, such as http://127.0.0.1:4318", o.Endpoint)
	}
	if o.HTTP == nil {
		o.HTTP = &http.Client{Timeout: sendTime}
	}
	e := &exporter{
		url: strings.TrimSuffix(o.Endpoint, "/") + Path, options: o,
		failed: metric.Tally{Name: MetricNotSent, Text: "spans not sent", Log: o.Log},
	}
	return sdk.NewTracerProvider(
		sdk.WithBatcher(e, sdk.WithMaxQueueSize(queued), sdk.WithMaxExportBatchSize(batch), sdk.WithBatchTimeout(time.Second)),
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(o.Ratio))),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", "mcp-events"), attribute.String("service.version", o.Version))),
	), nil
}

// exporter implements [sdk.SpanExporter].
type exporter struct {
	url     string
	options Options
	failed  metric.Tally
}

// ExportSpans sends spans. Those that the collector does not take are lost, and logged: nothing waits for them.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	if len(spans) == 0 {
		return nil
	}
	body, _ := json.Marshal(requestOf(spans)) // texts and numbers
	if err := e.send(ctx, body); err != nil {
		e.failed.Add(ctx, slog.String("reason", err.Error()))
	}
	return nil
}

// Shutdown implements [sdk.SpanExporter].
func (e *exporter) Shutdown(context.Context) error { return nil }

var errUnreachable = errors.New("the collector cannot be reached")

func (e *exporter) send(ctx context.Context, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return errUnreachable
	}
	for name, values := range e.options.Header {
		r.Header[name] = values
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := e.options.HTTP.Do(r)
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
