package webhooks

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/delivery"
	"github.com/mcp-events/mcpevents/shared/metric"
)

// WatchEndpoints has the metric of failing endpoints read from a dispatcher.
func WatchEndpoints(c *app.Core, d *delivery.Dispatcher) error {
	return c.Metrics.Watch(metric.EndpointsFailing, func(context.Context) ([]metric.Reading, error) {
		return metric.One(float64(d.Failing())), nil
	})
}
