package upstream

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	otel "go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

const (
	traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	parent  = "00-" + traceID + "-00f067aa0ba902b7-01"
)

// recorded keeps the requests to a backend, and answers them.
type recorded struct {
	header http.Header
	body   string
	answer http.HandlerFunc
}

func (r *recorded) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	r.header, r.body = req.Header, string(body)
	r.answer(w, req)
}

const toolCall = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","_meta":{"traceparent":"theirs","progressToken":7}}}`

func TestRequestsAreObserved(t *testing.T) {
	ok := answer("application/json", 200, result)
	spans := tracetest.NewSpanRecorder()
	tracer := trace.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)))
	reader := sdkmetric.NewManualReader()
	set, err := metric.NewSet(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	if err != nil {
		t.Fatal(err)
	}
	got := &recorded{}
	client := serve(t, got.ServeHTTP)
	client.Observer = Observer{Name: "github", Metrics: set, Tracer: tracer}
	ctx := trace.With(t.Context(), trace.Parse(parent, "a=1"))
	send := func(body string, answer http.HandlerFunc) {
		t.Helper()
		got.answer = answer
		if x, err := client.Post(ctx, Request{Body: []byte(body)}); err == nil {
			for err == nil {
				_, err = x.Next(ctx)
			}
			x.Finish()
			x.Close()
		}
	}
	t.Run("OPS-13 a call is a span, and the backend gets its context by header and _meta", func(t *testing.T) {
		send(toolCall, ok)
		ended := spans.Ended()
		if len(ended) != 1 {
			t.Fatalf("%d spans", len(ended))
		}
		s := ended[0]
		want := fmt.Sprintf("00-%s-%s-01", traceID, s.SpanContext().SpanID())
		var sent struct {
			Params struct {
				Name string
				Meta struct {
					Traceparent, Tracestate string
					ProgressToken           int
				} `json:"_meta"`
			}
		}
		if err := json.Unmarshal([]byte(got.body), &sent); err != nil {
			t.Fatal(err)
		}
		if got.header.Get("Traceparent") != want || got.header.Get("Tracestate") != "a=1" || sent.Params.Meta.Traceparent != want ||
			sent.Params.Meta.Tracestate != "a=1" || sent.Params.Meta.ProgressToken != 7 || sent.Params.Name != "t" || strings.Contains(got.body, "theirs") {
			t.Errorf("got %v, %s", got.header, got.body)
		}
		if s.Name() != "tools/call" || s.Parent().SpanID().String() != "00f067aa0ba902b7" || s.Status().Code == otel.Error {
			t.Errorf("got %v", s)
		}
	})
	t.Run("OPS-12 calls and their errors are counted, and nothing else", func(t *testing.T) {
		send(`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, answer("application/json", 200, `{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"m"}}`))
		send(toolCall, answer("text/plain", 500, "x"))
		send(toolCall, answer("text/event-stream", 200, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}\n\n"))
		for _, none := range []string{
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`, `{"jsonrpc":"2.0","id":3,"result":{"method":"x"}}`,
			`{"jsonrpc":"2.0","id":1,"method":"` + spec.MethodListen + `","params":{}}`,
		} {
			send(none, answer("", 202, ""))
			if got.header.Get("Traceparent") != parent {
				t.Errorf("%s: got %v", none, got.header)
			}
		}
		var data metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &data); err != nil {
			t.Fatal(err)
		}
		counts := map[string]int64{}
		for _, m := range data.ScopeMetrics[0].Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
				for _, p := range sum.DataPoints {
					by, _ := p.Attributes.Value("backend")
					counts[m.Name+" "+by.AsString()] = p.Value
				}
			}
		}
		if counts[metric.BackendCalls+" github"] != 4 || counts[metric.BackendErrors+" github"] != 3 {
			t.Errorf("got %v", counts)
		}
		if n := len(spans.Ended()); n != 4 || spans.Ended()[3].Status().Description != noAnswer {
			t.Errorf("%d spans: %v", n, spans.Ended())
		}
	})
	t.Run("OPS-13 without a tracer the message stays as it is", func(t *testing.T) {
		client.Observer = Observer{}
		send(toolCall, ok)
		if got.body != toolCall || got.header.Get("Traceparent") != parent {
			t.Errorf("got %v, %s", got.header, got.body)
		}
	})
}
