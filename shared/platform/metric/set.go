package metric

import (
	"context"
	"sync"
	"time"

	otel "go.opentelemetry.io/otel/metric"

	"go.opentelemetry.io/otel/attribute"
)

// Success is the outcome of an attempt that succeeded.
const Success = "success"

// lagBounds are those of the histograms, in seconds: from an embedded delivery to the last retry.
var lagBounds = []float64{
	.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 21600, 86400,
}

// Set are the instruments of a process. A nil set records nothing. Its methods may be called
// concurrently.
type Set struct {
	counters   map[string]otel.Int64Counter
	histograms map[string]otel.Float64Histogram
	meter      otel.Meter

	options sync.Map // attribute value -> []otel.AddOption, by metric; of few values
}

// NewSet makes the instruments of [Table] that a process counts itself. Those that it reads
// elsewhere come by [Set.Watch].
func NewSet(p otel.MeterProvider) (*Set, error) {
	s := &Set{counters: map[string]otel.Int64Counter{}, histograms: map[string]otel.Float64Histogram{}, meter: p.Meter("github.com/mcp-events/mcpevents")}
	var err error
	for _, name := range []string{EventsPublished, DeliveryAttempts, DeadLetters, Disabled, StreamsEnded, Polls, BackendCalls, BackendErrors, LimitsReached, SourceRequests, SourceRefused} {
		d := definition(name)
		if s.counters[name], err = s.meter.Int64Counter(name, otel.WithUnit(d.Unit), otel.WithDescription(d.Help)); err != nil {
			return nil, err
		}
		if d.By == "" { // an exporter shows it from the start, so that its first increase is one
			s.counters[name].Add(context.Background(), 0)
		}
	}
	for _, name := range []string{AttemptDuration, FirstAttemptLag, DeliveryLag} {
		d := definition(name)
		s.histograms[name], err = s.meter.Float64Histogram(name, otel.WithUnit(d.Unit), otel.WithDescription(d.Help),
			otel.WithExplicitBucketBoundaries(lagBounds...))
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// definition finds the row of a name. One without a row is a mistake of this program.
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

// Attempt records a POST: number n of its delivery, which took so long and ended lag after the event
// was published. Category is why it failed, or empty.
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

// DeadLettered counts what was given up: of a queue, or deliveries of webhooks.
func (s *Set) DeadLettered(queue string, n int) {
	if n > 0 {
		s.add(DeadLetters, n, "queue", queue)
	}
}

// LimitReached counts a request that met a limit; an empty name is none.
func (s *Set) LimitReached(name string) {
	if name != "" {
		s.add(LimitsReached, 1, "limit", name)
	}
}

// Disabled counts a subscription that was disabled for its endpoint.
func (s *Set) Disabled() { s.add(Disabled, 1, "", "") }

// StreamEnded counts a stream by why it ended.
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

// Sourced counts a request to a source by what became of it.
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
		s.counters[name].Add(context.Background(), int64(n), s.by(key, value)...)
	}
}

// by is an attribute as instruments take it, made once for each of its few values.
func (s *Set) by(key, value string) []otel.AddOption {
	if o, ok := s.options.Load(key + "=" + value); ok {
		return o.([]otel.AddOption)
	}
	o := []otel.AddOption{otel.WithAttributeSet(attribute.NewSet(attribute.String(key, value)))}
	s.options.Store(key+"="+value, o)
	return o
}

// Reading is a value of a metric when it is asked for; By is that of its attribute, if it has one.
type Reading struct {
	By    string
	Value float64
}

// Watch has a metric of [Table] read when an exporter asks, by f, which is quick and may
// be called from anywhere. An error leaves the metric out of that answer.
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

// One is a reading of a metric without an attribute.
func One(value float64) []Reading { return []Reading{{Value: value}} }
