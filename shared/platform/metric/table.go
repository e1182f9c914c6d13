package metric

// Kind is how the values of a metric add up.
type Kind string

// The kinds. A counter grows, a gauge is what holds now, a histogram counts values by their size.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Definition is a row of [Table].
type Definition struct {
	// Name is the same in CloudWatch, in OpenTelemetry, and in Prometheus, whose exporter adds
	// "_total" to counters and "_seconds" to durations.
	Name string
	Kind Kind
	// Unit is "s", of the UCUM, or empty for a number of things.
	Unit string
	// By is the attribute that a metric is split by, of few values; empty for none.
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
	LogSlowAppends    = "mcpevents_log_slow_appends"
	LogClockSkew      = "mcpevents_log_clock_skew"
	LogLateEntries    = "mcpevents_log_late_entries"
	LogBrokenSegments = "mcpevents_log_broken_segments"
	LimitsReached     = "mcpevents_limits_reached"
	SourceRequests    = "mcpevents_source_requests"
	SourceRefused     = "mcpevents_source_refused"
	SettingsRefused   = "mcpevents_settings_refused"
)

// Webhook is the value of the attribute queue for deliveries, which have no queue of their own.
const Webhook = "webhook"

// Table lists all metrics of a [Set]. docs/reference/metrics.md has the same rows.
var Table = []Definition{
	{EventsPublished, Counter, "", "", "Events accepted, by POST /events, the inbox queue or a program."},
	{DeliveryAttempts, Counter, "", "outcome", "POSTs to endpoints, by success or the category of the failure."},
	{AttemptDuration, Histogram, "s", "", "Time that a POST took."},
	{FirstAttemptLag, Histogram, "s", "", "Time from publishing to the end of the first attempt of a delivery."},
	{DeliveryLag, Histogram, "s", "", "Time from publishing to the success of a delivery."},
	{DeadLetters, Counter, "", "queue", "Given up: deliveries (queue webhook), and messages by the queue that they came from."},
	{Disabled, Counter, "", "", "Subscriptions that were disabled, because their endpoint only failed for five days or is gone."},
	{RetriesWaiting, Gauge, "", "", "Deliveries that wait for their next attempt; embedded only."},
	{QueueDepth, Gauge, "", "queue", "Messages in a queue, those in flight and delayed included."},
	{QueueAge, Gauge, "s", "queue", "Age of the oldest message of a queue."},
	{SettingsRefused, Gauge, "", "", "1 while the last catalog or configuration was refused and the one before is in use; embedded only."},
	{StreamsOpen, Gauge, "", "", "Streams that this process holds open."},
	{EndpointsFailing, Gauge, "", "", "Endpoints that this process knows to be failing: no attempt of the fast lane goes to them."},
	{EndpointStates, Gauge, "", "state", "The same by state: slow ones are attempted in the slow lane, paused ones not at all for now."},
	{StreamsEnded, Counter, "", "reason", "Streams that ended, by the reason in the log line stream ended."},
	{Polls, Counter, "", "", "Answers to events/poll."},
	{BackendCalls, Counter, "", "backend", "Requests to MCP servers behind the gateway that ended, those of the gateway itself included."},
	{BackendErrors, Counter, "", "backend", "Those that got no answer, or an error."},
	{LogSlowAppends, Counter, "", "", "Appends to the event log that took over two seconds and were made again."},
	{LogClockSkew, Counter, "", "", "Stamps of another instance that were over two seconds ahead of this one's clock."},
	{LogLateEntries, Counter, "", "", "Entries that a reader saw later than the log's bounds explain: readers may have missed some."},
	{LogBrokenSegments, Counter, "", "", "Items of the event log that cannot be decoded and are passed over."},
	{LimitsReached, Counter, "", "limit", "Requests that met a limit, by its name."},
	{SourceRequests, Counter, "", "outcome", "Requests to sources, and documents of buses for them, by what became of them."},
	{SourceRefused, Counter, "", "source", "Those that could not become an event: unverified, invalid, unfit, limited and unavailable."},
}
