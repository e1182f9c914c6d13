package main

import (
	"context"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/mcp-events/mcpevents/shared/fault"
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
