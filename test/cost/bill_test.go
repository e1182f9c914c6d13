//go:build unix

package cost

import (
	"math"
	"testing"

	"github.com/mcp-events/mcpevents/test/awscount"
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
				if math.Abs(dollars-tc.want[item]) > 1e-12 {
					t.Errorf("%s: got $%v, want $%v", item, dollars, tc.want[item])
				}
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
		if same := extrapolate(bill{dollars: map[string]float64{"queues": 1}}, 3000, 3000); same < 1 {
			t.Errorf("got $%v for the same width, want at least the counted $1", same)
		}
		million := extrapolate(got, 3000, 1e6)
		pages, splits := tree(1e6)
		if pages < 1e6/pageSplit || pages > 1e6/pageTarget*2 || splits < pages/branches {
			t.Errorf("%v pages by %v tasks", pages, splits)
		}
		// A status of each sixteenth, and the budget of ten dispatchers in 17 minutes.
		statuses := (1e6/16 + 10*60*17) * 0.625e-6
		if million < statuses || million > statuses+1e6/3000*10e-6+2*pages*(3*0.40e-6/10+0.125e-6) {
			t.Errorf("a million costs $%v", million)
		}
	})
}
