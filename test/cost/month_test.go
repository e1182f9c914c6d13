//go:build unix

package cost

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// List prices of a month, us-east-1, in dollars (November 2026).
const (
	perAlarm     = 0.10 // a metric that an alarm looks at
	perMetric    = 0.30 // a custom metric with data in every hour; hours without data are free
	perDashboard = 3.00 // but for an account's first three
	perKey       = 1.00
	hours        = 720.0
)

// From the tables of docs/internals/benchmarks.md.
const (
	monthMinutes, monthRetry, monthPollers = 0.56, 0.06, 0.84
	streamBusy, streamQuiet                = 0.0034, 0.0009 // the store, an hour
)

// alarmed counts the metrics of the alarms in template.yaml, because AWS bills each of them. Metrics on a condition need a
// parameter.
func alarmed(t *testing.T) (metrics int) {
	t.Helper()
	src := expect.Value(os.ReadFile(filepath.Join(harness.Root(t), "template.yaml")))(t)
	var tpl struct {
		Resources map[string]struct {
			Type       string `yaml:"Type"`
			Properties struct {
				Metrics []yaml.Node `yaml:"Metrics"`
			} `yaml:"Properties"`
		} `yaml:"Resources"`
	}
	expect.OK(t, yaml.Unmarshal(src, &tpl))
	for _, r := range tpl.Resources {
		if r.Type != "AWS::CloudWatch::Alarm" {
			continue
		}
		if len(r.Properties.Metrics) == 0 {
			metrics++
		}
		for _, m := range r.Properties.Metrics {
			var of struct {
				MetricStat yaml.Node `yaml:"MetricStat"`
			}
			if m.Tag == "!If" {
				continue
			}
			expect.OK(t, m.Decode(&of))
			if of.MetricStat.Kind != 0 {
				metrics++
			}
		}
	}
	return metrics
}

// customMetrics counts the metrics that a deployment on AWS may have.
func customMetrics() (n float64) {
	for _, d := range metric.Table {
		if !strings.Contains(d.Help, "stand-alone only") {
			n++
		}
	}
	return n
}

// waiting returns the additional price of a million deliveries if endpoints answer after [answer], for invocations with the
// given number of deliveries each. The measured prices are for endpoints that answer immediately.
func waiting(gb, deliveries float64) float64 {
	return answer * math.Max(1, deliveries/attempts) / deliveries * gb * perGBSecond * million
}

// month returns the table of the monthly costs of an idle deployment, and of open streams and backends.
func month(t *testing.T) string {
	limits := sizes(t)
	alarms, metrics := float64(alarmed(t)), customMetrics()
	always := hours * 3600 * limits[polling].gb * perGBSecond
	relay := hours * 3600 * limits["RelayFunction"].gb * perGBSecond
	running := monthMinutes + monthRetry + monthPollers
	idle := running + alarms*perAlarm + perKey
	return table(
		row{"item", "per month"},
		row{"functions that run every minute, and receives of empty queues", dollars(running)},
		row{number(alarms) + " metrics that alarms watch", dollars(alarms * perAlarm)},
		row{"the KMS key", dollars(perKey)},
		row{"**an idle deployment**", "**" + dollars(idle) + "**"},
		row{"its dashboard, if the account has three others", dollars(perDashboard)},
		row{"its " + number(metrics) + " metrics, if each has data in every hour, without their split by attribute", dollars(metrics * perMetric)},
		row{"an MCP server behind the gateway, whose notifications it receives", dollars(relay)},
		row{"a stream that is always open, quiet", dollars(always + hours*streamQuiet)},
		row{"a stream that is always open, busy", dollars(always + hours*streamBusy)},
		row{"10 such streams", dollars(10 * (always + hours*streamBusy))},
	)
}

// answering returns the table of the prices of a million deliveries to endpoints that answer in [answer].
func answering(t *testing.T) string {
	gb := sizes(t)["DispatchFunction"].gb
	rows := []row{{"load", "deliveries per invocation", "measured, endpoints answer immediately", "waiting for 0.2 s", "price per million"}}
	for _, l := range []struct {
		name                 string
		deliveries, measured float64
	}{
		{"one event to a million", groupBatch * pageTarget, priceWide},
		{"100 subscribers an event", groupBatch * pageTarget, pricePages},
		{"one subscriber, batches of ten", groupBatch, priceBatches},
		{"one subscriber, single publishes", groupBatch, priceSingle},
		{"one subscriber, quiet: one event at a time", 1, priceQuiet},
	} {
		more := waiting(gb, l.deliveries)
		rows = append(rows, row{l.name, number(l.deliveries), dollars(l.measured), dollars(more), dollars(l.measured + more)})
	}
	return table(rows...)
}

func TestPricesOfAMonth(t *testing.T) {
	t.Run("AWS-26 an idle month counts every metric that an alarm looks at", func(t *testing.T) {
		expect.AtLeast(t, "the metrics", alarmed(t), 40)
	})
	t.Run("AWS-26 an endpoint's answer time is billed once per invocation, however many deliveries it sends", func(t *testing.T) {
		const gb = 0.5
		for deliveries, want := range map[float64]float64{1: 0.2 * gb * perGBSecond * 1e6, 10: 0.02 * gb * perGBSecond * 1e6, 128: 0.2 / 128 * gb * perGBSecond * 1e6} {
			expect.AtMost(t, "the difference to the dollars of the deliveries", math.Abs(waiting(gb, deliveries)-want), 1e-9)
		}
	})
}
