//go:build unix

package cost

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/test/awscount"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// List prices, us-east-1, in dollars (November 2026).
const (
	perWriteUnit  = 0.625 / 1e6
	perReadUnit   = 0.125 / 1e6
	perFIFO       = 0.50 / 1e6 // a request or 64 KiB of it
	perStandard   = 0.40 / 1e6
	perFair       = 0.50 / 1e6 // of a standard queue whose messages have groups, as page tasks and deliveries have
	perInvocation = 0.20 / 1e6
	perGBSecond   = 0.0000133334
	perKMS        = 0.03 / 1e4
	perLogGB      = 0.50
	perStoredGB   = 0.25 + 0.20 // a month, with point-in-time recovery
)

// perLine is the number of bytes that CloudWatch Logs adds to each line.
const perLine = 26

// assumed is how long an invocation takes. It is assumed because a local machine cannot show it. A delivery makes its invocation
// longer, and a new process makes its first invocation longer, which includes connecting to an endpoint.
var assumed = map[string]time.Duration{
	"PublishFunction": 15 * time.Millisecond, "FanoutFunction": 40 * time.Millisecond, "DispatchFunction": 60 * time.Millisecond,
	polling: 10 * time.Millisecond, "RetryFunction": 50 * time.Millisecond, "RelayFunction": 50 * time.Millisecond,
}

const (
	assumedStart     = 150 * time.Millisecond
	assumedDelivery  = 250 * time.Microsecond
	assumedHandshake = time.Millisecond
)

// size is a function's memory and time limit in the template.
type size struct {
	gb    float64
	limit time.Duration
}

// sizes reads the functions' memory and time limits from template.yaml.
func sizes(tb testing.TB) map[string]size {
	tb.Helper()
	src := expect.Value(os.ReadFile(filepath.Join(harness.Root(tb), "template.yaml")))(tb)
	type properties struct {
		MemorySize int    `yaml:"MemorySize"`
		Timeout    string `yaml:"Timeout"` // a number, or the name of a parameter
	}
	var tpl struct {
		Parameters map[string]struct {
			Default string `yaml:"Default"`
		} `yaml:"Parameters"`
		Globals struct {
			Function properties `yaml:"Function"`
		} `yaml:"Globals"`
		Resources map[string]struct {
			Type       string    `yaml:"Type"`
			Properties yaml.Node `yaml:"Properties"`
		} `yaml:"Resources"`
	}
	expect.OK(tb, yaml.Unmarshal(src, &tpl))
	out := map[string]size{}
	for id, r := range tpl.Resources {
		if r.Type != "AWS::Serverless::Function" {
			continue
		}
		p := tpl.Globals.Function
		expect.OK(tb, r.Properties.Decode(&p))
		if parameter, ok := tpl.Parameters[p.Timeout]; ok {
			p.Timeout = parameter.Default
		}
		seconds, err := strconv.Atoi(p.Timeout)
		if err != nil {
			tb.Fatalf("%s: Timeout %q", id, p.Timeout)
		}
		out[id] = size{gb: float64(p.MemorySize) / 1024, limit: time.Duration(seconds) * time.Second}
	}
	return out
}

// price returns the price of an invocation with the given duration.
func (s size) price(took time.Duration) float64 {
	return perInvocation + min(took, s.limit).Seconds()*s.gb*perGBSecond
}

// snapshot has all counters at one moment.
type snapshot struct {
	requests map[string]awscount.Counts
	calls    map[string]int
	starts   map[string]int
	output   string
}

func take(a *harness.AWS) snapshot {
	s := snapshot{requests: a.Requests(), calls: map[string]int{}, starts: map[string]int{}, output: a.Output()}
	for f := range assumed {
		s.calls[f], s.starts[f] = a.Invocations(f), a.Starts(f)
	}
	return s
}

// bill is the price of some work, by item.
type bill struct {
	requests   float64
	dollars    map[string]float64
	detail     map[string]float64
	dispatched float64 // write units of dispatch: statuses and records
}

func (b bill) total() (sum float64) {
	for _, v := range b.dollars {
		sum += v
	}
	return sum
}

// path are the functions on the way of an event. What retry and relay ask for is a price of time, not of
// events, and runs faster here than on AWS: see [BenchmarkIdle].
var path = []string{"PublishFunction", "FanoutFunction", "DispatchFunction"}

// since returns the cost of the work since a snapshot. It leaves out empty receives, because they are a price of time and not
// of work. The event source mappings receive once for each invocation of fanout and dispatch, and delete once after it.
func since(tb testing.TB, a *harness.AWS, before snapshot, deliveries int, cold bool, functions ...string) bill {
	tb.Helper()
	return between(before, take(a), sizes(tb), deliveries, cold, functions...)
}

// between returns the cost of the work between two snapshots, like since.
func between(before, now snapshot, limits map[string]size, deliveries int, cold bool, functions ...string) bill {
	b := bill{dollars: map[string]float64{}, detail: map[string]float64{}}
	for _, f := range functions {
		short := strings.TrimSuffix(f, "Function")
		for service, ops := range now.requests[f].Since(before.requests[f]) {
			for op, n := range ops {
				b.requests += float64(n.Requests)
				b.detail[short+" "+service+"."+op] += float64(n.Requests)
				switch {
				case service == "SQS" && f == "PublishFunction":
					b.dollars["queues"] += float64(n.Chunks) * perFIFO
				case service == "SQS":
					b.dollars["queues"] += float64(n.Chunks) * perFair
				case service == "KMS":
					b.dollars["keys"] += float64(n.Requests) * perKMS
				case strings.HasSuffix(op, "GetItem"), op == "Query":
					b.dollars["reads"] += n.Units * perReadUnit
				default:
					b.dollars["writes"] += n.Units * perWriteUnit
					if f == "DispatchFunction" {
						b.dispatched += n.Units
					}
				}
			}
		}
		calls, starts := float64(now.calls[f]-before.calls[f]), float64(now.starts[f]-before.starts[f])
		b.detail[short+" invocations"], b.detail[short+" starts"] = calls, starts
		b.dollars["functions"] += calls * limits[f].price(assumed[f])
		b.dollars["cold starts"] += starts * assumedStart.Seconds() * limits[f].gb * perGBSecond
		price := 0.0
		switch f {
		case "FanoutFunction":
			price = perFIFO
		case "DispatchFunction":
			price = perFair
			each := assumedDelivery
			if cold {
				each += assumedHandshake
			}
			b.dollars["functions"] += float64(deliveries) * each.Seconds() * limits[f].gb * perGBSecond
		}
		if price > 0 {
			b.requests += 2 * calls
			b.dollars["queues"] += 2 * calls * price
		}
	}
	for line := range strings.Lines(now.output[len(before.output):]) {
		// The runner's own lines have no JSON; a function's begins after its name and process.
		if at := strings.Index(line, " {"); at > 0 {
			b.detail["log lines"]++
			b.dollars["logs"] += float64(len(line)-at-1+perLine) / 1e9 * perLogGB
		}
	}
	return b
}

// report prints a bill per million deliveries.
func (b bill) report(title string, deliveries float64) {
	var dollars, counts []string
	for k, v := range b.dollars {
		dollars = append(dollars, fmt.Sprintf("%s $%.3f", k, v/deliveries*1e6))
	}
	for k, v := range b.detail {
		counts = append(counts, fmt.Sprintf("%s %.0f", k, v))
	}
	slices.Sort(dollars)
	slices.Sort(counts)
	// Not by b.Logf, which cuts it off.
	_, _ = fmt.Fprintf(os.Stderr, "%s\n  per million: %s\n  counts: %s\n", title, strings.Join(dollars, ", "), strings.Join(counts, ", "))
}

// TestThePriceModelFitsTheTemplate: AWS-15.
func TestThePriceModelFitsTheTemplate(t *testing.T) {
	limits := sizes(t)
	for f, took := range assumed {
		if s, ok := limits[f]; !ok || s.gb == 0 || s.limit < took {
			t.Errorf("AWS-15 %s: assumed %v, the template says %+v", f, took, s)
		}
	}
	expect.Equal(t, "AWS-15 the GB of fanout, which docs/internals/benchmarks.md has too", limits["FanoutFunction"].gb, 0.5)
}
