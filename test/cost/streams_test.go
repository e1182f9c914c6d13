//go:build unix

package cost

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/test/harness"
)

// polling is the function behind streams and polls. A stream is billed for as long as it is open.
const polling = "StreamFunction"

// used counts the endpoint's requests to DynamoDB and their capacity units.
type used struct{ requests, reads, writes float64 }

func (u used) per(n float64) used { return used{u.requests / n, u.reads / n, u.writes / n} }

func (u used) dollars() float64 { return u.reads*perReadUnit + u.writes*perWriteUnit }

// during returns the endpoint's use of DynamoDB during some work.
func during(a *harness.AWS, work func()) (u used) {
	before := a.Requests()[polling]
	work()
	for op, n := range a.Requests()[polling].Since(before)["DynamoDB"] {
		u.requests += float64(n.Requests)
		switch op {
		case "GetItem", "BatchGetItem", "Query":
			u.reads += n.Units
		default:
			u.writes += n.Units
		}
	}
	return u
}

// some is how long streams are watched. Their pace is the function's own.
const some = 30 * time.Second

// BenchmarkStreams counts the DynamoDB requests of an open stream at each pace, and of opening one. It shows SUB-11 for a log
// that is polled.
func BenchmarkStreams(b *testing.B) {
	for name, uri := range map[string]string{
		"of one URI":  "event://chat/stream/one/message",
		"of a parent": "event://chat/stream",
	} {
		b.Run(name, func(b *testing.B) {
			a := harness.StartAWS(b, harness.AWSOptions{})
			listen := func() *harness.Stream {
				return a.Stateless("alice").Listen(b, 1, map[string]any{"resourceSubscriptions": []string{uri}}, nil)
			}
			listen()                               // makes the writes that happen only for the first reader
			open := during(a, func() { listen() }) // in an instance of its own
			busy := during(a, func() { time.Sleep(some) }).per(2 * some.Seconds())
			time.Sleep(time.Minute)
			quiet := during(a, func() { time.Sleep(some) }).per(2 * some.Seconds())
			for pace, u := range map[string]used{"busy": busy, "quiet": quiet} {
				b.ReportMetric(u.requests, pace+"-requests/s")
				b.ReportMetric(u.reads, pace+"-units/s")
				b.ReportMetric(u.dollars()*3600, pace+"-$/h")
			}
			b.ReportMetric(open.requests, "requests/open")
			b.ReportMetric(open.dollars()*1e6, "$/million-opens")
			b.ReportMetric(3600*sizes(b)[polling].gb*perGBSecond, "lambda-$/h")
			b.ReportMetric(0, "ns/op")
			_, _ = fmt.Fprintf(os.Stderr, "%s: open %+v, busy %+v/s, quiet %+v/s\n", name, open, busy, quiet)
		})
	}
}

// BenchmarkPolls counts the DynamoDB requests of events/poll.
func BenchmarkPolls(b *testing.B) {
	const polls = 200
	a := harness.StartAWS(b, harness.AWSOptions{})
	c := a.Stateless("alice")
	for _, shape := range []struct {
		name      string
		arguments map[string]any
		events    int // in each
	}{
		{"empty, one URI", map[string]any{"workspace": "empty", "channel": "one"}, 0},
		{"empty, a wildcard", map[string]any{"workspace": "empty"}, 0},
		{"ten events, one URI", map[string]any{"workspace": "full", "channel": "one"}, 10},
		{"ten events, a wildcard", map[string]any{"workspace": "full"}, 10},
	} {
		b.Run(shape.name, func(b *testing.B) {
			var page struct {
				Cursor string
				Events []struct{ EventID string }
			}
			poll := func(cursor any) {
				c.Call(b, "events/poll", map[string]any{"name": "message.created", "arguments": shape.arguments, "cursor": cursor}, &page)
			}
			poll(nil)
			start := page.Cursor
			if shape.events > 0 {
				var batch []harness.Event
				for n := range shape.events {
					batch = append(batch, harness.Event{
						ID: fmt.Sprintf("%s-%d", shape.name[len(shape.name)-3:], n), URI: "event://chat/full/one/message",
						Data: map[string]any{"id": "1", "user": "a", "text": filler()},
					})
				}
				a.Publish(b, batch...)
			}
			harness.Eventually(b, time.Minute, "the events", func() bool {
				poll(start)
				return len(page.Events) == shape.events
			})
			calls := a.Invocations(polling)
			u := during(a, func() {
				for range polls {
					poll(start)
				}
			}).per(polls)
			lambda := float64(a.Invocations(polling)-calls) / polls * sizes(b)[polling].price(assumed[polling])
			b.ReportMetric(u.requests, "requests/poll")
			b.ReportMetric(u.reads, "units/poll")
			b.ReportMetric((u.dollars()+lambda)*1e6, "$/million")
			b.ReportMetric(u.dollars()*1e6, "store-$/million")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkStreamLatency measures from the publish to the open listen (SUB-11): warm, and the
// first event after a quiet minute.
func BenchmarkStreamLatency(b *testing.B) {
	const uris, rounds = 8, 25
	a := harness.StartAWS(b, harness.AWSOptions{Managed: runner.Managed{Instances: 1, AtOnce: 2 * uris}, Fast: true})
	uri := func(n int) string { return fmt.Sprintf("event://chat/latency/c%d/message", n) }
	var open []*harness.Stream
	for n := range uris {
		open = append(open, a.Stateless("alice").Listen(b, n, map[string]any{"resourceSubscriptions": []string{uri(n)}}, nil))
	}
	// round publishes to one URI after the other, at times that are independent of the polls.
	round := func(name string) (took []time.Duration) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		for n, s := range open {
			time.Sleep(time.Duration(50+rand.IntN(250)) * time.Millisecond)
			have := len(s.Messages())
			began := time.Now()
			a.Publish(b, harness.Event{ID: fmt.Sprintf("%s-%d", name, n), URI: uri(n), Data: map[string]any{"id": "1", "user": "a", "text": filler()}})
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
				defer cancel()
				if !s.Await(ctx, have+1) {
					b.Errorf("no event came: %v", s.Err())
				}
				mu.Lock()
				defer mu.Unlock()
				took = append(took, time.Since(began))
			})
		}
		wg.Wait()
		return took
	}
	round("first")
	var warm []time.Duration
	for n := range rounds {
		warm = append(warm, round(fmt.Sprint("warm", n))...)
	}
	time.Sleep(65 * time.Second)
	quiet := round("quiet")
	for name, took := range map[string][]time.Duration{"warm": warm, "quiet": quiet} {
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Milliseconds()), name+"-p50-ms")
		b.ReportMetric(float64(took[len(took)*99/100].Milliseconds()), name+"-p99-ms")
		b.ReportMetric(float64(took[len(took)-1].Milliseconds()), name+"-max-ms")
	}
	b.ReportMetric(0, "ns/op")
}
