package otlp

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestMetrics decodes the requests with OpenTelemetry's own messages.
func TestMetrics(t *testing.T) {
	got := make(chan *collectorpb.ExportMetricsServiceRequest, 2)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var request collectorpb.ExportMetricsServiceRequest
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = protojson.Unmarshal(body, &request)
		}
		if err != nil || r.URL.Path != "/otlp/v1/metrics" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %v", r.URL, err)
		}
		got <- &request
	}))
	defer server.Close()
	log := slog.New(slog.DiscardHandler)
	emf := metric.NewEMF(log, "stack-1", nil)
	emf.Export = expect.Value(Metrics(Options{Endpoint: server.URL + "/otlp/", Version: "1.2.3", Log: log}, "stack-1"))(t)
	s := expect.Value(metric.NewSet(emf.Provider()))(t)
	expect.OK(t, s.Watch(metric.StreamsOpen, func(context.Context) ([]metric.Reading, error) { return metric.One(7), nil }))
	flush := func() (about map[string]string, all map[string]*metricspb.Metric) {
		emf.Close(t.Context())
		rm := (<-got).GetResourceMetrics()[0]
		about, all = map[string]string{}, map[string]*metricspb.Metric{}
		for _, a := range rm.GetResource().GetAttributes() {
			about[a.GetKey()] = a.GetValue().GetStringValue()
		}
		for _, m := range rm.GetScopeMetrics()[0].GetMetrics() {
			all[m.GetName()] = m
		}
		return about, all
	}
	s.Published(3)
	s.DeadLettered("inbox", 2)
	s.Attempt("timeout", true, 250*time.Millisecond, time.Second)
	about, all := flush()
	t.Run("OPS-12 a collector gets counters, gauges and histograms", func(t *testing.T) {
		sum := all[metric.EventsPublished].GetSum()
		if p := sum.GetDataPoints()[0]; p.GetAsDouble() != 3 || !sum.GetIsMonotonic() || p.GetTimeUnixNano() < p.GetStartTimeUnixNano() || p.GetStartTimeUnixNano() == 0 {
			t.Errorf("got %v", sum)
		}
		if p := all[metric.DeadLetters].GetSum().GetDataPoints()[0]; p.GetAsDouble() != 2 || p.GetAttributes()[0].GetValue().GetStringValue() != "inbox" {
			t.Errorf("got %v", p)
		}
		expect.Equal(t, "open streams", all[metric.StreamsOpen].GetGauge().GetDataPoints()[0].GetAsDouble(), 7)
		h := all[metric.AttemptDuration].GetHistogram().GetDataPoints()[0]
		if h.GetCount() != 1 || h.GetSum() != .25 || len(h.GetBucketCounts()) != len(h.GetExplicitBounds())+1 || all[metric.AttemptDuration].GetUnit() != "s" {
			t.Errorf("got %v", h)
		}
	})
	t.Run("OPS-12 they are of a process of the deployment", func(t *testing.T) {
		if about["service.name"] != "mcp-events" || about["service.version"] != "1.2.3" || about["stack"] != "stack-1" || about["service.instance.id"] == "" {
			t.Errorf("got %v", about)
		}
	})
	t.Run("OPS-12 each time there is what was added since the last", func(t *testing.T) {
		s.Published(1)
		_, all := flush()
		sum := all[metric.EventsPublished].GetSum()
		if sum.GetAggregationTemporality() != metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_DELTA || sum.GetDataPoints()[0].GetAsDouble() != 1 {
			t.Errorf("got %v", sum)
		}
	})
}

// OPS-12: metrics that a collector does not take are lost, and the log says so without its URL, which may hold a secret.
func TestMetricsThatAreNotTaken(t *testing.T) {
	var out strings.Builder
	emf := metric.NewEMF(slog.New(slog.DiscardHandler), "s", nil)
	export := expect.Value(Metrics(Options{Endpoint: "http://127.0.0.1:1/secret", Log: slog.New(slog.NewTextHandler(&out, nil))}, "s"))(t)
	emf.Export = export
	emf.Close(t.Context())
	if !strings.Contains(out.String(), "metrics not sent") || strings.Contains(out.String(), "secret") {
		t.Errorf("the log says %q", &out)
	}
	expect.Error(t, "a collector without a scheme", expect.ErrOf(Metrics(Options{Endpoint: "collector:4318"}, "s")))
}

func TestErrorsDoNotContainTheCollectorsPassword(t *testing.T) {
	for _, endpoint := range []string{"ftp://alice:secret@collector.example", "http://alice:secret word@collector.example"} {
		_, _, err := Provider(Options{Endpoint: endpoint})
		expect.Fault(t, endpoint, err, fault.Invalid)
		expect.Lacks(t, "the error", err.Error(), "alice", "secret")
	}
}
