//go:build unix

// Package cost counts what AWS would bill for a delivery, with the functions of
// template.yaml on local AWS. Requests, capacity units and invocations are counted;
// prices are list prices of us-east-1; how long an invocation takes is assumed,
// because a local machine does not tell. No log is in the price: the template switches off
// the lines that Lambda writes about each invocation, and the functions log no success.
package cost

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"mcpevents/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// List prices, us-east-1, in dollars (November 2026).
const (
	perWriteUnit  = 0.625 / 1e6
	perReadUnit   = 0.125 / 1e6
	perFIFO       = 0.50 / 1e6 // a request or 64 KiB of it
	perStandard   = 0.40 / 1e6
	perInvocation = 0.20 / 1e6
	perGBSecond   = 0.0000133334
)

// billed is the assumed time of an invocation and its memory.
var billed = map[string]struct {
	time time.Duration
	gb   float64
}{
	"PublishFunction":  {15 * time.Millisecond, 0.25},
	"FanoutFunction":   {40 * time.Millisecond, 0.25},
	"DispatchFunction": {60 * time.Millisecond, 0.5},
}

// filler makes a payload about 500 B long.
var filler = strings.Repeat("x", 450)

type bill struct {
	requests float64
	dollars  map[string]float64
	detail   map[string]float64
}

func total(m map[string]float64) (sum float64) {
	for _, v := range m {
		sum += v
	}
	return sum
}

// measure counts what work costs. Receives that bring nothing are left out: they
// are a price of time, not of events. The event source mappings ask once for each invocation of
// fanout and dispatch, and delete once after it.
func measure(b *testing.B, a *harness.AWS, work func()) bill {
	b.Helper()
	before := a.Requests()
	calls := map[string]int{}
	for f := range billed {
		calls[f] = a.Invocations(f)
	}
	work()
	res := bill{dollars: map[string]float64{}, detail: map[string]float64{}}
	for app, counts := range a.Requests() {
		if app == "runner" {
			continue
		}
		for service, ops := range counts.Since(before[app]) {
			for op, n := range ops {
				res.requests += float64(n.Requests)
				res.detail[strings.TrimSuffix(app, "Function")+" "+service+"."+op] += float64(n.Requests)
				switch {
				case service == "SQS" && app == "PublishFunction":
					res.dollars["queues"] += float64(n.Chunks) * perFIFO
				case service == "SQS":
					res.dollars["queues"] += float64(n.Chunks) * perStandard
				case strings.HasSuffix(op, "GetItem"), op == "Query":
					res.dollars["reads"] += n.Units * perReadUnit
				default:
					res.dollars["writes"] += n.Units * perWriteUnit
				}
			}
		}
	}
	for f, per := range billed {
		n := float64(a.Invocations(f) - calls[f])
		res.detail[strings.TrimSuffix(f, "Function")+" invocations"] = n
		res.dollars["functions"] += n * (perInvocation + per.time.Seconds()*per.gb*perGBSecond)
		if f == "PublishFunction" {
			continue
		}
		price := perStandard
		if f == "FanoutFunction" {
			price = perFIFO
		}
		res.requests += 2 * n
		res.dollars["queues"] += 2 * n * price
	}
	return res
}

func BenchmarkDelivery(b *testing.B) {
	a := harness.StartAWS(b, harness.AWSOptions{})
	r := harness.NewReceiver(b)
	event := func(uri, id string) harness.Event {
		return harness.Event{ID: id, URI: uri, Data: map[string]any{"user": "a", "text": filler, "id": id}}
	}
	run := 0
	for _, shape := range []struct {
		name                string
		subscribers, events int
		batch, publishers   int
		uris                int
		oneByOne            bool
	}{
		{"100 subscribers, batches of ten", 100, 40, 10, 1, 1, false},
		{"1 subscriber, single publishes to four URIs", 1, 400, 1, 8, 4, false},
		{"1 subscriber, single publishes to one URI", 1, 400, 1, 8, 1, false},
		{"1 subscriber, batches of ten", 1, 800, 10, 4, 4, false},
		{"1 subscriber, quiet", 1, 20, 1, 1, 1, true},
	} {
		b.Run(shape.name, func(b *testing.B) {
			run++
			uri := func(n int) string { return fmt.Sprintf("event://chat/cost/r%d-%d/message", run, n%shape.uris) }
			var ends []*harness.Endpoint
			for i := range shape.subscribers {
				for u := range shape.uris {
					e := r.Endpoint(fmt.Sprintf("cost-%d-%d-%d", run, i, u))
					e.Light()
					a.Modern("alice").Call(b, "resources/subscriptions/register",
						map[string]any{"uris": []string{uri(u)}, "targetUri": e.URL()}, nil)
					ends = append(ends, e)
				}
			}
			wait := func(want int) {
				harness.Eventually(b, 2*time.Minute, "all deliveries", func() bool {
					n := 0
					for _, e := range ends {
						all, _ := e.Count()
						n += all
					}
					return n >= want
				})
			}
			got := measure(b, a, func() {
				if shape.oneByOne {
					for n := range shape.events {
						a.Publish(b, event(uri(n), fmt.Sprintf("cost-%d-%d", run, n)))
						wait(n + 1)
					}
					return
				}
				var wg sync.WaitGroup
				jobs := make(chan []harness.Event)
				for range shape.publishers {
					wg.Go(func() {
						for events := range jobs {
							if _, err := a.TryPublish(b.Context(), "publisher", events...); err != nil {
								b.Error(err)
							}
						}
					})
				}
				for n := 0; n < shape.events; n += shape.batch {
					var events []harness.Event
					for i := n; i < min(n+shape.batch, shape.events); i++ {
						// A batch is for one URI, as a publisher of one source sends it.
						events = append(events, event(uri(n/shape.batch), fmt.Sprintf("cost-%d-%d", run, i)))
					}
					jobs <- events
				}
				close(jobs)
				wg.Wait()
				wait(shape.events * shape.subscribers)
			})
			deliveries := float64(shape.events * shape.subscribers)
			b.ReportMetric(got.requests/deliveries, "requests/delivery")
			b.ReportMetric(total(got.dollars)/deliveries*1e6, "$/million")
			b.ReportMetric(0, "ns/op")
			for k, v := range got.dollars {
				got.dollars[k] = v / deliveries * 1e6
			}
			detail, _ := json.MarshalIndent(map[string]any{"dollars per million": got.dollars, "counts": got.detail}, "", "  ")
			// Not by b.Logf, which cuts it off.
			_, _ = fmt.Fprintf(os.Stderr, "%s: payload about 500 B, %d events\n%s\n", shape.name, shape.events, detail)
		})
	}
}
