// Package otlp makes a stand-alone server send its metrics and traces to an OpenTelemetry collector. It is separate from package
// standalone, so that programs without a collector do not contain the exporter.
package otlp

import (
	"context"
	"encoding/base64"
	"errors"
	"net/url"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	traces "github.com/mcp-events/mcpevents/shared/platform/trace/otlp"
)

func newReader(ctx context.Context, endpoint string) (*sdk.PeriodicReader, error) {
	target, err := url.Parse(endpoint)
	if err != nil {
		return nil, fault.New(fault.Invalid, "--otlp-endpoint is not a URL") // err may contain a password
	}
	options := []otlpmetrichttp.Option{otlpmetrichttp.WithEndpointURL(target.JoinPath(traces.PathMetrics).String())}
	if u := target.User; u != nil { // the exporter ignores user information in the URL
		password, _ := u.Password()
		credentials := base64.StdEncoding.EncodeToString([]byte(u.Username() + ":" + password))
		options = append(options, otlpmetrichttp.WithHeaders(map[string]string{"Authorization": "Basic " + credentials}))
	}
	sender, err := otlpmetrichttp.New(ctx, options...)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "--otlp-endpoint")
	}
	return sdk.NewPeriodicReader(sender), nil
}

// Export adds exporters to the server options s. They send metrics and traces to the collector at s.Limits.OTLPEndpoint. The caller must
// call the function end after the server has shut down, because end sends the remaining metrics and traces.
func Export(ctx context.Context, s *standalone.Options) (end func(), err error) {
	if err := s.Limits.Check(); err != nil {
		return nil, err
	}
	metrics, err := newReader(ctx, s.Limits.OTLPEndpoint)
	if err != nil {
		return nil, err
	}
	spans, failed, err := traces.Provider(traces.Options{
		Endpoint: s.Limits.OTLPEndpoint, Ratio: s.Limits.TraceRatio, Version: app.Version, Log: s.Log,
	})
	if err != nil {
		return nil, err
	}
	s.Metrics, s.Traces, s.SpansNotSent = append(s.Metrics, metrics), spans, failed
	return func() {
		ctx := context.WithoutCancel(ctx)
		if err := errors.Join(metrics.Shutdown(ctx), spans.Shutdown(ctx)); err != nil {
			s.Log.Warn("metrics not sent", "error", err)
		}
	}, nil
}
