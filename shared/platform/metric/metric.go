// Package metric defines the metrics of the product. A [Set] records them, and an [EMF] writes them to the log of a Lambda function in
// CloudWatch's embedded metric format.
//
// A [Tally] counts frequent problems both in the log and in a Set, so that operators see the same numbers in the log and in the graph.
package metric

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otel "go.opentelemetry.io/otel/metric"
)

// Namespace is the namespace of the metrics in CloudWatch.
const Namespace = "mcp-events"

// Member is the name of the JSON member of a log line that tells CloudWatch which other members are metrics.
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

// Kind is the type of a metric. It says how the values are aggregated.
type Kind string

const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Definition describes one metric. It is a row of [Table].
type Definition struct {
	// Name is the metric's name in all monitoring systems, except that Prometheus' exporter appends "_total" to counters and "_seconds"
	// to durations.
	Name string
	Kind Kind
	// Unit is "s" for durations (seconds in the UCUM, a standard for units), and otherwise empty.
	Unit string
	// By is the attribute by which the metric is split, or empty. It may be several attributes, sorted and separated by commas.
	// Attributes must have few different values, because CloudWatch bills each combination of values as a metric.
	By   string
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
	BackendDropped    = "mcpevents_backend_messages_dropped"
	ContextMissing    = "mcpevents_conversation_context_missing"
	ItemsUndecodable  = "mcpevents_items_undecodable"
	SpansNotSent      = "mcpevents_spans_not_sent"
	MetricsNotSent    = "mcpevents_metrics_not_sent"
	LimitsReached     = "mcpevents_limits_reached"
	SourceRequests    = "mcpevents_source_requests"
	SourceRefused     = "mcpevents_source_refused"
	SettingsRefused   = "mcpevents_settings_refused"
	Healthy           = "mcpevents_healthy"
)

// Webhook is the value of the attribute "queue" for dead-lettered webhook deliveries, which are not messages of a queue.
const Webhook = "webhook"

// Table lists all metrics of a [Set]. docs/reference/metrics.md has the same rows.
var Table = []Definition{
	{EventsPublished, Counter, "", "", "Accepted events, from POST /events, the inbox queue or a program."},
	{DeliveryAttempts, Counter, "", "outcome", "POSTs to endpoints, by success or the failure's category."},
	{AttemptDuration, Histogram, "s", "", "Duration of a POST."},
	{FirstAttemptLag, Histogram, "s", "", "Time from publishing to the end of a delivery's first attempt, without replays and events that were paused or suspended."},
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
	{BackendDropped, Counter, "", "backend,reason,workspace", "Messages and list entries of backends that the gateway dropped."},
	{ContextMissing, Counter, "", "provider,reason,workspace", "Contexts that a context provider sent too late or not at all, or that the server rejected."},
	{ItemsUndecodable, Counter, "", "item", "Stored items that cannot be decoded and are treated as missing."},
	{SpansNotSent, Counter, "", "reason", "Batches of spans that the OpenTelemetry collector did not accept."},
	{MetricsNotSent, Counter, "", "reason", "Batches of a function's metrics that the OpenTelemetry collector did not accept; on AWS only."},
	{LimitsReached, Counter, "", "limit", "Requests that reached a limit, by its name."},
	{SourceRequests, Counter, "", "outcome", "Requests to sources, and documents of buses for them, by outcome."},
	{SourceRefused, Counter, "", "source", "Requests to sources that could not become an event: unverified, invalid, unfit, limited and unavailable."},
}

// Success is the outcome of a successful delivery attempt. A failed attempt has the category of the failure as its outcome.
const Success = "success"

// lagBounds are the upper bounds of the histograms' buckets, in seconds. They begin with 1 ms, because a stand-alone server delivers that
// fast. An additional last bucket counts all times longer than a day, which occur because an event is retried for up to three days.
var lagBounds = []float64{
	.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 21600, 86400,
}

// Set records the metrics of a process. A nil Set records nothing. Its methods may be called concurrently.
type Set struct {
	counters   map[string]otel.Int64Counter
	histograms map[string]otel.Float64Histogram
	meter      otel.Meter

	options sync.Map // cached options by "attribute=value", so that counting does not allocate
	calls   sync.Map // cached options by the call's backend and outcome
}

// NewSet creates the instruments for the metrics in [Table] that the process counts itself. Callers add the metrics whose current value
// is read, such as gauges, with [Set.Watch].
func NewSet(p otel.MeterProvider) (*Set, error) {
	s := &Set{counters: map[string]otel.Int64Counter{}, histograms: map[string]otel.Float64Histogram{}, meter: p.Meter("github.com/mcp-events/mcpevents")}
	var err error
	for _, name := range []string{
		EventsPublished, DeliveryAttempts, DeadLetters, Disabled, StreamsEnded, Polls, BackendCalls, BackendErrors, LimitsReached, SourceRequests, SourceRefused,
		BackendDropped, ContextMissing, ItemsUndecodable, SpansNotSent, MetricsNotSent,
	} {
		d := definition(name)
		if s.counters[name], err = s.meter.Int64Counter(name, otel.WithUnit(d.Unit), otel.WithDescription(d.Help)); err != nil {
			return nil, err
		}
		if d.By == "" { // create the series now, so that graphs show its increase from 0 to 1
			s.counters[name].Add(context.Background(), 0)
		}
	}
	for _, name := range []string{AttemptDuration, FirstAttemptLag, DeliveryLag, GatewayCalls} {
		d := definition(name)
		s.histograms[name], err = s.meter.Float64Histogram(name, otel.WithUnit(d.Unit), otel.WithDescription(d.Help),
			otel.WithExplicitBucketBoundaries(lagBounds...))
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// definition returns the row of a metric in [Table]. It panics if there is no such row, which would be a mistake in this package.
func definition(name string) Definition {
	for _, d := range Table {
		if d.Name == name {
			return d
		}
	}
	panic("metric: no row for " + name)
}

// Published counts accepted events.
func (s *Set) Published(n int) { s.add(EventsPublished, n, "", "") }

// Attempt records an attempt to deliver an event. The parameter category is the kind of failure, or empty after a success.
//
// The parameter took is the duration of the POST, and lag is the time from publishing to the end of the POST. If first is true, the lag
// also counts as the lag of a first attempt.
func (s *Set) Attempt(category string, first bool, took, lag time.Duration) {
	if s == nil {
		return
	}
	ctx, outcome := context.Background(), category
	if category == "" {
		outcome = Success
		s.histograms[DeliveryLag].Record(ctx, lag.Seconds())
	}
	if first {
		s.histograms[FirstAttemptLag].Record(ctx, lag.Seconds())
	}
	s.histograms[AttemptDuration].Record(ctx, took.Seconds())
	s.add(DeliveryAttempts, 1, "outcome", outcome)
}

// DeadLettered counts n messages of a queue that became dead letters. If the queue is [Webhook], it counts n webhook deliveries that were
// given up.
func (s *Set) DeadLettered(queue string, n int) {
	if n > 0 {
		s.add(DeadLetters, n, "queue", queue)
	}
}

// LimitReached counts a request that reached the named limit. If the name is empty, it does nothing, so that callers can pass the result
// of [fault.LimitOf].
func (s *Set) LimitReached(name string) {
	if name != "" {
		s.add(LimitsReached, 1, "limit", name)
	}
}

// SubscriptionDisabled counts a subscription that was disabled because its endpoint failed for days or is gone.
func (s *Set) SubscriptionDisabled() { s.add(Disabled, 1, "", "") }

// StreamEnded counts an event stream that ended for the given reason.
func (s *Set) StreamEnded(reason string) { s.add(StreamsEnded, 1, "reason", reason) }

// PollAnswered counts a response to the MCP method events/poll.
func (s *Set) PollAnswered() { s.add(Polls, 1, "", "") }

// BackendCalled counts a request to a backend, which is an MCP server behind the gateway. The parameter failed is true if the backend did
// not answer, or answered with an error.
func (s *Set) BackendCalled(backend string, failed bool) {
	s.add(BackendCalls, 1, "backend", backend)
	if failed {
		s.add(BackendErrors, 1, "backend", backend)
	}
}

// NoBackend is the value of the attribute "backend" for calls that no backend can serve, for example because no backend has the tool.
const NoBackend = "-"

// GatewayCalled records the outcome and the duration of a client's call to a backend through the gateway. An empty backend counts as
// [NoBackend].
func (s *Set) GatewayCalled(backend, outcome string, took time.Duration) {
	if s == nil {
		return
	}
	backend = cmp.Or(backend, NoBackend)
	key := [2]string{backend, outcome}
	o, ok := s.calls.Load(key)
	if !ok {
		o = otel.WithAttributeSet(attribute.NewSet(attribute.String("backend", backend), attribute.String("outcome", outcome)))
		s.calls.Store(key, o)
	}
	s.histograms[GatewayCalls].Record(context.Background(), took.Seconds(), o.(otel.RecordOption))
}

// SourceRequested counts a request to a source, which turns requests of other systems into events, by its outcome. If the request was
// refused, SourceRequested also counts it by the source's name.
func (s *Set) SourceRequested(source, outcome string, refused bool) {
	s.add(SourceRequests, 1, "outcome", outcome)
	if refused {
		s.add(SourceRefused, 1, "source", source)
	}
}

// add adds n to the counter with the given name. If key is not empty, add counts n for the attribute with this key and value.
func (s *Set) add(name string, n int, key, value string) {
	switch {
	case s == nil:
	case key == "":
		s.counters[name].Add(context.Background(), int64(n))
	default:
		s.counters[name].Add(context.Background(), int64(n), s.option(key, value)...)
	}
}

// option returns an attribute as an option for counters. It caches options, because each new option allocates memory.
func (s *Set) option(key, value string) []otel.AddOption {
	if o, ok := s.options.Load(key + "=" + value); ok {
		return o.([]otel.AddOption)
	}
	o := []otel.AddOption{otel.WithAttributeSet(attribute.NewSet(attribute.String(key, value)))}
	s.options.Store(key+"="+value, o)
	return o
}

// Reading is the current value of a metric. The field By is the value of the metric's attribute, if the metric has an attribute.
type Reading struct {
	By    string
	Value float64
}

// Watch makes exporters read a metric of [Table] with the function f whenever they collect metrics. f must be fast and may be called
// concurrently. If f returns an error, the exporter leaves the metric out.
func (s *Set) Watch(name string, f func(context.Context) ([]Reading, error)) error {
	if s == nil {
		return nil
	}
	d := definition(name)
	read := func(ctx context.Context, o otel.Float64Observer) error {
		values, err := f(ctx)
		for _, v := range values {
			if d.By == "" {
				o.Observe(v.Value)
			} else {
				o.Observe(v.Value, otel.WithAttributes(attribute.String(d.By, v.By)))
			}
		}
		return err
	}
	var err error
	if d.Kind == Counter {
		_, err = s.meter.Float64ObservableCounter(name, otel.WithUnit(d.Unit), otel.WithDescription(d.Help), otel.WithFloat64Callback(read))
	} else {
		_, err = s.meter.Float64ObservableGauge(name, otel.WithUnit(d.Unit), otel.WithDescription(d.Help), otel.WithFloat64Callback(read))
	}
	return err
}

// One returns the value of a metric without attributes as the result of a function for [Set.Watch].
func One(value float64) []Reading { return []Reading{{Value: value}} }

// LogEvery is the default of [Tally.Every].
const LogEvery = 10 * time.Second

// Tally counts occurrences of a problem that may be very frequent. It logs the first occurrence with each combination of attributes
// immediately. It logs further occurrences as a count, at most once per Every.
//
// Name, Text and Log must be set. A Tally may be used concurrently.
type Tally struct {
	// Name is the name of a counter in [Table]. Text is the message of each log line.
	Name, Text string
	Log        *slog.Logger
	// Set counts each occurrence in the metric Name. If Set is nil, the Tally only logs.
	Set *Set
	// Every is the shortest time between two log lines with the same attributes; 0 means [LogEvery].
	Every time.Duration

	mu     sync.Mutex
	counts map[string]*tallied
}

// tallied has the counts for one combination of attributes. The field all is the number of occurrences, and the field logged is how many
// of them the log has reported so far.
type tallied struct {
	by          []slog.Attr
	option      otel.AddOption
	all, logged int64
	due         bool // whether a timer will write the next line
}

// Add counts an occurrence. The parameter by has the metric's attributes with their values.
func (t *Tally) Add(ctx context.Context, by ...slog.Attr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var key strings.Builder
	for _, d := range by {
		key.WriteString(d.Value.String())
		key.WriteByte(0)
	}
	c := t.counts[key.String()]
	if c == nil {
		var all []attribute.KeyValue
		for _, d := range by {
			all = append(all, attribute.String(d.Key, d.Value.String()))
		}
		c = &tallied{by: by, option: otel.WithAttributes(all...)}
		if t.counts == nil {
			t.counts = map[string]*tallied{}
		}
		t.counts[key.String()] = c
	}
	if t.Set != nil {
		t.Set.counters[t.Name].Add(context.Background(), 1, c.option)
	}
	if c.all++; !c.due {
		t.write(ctx, c)
	}
}

// write logs how many occurrences were counted since the last line, and schedules the next line. The caller holds t.mu.
func (t *Tally) write(ctx context.Context, c *tallied) {
	n := c.all - c.logged
	if c.due = n > 0; !c.due {
		return
	}
	c.logged = c.all
	t.Log.LogAttrs(ctx, slog.LevelWarn, t.Text, append(c.by[:len(c.by):len(c.by)], slog.Int64("count", n))...)
	time.AfterFunc(cmp.Or(t.Every, LogEvery), func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.write(context.Background(), c)
	})
}

// Each calls the function yield for each combination of attributes, with the attributes' values and the number of occurrences since the
// process started.
func (t *Tally) Each(yield func(values []string, n int64)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.counts {
		var values []string
		for _, d := range c.by {
			values = append(values, d.Value.String())
		}
		yield(values, c.all)
	}
}

// ByThird returns the counts of a tally with three attributes, as a map of maps. For example, the map's ["a/b"]["c"] is the count for the
// attribute values a, b and c.
func (t *Tally) ByThird() map[string]map[string]int64 {
	out := map[string]map[string]int64{}
	t.Each(func(by []string, n int64) {
		pair := by[0] + "/" + by[1]
		if out[pair] == nil {
			out[pair] = map[string]int64{}
		}
		out[pair][by[2]] = n
	})
	return out
}

// Undecodable counts stored items that cannot be decoded. Readers treat such items as absent. A nil Undecodable counts
// nothing.
type Undecodable struct{ tally Tally }

// NewUndecodable returns an Undecodable that counts items and logs the counts like a [Tally]: the first item of a kind immediately, and
// further items at most once per [LogEvery]. If set is not nil, it also counts the items in the metric [ItemsUndecodable].
func NewUndecodable(log *slog.Logger, set *Set) *Undecodable {
	return &Undecodable{Tally{Name: ItemsUndecodable, Text: "stored item undecodable", Log: log, Set: set}}
}

// Add counts a stored item that cannot be decoded. The parameter kind says what the item stores, for example "session". It is an
// attribute of the metric, so it must have only a few different values.
func (u *Undecodable) Add(ctx context.Context, kind string) {
	if u == nil {
		return
	}
	u.tally.Add(ctx, slog.String("item", kind))
}

// Count returns how many items of the given kind could not be decoded since the process started.
func (u *Undecodable) Count(kind string) (n int64) {
	u.tally.Each(func(values []string, all int64) {
		if values[0] == kind {
			n = all
		}
	})
	return n
}
