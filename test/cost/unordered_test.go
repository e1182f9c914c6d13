//go:build unix

package cost

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// BenchmarkOneURI counts fanout's requests for the events of one URI, with an order and without, and the URI's concurrent
// batches. docs/explanation/scale.md computes from it.
func BenchmarkOneURI(b *testing.B) {
	a := harness.StartAWS(b, harness.AWSOptions{Catalog: `events:
  - {name: ordered, uriTemplate: "event://ordered/{source}"}
  - {name: unordered, uriTemplate: "event://unordered/{source}", order: none}
`})
	r := harness.NewReceiver(b)
	for _, name := range []string{"ordered", "unordered"} {
		b.Run(name, func(b *testing.B) {
			const n, publishers = 1_600, 4
			hook := r.Endpoint(name)
			hook.Light()
			uri := "event://" + name + "/one"
			subscribe(b, a, 1, uri, hook.URL())
			before, began := take(a), time.Now()
			var wg sync.WaitGroup
			for p := range publishers {
				wg.Go(func() {
					for i := p * n / publishers; i < (p+1)*n/publishers; i += 100 {
						var events []harness.Event
						for k := range 100 {
							events = append(events, harness.Event{ID: fmt.Sprintf("%s-%d", name, i+k), URI: uri, Data: map[string]any{"text": filler()}})
						}
						if _, err := a.TryPublish(b.Context(), "publisher", events...); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
			published := time.Since(began)
			harness.Eventually(b, 90*time.Second, "all deliveries", func() bool { all, _ := hook.Count(); return all >= n })
			got := since(b, a, before, n, false, path...)
			got.report(fmt.Sprintf("%s: %d events of one URI, published in %v, delivered in %v", name, n, published, time.Since(began)), n)
			batches := got.detail["Fanout invocations"]
			b.ReportMetric(n/batches, "events/fanout")
			for _, op := range []string{"DynamoDB.BatchGetItem", "DynamoDB.Query", "DynamoDB.PutItem", "SQS.SendMessageBatch", "SQS.SendMessage"} {
				b.ReportMetric(got.detail["Fanout "+op]/batches, op+"/fanout")
			}
			b.ReportMetric(got.detail["Fanout starts"], "fanout-starts")
			b.ReportMetric(n/time.Since(began).Seconds(), "events/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
