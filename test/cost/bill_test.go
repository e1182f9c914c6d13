//go:build unix

package cost

import (
	"math"
	"testing"

	"github.com/mcp-events/mcpevents/test/awscount"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestBill (AWS-15) holds the price model to bills that were made by hand.
func TestBill(t *testing.T) {
	limits := sizes(t)
	const deliveries = 1000
	nothing := snapshot{output: "[started]\n"}
	for name, tc := range map[string]struct {
		function string
		cold     bool
		now      snapshot
		want     map[string]float64
	}{
		"AWS-15 publish: FIFO requests by 64 KiB, and its time": {
			"PublishFunction", false,
			snapshot{
				requests: map[string]awscount.Counts{"PublishFunction": {"SQS": {"SendMessageBatch": {Requests: 10, Chunks: 12}}}},
				calls:    map[string]int{"PublishFunction": 10},
			},
			map[string]float64{"queues": 12 * 0.50e-6, "functions": 10 * (0.20e-6 + 0.015*limits["PublishFunction"].gb*0.0000133334)},
		},
		"AWS-15 fanout: what its mapping receives and deletes, and half a gigabyte": {
			"FanoutFunction", false,
			snapshot{calls: map[string]int{"FanoutFunction": 3}},
			map[string]float64{"queues": 2 * 3 * 0.50e-6, "functions": 3 * (0.20e-6 + 0.040*0.5*0.0000133334)},
		},
		"AWS-15 AWS-26 dispatch: requests of a fair queue, reads, statuses as writes, and time for each delivery": {
			"DispatchFunction", false,
			snapshot{
				requests: map[string]awscount.Counts{"DispatchFunction": {"DynamoDB": {"Query": {Requests: 40, Units: 80}, "BatchWriteItem": {Requests: 2, Units: 50}}}},
				calls:    map[string]int{"DispatchFunction": 4},
			},
			map[string]float64{
				"reads": 80 * 0.125e-6, "writes": 50 * 0.625e-6, "queues": 2 * 4 * 0.50e-6,
				"functions": 4*(0.20e-6+0.060*0.5*0.0000133334) + deliveries*0.00025*0.5*0.0000133334,
			},
		},
		"AWS-15 a cold start, its key, and connecting to each endpoint": {
			"DispatchFunction", true,
			snapshot{
				requests: map[string]awscount.Counts{"DispatchFunction": {"KMS": {"Decrypt": {Requests: 2}}}},
				calls:    map[string]int{"DispatchFunction": 2}, starts: map[string]int{"DispatchFunction": 2},
			},
			map[string]float64{
				"keys": 2 * 0.03e-4, "cold starts": 2 * 0.150 * 0.5 * 0.0000133334, "queues": 2 * 2 * 0.50e-6,
				"functions": 2*(0.20e-6+0.060*0.5*0.0000133334) + deliveries*0.00125*0.5*0.0000133334,
			},
		},
		"AWS-15 log lines of functions, with what CloudWatch adds, and none of the runner's": {
			"PublishFunction", false,
			snapshot{output: "PublishFunction 1 {\"msg\":\"a line\"}\n[a line of the runner]\n"},
			map[string]float64{"logs": (17 + 26) / 1e9 * 0.50},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.now.output = nothing.output + tc.now.output
			got := between(nothing, tc.now, limits, deliveries, tc.cold, tc.function)
			if tc.now.requests == nil && tc.now.calls == nil { // of a line alone
				delete(got.dollars, "functions")
				delete(got.dollars, "cold starts")
			}
			for item, dollars := range got.dollars {
				expect.AtMost(t, "the difference to the dollars of "+item, math.Abs(dollars-tc.want[item]), 1e-12)
			}
			for item, dollars := range tc.want {
				if got.dollars[item] == 0 {
					t.Errorf("%s: got $0, want $%v", item, dollars)
				}
			}
		})
	}
	t.Run("AWS-15 a wider fan-out pays for smaller pages, more of the tree, and fewer statuses", func(t *testing.T) {
		got := bill{dollars: map[string]float64{"queues": 10e-6, "writes": 3000 * perWriteUnit}, dispatched: 3000}
		expect.AtLeast(t, "the dollars for the same width", extrapolate(bill{dollars: map[string]float64{"queues": 1}}, 3000, 3000), 1)
		million := extrapolate(got, 3000, 1e6)
		pages, splits := tree(1e6)
		if pages < 1e6/pageSplit || pages > 1e6/pageTarget*2 || splits < pages/branches {
			t.Errorf("%v pages by %v tasks", pages, splits)
		}
		// A status of each sixteenth, and the budget of ten dispatchers in 17 minutes.
		statuses := (1e6/16 + 10*60*17) * 0.625e-6
		expect.AtLeast(t, "the dollars of a million, at least", million, statuses)
		expect.AtMost(t, "the dollars of a million, at most", million, statuses+1e6/3000*10e-6+2*pages*(3*0.40e-6/10+0.125e-6))
	})
}

// TestTheCountsBehindThePrices counts on local AWS what the price model computes prices from. The benchmarks of this
// package count the same at full size.
func TestTheCountsBehindThePrices(t *testing.T) {
	const n, alone, uri = 120, 20, "event://storage/counts/object-created"
	a := harness.StartAWS(t, harness.AWSOptions{Env: map[string]string{"MCPEVENTS_QUOTA": "1000"}})
	hook := harness.NewReceiver(t).Endpoint("counts")
	hook.Light()

	start := take(a)
	for range alone { // concurrent ones make conflicting writes, which would be counted too
		a.Stateless("alice").Call(t, "resources/subscriptions/register", map[string]any{"uris": []string{uri}, "targetUri": hook.URL()}, nil)
	}
	t.Run("AWS-15 a stored subscription is no larger than the price of a million idle ones assumes", func(t *testing.T) {
		if got := storedBytes(a, start) / alone * 1e6 / 1e9 * perStoredGB; got > priceIdle || got < 0.5*priceIdle {
			t.Errorf("a million subscriptions cost $%.2f a month, want at most $%.2f", got, priceIdle)
		}
	})
	t.Run("AWS-15 an idle month costs what the functions do once a minute", func(t *testing.T) {
		// The first runs of retry look at everything that a deployment may have left behind.
		harness.Eventually(t, harness.Patience, "two runs of retry with the price of the model", func() bool {
			begin := take(a)
			harness.Eventually(t, harness.Patience, "runs of retry", func() bool { return a.Invocations("RetryFunction") >= begin.calls["RetryFunction"]+2 })
			got := since(t, a, begin, 0, false, "RetryFunction", "RelayFunction")
			price := got.total() / got.detail["Retry invocations"] * hours * 60
			t.Logf("an idle month costs $%.2f: %v", price, got.detail)
			return price < 1.3*monthMinutes && price > 0.5*monthMinutes
		})
	})
	subscribe(t, a, n-alone, uri, hook.URL())
	for _, f := range path {
		a.Retire(f)
	}
	before := take(a)
	a.Publish(t, harness.Event{ID: "counts", URI: uri, Data: map[string]any{"key": "k", "size": 1, "text": filler()}})
	harness.Eventually(t, harness.Patience, "all deliveries", func() bool { _, d := hook.Count(); return d >= n })
	got := since(t, a, before, n, true, path...)
	t.Logf("one event to %d, cold: %v", n, got.detail)
	t.Run("AWS-15 each cold start is counted, and unwraps the sealing key at most once", func(t *testing.T) {
		for _, f := range []string{"Publish", "Fanout", "Dispatch"} {
			expect.AtLeast(t, f+": the counted cold starts", got.detail[f+" starts"], 1)
		}
		if starts, keys := got.detail["Dispatch starts"], got.detail["Dispatch KMS.Decrypt"]; keys < 1 || keys > starts {
			t.Errorf("%v starts of dispatch made %v requests to KMS", starts, keys)
		}
		want := 0.0
		for f, s := range sizes(t) {
			want += got.detail[f[:len(f)-len("Function")]+" starts"] * assumedStart.Seconds() * s.gb * perGBSecond
		}
		expect.AtMost(t, "the difference to the dollars of cold starts", math.Abs(got.dollars["cold starts"]-want), 1e-12)
	})
	t.Run("AWS-15 a wide event has the pages of the model, and a bounded number of statuses", func(t *testing.T) {
		pages, splits := tree(n)
		if queries := got.detail["Dispatch DynamoDB.Query"]; queries < pages || queries > 2*(pages+splits) {
			t.Errorf("dispatch made %v queries, the model has %v pages and %v divisions", queries, pages, splits)
		}
		expect.AtMost(t, "the units that dispatch wrote", got.dispatched, statusBudget*got.detail["Dispatch starts"]+n*statusShare+pages)
	})
}
