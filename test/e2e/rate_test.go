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
// dispatch send the webhooks.
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
		if took > bound {
			t.Errorf("the events arrived within %v, want %v, which is %d per second", took, bound, perSecond)
		}
	})
}
