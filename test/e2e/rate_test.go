//go:build unix

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestRateOfOneSubscriberOnAWS publishes a minute's worth of events in one burst to a subscriber whose endpoint needs
// 200 ms per request. The functions run with the template's default parameters, so two concurrent invocations of
// dispatch send the webhooks. It logs the rate, which is 30 per second or more on an idle machine.
func TestRateOfOneSubscriberOnAWS(t *testing.T) {
	aws := harness.StartAWS(t, harness.AWSOptions{Defaults: true})
	t.Run("WHK-24 an endpoint that responds in 200 ms receives 30 events per second, and all of a burst of 1,800", func(t *testing.T) {
		const perSecond, bound, array = 30, time.Minute, 100
		const events = perSecond * int(bound/time.Second)
		hook := harness.NewReceiver(t).Endpoint("busy")
		hook.Answer(func(int, *harness.Delivery) harness.Reply { return harness.Reply{After: 200 * time.Millisecond} })
		subscribe(t, aws.Stateless("alice"), hook, "message.created", object{"workspace": "acme", "channel": "busy"})

		began := time.Now()
		for first := 0; first < events; first += array {
			var burst []harness.Event
			for i := range array {
				burst = append(burst, message(fmt.Sprint("busy-", first+i), "busy"))
			}
			aws.Publish(t, burst...)
		}
		published := time.Since(began)

		arrived := func() int { _, different := hook.Count(); return different }
		if !harness.Within(t, 2*time.Minute, func() bool { return arrived() == events }) {
			t.Fatalf("%d of %d events arrived within two minutes", arrived(), events)
		}
		var times []time.Time // when each event arrived first
		seen := map[string]bool{}
		deliveries := hook.Deliveries()
		for _, d := range deliveries {
			if !seen[d.ID()] {
				seen[d.ID()] = true
				times = append(times, d.At)
			}
		}
		took := times[len(times)-1].Sub(times[0])
		t.Logf("%d events, published in %v in arrays of %d, arrived within %v, %.0f per second; %d were repeated",
			events, published, array, took, float64(events)/took.Seconds(), len(deliveries)-events)
		// On a busy machine the time says little. By Little's law, 30 requests per second of 200 ms each are 6 at a time.
		if most := mostWithin(times, 200*time.Millisecond); most < 6 {
			t.Errorf("at most %d requests were under way at a time, want 6 or more", most)
		}
	})
}

// mostWithin returns the largest number of times that lie within one span. The times must be sorted.
func mostWithin(times []time.Time, span time.Duration) (most int) {
	first := 0
	for last, at := range times {
		for at.Sub(times[first]) > span {
			first++
		}
		most = max(most, last-first+1)
	}
	return most
}
