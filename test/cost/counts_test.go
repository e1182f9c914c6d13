//go:build unix

package cost

import (
	"math"
	"testing"

	"github.com/mcp-events/mcpevents/test/harness"
)

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
			if got.detail[f+" starts"] < 1 {
				t.Errorf("%s: no cold start was counted", f)
			}
		}
		if starts, keys := got.detail["Dispatch starts"], got.detail["Dispatch KMS.Decrypt"]; keys < 1 || keys > starts {
			t.Errorf("%v starts of dispatch made %v requests to KMS", starts, keys)
		}
		want := 0.0
		for f, s := range sizes(t) {
			want += got.detail[f[:len(f)-len("Function")]+" starts"] * assumedStart.Seconds() * s.gb * perGBSecond
		}
		if math.Abs(got.dollars["cold starts"]-want) > 1e-12 {
			t.Errorf("cold starts cost $%v, want $%v", got.dollars["cold starts"], want)
		}
	})
	t.Run("AWS-15 a wide event has the pages of the model, and a bounded number of statuses", func(t *testing.T) {
		pages, splits := tree(n)
		if queries := got.detail["Dispatch DynamoDB.Query"]; queries < pages || queries > 2*(pages+splits) {
			t.Errorf("dispatch made %v queries, the model has %v pages and %v divisions", queries, pages, splits)
		}
		if limit := statusBudget*got.detail["Dispatch starts"] + n*statusShare + pages; got.dispatched > limit {
			t.Errorf("dispatch wrote %v units, want at most %v", got.dispatched, limit)
		}
	})
}
