package app

import (
	"context"
	"sync/atomic"

	"github.com/mcp-events/mcpevents/shared/platform/metric"
)

// WatchLog has the metrics of the event log read: what would be silent when a bound of it breaks.
func (c *Core) WatchLog() error {
	for name, n := range map[string]*atomic.Int64{
		metric.LogSlowAppends: &c.EventLog.Slow, metric.LogClockSkew: &c.EventLog.Skewed,
		metric.LogLateEntries: &c.EventLog.Late, metric.LogBrokenSegments: &c.EventLog.Broken,
	} {
		err := c.Metrics.Watch(name, func(context.Context) ([]metric.Reading, error) { return metric.One(float64(n.Load())), nil })
		if err != nil {
			return err
		}
	}
	return nil
}
