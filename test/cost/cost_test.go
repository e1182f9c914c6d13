//go:build unix

// Package cost computes the price of a delivery on AWS. It runs the functions of template.yaml on local AWS, counts
// requests, capacity units and invocations, and multiplies them by the list prices of us-east-1. Memory is the template's.
// The duration of an invocation is an assumption, because it cannot be measured on a local machine. Log bytes are the
// functions' own output, because the template switches off the lines that Lambda writes about each invocation.
package cost

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// words are a few hundred words of random letters for the payloads. They compress no better than ordinary text.
var words = func() (all []string) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 600 {
		word := make([]byte, 2+r.IntN(8))
		for i := range word {
			word[i] = byte('a' + r.IntN(26))
		}
		all = append(all, string(word))
	}
	return all
}()

// filler makes a payload about 500 B long, a text of its own.
func filler() string {
	var b strings.Builder
	for b.Len() < 450 {
		b.WriteString(words[rand.IntN(len(words))] + " ")
	}
	return b.String()
}

func BenchmarkDelivery(b *testing.B) {
	a := harness.StartAWS(b, harness.AWSOptions{})
	r := harness.NewReceiver(b)
	event := func(uri, id string) harness.Event {
		return harness.Event{ID: id, URI: uri, Data: map[string]any{"user": "a", "text": filler(), "id": id}}
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
		{"1 subscriber, single publishes to four URIs", 1, 1_200, 1, 8, 4, false},
		{"1 subscriber, single publishes to one URI", 1, 1_200, 1, 8, 1, false},
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
					a.Stateless("alice").Call(b, "resources/subscriptions/register",
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
			before := take(a)
			func() {
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
			}()
			deliveries := shape.events * shape.subscribers
			got := since(b, a, before, deliveries, false, path...)
			b.ReportMetric(got.requests/float64(deliveries), "requests/delivery")
			b.ReportMetric(got.total()/float64(deliveries)*1e6, "$/million")
			b.ReportMetric(0, "ns/op")
			got.report(fmt.Sprintf("%s: payload about 500 B, %d events", shape.name, shape.events), float64(deliveries))
		})
	}
}
