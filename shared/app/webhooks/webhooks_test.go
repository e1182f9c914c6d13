package webhooks

import (
	"testing"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// Each default schedule is defined twice, as the default of a flag and for a dispatcher without settings. Both must be equal.
func TestTheDefaultSchedulesAreOne(t *testing.T) {
	l := config.DefaultLimits()
	expect.List(t, "the default of --retry-schedule", l.RetrySchedule, retry.StandardSchedule)
	expect.List(t, "the default of --events-retry-schedule", l.EventsSchedule, retry.EventsSchedule)
}

type remote struct{ *sqlite.DB }

func (remote) Local() bool { return false }

// While Lambda has frozen the process, the monotonic clock may stand still. An endpoint's pause must end nevertheless.
func TestTheDispatcherCountsTheTimeOfAFreeze(t *testing.T) {
	core := &app.Core{DB: remote{expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)}}
	t.Cleanup(func() { _ = core.DB.Close() })
	now := NewDispatcher(core, DispatcherOptions{}).Now()
	expect.Equal(t, "the time without a monotonic clock", now, now.Round(0))
}
