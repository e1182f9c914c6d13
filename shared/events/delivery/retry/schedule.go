package retry

import (
	"math/rand/v2"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
)

// Schedule has the delay before each attempt. The first delay is 0.
type Schedule []time.Duration

// Schedules of the two kinds of subscriptions.
var (
	// StandardSchedule is the schedule of Standard Webhooks: ten attempts over about three days. SEP-1803 subscriptions have
	// no other way to recover an event.
	StandardSchedule = Schedule{
		0, 5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
		10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
	}
	// EventsSchedule follows the guidance of SEP-3415: 3 to 5 attempts within 10 to 15 minutes, including jitter. After that,
	// the client recovers with its cursor.
	EventsSchedule = Schedule{0, 5 * time.Second, 40 * time.Second, 150 * time.Second, 480 * time.Second}
)

// Jitter is the share by which a delay may be shorter or longer, for example 4 to 6 seconds instead of 5.
const Jitter = 0.2

// Next returns the delay after the given number of attempts, or false if there is no further attempt. retryAfter is the
// delay that the endpoint asked for, or 0.
func (s Schedule) Next(attempts int, retryAfter time.Duration) (time.Duration, bool) {
	if attempts >= len(s) {
		return 0, false
	}
	d := time.Duration(float64(s[attempts]) * (1 - Jitter + 2*Jitter*rand.Float64()))
	return max(d, min(retryAfter, webhook.MaxRetryAfter)), true
}

// Total returns the longest time from the first attempt to the last.
func (s Schedule) Total() (sum time.Duration) {
	for _, d := range s {
		sum += d
	}
	return time.Duration(float64(sum) * (1 + Jitter))
}

// Schedules are the schedules of the two kinds of subscriptions.
type Schedules struct{ Standard, Events Schedule }

// Of returns the schedule for subscriptions of an origin.
func (s Schedules) Of(origin subscription.Origin) Schedule {
	if origin == subscription.MCPEvents {
		return s.Events
	}
	return s.Standard
}
