// Package metric defines the metrics of the product. [Set] records them, and [EMF] writes them to a function's log in CloudWatch's
// embedded metric format.
//
// [Count] and [Tally] make log lines that CloudWatch also counts as metrics, so that the line that an operator reads and the graph
// agree.
package metric

import (
	"log/slog"
	"time"
)

// Namespace is the namespace of the metrics in CloudWatch.
const Namespace = "mcp-events"

// Member is the member of a log line that tells CloudWatch which of the line's members are metrics.
const Member = "_aws"

// directive is the value of [Member], as the embedded metric format defines it.
type directive struct {
	Timestamp         int64 // milliseconds since 1970
	CloudWatchMetrics []metrics
}

type metrics struct {
	Namespace  string
	Dimensions [][]string
	Metrics    []emfMetric
}

type emfMetric struct{ Name, Unit string }

// Count returns an attribute for a log line which says that something happened n times since the last such line. It must not be in a
// group. Dimensions divide the metric and must have few values.
func Count(name string, n int64, dimensions ...slog.Attr) slog.Attr {
	by := make([]string, len(dimensions))
	for i, d := range dimensions {
		by[i] = d.Key
	}
	all := append(dimensions[:len(dimensions):len(dimensions)], slog.Int64(name, n), slog.Any(Member, directive{
		Timestamp: time.Now().UnixMilli(),
		CloudWatchMetrics: []metrics{{
			Namespace: Namespace, Dimensions: [][]string{by}, Metrics: []emfMetric{{name, "Count"}},
		}},
	}))
	return slog.Attr{Value: slog.GroupValue(all...)} // a group without a key is inlined
}

// Plain removes [Member] from log lines. It is a ReplaceAttr function for the handlers of processes outside of AWS.
func Plain(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == Member {
		return slog.Attr{}
	}
	return a
}

// Kind is the type of a metric, which says how to aggregate its values.
type Kind string

const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Definition is a row of [Table].
type Definition struct {
	// Name is the same everywhere, except that Prometheus' exporter appends "_total" to counters and "_seconds" to durations.
	Name string
	Kind Kind
	// Unit is "s" for durations, as in the UCUM, and otherwise empty.
	Unit string
	// By is the attribute that divides the metric, or empty. A histogram may have several, in alphabetical order and separated by
	// commas. They must have few values.
	By string
	// Help is one sentence.
	Help string
}

// The names of the metrics.
const (
	EventsPublished   = "mcpevents_events_published"
	DeliveryAttempts  = "mcpevents_delivery_attempts"
	AttemptDuration   = "mcpevents_attempt_duration"
	FirstAttemptLag   = "mcpevents_first_attempt_lag"
	DeliveryLag       = "mcpevents_delivery_lag"
	DeadLetters       = "mcpevents_dead_letters"
	Disabled          = "mcpevents_subscriptions_disabled"
	RetriesWaiting    = "mcpevents_retries_waiting"
	QueueDepth        = "mcpevents_queue_depth"
	QueueAge          = "mcpevents_queue_age"
	StreamsOpen       = "mcpevents_streams_open"
	EndpointsFailing  = "mcpevents_endpoints_failing"
	EndpointStates    = "mcpevents_endpoint_states"
	StreamsEnded      = "mcpevents_streams_ended"
	Polls             = "mcpevents_polls"
	BackendCalls      = "mcpevents_backend_calls"
	BackendErrors     = "mcpevents_backend_errors"
	GatewayCalls      = "mcpevents_gateway_call_duration"
	LogSlowAppends    = "mcpevents_log_slow_appends"
	LogClockSkew      = "mcpevents_log_clock_skew"
	LogLateEntries    = "mcpevents_log_late_entries"
	LogBrokenSegments = "mcpevents_log_broken_segments"
	LimitsReached     = "mcpevents_limits_reached"
	SourceRequests    = "mcpevents_source_requests"
	SourceRefused     = "mcpevents_source_refused"
	SettingsRefused   = "mcpevents_settings_refused"
	Healthy           = "mcpevents_healthy"
)

// Webhook is the value of the attribute "queue" for deliveries, because they have no queue of their own.
const Webhook = "webhook"

// Table lists all metrics of a [Set]. docs/reference/metrics.md has the same rows.
var Table = []Definition{
	{EventsPublished, Counter, "", "", "Accepted events, from POST /events, the inbox queue or a program."},
	{DeliveryAttempts, Counter, "", "outcome", "POSTs to endpoints, by success or the failure's category."},
	{AttemptDuration, Histogram, "s", "", "Duration of a POST."},
	{FirstAttemptLag, Histogram, "s", "", "Time from publishing to the end of a delivery's first attempt."},
	{DeliveryLag, Histogram, "s", "", "Time from publishing to a delivery's success."},
	{DeadLetters, Counter, "", "queue", "Deliveries that were given up (queue webhook), and messages, by their queue."},
	{Disabled, Counter, "", "", "Subscriptions that were disabled, because their endpoint failed for five days or is gone."},
	{RetriesWaiting, Gauge, "", "", "Deliveries that wait for their next attempt; stand-alone only."},
	{QueueDepth, Gauge, "", "queue", "Messages in a queue, including those in flight and delayed."},
	{QueueAge, Gauge, "s", "queue", "Age of a queue's oldest message."},
	{Healthy, Gauge, "", "", "1 while the server can write to its database, and 0 while GET /healthz answers 503; stand-alone only."},
	{SettingsRefused, Gauge, "", "", "1 while the last catalog or configuration was rejected and the previous one is in use; stand-alone only."},
	{StreamsOpen, Gauge, "", "", "Streams that this process holds open."},
	{EndpointsFailing, Gauge, "", "", "Endpoints that this process knows to be failing. The fast lane makes no attempts to them."},
	{EndpointStates, Gauge, "", "state", "The same by state: slow ones are attempted in the slow lane, paused ones are currently not attempted."},
	{StreamsEnded, Counter, "", "reason", "Streams that ended, by the reason in the log line stream ended."},
	{Polls, Counter, "", "", "Answers to events/poll."},
	{BackendCalls, Counter, "", "backend", "Completed requests to MCP servers behind the gateway, including the gateway's own."},
	{BackendErrors, Counter, "", "backend", "Requests to MCP servers behind the gateway without an answer, or with an error."},
	{GatewayCalls, Histogram, "s", "backend,outcome", "Duration of a client's call to a backend."},
	{LogSlowAppends, Counter, "", "", "Appends to the event log that took over two seconds and were repeated."},
	{LogClockSkew, Counter, "", "", "Another instance's stamps that were over two seconds ahead of this instance's clock."},
	{LogLateEntries, Counter, "", "", "Entries that a reader saw later than the log's bounds allow, so readers may have missed some."},
	{LogBrokenSegments, Counter, "", "", "Items of the event log that cannot be decoded and are skipped."},
	{LimitsReached, Counter, "", "limit", "Requests that reached a limit, by its name."},
	{SourceRequests, Counter, "", "outcome", "Requests to sources, and documents of buses for them, by outcome."},
	{SourceRefused, Counter, "", "source", "Requests to sources that could not become an event: unverified, invalid, unfit, limited and unavailable."},
}
