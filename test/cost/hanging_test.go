//go:build unix

package cost

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// BenchmarkHanging measures how much later nineteen endpoints of an origin receive their events because a twentieth one hangs
// (WHK-16). It is healthy in a warm-up, and begins to hang in a first round with it. Then rounds without and with it
// alternate, so that other work on the machine affects both alike. A round is of events of one URI, to which the
// hanging endpoint is subscribed or not.
func BenchmarkHanging(b *testing.B) {
	const (
		endpoints, perSecond = 20, 8
		round                = 30 * time.Second
	)
	for _, shape := range []struct {
		name     string
		defaults bool
		answer   time.Duration // of the healthy endpoints
	}{
		{"default parameters, answers in 50 ms", true, 50 * time.Millisecond},
		{"ten workers, answers in 50 ms", false, 50 * time.Millisecond},
		{"default parameters, immediate answers", true, 0},
		{"ten workers, immediate answers", false, 0},
	} {
		b.Run(shape.name, func(b *testing.B) {
			a := harness.StartAWS(b, harness.AWSOptions{Env: map[string]string{"MCPEVENTS_QUOTA": "100000"}, Defaults: shape.defaults})
			r := harness.NewReceiver(b)
			uris := map[string]string{"warm": "event://chat/cost/hanging/message", "without": "event://chat/cost/well/message"}
			uris["first"], uris["with"] = "event://chat/cost/hanging/message", "event://chat/cost/hanging/message"
			hanging := r.Endpoint("hanging")
			hanging.Answer(func(int, *harness.Delivery) harness.Reply { return harness.Reply{After: shape.answer} })
			subscribe(b, a, 1, uris["with"], hanging.URL())
			var healthy []*harness.Endpoint
			for i := range endpoints - 1 {
				e := r.Endpoint(fmt.Sprint("healthy-", i))
				e.Answer(func(int, *harness.Delivery) harness.Reply { return harness.Reply{After: shape.answer} })
				healthy = append(healthy, e)
				subscribe(b, a, 1, uris["with"], e.URL())
				subscribe(b, a, 1, uris["without"], e.URL())
			}
			type publication struct {
				round string
				at    time.Time
			}
			sent := map[string]publication{}
			for n, name := range []string{"warm", "first", "without", "with", "without", "with", "without", "with"} {
				if name == "first" {
					hanging.Answer(func(int, *harness.Delivery) harness.Reply { return harness.Reply{Hang: true} })
				}
				pace := time.NewTicker(time.Second / perSecond)
				for i := range perSecond * int(round/time.Second) {
					id := fmt.Sprintf("%s-%d-%d", name, n, i)
					sent[id] = publication{name, time.Now()}
					a.Publish(b, harness.Event{ID: id, URI: uris[name], Data: map[string]any{"user": "a", "text": filler(), "id": id}})
					<-pace.C
				}
				pace.Stop()
			}
			var lags map[string][]time.Duration // by the name of their rounds
			missing := func() int {
				lags = map[string][]time.Duration{}
				n := len(sent) * len(healthy)
				for _, e := range healthy {
					seen := map[string]bool{}
					for _, d := range e.Deliveries() {
						if p, ok := sent[d.ID()]; ok && !seen[d.ID()] {
							seen[d.ID()] = true
							lags[p.round] = append(lags[p.round], d.At.Sub(p.at))
							n--
						}
					}
				}
				return n
			}
			if !harness.Within(b, 2*time.Minute, func() bool { return missing() == 0 }) {
				b.Fatalf("%d of %d deliveries to healthy endpoints are missing", missing(), len(sent)*len(healthy))
			}
			p99 := map[string]time.Duration{}
			for _, name := range []string{"warm", "first", "without", "with"} {
				l := lags[name]
				slices.Sort(l)
				at := func(permille int) time.Duration { return l[(len(l)-1)*permille/1000].Round(100 * time.Microsecond) }
				p99[name] = at(990)
				_, _ = fmt.Fprintf(os.Stderr, "%s, rounds %q: %d deliveries, p50 %v, p95 %v, p99 %v, p99.9 %v, slowest %v\n",
					shape.name, name, len(l), at(500), at(950), at(990), at(999), at(1000))
			}
			attempts, _ := hanging.Count()
			_, _ = fmt.Fprintf(os.Stderr, "%s: %d attempts at the endpoint that hangs, %d processes of dispatch\n", shape.name, attempts, a.Starts("DispatchFunction"))
			b.ReportMetric(float64(p99["without"].Microseconds())/1e3, "p99-ms-without")
			b.ReportMetric(float64(p99["with"].Microseconds())/1e3, "p99-ms-with")
			b.ReportMetric(p99["with"].Seconds()/p99["without"].Seconds(), "with/without")
			b.ReportMetric(0, "ns/op")
		})
	}
}
