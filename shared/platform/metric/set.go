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

// Success is the outcome of an attempt that succeeded.
const Success = "success"

// lagBounds are the buckets of the histograms in seconds. They reach from a delivery of a stand-alone server to the last retry.
var lagBounds = []float64{
	.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 21600, 86400,
}

// Set records the metrics of a process. A nil Set records nothing. Its methods may be called concurrently.
type Set struct {
	counters   map[string]otel.Int64Counter
	histograms map[string]otel.Float64Histogram
	meter      otel.Meter

	options sync.Map // "attribute=value" to []otel.AddOption, so that counting does not allocate
	calls   sync.Map // the backend and the outcome of a call to its otel.RecordOption
}

// NewSet creates the instruments for the metrics in [Table] that the process counts itself. Callers add gauges with [Set.Watch].
func NewSet(p otel.MeterProvider) (*Set, error) {
	s := &Set{counters: map[string]otel.Int64Counter{}, histograms: map[string]otel.Float64Histogram{}, meter: p.Meter("github.com/mcp-events/mcpevents")}
	var err error
	for _, name := range []string{EventsPublished, DeliveryAttempts, DeadLetters, Disabled, StreamsEnded, Polls, BackendCalls, BackendErrors, LimitsReached, SourceRequests, SourceRefused} {
		d := definition(name)
		if s.counters[name], err = s.meter.Int64Counter(name, otel.WithUnit(d.Unit), otel.WithDescription(d.Help)); err != nil {
			return nil, err
		}
		if d.By == "" { // exporters show it from the start, so that graphs show the increase from 0 to 1
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

// definition returns the row of a metric in [Table]. It panics for an unknown name, because names are constants.
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

// Attempt records attempt n of a delivery. The POST took the given time and ended lag after the event was published. The category
// describes the failure, and is empty after a success.
func (s *Set) Attempt(category string, n int, took, lag time.Duration) {
	if s == nil {
		return
	}
	ctx, outcome := context.Background(), category
	if category == "" {
		outcome = Success
		s.histograms[DeliveryLag].Record(ctx, lag.Seconds())
	}
	if n <= 1 {
		s.histograms[FirstAttemptLag].Record(ctx, lag.Seconds())
	}
	s.histograms[AttemptDuration].Record(ctx, took.Seconds())
	s.add(DeliveryAttempts, 1, "outcome", outcome)
}

// DeadLettered counts dead letters of a queue, or deliveries with the queue [Webhook].
func (s *Set) DeadLettered(queue string, n int) {
	if n > 0 {
		s.add(DeadLetters, n, "queue", queue)
	}
}

// LimitReached counts a request that reached the limit with a name. It ignores an empty name.
func (s *Set) LimitReached(name string) {
	if name != "" {
		s.add(LimitsReached, 1, "limit", name)
	}
}

// Disabled counts a subscription that was disabled because of its endpoint.
func (s *Set) Disabled() { s.add(Disabled, 1, "", "") }

// StreamEnded counts a stream that ended, by reason.
func (s *Set) StreamEnded(reason string) { s.add(StreamsEnded, 1, "reason", reason) }

// Polled counts an answer to events/poll.
func (s *Set) Polled() { s.add(Polls, 1, "", "") }

// Called counts a request to a backend.
func (s *Set) Called(backend string, failed bool) {
	s.add(BackendCalls, 1, "backend", backend)
	if failed {
		s.add(BackendErrors, 1, "backend", backend)
	}
}

// NoBackend is the backend of a call whose name no backend serves.
const NoBackend = "-"

// GatewayCalled records a client's call to a backend. An empty backend counts as [NoBackend].
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

// Sourced counts a request to a source by its outcome.
func (s *Set) Sourced(source, outcome string, refused bool) {
	s.add(SourceRequests, 1, "outcome", outcome)
	if refused {
		s.add(SourceRefused, 1, "source", source)
	}
}

// add adds to a counter, split by an attribute unless key is empty.
func (s *Set) add(name string, n int, key, value string) {
	switch {
	case s == nil:
	case key == "":
		s.counters[name].Add(context.Background(), int64(n))
	default:
		s.counters[name].Add(context.Background(), int64(n), s.option(key, value)...)
	}
}

// option returns the cached option that adds an attribute to a measurement.
func (s *Set) option(key, value string) []otel.AddOption {
	if o, ok := s.options.Load(key + "=" + value); ok {
		return o.([]otel.AddOption)
	}
	o := []otel.AddOption{otel.WithAttributeSet(attribute.NewSet(attribute.String(key, value)))}
	s.options.Store(key+"="+value, o)
	return o
}

// Reading is a current value of a metric. By is the value of the metric's attribute if it has one.
type Reading struct {
	By    string
	Value float64
}

// Watch reads a metric of [Table] with f whenever an exporter collects. f must be fast and may be called concurrently. If it fails,
// the exporter leaves the metric out.
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

// One returns the reading of a metric without an attribute.
func One(value float64) []Reading { return []Reading{{Value: value}} }

// LogEvery is the default of [Tally.Every].
const LogEvery = 10 * time.Second

// Tally counts occurrences that may be very frequent, by a few dimensions, and logs them in few lines. The first occurrence is logged
// immediately. Further ones are counted, and logged at most once per Every. Name, Text and Log must be set. A Tally may be used
// concurrently.
type Tally struct {
	// Name is the name of the metric, and Text the message of the line.
	Name, Text string
	Log        *slog.Logger
	// Every is the shortest time between two lines with the same dimensions. 0 means [LogEvery].
	Every time.Duration

	mu     sync.Mutex
	counts map[string]*tallied
}

// tallied is the count of one combination of dimensions.
type tallied struct {
	by          []slog.Attr
	all, logged int64
	due         bool // whether a timer will write the next line
}

// Add counts an occurrence. The dimensions must have few values.
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
		c = &tallied{by: by}
		if t.counts == nil {
			t.counts = map[string]*tallied{}
		}
		t.counts[key.String()] = c
	}
	if c.all++; !c.due {
		t.write(ctx, c)
	}
}

// write logs the count since the last line, and schedules the next line. The lock is held.
func (t *Tally) write(ctx context.Context, c *tallied) {
	n := c.all - c.logged
	if c.due = n > 0; !c.due {
		return
	}
	c.logged = c.all
	t.Log.WarnContext(ctx, t.Text, Count(t.Name, n, c.by...))
	every := t.Every
	if every == 0 {
		every = LogEvery
	}
	time.AfterFunc(every, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.write(context.Background(), c)
	})
}

// Each calls yield for each combination of dimensions with the count since the process started.
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

// ByThird returns the counts of a tally of three dimensions as a map from "first/second" to the third dimension to the count.
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

// MetricUndecodable is the metric of [Undecodable].
const MetricUndecodable = "ItemsUndecodable"

// Undecodable counts stored items that cannot be decoded and are therefore treated as absent. A nil Undecodable counts nothing.
type Undecodable struct{ tally Tally }

// NewUndecodable returns an Undecodable that also logs.
func NewUndecodable(log *slog.Logger) *Undecodable {
	return &Undecodable{Tally{Name: MetricUndecodable, Text: "stored item undecodable", Log: log}}
}

// Add counts an item of a kind. There must be few kinds.
func (u *Undecodable) Add(ctx context.Context, kind string) {
	if u == nil {
		return
	}
	u.tally.Add(ctx, slog.String("item", kind))
}

// Count returns the number of items of a kind since the process started.
func (u *Undecodable) Count(kind string) (n int64) {
	u.tally.Each(func(values []string, all int64) {
		if values[0] == kind {
			n = all
		}
	})
	return n
}
