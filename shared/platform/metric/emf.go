package metric

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otel "go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/mcp-events/mcpevents/shared/platform/periodic"
)

const (
	// EMFEvery is the shortest time between two writes of a process's metrics to its log. A log line for each invocation of a Lambda
	// function would cost more than the invocation itself.
	EMFEvery = 10 * time.Second
	// maxValues is how many values of one metric the embedded metric format allows in one log line.
	maxValues = 100
	// dimensionStack is the name of the dimension that every metric has. Its value distinguishes the deployments in an AWS account.
	dimensionStack = "stack"
)

// EMF writes the metrics of a Lambda function's process to its log, in CloudWatch's embedded metric format. Lambda may freeze the process
// between invocations, so no exporter can run in the background. Instead, the function calls [EMF.Flush] at the end of each invocation.
// Create an EMF with [NewEMF].
//
// The format has no histograms, so EMF writes a histogram as a list of values. Each measurement appears as the middle of its bucket. So
// the number of values is exact, and each value is wrong by at most half the bucket's width.
type EMF struct {
	// Export, if not nil, also receives the metrics each time that they are written to the log.
	Export func(context.Context, *metricdata.ResourceMetrics)

	log    *slog.Logger
	stack  string
	now    func() time.Time
	reader *sdk.ManualReader
	meters *sdk.MeterProvider

	mu   sync.Mutex
	last time.Time
}

// NewEMF returns an EMF that writes to a log, whose handler must write JSON. The parameter stack is the value of the dimension "stack",
// which distinguishes the deployments in an AWS account. A nil now means time.Now.
func NewEMF(log *slog.Logger, stack string, now func() time.Time) *EMF {
	now = periodic.Clock(now)
	reader := sdk.NewManualReader(sdk.WithTemporalitySelector(func(sdk.InstrumentKind) metricdata.Temporality { return metricdata.DeltaTemporality }))
	return &EMF{log: log, stack: stack, now: now, reader: reader, meters: sdk.NewMeterProvider(sdk.WithReader(reader))}
}

// Provider returns the OpenTelemetry provider to pass to [NewSet].
func (e *EMF) Provider() otel.MeterProvider { return e.meters }

// Flush writes the metrics that were recorded since the last write, unless the last write was less than [EMFEvery] ago. A nil EMF writes
// nothing.
func (e *EMF) Flush(ctx context.Context) {
	if e == nil || !e.mu.TryLock() { // another goroutine is writing
		return
	}
	defer e.mu.Unlock()
	if now := e.now(); periodic.Since(now, e.last) >= EMFEvery {
		e.last = now
		e.write(ctx)
	}
}

// Close writes the metrics that were recorded since the last write. Call it when the process ends.
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
	lines := map[string]*emfLine{} // keyed by the names and values of attributes
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			d := definition(m.Name)
			for by, values := range pointsOf(m.Data) {
				key := d.By + "=" + by
				if lines[key] == nil {
					lines[key] = &emfLine{by: d.By, value: by, metrics: map[string][]float64{}}
				}
				lines[key].metrics[m.Name] = values
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(lines)) {
		for len(lines[key].metrics) > 0 {
			e.log.LogAttrs(ctx, slog.LevelInfo, "metrics", lines[key].next(e.stack, e.now()))
		}
	}
}

// pointsOf returns the values of a metric, grouped by the values of its attributes as [attributesOf] returns them. It leaves out counters
// that did not grow since the last write.
func pointsOf(data metricdata.Aggregation) map[string][]float64 {
	out := map[string][]float64{}
	switch data := data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			if p.Value != 0 {
				out[attributesOf(p.Attributes)] = []float64{float64(p.Value)}
			}
		}
	case metricdata.Sum[float64]:
		for _, p := range data.DataPoints {
			if p.Value != 0 {
				out[attributesOf(p.Attributes)] = []float64{p.Value}
			}
		}
	case metricdata.Gauge[float64]:
		for _, p := range data.DataPoints {
			out[attributesOf(p.Attributes)] = []float64{p.Value}
		}
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			by := attributesOf(p.Attributes)
			out[by] = append(out[by], estimateValues(p)...)
		}
	}
	return out
}

// separator separates the values of attributes in a text. It does not occur in the values.
const separator = "\x00"

// attributesOf returns the values of a point's attributes, separated by [separator] and sorted by the attributes' names.
func attributesOf(set attribute.Set) string {
	var values []string
	for _, a := range set.ToSlice() {
		values = append(values, a.Value.AsString())
	}
	return strings.Join(values, separator)
}

// estimateValues returns an estimate of each value that a histogram has counted: the middle of the value's bucket. The estimates are
// limited to the range between the smallest and the largest value.
func estimateValues(p metricdata.HistogramDataPoint[float64]) []float64 {
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

// emfLine holds the unwritten metrics with the same attributes. The field by has the names of the attributes, separated by commas. The
// field value has the values of the attributes, separated by [separator].
type emfLine struct {
	by, value string
	metrics   map[string][]float64
}

// next returns a log line with up to [maxValues] values of each metric, and removes these values from l. For metrics with an attribute,
// the line also declares the dimension "stack" alone, so that operators can set an alarm on the total.
func (l *emfLine) next(stack string, now time.Time) slog.Attr {
	about := metrics{Namespace: Namespace, Dimensions: [][]string{{dimensionStack}}}
	members := []any{slog.String(dimensionStack, stack)}
	if l.by != "" {
		names, values := strings.Split(l.by, ","), strings.Split(l.value, separator)
		about.Dimensions = append(about.Dimensions, append([]string{dimensionStack}, names...))
		for i, name := range names {
			members = append(members, slog.String(name, values[i]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.metrics)) {
		values := l.metrics[name]
		batch := values[:min(len(values), maxValues)]
		if l.metrics[name] = values[len(batch):]; len(l.metrics[name]) == 0 {
			delete(l.metrics, name)
		}
		unit := "Count"
		if definition(name).Unit == "s" {
			unit = "Seconds"
		}
		about.Metrics = append(about.Metrics, emfMetric{name, unit})
		members = append(members, slog.Any(name, batch))
	}
	return slog.Group("", append(members, slog.Any(Member, directive{Timestamp: now.UnixMilli(), CloudWatchMetrics: []metrics{about}}))...)
}
