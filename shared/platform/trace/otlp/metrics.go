package otlp

import (
	"context"
	"crypto/rand"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/mcp-events/mcpevents/shared/platform/metric"
)

// Metrics returns a function that sends the metrics of a process, for the Export of [metric.EMF]. The attribute "stack" distinguishes
// the deployments that use a collector. Each process has its own instance id, because a gauge is the value of a single process.
func Metrics(o Options, stack string) (func(context.Context, *metricdata.ResourceMetrics), error) {
	c, err := newCollector(o, PathMetrics, &metric.Tally{Name: MetricMetricsNotSent, Text: "metrics not sent", Log: o.Log})
	if err != nil {
		return nil, err
	}
	from := attributes{keyValues(append(product(o), attribute.String("service.instance.id", rand.Text()), attribute.String("stack", stack)))}
	return func(ctx context.Context, all *metricdata.ResourceMetrics) {
		c.export(context.WithoutCancel(ctx), request{ResourceMetrics: []resourceData{{Resource: from, ScopeMetrics: scopesOf(all)}}})
	}, nil
}

// instrument is the message Metric. Exactly one of Sum, Gauge and Histogram is set.
type instrument struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Unit        string `json:"unit,omitempty"`
	Sum         *data  `json:"sum,omitempty"`
	Gauge       *data  `json:"gauge,omitempty"`
	Histogram   *data  `json:"histogram,omitempty"`
}

type data struct {
	DataPoints             []point `json:"dataPoints"`
	AggregationTemporality int     `json:"aggregationTemporality,omitempty"`
	IsMonotonic            bool    `json:"isMonotonic,omitempty"`
}

// point is a NumberDataPoint or, with a count, a HistogramDataPoint.
type point struct {
	Attributes        []keyValue `json:"attributes,omitempty"`
	StartTimeUnixNano string     `json:"startTimeUnixNano"`
	TimeUnixNano      string     `json:"timeUnixNano"`
	AsDouble          *float64   `json:"asDouble,omitempty"`
	Count             string     `json:"count,omitempty"`
	Sum               *float64   `json:"sum,omitempty"`
	BucketCounts      []string   `json:"bucketCounts,omitempty"`
	ExplicitBounds    []float64  `json:"explicitBounds,omitempty"`
}

// temporalities are the numbers of AggregationTemporality.
var temporalities = map[metricdata.Temporality]int{metricdata.DeltaTemporality: 1, metricdata.CumulativeTemporality: 2}

func scopesOf(all *metricdata.ResourceMetrics) (scopes []scopeData) {
	for _, s := range all.ScopeMetrics {
		out := scopeData{Scope: scope{s.Scope.Name}}
		for _, m := range s.Metrics {
			i := instrument{Name: m.Name, Description: m.Description, Unit: m.Unit}
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				i.Sum = &data{numbers(d.DataPoints), temporalities[d.Temporality], d.IsMonotonic}
			case metricdata.Sum[float64]:
				i.Sum = &data{numbers(d.DataPoints), temporalities[d.Temporality], d.IsMonotonic}
			case metricdata.Gauge[float64]:
				i.Gauge = &data{DataPoints: numbers(d.DataPoints)}
			case metricdata.Histogram[float64]:
				i.Histogram = &data{DataPoints: histograms(d.DataPoints), AggregationTemporality: temporalities[d.Temporality]}
			default: // metric.Table has no others
				continue
			}
			out.Metrics = append(out.Metrics, i)
		}
		scopes = append(scopes, out)
	}
	return scopes
}

func numbers[N int64 | float64](points []metricdata.DataPoint[N]) []point {
	out := make([]point, len(points))
	for i, p := range points {
		value := float64(p.Value)
		out[i] = point{Attributes: keyValues(p.Attributes.ToSlice()), StartTimeUnixNano: nano(p.StartTime), TimeUnixNano: nano(p.Time), AsDouble: &value}
	}
	return out
}

func histograms(points []metricdata.HistogramDataPoint[float64]) []point {
	out := make([]point, len(points))
	for i, p := range points {
		out[i] = point{
			Attributes: keyValues(p.Attributes.ToSlice()), StartTimeUnixNano: nano(p.StartTime), TimeUnixNano: nano(p.Time),
			Count: strconv.FormatUint(p.Count, 10), Sum: &p.Sum, ExplicitBounds: p.Bounds,
		}
		for _, n := range p.BucketCounts {
			out[i].BucketCounts = append(out[i].BucketCounts, strconv.FormatUint(n, 10))
		}
	}
	return out
}

// nano returns a time in nanoseconds since 1970, or 0 for the zero time.
func nano(t time.Time) string {
	if t.IsZero() {
		return "0"
	}
	return strconv.FormatInt(t.UnixNano(), 10)
}
