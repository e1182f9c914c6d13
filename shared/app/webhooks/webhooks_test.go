package webhooks

import (
	"slices"
	"testing"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/events/delivery"
)

// A schedule is written twice: as the default of a flag, and for a dispatcher without settings.
func TestTheDefaultSchedulesAreOne(t *testing.T) {
	l := config.DefaultLimits()
	if !slices.Equal(l.RetrySchedule, delivery.StandardSchedule) {
		t.Errorf("--retry-schedule is %v by default, package delivery has %v", l.RetrySchedule, delivery.StandardSchedule)
	}
	if !slices.Equal(l.EventsSchedule, delivery.EventsSchedule) {
		t.Errorf("--events-retry-schedule is %v by default, package delivery has %v", l.EventsSchedule, delivery.EventsSchedule)
	}
}
