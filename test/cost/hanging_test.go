//go:build unix

package cost

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// BenchmarkHanging measures how much later nineteen endpoints of an origin receive their events because a twentieth one hangs
// (WHK-16). It compares two deployments that run at the same time on the same emulators. In one of them an endpoint begins to
// hang after two minutes. Other work on the machine, including the work for the slow lane of that deployment, makes the events
// of both late, as AWS would not. So the difference between the deployments is the time for which events wait for the endpoint.
// Events are published at random times, independently in each deployment.
func BenchmarkHanging(b *testing.B) {
	const endpoints, perSecond = 20, 8
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
			r := harness.NewReceiver(b)
			start := func(name string) *neighbors {
				o := harness.AWSOptions{Env: map[string]string{"MCPEVENTS_QUOTA": "100000"}, Defaults: shape.defaults}
				return startNeighbors(b, harness.StartAWS(b, o), r, name, endpoints, shape.answer)
			}
			with, without := start("with"), start("without")
			for _, phase := range []struct {
				name string
				took time.Duration
			}{{"warm", 30 * time.Second}, {"before", 90 * time.Second}, {"first", 30 * time.Second}, {"hangs", 4 * time.Minute}} {
				if phase.name == "first" {
					with.twentieth.Answer(func(int, *harness.Delivery) harness.Reply { return harness.Reply{Hang: true} })
				}
				var publishers sync.WaitGroup
				for _, n := range []*neighbors{with, without} {
					publishers.Go(func() { n.publish(b, phase.name, perSecond, phase.took) })
				}
				publishers.Wait()
			}
			p99 := map[string]time.Duration{}
			for _, n := range []*neighbors{with, without} {
				if !harness.Within(b, 2*time.Minute, func() bool { return n.missing() == 0 }) {
					b.Fatalf("%s: %d deliveries to healthy endpoints are missing", n.name, n.missing())
				}
				for _, phase := range []string{"warm", "before", "first", "hangs"} {
					p99[n.name+" "+phase] = n.report(shape.name, phase)
				}
				attempts, _ := n.twentieth.Count()
				_, _ = fmt.Fprintf(os.Stderr, "%s, %s: %d attempts at the twentieth endpoint, %d processes of dispatch\n",
					shape.name, n.name, attempts, n.aws.Starts("DispatchFunction"))
			}
			ratio := func(a, b string) float64 { return p99[a].Seconds() / p99[b].Seconds() }
			b.ReportMetric(float64(p99["without hangs"].Microseconds())/1e3, "p99-ms-without")
			b.ReportMetric(float64(p99["with hangs"].Microseconds())/1e3, "p99-ms-with")
			b.ReportMetric(ratio("with hangs", "without hangs"), "with/without")
			b.ReportMetric(ratio("with before", "without before"), "before:with/without")
			b.ReportMetric(ratio("with first", "without first"), "first:with/without")
			b.ReportMetric(ratio("without hangs", "without before"), "without:hangs/before")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// neighbors are endpoints of a deployment of their own that all receive the same events.
type neighbors struct {
	name      string
	aws       *harness.AWS
	twentieth *harness.Endpoint
	healthy   []*harness.Endpoint

	mu   sync.Mutex
	sent map[string]publication // by the event's id
}

// publication is an event of a phase, when it was published, and when its publisher had the answer.
type publication struct {
	phase        string
	at, accepted time.Time
}

const neighborsURI = "event://chat/cost/hanging/message"

// startNeighbors subscribes n endpoints that take the given time for an answer.
func startNeighbors(b *testing.B, a *harness.AWS, r *harness.Receiver, name string, n int, answer time.Duration) *neighbors {
	b.Helper()
	s := &neighbors{name: name, aws: a, sent: map[string]publication{}}
	for i := range n {
		e := r.Endpoint(fmt.Sprintf("%s-%d", name, i+1))
		e.Answer(func(int, *harness.Delivery) harness.Reply { return harness.Reply{After: answer} })
		subscribe(b, a, 1, neighborsURI, e.URL())
		s.healthy = append(s.healthy, e)
	}
	s.twentieth, s.healthy = s.healthy[n-1], s.healthy[:n-1]
	return s
}

// publish publishes events at random times (a Poisson process), whether or not the previous ones were answered.
func (s *neighbors) publish(b *testing.B, phase string, perSecond int, period time.Duration) {
	var publishers sync.WaitGroup
	defer publishers.Wait()
	at := time.Now()
	for i, end := 0, at.Add(period); at.Before(end); i++ {
		publishers.Go(func() {
			p := publication{phase: phase, at: time.Now()}
			id := fmt.Sprintf("%s-%s-%d", s.name, phase, i)
			_, err := s.aws.TryPublish(b.Context(), "publisher", harness.Event{
				ID: id, URI: neighborsURI, Data: map[string]any{"user": "a", "text": filler(), "id": id},
			})
			if err != nil {
				b.Errorf("publish %s: %v", id, err)
				return
			}
			p.accepted = time.Now()
			s.mu.Lock()
			defer s.mu.Unlock()
			s.sent[id] = p
		})
		at = at.Add(time.Duration(rand.ExpFloat64() * float64(time.Second) / float64(perSecond)))
		time.Sleep(time.Until(at))
	}
}

// missing returns the number of deliveries that the healthy endpoints still miss.
func (s *neighbors) missing() int {
	n := 0
	for _, e := range s.healthy {
		_, different := e.Count()
		n += len(s.sent) - different
	}
	return n
}

// late is the time after which an event counts as late in the output.
const late = 60 * time.Millisecond

// report prints how late the healthy endpoints received the events of a phase, and where the time of the late ones went. It
// returns the p99.
func (s *neighbors) report(shape, phase string) time.Duration {
	var lags []time.Duration
	arrived := map[string][]time.Duration{} // the lags of each event
	for _, e := range s.healthy {
		seen := map[string]bool{}
		for _, d := range e.Deliveries() {
			p := s.sent[d.ID()]
			if p.phase != phase || seen[d.ID()] {
				continue
			}
			seen[d.ID()] = true
			lags = append(lags, d.At.Sub(p.at))
			arrived[d.ID()] = append(arrived[d.ID()], d.At.Sub(p.at))
		}
	}
	slices.Sort(lags)
	at := func(permille int) time.Duration {
		return lags[(len(lags)-1)*permille/1000].Round(100 * time.Microsecond)
	}
	_, _ = fmt.Fprintf(os.Stderr, "%s, %s, phase %q: %d events, p50 %v, p95 %v, p99 %v, p99.9 %v, slowest %v\n",
		shape, s.name, phase, len(arrived), at(500), at(950), at(990), at(999), at(1000))
	var n, accepted, first, last time.Duration
	for _, id := range slices.Sorted(maps.Keys(arrived)) {
		l := arrived[id]
		if slices.Max(l) < late {
			continue
		}
		n++
		accepted += s.sent[id].accepted.Sub(s.sent[id].at)
		first += slices.Min(l)
		last += slices.Max(l)
	}
	if n > 0 {
		_, _ = fmt.Fprintf(os.Stderr, "  %d events were later than %v: on average accepted after %v, the first webhook after %v, the last one after %v\n",
			n, late, (accepted / n).Round(time.Millisecond), (first / n).Round(time.Millisecond), (last / n).Round(time.Millisecond))
	}
	return at(990)
}
