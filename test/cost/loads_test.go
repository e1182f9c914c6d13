//go:build unix

package cost

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/test/expect"
)

// load is a month of a deployment on docs/explanation/cost.md.
type load struct {
	deliveries     float64 // that succeed or fail, in millions
	price          float64 // dollars for a million of them, without the endpoints' answer time
	perInvocation  float64 // deliveries
	refused        float64 // millions of events for an endpoint that refuses connections
	priceRefused   float64 // dollars for a million of them
	streams        float64 // that are always open and mostly quiet
	backends       float64 // that the relay follows
	subscriptions  float64 // stored, in millions
	manyMetrics    bool    // whether the metrics have data in every hour
	extraDashboard bool    // whether the account has three other dashboards
}

// refuses returns the price of a million events to an origin that refuses connections.
func refuses(s retry.Schedule, measured float64) float64 {
	return measured + dueAttempts(s)*dueAttempt*million
}

// threeLoads returns the table of the monthly costs of a small, a medium and a large load.
func threeLoads(t *testing.T) string {
	limits := sizes(t)
	gb := limits["DispatchFunction"].gb
	loads := []load{
		{deliveries: 0.01, price: priceQuiet, perInvocation: 1},
		{
			deliveries: 3, price: priceSingle, perInvocation: groupBatch, streams: 2, backends: 1, manyMetrics: true, extraDashboard: true,
			refused: 0.03, priceRefused: refuses(retry.EventsSchedule, priceDownEvents),
		},
		{
			deliveries: 300, price: pricePages, perInvocation: groupBatch * pageTarget, subscriptions: 0.1, manyMetrics: true, extraDashboard: true,
			refused: 3, priceRefused: refuses(retry.StandardSchedule, priceDownStandard),
		},
	}
	sums := make([]float64, len(loads))
	rows := []row{{"item", "team", "product", "platform"}}
	item := func(name string, price func(load) float64) {
		cells := row{name}
		for i, l := range loads {
			p := price(l)
			sums[i] += p
			if p == 0 {
				cells = append(cells, "–")
			} else {
				cells = append(cells, dollars(p))
			}
		}
		rows = append(rows, cells)
	}
	item("functions that run every minute, receives of empty queues", func(load) float64 { return monthMinutes + monthRetry + monthPollers })
	item("metrics that alarms watch", func(load) float64 { return float64(alarmed(t)) * perAlarm })
	item("the KMS key", func(load) float64 { return perKey })
	item("dashboard, next to three others", func(l load) float64 {
		if !l.extraDashboard {
			return 0
		}
		return perDashboard
	})
	item("custom metrics with data in every hour", func(l load) float64 {
		if !l.manyMetrics {
			return 0
		}
		return customMetrics() * perMetric
	})
	item("deliveries, with the wait for endpoints", func(l load) float64 { return l.deliveries * (l.price + waiting(gb, l.perInvocation)) })
	item("retries to endpoints that refuse connections", func(l load) float64 { return l.refused * l.priceRefused })
	item("streams that are always open", func(l load) float64 {
		return l.streams * hours * (3600*limits[polling].gb*perGBSecond + streamQuiet)
	})
	item("backends that the gateway follows", func(l load) float64 {
		return l.backends * hours * 3600 * limits["RelayFunction"].gb * perGBSecond
	})
	item("stored subscriptions", func(l load) float64 { return l.subscriptions * priceIdle })
	total := row{"**a month**"}
	for _, s := range sums {
		total = append(total, "**"+dollars(s)+"**")
	}
	return table(append(rows, total)...)
}

func TestTheCostsOfTheThreeLoads(t *testing.T) {
	t.Run("AWS-26 a retried event costs what the table of an origin that is down says", func(t *testing.T) {
		text := down(t)
		for _, price := range []float64{refuses(retry.StandardSchedule, priceDownStandard), refuses(retry.EventsSchedule, priceDownEvents)} {
			expect.Contains(t, "the table", text, "| "+dollars(price)+" |")
		}
	})
	t.Run("AWS-26 the last line is the sum of the others", func(t *testing.T) {
		lines := strings.Split(strings.TrimSpace(threeLoads(t)), "\n")
		for column := 2; column <= 4; column++ {
			sum := 0.0
			for _, line := range lines[2 : len(lines)-1] {
				sum += amount(t, strings.Split(line, "|")[column])
			}
			if total := amount(t, strings.Split(lines[len(lines)-1], "|")[column]); math.Abs(sum-total) > 0.05 {
				t.Errorf("column %d: the items are $%.2f, the total is $%.2f", column, sum, total)
			}
		}
	})
}

// amount returns the dollars in a cell of a table.
func amount(t *testing.T, cell string) float64 {
	t.Helper()
	text := strings.Trim(cell, " *$")
	if text == "–" {
		return 0
	}
	return expect.Value(strconv.ParseFloat(text, 64))(t)
}
