package webhooks

import (
	"testing"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/test/expect"
)

// Each default schedule is defined twice, as the default of a flag and for a dispatcher without settings. Both must be equal.
func TestTheDefaultSchedulesAreOne(t *testing.T) {
	l := config.DefaultLimits()
	expect.List(t, "the default of --retry-schedule", l.RetrySchedule, retry.StandardSchedule)
	expect.List(t, "the default of --events-retry-schedule", l.EventsSchedule, retry.EventsSchedule)
}
