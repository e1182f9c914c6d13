// Package metric makes log lines that are metrics too: a count with what it counts by, in
// the form in which CloudWatch takes metrics out of logs (its embedded metric format). So what an
// operator reads and what a graph shows is the same line.
//
// It keeps nothing: who counts decides how often a line is written.
package metric

import (
	"log/slog"
	"time"
)

// Namespace is where CloudWatch puts the metrics.
const Namespace = "mcp-events"

// Member is the member of a log line that tells CloudWatch what is a metric in it.
const Member = "_aws"

// directive is a MetricDirective, and what stands around it.
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

// Count says that something happened n times since this was said last. It belongs on the outermost
// level of a line. Dimensions are what it is counted by; their values must be few.
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
	return slog.Attr{Value: slog.GroupValue(all...)} // without a key its members stand in the line itself
}

// Plain takes off lines what only CloudWatch reads, as ReplaceAttr of a handler.
func Plain(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == Member {
		return slog.Attr{}
	}
	return a
}
