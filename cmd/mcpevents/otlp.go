package main

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/mcp-events/mcpevents/server"
	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/trace/otlp"
)

// otlpPath is where a collector takes metrics by HTTP (OTLP 1.x, "OTLP/HTTP Request").
const otlpPath = "/v1/metrics"

// otlpMetrics sends metrics to a collector every minute, and when it is shut down.
func otlpMetrics(ctx context.Context, endpoint string) (*sdk.PeriodicReader, error) {
	exporter, err := otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpointURL(endpoint), otlpmetrichttp.WithURLPath(otlpPath))
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "--otlp-endpoint")
	}
	return sdk.NewPeriodicReader(exporter), nil
}

// export has a server's metrics and traces sent to the collector of its limits. End sends the last ones.
func export(ctx context.Context, s *server.Options) (end func(), err error) {
	metrics, err := otlpMetrics(ctx, s.Limits.OTLPEndpoint)
	if err != nil {
		return nil, err
	}
	traces, err := otlp.Provider(otlp.Options{
		Endpoint: s.Limits.OTLPEndpoint, Ratio: s.Limits.TraceRatio, Version: app.Version, Log: s.Log,
	})
	if err != nil {
		return nil, err
	}
	s.Metrics, s.Traces = append(s.Metrics, metrics), traces
	return func() {
		ctx := context.WithoutCancel(ctx)
		if err := errors.Join(metrics.Shutdown(ctx), traces.Shutdown(ctx)); err != nil {
			s.Log.Warn("metrics not sent", "error", err)
		}
	}, nil
}
