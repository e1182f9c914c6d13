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
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
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
	set := expect.Value(metric.NewSet(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))(t)
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
		expect.MustEqual(t, "the spans", len(ended), 1)
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
		expect.OK(t, json.Unmarshal([]byte(got.body), &sent))
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
			expect.Equal(t, none+": the traceparent", got.header.Get("Traceparent"), parent)
		}
		var data metricdata.ResourceMetrics
		expect.OK(t, reader.Collect(t.Context(), &data))
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
		expect.Equal(t, "the body", got.body, toolCall)
		expect.Equal(t, "the header Traceparent", got.header.Get("Traceparent"), parent)
	})
}

// GWN-05, GWN-10: Read accepts valid JSON-RPC messages only. An id may be any number, and keeps its bytes.
func TestWhatIsAMessage(t *testing.T) {
	long := `"` + strings.Repeat("x", jsonrpc.MaxID) + `"`
	for _, c := range []struct {
		name, in     string
		ok, response bool
		id, method   string
	}{
		{name: "request", in: `{"jsonrpc":"2.0","id":1,"method":"m","params":{}}`, ok: true, id: "1", method: "m"},
		{name: "notification", in: `{"jsonrpc":"2.0","method":"m"}`, ok: true, method: "m"},
		{name: "result", in: `{"jsonrpc":"2.0","id":"a","result":{}}`, ok: true, response: true, id: `"a"`},
		{name: "error", in: `{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":""}}`, ok: true, response: true, id: "2"},
		{name: "error without id", in: `{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}`, ok: true, response: true},
		{name: "past 2^53", in: `{"jsonrpc":"2.0","id":9007199254740993,"method":"m"}`, ok: true, id: "9007199254740993", method: "m"},
		{name: "float", in: `{"jsonrpc":"2.0","id":1.50e+1,"method":"m"}`, ok: true, id: "1.50e+1", method: "m"},
		{name: "escapes", in: `{"json\u0072pc":"2.0","\u0069d":"\u0061","method":"\u006d"}`, ok: true, id: `"\u0061"`, method: "m"},
		{name: "unknown members", in: `{"x":[{"id":7,"method":"n"}],"jsonrpc":"2.0","id":1,"method":"m","y":{"result":1}}`, ok: true, id: "1", method: "m"},
		{name: "blanks", in: " {\t\"jsonrpc\" : \"2.0\" ,\n\"id\" : 1 , \"result\" : 5 }\r\n", ok: true, response: true, id: "1"},

		{name: "another case", in: `{"jsonrpc":"2.0","ID":1,"Method":"m"}`},
		{name: "two ids", in: `{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}`},
		{name: "two methods", in: `{"jsonrpc":"2.0","method":"notifications/events/event","method":"notifications/progress"}`},
		{name: "two params", in: `{"jsonrpc":"2.0","method":"m","params":{"a":1},"params":{}}`},
		{name: "a member of params twice", in: `{"jsonrpc":"2.0","id":1,"method":"m","params":{"mode":"url","mod\u0065":"form"}}`},
		{name: "as many members of params as are compared", in: paramsOf(jsonrpc.MaxComparedMembers), ok: true, method: "m"},
		{name: "more members of params than are compared", in: paramsOf(jsonrpc.MaxComparedMembers + 1)},
		{name: "id object", in: `{"jsonrpc":"2.0","id":{},"method":"m"}`},
		{name: "id too long", in: `{"jsonrpc":"2.0","id":` + long + `,"method":"m"}`},
		{name: "no version", in: `{"id":1,"method":"m"}`},
		{name: "other version", in: `{"jsonrpc":"1.0","id":1,"method":"m"}`},
		{name: "method number", in: `{"jsonrpc":"2.0","id":1,"method":5}`},
		{name: "method empty", in: `{"jsonrpc":"2.0","id":1,"method":""}`},
		{name: "method and result", in: `{"jsonrpc":"2.0","id":1,"method":"m","result":1}`},
		{name: "result and error", in: `{"jsonrpc":"2.0","id":1,"result":1,"error":{}}`},
		{name: "result without id", in: `{"jsonrpc":"2.0","result":1}`},
		{name: "nothing", in: `{"jsonrpc":"2.0","id":1}`},
		{name: "array", in: `[]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, ok := Read(json.RawMessage(c.in))
			expect.MustEqual(t, "Read", ok, c.ok)
			expect.Equal(t, "the bytes", string(m.Raw), c.in)
			if ok && (m.Response() != c.response || string(m.ID) != c.id || m.Method != c.method) {
				t.Errorf("got response %v, id %s, method %q", m.Response(), m.ID, m.Method)
			}
		})
	}
}

func paramsOf(members int) string {
	names := make([]string, members)
	for i := range names {
		names[i] = fmt.Sprintf(`"m%d":1`, i)
	}
	return `{"jsonrpc":"2.0","method":"m","params":{` + strings.Join(names, ",") + `}}`
}

// FuzzRead checks that replacing the id of a message changes only its id.
func FuzzRead(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[1,2,{"b":"\"}"}]}}`, `{"jsonrpc":"2.0","id":"a","result":{}}`,
		`{"jsonrpc":"2.0","\u0069d" : -0.1e5,"error":{"code":1,"message":""}}`, `{"id":1,"id":[2]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		parts, batch, bad := jsonrpc.Split(text)
		if bad != nil || batch {
			return
		}
		raw := parts[0]
		if m, ok := Read(raw); ok && m.ID != nil {
			again, ok := Read(jsonrpc.Replace(raw, "id", []byte(`"gw"`)))
			if !ok || string(again.ID) != `"gw"` || again.Method != m.Method || string(again.Result) != string(m.Result) || string(again.Error) != string(m.Error) {
				t.Fatalf("with another id, %s is a different message", raw)
			}
		}
	})
}
