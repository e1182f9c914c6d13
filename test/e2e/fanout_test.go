//go:build unix

package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestFanout sends one event to very many webhook subscriptions of one endpoint. [TestHangingEndpointsOnAWS] does so
// on AWS.
func TestFanout(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{
		Fast: true, Args: []string{"--quota", "30000", "--log-level", "warn"},
	})
	n := harness.Size(5_000, 20_000)
	hook := harness.NewReceiver(t).Endpoint("all")
	hook.Light()
	const uri = "event://storage/fanout/object-created"
	began := time.Now()
	webhooks(t, &s.Target, uri, slices.Repeat([]string{hook.URL()}, n))
	t.Logf("%d registered in %v, peak RSS %d MiB", n, time.Since(began), s.PeakRSS()>>20)

	published := time.Now()
	s.Publish(t, harness.Event{ID: "fanout", URI: uri, Data: object{"key": "k", "size": 1}})
	if !harness.Within(t, 4*time.Minute, func() bool { _, d := hook.Count(); return d >= n }) {
		all, different := hook.Count()
		t.Fatalf("%d of %d subscriptions have the event, %d requests", different, n, all)
	}
	all, _ := hook.Count()
	took := time.Since(published)
	t.Logf("%d delivered in %v, %.0f per second, %d repetitions", n, took, float64(n)/took.Seconds(), all-n)
	rss := s.PeakRSS()
	t.Logf("peak RSS after delivering: %d MiB", rss>>20)
	if rss > 400<<20 {
		t.Errorf("the server used %d MiB", rss>>20)
	}
}
