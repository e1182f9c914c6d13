//go:build unix

package cost

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

var update = flag.Bool("update", false, "write the tables of docs/explanation/scale.md and cost.md")

// Quotas of AWS as documented (November 2026).
const (
	partitionReads  = 3_000.0 // read units a second of one DynamoDB partition
	partitionWrites = 1_000.0 // write units
	groupBatch      = 10.0    // messages of a FIFO queue per invocation
)

// These figures are not quotas. They are from the tables of docs/internals/benchmarks.md, or assumed as on that page.
const (
	fanoutBatch  = 0.080 // seconds: 40 ms of fanout, and as much to receive and delete
	publishCall  = 0.015
	dispatchCall = 0.060
	answer       = 0.200 // of an endpoint
	attempts     = 128.0 // concurrent ones in a dispatcher
	spreadGroups = 16.0  // of an unordered URI, as in shared/events/publish
	logged       = 0.75  // KB of an event of 500 B in the log
	streamPolls  = 4.0   // of the log a second, while there is traffic

	// The prices are dollars for a million deliveries, and priceIdle is the price of a million subscriptions. The requests are per
	// delivery.
	priceWide, pricePages, priceBatches, priceSingle, priceQuiet = 0.12, 0.06, 0.68, 1.43, 5.30
	requestsPages, requestsBatches, requestsSingle               = 0.035, 1.08, 2.26
	priceIdle                                                    = 2.13
	million                                                      = 1e6
)

// dispatched returns how many deliveries one instance of dispatch makes per second, given the deliveries per message.
func dispatched(deliveries float64) float64 {
	all := groupBatch * deliveries
	return all / (dispatchCall + answer*math.Max(1, all/attempts))
}

// concurrency returns the number of concurrent invocations at a rate.
func concurrency(perSecond, each float64) float64 { return math.Ceil(perSecond * each) }

// subscriberSize returns the size of a typical subscriber item in bytes.
func subscriberSize(t *testing.T) float64 {
	t.Helper()
	sub := subscription.Subscription{
		V: 2, ID: "sub_" + strings.Repeat("0", 32), Principal: "https://issuer.example.com|user-0123456789", Origin: subscription.SEP1803,
		Target: subscription.Target{URL: "https://callbacks.example.com/v1/hooks/0123456789abcdef", Type: subscription.Standard, Secret: make([]byte, 101)},
		Until:  time.Now(),
	}
	value := expect.Value(json.Marshal(sub.Subscriber()))(t)
	const keys = 120 // names and values of the keys, version and expiry
	return float64(len(value)) + keys
}

// row is a line of a table.
type row []string

func table(rows ...row) string {
	var b strings.Builder
	for i, r := range rows {
		b.WriteString("| " + strings.Join(r, " | ") + " |\n")
		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", len(r)) + "\n")
		}
	}
	return b.String()
}

func number(f float64) string {
	switch {
	case f >= 1e6:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", f/1e6), ".0") + " million"
	case f >= 10_000:
		return fmt.Sprintf("%d,000", int(math.Round(f/1000)))
	case f >= 1_000:
		return fmt.Sprintf("%d,%03d", int(math.Round(f))/1000, int(math.Round(f))%1000)
	}
	return fmt.Sprintf("%.0f", f)
}

func lasts(seconds float64) string {
	if seconds < 120 {
		return fmt.Sprintf("%.0f s", seconds)
	}
	return fmt.Sprintf("%.0f min", seconds/60)
}

func dollars(f float64) string { return fmt.Sprintf("$%.2f", f) }

// oneToMany returns the figures of one event to a million subscriptions of one pattern.
func oneToMany(t *testing.T) string {
	pages, splits := tree(million)
	size, gb := subscriberSize(t), sizes(t)["DispatchFunction"].gb
	units := math.Ceil(million / pages * size / 4096)
	reading := partitionReads / units * million / pages // subscribers a second
	rows := []row{{"`DispatchConcurrency`", "deliveries per second", "time", "price", "what saturates"}}
	for _, n := range []float64{2, 20, 200} {
		rate, limit := n*dispatched(million/pages), "dispatch"
		if rate > reading {
			rate, limit = reading, "reads of one partition"
		}
		rows = append(rows, row{number(n), number(rate), lasts(million / rate), dollars(priceWide + waiting(gb, million/pages*groupBatch)), limit})
	}
	return table(rows...) + fmt.Sprintf("\nThe server divides the subscribers of the event into %s groups of %.0f, and sends `dispatch` a message for each group.\nSo many messages are too much for one invocation of `dispatch`. Invocations therefore share this work, and send each\nother another %s messages to do so.\n\nA subscriber takes about %.0f bytes in the table, so reading a group costs %.0f read units. All groups are in one partition,\nfrom which DynamoDB allows %s read units per second. So the server can read %s subscribers per second.\n",
		number(pages), million/pages, number(splits), size, units, number(partitionReads), number(reading))
}

// daily returns the figures of a hundred million deliveries per day, at their mean rate and at five times that rate.
func daily(t *testing.T) string {
	gb := sizes(t)["DispatchFunction"].gb
	const deliveries, peak = 100e6, 5.0
	rows := []row{{"load", "deliveries per second, mean and peak", "requests per day", "price per day", "concurrent publish, fanout, dispatch at the peak", "URIs needed at the peak"}}
	for _, l := range []struct {
		name                         string
		subscribers, batch           float64
		price, requests, fanoutBatch float64
	}{
		{"100 subscribers an event", 100, 10, pricePages, requestsPages, groupBatch},
		{"one subscriber, batches of ten", 1, 10, priceBatches, requestsBatches, groupBatch},
		{"one subscriber, single publishes", 1, 1, priceSingle, requestsSingle, groupBatch},
	} {
		mean := deliveries / (24 * time.Hour).Seconds()
		events := mean * peak / l.subscribers
		each := math.Min(l.subscribers, pageTarget) // of a page
		rows = append(rows, row{
			l.name, number(mean) + ", " + number(mean*peak), number(deliveries * l.requests), dollars(deliveries / million * (l.price + waiting(gb, groupBatch*each))),
			fmt.Sprintf("%.0f, %.0f, %.0f", concurrency(events/l.batch, publishCall), concurrency(events/l.fanoutBatch, fanoutBatch), math.Ceil(mean*peak/dispatched(each))),
			fmt.Sprintf("%.0f; without order %.0f", math.Ceil(events/perGroup), math.Ceil(events/(spreadGroups*perGroup))),
		})
	}
	return table(rows...)
}

// perGroup is how many events of one FIFO group pass fanout in a second.
const perGroup = groupBatch / fanoutBatch

// idle returns the figures of a million subscriptions without events.
func idle() string {
	// In the partition of a pattern, an ending writes the header, and the subscriber in a transaction. Shapes and headers are
	// counted one by one, and a header that may be empty is read a second time.
	const onePattern, oneShape, ending = 1 + 2, 1, 1 + 1 + 2
	one := partitionWrites / onePattern
	return table(
		row{"operation", "per second", "a million take", "what saturates"},
		row{"register, all to one URI", number(one), lasts(million / one), "writes of one partition"},
		row{"register, to many URIs of one event type", number(partitionWrites / oneShape), lasts(million / (partitionWrites / oneShape)), "the item that counts the event type's shapes"},
		row{"deregister, all from one URI", number(partitionWrites / ending), lasts(million / (partitionWrites / ending)), "writes of one partition"},
		row{"refresh (MCP Events) once a day, all of one URI", number(million / 86_400), "a day", fmt.Sprintf("no limit: %.0f of 1,000 write units", million/86_400*2)},
		row{"keep, per month", "", dollars(priceIdle), "no limit"},
	)
}

// oneURI returns the throughput of one URI.
func oneURI() string {
	rows := []row{{"`order`", "`FanoutConcurrency`", "events per second", "fanout's requests per second", "write units per second and partition", "what saturates"}}
	for _, c := range []struct {
		order   string
		workers float64
	}{{"uri", 2}, {"uri", 50}, {"none", 2}, {"none", 10}, {"none", 50}} {
		groups, parts, limit := 1.0, 1.0, "the URI's one group"
		if c.order == "none" {
			groups, parts, limit = spreadGroups, eventlog.Shards, "16 groups"
		}
		if c.workers < groups {
			limit = "`FanoutConcurrency`"
		}
		rate := math.Min(groups, c.workers) * perGroup
		// A batch: a read of shapes and headers, a read of the log's end, a write of the log, a send of pages.
		requests := rate / groupBatch * 4
		units := rate / groupBatch * math.Ceil(groupBatch*logged) / parts
		rows = append(rows, row{c.order, number(c.workers), number(rate), number(requests), number(units), limit})
	}
	again := eventlog.Window.Seconds() * 1_000 * logged / 4 * streamPolls
	return table(rows...) + fmt.Sprintf("\nStreams of a URI without order cost many reads, because an event can appear late, before events that a stream has\nalready read. So each function instance with such a stream reads the events of the last %.0f seconds again, %.0f times per\nsecond. At 1,000 events of 500 B per second, each such instance needs %s read units per second. The URI has %d\nDynamoDB partitions, which are enough for %.0f such instances.\n",
		eventlog.Window.Seconds(), streamPolls, number(again), eventlog.Shards, math.Floor(eventlog.Shards*partitionReads/again))
}

// counters returns the price that eight shape counters would add to a million batches of fanout. It is the reason for having
// only one.
func counters() string {
	const shards = 8
	more := (shards - 1) * perReadUnit * million
	return table(
		row{"items per shape", "registrations per second of one event type", "extra price of a million single events", "share of their price"},
		row{"1", number(partitionWrites), "–", "–"},
		row{fmt.Sprint(shards), number(shards * partitionWrites), dollars(more), fmt.Sprintf("%.0f %%", more/priceSingle*100)},
	)
}

func TestTheScalePageIsWhatTheModelSays(t *testing.T) {
	modelSays(t, "docs/explanation/scale.md", map[string]string{
		"one to a million": oneToMany(t), "a hundred million a day": daily(t), "a million at rest": idle(), "one URI": oneURI(), "counters": counters(),
		"a month": month(t), "answers": answering(t), "down": down(t),
	})
	modelSays(t, "docs/explanation/cost.md", map[string]string{"three loads": threeLoads(t)})
}

// modelSays compares the generated parts of a page with the model, or writes them with -update.
func modelSays(t *testing.T, name string, parts map[string]string) {
	t.Helper()
	path := filepath.Join(harness.Root(t), filepath.FromSlash(name))
	src := expect.Value(os.ReadFile(path))(t)
	page := string(src)
	for part, text := range parts {
		begin, end := "<!-- generated: "+part+" -->\n", "<!-- end -->"
		_, rest, found := strings.Cut(page, begin)
		had, _, closed := strings.Cut(rest, end)
		if !found || !closed {
			t.Errorf("%s has no place for %q", name, part)
			continue
		}
		if had != text && !*update {
			t.Errorf("%s, %s: run go test ./test/cost -run Scale -update\ngot\n%s\nwant\n%s", name, part, had, text)
		}
		page = strings.Replace(page, begin+had+end, begin+text+end, 1)
	}
	if *update {
		expect.OK(t, os.WriteFile(path, []byte(page), 0o644))
	}
}

// The model's copies of figures equal the figures in docs/internals/benchmarks.md.
func TestTheScaleModelUsesTheFiguresThatWereMeasured(t *testing.T) {
	src := expect.Value(os.ReadFile(filepath.Join(harness.Root(t), "docs", "internals", "benchmarks.md")))(t)
	for _, want := range []struct {
		row    string
		figure float64
	}{
		{"price per million, one event to 100,000 and to 1,000,000", priceWide},
		{"price per million deliveries, 100 subscribers an event, batches of ten, warm", pricePages},
		{"price per million, one subscriber, batches of ten", priceBatches},
		{"price per million, one subscriber, single publishes to four URIs", priceSingle},
		{"quiet: every batch holds one event", priceQuiet},
		{"a month in which nothing happens", monthMinutes},
		{"a month in which nothing happens", monthRetry},
		{"a month in which nothing happens", monthPollers},
		{"store, a stream-hour of one URI", streamBusy},
		{"store, a stream-hour of one URI", streamQuiet},
		{"| requests per delivery, 100 subscribers an event, batches of ten", requestsPages},
		{"| requests per delivery, one subscriber, batches of ten", requestsBatches},
		{"| requests per delivery, one subscriber, single publishes to four URIs", requestsSingle},
		{"a million subscriptions more, a month, idle", priceIdle},
		{"price per million events, an origin that refuses connections", priceDownStandard},
		{"price per million events, an origin that refuses connections", priceDownEvents},
	} {
		_, rest, _ := strings.Cut(string(src), want.row)
		line, _, _ := strings.Cut(rest, "\n")
		if text := strings.TrimPrefix(fmt.Sprint(want.figure), "0"); !strings.Contains(line, text) {
			t.Errorf("docs/internals/benchmarks.md no longer says %v of %q: %s", want.figure, want.row, line)
		}
	}
}
