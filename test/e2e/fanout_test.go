//go:build unix

package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/awsx"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestFanout sends one event to very many webhook subscriptions.
func TestFanout(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		s := harness.StartServer(t, harness.ServerOptions{
			Fast: true, Args: []string{"--quota", "30000", "--log-level", "warn"},
		})
		before := func() { t.Logf("peak RSS after registering: %d MiB", s.PeakRSS()>>20) }
		fanout(t, &s.Target, s.Modern("alice"), harness.Size(5_000, 20_000), before)
		rss := s.PeakRSS()
		t.Logf("peak RSS after delivering: %d MiB", rss>>20)
		if rss > 400<<20 {
			t.Errorf("the server took %d MiB", rss>>20)
		}
	})
	t.Run("local AWS", func(t *testing.T) {
		aws := harness.SharedAWS(t)
		var before map[string]awsx.Counts
		n := harness.Size(500, 2_000)
		fanout(t, &aws.Target, aws.Modern("alice"), n, func() { before = aws.Requests() })
		requests(t, before, aws.Requests(), n)
	})
}

// fanout registers n subscriptions of one event type at one endpoint, publishes
// an event, and waits until each has it.
func fanout(t *testing.T, target *harness.Target, c *harness.Client, n int, registered func()) {
	t.Helper()
	hook := harness.NewReceiver(t).Endpoint("all")
	hook.Light()
	const uri = "event://storage/fanout/object-created" // no other test's
	began := time.Now()
	const workers = 16
	var wg sync.WaitGroup
	errs := make(chan error, workers)
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				a, err := c.Try(t.Context(), "resources/subscriptions/register", object{
					"uris": []string{uri}, "targetUri": hook.URL(),
				})
				if err == nil && a.Error != nil {
					err = a.Error
				}
				if err != nil {
					errs <- fmt.Errorf("subscription %d: %w", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Fatal(err)
	}
	t.Logf("%d registered in %v", n, time.Since(began))
	registered()

	published := time.Now()
	target.Publish(t, harness.Event{ID: "fanout", URI: uri, Data: object{"key": "k", "size": 1}})
	if !harness.Within(t, 4*time.Minute, func() bool { _, d := hook.Count(); return d >= n }) {
		all, different := hook.Count()
		t.Fatalf("%d of %d subscriptions have the event, %d requests", different, n, all)
	}
	all, _ := hook.Count()
	took := time.Since(published)
	t.Logf("%d delivered in %v, %.0f a second, %d repetitions", n, took, float64(n)/took.Seconds(), all-n)
}

// requests logs what AWS was asked for between two counts, per delivery.
func requests(t *testing.T, before, after map[string]awsx.Counts, deliveries int) {
	t.Helper()
	var total int64
	for app, counts := range after {
		for service, operations := range counts.Since(before[app]) {
			for operation, n := range operations {
				if n.Requests == 0 {
					continue
				}
				total += n.Requests
				t.Logf("%s: %d × %s %s", app, n.Requests, service, operation)
			}
		}
	}
	t.Logf("%d AWS requests, %.3f per delivery", total, float64(total)/float64(deliveries))
}
