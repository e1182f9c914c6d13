package events

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
)

// TestDeliveryStatusTellsOfThrottling: EVX-10. An endpoint that asked to be left alone is throttled for as long as
// it asked for.
func TestDeliveryStatusTellsOfThrottling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for wait, want := range map[time.Duration]int64{90 * time.Second: 90_000, 0: 0, -time.Second: 0} {
			got := newDeliveryStatus(true, subscription.Status{LastError: "http_4xx", ThrottledUntil: time.Now().Add(wait)})
			if got.Throttled != (want > 0) || got.RetryAfterMS != want || !got.Active || *got.LastError != "http_4xx" {
				t.Errorf("%v: got %+v, want active, http_4xx and throttled for %d ms", wait, got, want)
			}
		}
	})
}
