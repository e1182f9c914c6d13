package delivery

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"

	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
)

func TestSchedules(t *testing.T) {
	t.Run("WHK-10 the delays of each kind, by default and as configured", func(t *testing.T) {
		const s, m, h = time.Second, time.Minute, time.Hour
		standard := retry.Schedule{0, 5 * s, 5 * m, 30 * m, 2 * h, 5 * h, 10 * h, 14 * h, 20 * h, 24 * h} // of Standard Webhooks
		for name, tc := range map[string]struct {
			options Options
			want    map[subscription.Origin]retry.Schedule
		}{
			"by default": {Options{}, map[subscription.Origin]retry.Schedule{subscription.SEP1803: standard, subscription.MCPEvents: retry.EventsSchedule}},
			"configured": {Options{Schedule: retry.Schedule{0, s}, EventsSchedule: retry.Schedule{0, m}}, map[subscription.Origin]retry.Schedule{
				subscription.SEP1803: {0, s}, subscription.MCPEvents: {0, m},
			}},
		} {
			d := NewDispatcher(Config{DB: newRig(t).db, Options: tc.options})
			for origin, want := range tc.want {
				if got := d.outcomes.Schedules.Of(origin); !slices.Equal(got, want) {
					t.Errorf("%s: %v has %v, want %v", name, origin, got, want)
				}
			}
		}
		if n, took := len(retry.EventsSchedule), retry.EventsSchedule.Total(); n != 5 || took > 15*m {
			t.Errorf("MCP Events: %d attempts within %v, want 5 within 15 minutes", n, took)
		}
	})

	t.Run("WHK-10 a delay varies by a fifth either way, and the last attempt has none after it", func(t *testing.T) {
		for i, delay := range retry.StandardSchedule {
			if i == 0 {
				continue
			}
			least, most := delay*2, time.Duration(0)
			for range 2000 {
				got, ok := retry.StandardSchedule.Next(i, 0)
				if !ok {
					t.Fatalf("no attempt %d", i+1)
				}
				least, most = min(least, got), max(most, got)
			}
			if least < delay*4/5 || least > delay*9/10 || most < delay*11/10 || most > delay*6/5 {
				t.Errorf("the delay before attempt %d is from %v to %v, want a fifth about %v", i+1, least, most, delay)
			}
		}
		if _, ok := retry.StandardSchedule.Next(len(retry.StandardSchedule), 0); ok {
			t.Error("an attempt after the last")
		}
	})

	for _, category := range []webhook.Category{
		webhook.DNSError, webhook.TLSError, webhook.ConnectionRefused, webhook.Timeout, webhook.HTTP5xx, webhook.HTTP4xx,
	} {
		t.Run(fmt.Sprintf("WHK-10 %s is tried again to the end of each schedule", category), func(t *testing.T) {
			r := newRig(t)
			plain, events := r.register("event://ci/build-finished").ID, r.subscribe().ID
			r.script = func(int) webhook.Outcome { return webhook.Outcome{Category: category, Status: statusOf(category)} }
			r.publish("evt_1")
			for end := r.now.Add(retry.StandardSchedule.Total()); r.now.Before(end); {
				r.run()
			}
			got := map[string]int{}
			for _, p := range r.posts {
				if p.ID != "evt_1" {
					continue // a gap notice, which is retried for longer
				}
				got[p.SubscriptionID]++
			}
			if got[plain] != len(retry.StandardSchedule) || got[events] != len(retry.EventsSchedule) {
				t.Errorf("%d attempts of %d, and %d of %d", got[plain], len(retry.StandardSchedule), got[events], len(retry.EventsSchedule))
			}
		})
	}
}

func statusOf(c webhook.Category) int {
	return map[webhook.Category]int{webhook.HTTP4xx: 404, webhook.HTTP5xx: 500}[c]
}
