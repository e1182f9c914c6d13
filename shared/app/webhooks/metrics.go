package webhooks

import (
	"context"
	"errors"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/events/delivery"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
)

// WatchEndpoints has the metrics of failing endpoints read from a dispatcher.
func WatchEndpoints(c *app.Core, d *delivery.Dispatcher) error {
	return errors.Join(
		c.Metrics.Watch(metric.EndpointsFailing, func(context.Context) ([]metric.Reading, error) {
			n := d.Failing()
			return metric.One(float64(n.Slow + n.Paused)), nil
		}),
		c.Metrics.Watch(metric.EndpointStates, func(context.Context) ([]metric.Reading, error) {
			n := d.Failing()
			return []metric.Reading{{By: "slow", Value: float64(n.Slow)}, {By: "paused", Value: float64(n.Paused)}}, nil
		}),
	)
}
