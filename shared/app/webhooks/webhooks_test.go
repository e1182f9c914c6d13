package webhooks

import (
	"slices"
	"testing"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
)

// Each default schedule is defined twice, as the default of a flag and for a dispatcher without settings. Both must be equal.
func TestTheDefaultSchedulesAreOne(t *testing.T) {
	l := config.DefaultLimits()
	if !slices.Equal(l.RetrySchedule, retry.StandardSchedule) {
		t.Errorf("--retry-schedule is %v by default, package retry has %v", l.RetrySchedule, retry.StandardSchedule)
	}
	if !slices.Equal(l.EventsSchedule, retry.EventsSchedule) {
		t.Errorf("--events-retry-schedule is %v by default, package retry has %v", l.EventsSchedule, retry.EventsSchedule)
	}
}
