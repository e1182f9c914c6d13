package otlp

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/test/expect"
)

// OPS-12: a collector receives the metrics over OTLP, below the path of its URL and with the URL's credentials. Shutdown sends
// the last ones.
func TestOTLPMetrics(t *testing.T) {
	got := make(chan *collector.ExportMetricsServiceRequest, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var request collector.ExportMetricsServiceRequest
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = proto.Unmarshal(body, &request)
		}
		user, password, _ := r.BasicAuth()
		if err != nil || r.URL.Path != "/otlp/v1/metrics" || user != "alice" || password != "secret" {
			t.Errorf("%s of %s: %v", r.URL, user, err)
		}
		got <- &request
	}))
	defer server.Close()
	reader := expect.Value(newReader(t.Context(), strings.Replace(server.URL, "://", "://alice:secret@", 1)+"/otlp"))(t)
	expect.Value(metric.NewSet(sdk.NewMeterProvider(sdk.WithReader(reader))))(t).Published(3)
	expect.OK(t, reader.Shutdown(context.WithoutCancel(t.Context())))
	for _, m := range (<-got).GetResourceMetrics()[0].GetScopeMetrics()[0].GetMetrics() {
		if m.GetName() == metric.EventsPublished && m.GetSum().GetDataPoints()[0].GetAsInt() == 3 {
			return
		}
	}
	t.Errorf("the collector did not receive %s with the value 3", metric.EventsPublished)
}
