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
