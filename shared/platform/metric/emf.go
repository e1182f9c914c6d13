package metric

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	otel "go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

const (
	// EMFEvery is how often a busy process writes its metrics. A line after each invocation
	// would cost more than the invocation.
	EMFEvery = 10 * time.Second
	// maxValues is how many values a member of a line may have (CloudWatch's embedded metric format).
	maxValues = 100
	// dimensionStack is the dimension of all metrics.
	dimensionStack = "stack"
)

// EMF writes the metrics of a function's process to its log, in CloudWatch's embedded metric
// format. A process that Lambda may freeze has no exporter at work by itself: the function
// calls [EMF.Flush] at the end of each invocation. Make it with [NewEMF].
//
// A histogram becomes its values, each the middle of its bucket, for the format knows no buckets:
// their number is exact, and so is the sum within the bucket's width.
type EMF struct {
	// Export gets the same at the same time, for another receiver; nil is none.
	Export func(context.Context, *metricdata.ResourceMetrics)

	log    *slog.Logger
	stack  string
	now    func() time.Time
	reader *sdk.ManualReader
	meters *sdk.MeterProvider

	mu   sync.Mutex
	last time.Time
}

// NewEMF makes one that writes to a log whose handler writes JSON. Stack is the value of the dimension of that name,
// which tells the deployments of an account apart. The clock is time.Now when nil.
func NewEMF(log *slog.Logger, stack string, now func() time.Time) *EMF {
	if now == nil {
		now = time.Now
	}
	reader := sdk.NewManualReader(sdk.WithTemporalitySelector(func(sdk.InstrumentKind) metricdata.Temporality { return metricdata.DeltaTemporality }))
	return &EMF{log: log, stack: stack, now: now, reader: reader, meters: sdk.NewMeterProvider(sdk.WithReader(reader))}
}

// Provider is where instruments are made.
func (e *EMF) Provider() otel.MeterProvider { return e.meters }

// Flush writes what was recorded since the last time, unless that was less than [EMFEvery] ago.
// A nil EMF writes nothing.
func (e *EMF) Flush(ctx context.Context) {
	if e == nil || !e.mu.TryLock() { // someone writes
		return
	}
	defer e.mu.Unlock()
	if now := e.now(); now.Sub(e.last) >= EMFEvery {
		e.last = now
		e.write(ctx)
	}
}

// Close writes what was recorded since the last time: the process ends.
func (e *EMF) Close(ctx context.Context) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.write(ctx)
}

func (e *EMF) write(ctx context.Context) {
	var all metricdata.ResourceMetrics
	if err := e.reader.Collect(ctx, &all); err != nil {
		e.log.WarnContext(ctx, "metrics incomplete", "error", err)
	}
	if e.Export != nil {
		e.Export(ctx, &all)
	}
	lines := map[string]*emfLine{} // by attribute and value
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			d := definition(m.Name)
			for by, values := range points(m.Data) {
				key := d.By + "=" + by
				if lines[key] == nil {
					lines[key] = &emfLine{by: d.By, value: by, metrics: map[string][]float64{}}
				}
				lines[key].metrics[m.Name] = values
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(lines)) {
		for lines[key].any() {
			e.log.LogAttrs(ctx, slog.LevelInfo, "metrics", lines[key].take(e.stack, e.now()))
		}
	}
}

// points are the values of a metric by the value of its attribute. A counter that did not grow has none.
func points(data metricdata.Aggregation) map[string][]float64 {
	out := map[string][]float64{}
	switch data := data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			if p.Value != 0 {
				out[first(p)] = []float64{float64(p.Value)}
			}
		}
	case metricdata.Sum[float64]:
		for _, p := range data.DataPoints {
			if p.Value != 0 {
				out[first(p)] = []float64{p.Value}
			}
		}
	case metricdata.Gauge[float64]:
		for _, p := range data.DataPoints {
			out[first(p)] = []float64{p.Value}
		}
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			out[""] = append(out[""], middles(p)...)
		}
	}
	return out
}

// first is the value of the one attribute of a point, or empty.
func first[N int64 | float64](p metricdata.DataPoint[N]) string {
	if a, ok := p.Attributes.Get(0); ok {
		return a.Value.AsString()
	}
	return ""
}

// middles are the values of a histogram, each the middle of its bucket, within what was seen.
func middles(p metricdata.HistogramDataPoint[float64]) []float64 {
	least, _ := p.Min.Value()
	most, _ := p.Max.Value()
	var out []float64
	for i, n := range p.BucketCounts {
		low, high := least, most
		if i > 0 {
			low = max(low, p.Bounds[i-1])
		}
		if i < len(p.Bounds) {
			high = min(high, p.Bounds[i])
		}
		for range n {
			out = append(out, (low+high)/2)
		}
	}
	return out
}

// emfLine are metrics with the same attribute.
type emfLine struct {
	by, value string
	metrics   map[string][]float64
}

func (l *emfLine) any() bool { return len(l.metrics) > 0 }

// take makes a line of up to [maxValues] values of each metric. What is counted by an attribute is there without
// it too, so that an alarm can look at the sum.
func (l *emfLine) take(stack string, now time.Time) slog.Attr {
	about := metrics{Namespace: Namespace, Dimensions: [][]string{{dimensionStack}}}
	members := []any{slog.String(dimensionStack, stack)}
	if l.by != "" {
		about.Dimensions = append(about.Dimensions, []string{dimensionStack, l.by})
		members = append(members, slog.String(l.by, l.value))
	}
	for _, name := range slices.Sorted(maps.Keys(l.metrics)) {
		values := l.metrics[name]
		these := values[:min(len(values), maxValues)]
		if l.metrics[name] = values[len(these):]; len(l.metrics[name]) == 0 {
			delete(l.metrics, name)
		}
		unit := "Count"
		if definition(name).Unit == "s" {
			unit = "Seconds"
		}
		about.Metrics = append(about.Metrics, emfMetric{name, unit})
		members = append(members, slog.Any(name, these))
	}
	return slog.Group("", append(members, slog.Any(Member, directive{Timestamp: now.UnixMilli(), CloudWatchMetrics: []metrics{about}}))...)
}
