//go:build unix

package cost

import (
	"fmt"
	"math"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// BenchmarkWideFanout computes the price of one event to many subscriptions if all functions are cold, and extrapolates it to
// 100,000 and to a million subscriptions.
func BenchmarkWideFanout(b *testing.B) {
	const n = 3_000
	const uri = "event://storage/wide/object-created"
	a := harness.StartAWS(b, harness.AWSOptions{Env: map[string]string{"MCPEVENTS_QUOTA": "100000"}})
	hook := harness.NewReceiver(b).Endpoint("wide")
	hook.Light()
	subscribe(b, a, n, uri, hook.URL())
	for _, f := range path {
		a.Retire(f)
	}
	before := take(a)
	began := time.Now()
	a.Publish(b, harness.Event{ID: "wide", URI: uri, Data: map[string]any{"key": "k", "size": 1, "text": filler()}})
	harness.Eventually(b, 4*time.Minute, "all deliveries", func() bool { _, d := hook.Count(); return d >= n })
	took := time.Since(began)
	got := since(b, a, before, n, true, path...)
	got.report(fmt.Sprintf("one event to %d, cold, in %v", n, took), n)
	b.ReportMetric(got.requests/n, "requests/delivery")
	b.ReportMetric(got.total()/n*1e6, "$/million")
	for _, many := range []float64{100_000, 1_000_000} {
		b.ReportMetric(extrapolate(got, n, many)/many*1e6, fmt.Sprintf("$/million-of-one-to-%.0f", many))
	}
	b.ReportMetric(0, "ns/op")
}

// What delivery does with a wide event, as in its message.go and outcome.go.
const (
	pageTarget   = 20.0
	branches     = 64.0
	pageSplit    = 40.0
	statusShare  = 1 / 16.0
	statusBudget = 60.0
)

// tree returns the number of pages into which an event to count subscriptions is divided, and of the tasks that divide it.
func tree(count float64) (pages, splits float64) {
	pages = 1
	for each := count; each > pageSplit || pages == 1; {
		parts := min(math.Ceil(each/pageTarget), branches)
		splits += pages
		pages, each = pages*parts, each/parts
	}
	return pages, splits
}

// extrapolate computes the price of one event to many subscriptions from the measured price of one event to n. The pages of a
// wider event are smaller, and the tree has more levels. Each dispatcher writes its budget of statuses per minute, and a
// share of the others. The duration assumes ten dispatchers that send 100 webhooks per second each.
func extrapolate(got bill, n, many float64) float64 {
	// A task is sent, received and deleted in tens, and read by one query.
	const perTask = 3*perStandard/10 + perReadUnit
	pagesOfN, _ := tree(n)
	pagesOfMany, splits := tree(many)
	statuses := got.dispatched * perWriteUnit
	rest := (got.total() - statuses) / n * many
	rest += (pagesOfMany - pagesOfN/n*many) * perTask
	rest += splits * perTask
	minutes := math.Ceil(many / (10 * 100) / 60)
	return rest + (many*statusShare+10*statusBudget*minutes)*perWriteUnit
}

// subscribe registers n webhooks for one URI at one target.
func subscribe(b testing.TB, a *harness.AWS, n int, uri, target string) {
	b.Helper()
	const workers = 16
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			c := a.Stateless("alice")
			for i := w; i < n; i += workers {
				answer, err := c.Try(b.Context(), "resources/subscriptions/register", map[string]any{"uris": []string{uri}, "targetUri": target})
				if err == nil && answer.Error != nil {
					err = answer.Error
				}
				if err != nil {
					b.Errorf("subscription %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if b.Failed() {
		b.FailNow()
	}
}

// storedBytes returns the number of bytes that register has sent in writes of new items since a snapshot. Its updates only
// change counters that subscriptions share.
func storedBytes(a *harness.AWS, before snapshot) (bytes float64) {
	for op, c := range a.Requests()["RegisterFunction"].Since(before.requests["RegisterFunction"])["DynamoDB"] {
		if op == "PutItem" || op == "TransactWriteItems" {
			bytes += float64(c.BytesOut)
		}
	}
	return bytes
}

// BenchmarkIdle computes the price of a deployment in a month without events, and the price that a million subscriptions add.
// A subscription occupies at most as many bytes as its registration wrote.
func BenchmarkIdle(b *testing.B) {
	const n = 200
	const month = 30 * 24 * time.Hour
	a := harness.StartAWS(b, harness.AWSOptions{})
	before := take(a)
	subscribe(b, a, n, "event://storage/idle/object-created", "https://example.com/hook")
	stored := storedBytes(a, before) / n * 1e6 / 1e9 * perStoredGB

	periodic := []string{"RetryFunction", "RelayFunction"}
	start, at := take(a), time.Now()
	time.Sleep(time.Minute) // retry runs every two seconds here
	got := since(b, a, start, 0, false, periodic...)
	runs := got.detail["Retry invocations"]
	minutely := got.total() / runs * month.Minutes()
	// Lambda begins with five pollers per queue, and each makes a request every 20 s.
	polls := 5 * month.Seconds() / 20
	receives := polls * (2*perStandard + perFIFO) // the default deployment has no mapping for the inbox
	_, _ = fmt.Fprintf(os.Stderr, "idle: %.0f runs of retry in %v, %v\n", runs, time.Since(at), got.detail)
	b.ReportMetric(minutely, "$/month-periodic")
	b.ReportMetric(receives, "$/month-receives")
	b.ReportMetric(stored, "$/month-per-million-subscriptions")
	b.ReportMetric(0, "ns/op")
}

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
