//go:build unix

package cost

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/events/delivery"
	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// From the tables of docs/internals/benchmarks.md: dollars for a million events to an origin that refuses connections,
// published one a second, if every retry is a delayed message.
const priceDownStandard, priceDownEvents = 65.80, 33.82

// patience is how long dispatch waits, in seconds, before it cancels a first attempt and moves the delivery to the slow lane.
const patience = 3.0

// down returns the table of the prices of a million events to one subscriber whose origin is down. The price of an origin
// that never answers is an upper bound because dispatch is billed for the longest wait of an invocation, whatever else it sends.
func down(t *testing.T) string {
	limits := config.DefaultLimits()
	gb := sizes(t)["DispatchFunction"].gb
	rows := []row{{"schedule", "attempts", "of these more than 13 minutes after the last", "price if it refuses connections", "price if it never answers, at most"}}
	for _, l := range []struct {
		name     string
		schedule retry.Schedule
		timeout  time.Duration
		measured float64
	}{
		{"SEP-1803", retry.StandardSchedule, limits.WebhookTimeout, priceDownStandard},
		{"MCP Events", retry.EventsSchedule, delivery.EventsTimeout, priceDownEvents},
	} {
		attempts, due := float64(len(l.schedule)), dueAttempts(l.schedule)
		refuses := l.measured + due*dueAttempt*million
		waits := (patience + attempts*l.timeout.Seconds()) * gb * perGBSecond * million
		rows = append(rows, row{l.name, number(attempts), number(due), dollars(refuses), dollars(refuses + waits)})
	}
	return table(rows...)
}

// dueAttempt is the additional cost of a retry that is due later than a queue can delay a message: retry reads its entry and
// deletes it. It sends the message that dispatch would otherwise send, so that costs nothing more.
const dueAttempt = perReadUnit/2 + perWriteUnit

// dueAttempts counts the attempts of a schedule that wait in the due table only.
func dueAttempts(s retry.Schedule) (n float64) {
	const backup = 2 * time.Minute // as in shared/events/delivery: how long after its message the due entry brings back a retry
	for _, delay := range s {
		if delay > queue.MaxDelay-backup {
			n++
		}
	}
	return n
}

func TestTheDueTableHoldsTheRetriesThatAQueueCannotDelay(t *testing.T) {
	for name, c := range map[string]struct {
		schedule retry.Schedule
		want     float64
	}{
		"SEP-1803: 30 minutes to 24 hours":  {retry.StandardSchedule, 7},
		"MCP Events: at most eight minutes": {retry.EventsSchedule, 0},
	} {
		t.Run("AWS-26 "+name, func(t *testing.T) {
			expect.Equal(t, "the attempts", dueAttempts(c.schedule), c.want)
		})
	}
}

// BenchmarkDown computes the price of events for an origin that refuses connections. One event is published per second, and
// each retry follows after two seconds, so all retries are delayed messages.
func BenchmarkDown(b *testing.B) {
	for name, schedule := range map[string]retry.Schedule{"SEP-1803": retry.StandardSchedule, "MCP Events": retry.EventsSchedule} {
		b.Run(name, func(b *testing.B) {
			const events = 40
			delays := "0s" + strings.Repeat(",2s", len(schedule)-1)
			a := harness.StartAWS(b, harness.AWSOptions{Env: map[string]string{"MCPEVENTS_RETRY_SCHEDULE": delays}})
			listener := expect.Value(net.Listen("tcp", "127.0.0.1:0"))(b)
			_ = listener.Close()
			const uri = "event://chat/cost/down/message"
			subscribe(b, a, 1, uri, "http://"+listener.Addr().String()+"/")
			before := take(a)
			for n := range events {
				id := fmt.Sprintf("down-%d", n)
				a.Publish(b, harness.Event{ID: id, URI: uri, Data: map[string]any{"user": "a", "text": filler(), "id": id}})
				time.Sleep(time.Second) // so that dispatch seldom finds two that are due
			}
			harness.Eventually(b, 2*time.Minute, "the dead letters", func() bool { return deadLetters(b, a) == events })
			attempts := float64(events * len(schedule))
			got := since(b, a, before, int(attempts), false, path...)
			got.report(fmt.Sprintf("an origin that refuses connections, %s: %d events one at a time, %.0f attempts", name, events, attempts), events)
			b.ReportMetric(got.total()/events*1e6, "$/million")
			b.ReportMetric(got.requests/attempts, "requests/attempt")
			b.ReportMetric(got.detail["Dispatch invocations"]/attempts, "invocations/attempt")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// deadLetters counts the dead letters of the workspace default.
func deadLetters(b *testing.B, a *harness.AWS) int {
	b.Helper()
	req := expect.Value(http.NewRequestWithContext(b.Context(), http.MethodGet, a.Admin+"dead-letters?limit=100", http.NoBody))(b)
	req.Header.Set("Authorization", "Bearer "+a.Keys["monitor"])
	resp := expect.Value(http.DefaultClient.Do(req))(b)
	defer resp.Body.Close()
	var list struct{ Items []json.RawMessage }
	expect.OK(b, json.NewDecoder(resp.Body).Decode(&list))
	return len(list.Items)
}
