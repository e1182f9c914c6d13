package boot

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/test/expect"
)

type invoked func(context.Context, []byte) ([]byte, error)

func (f invoked) Invoke(ctx context.Context, payload []byte) ([]byte, error) { return f(ctx, payload) }

func TestSpansOfAFunction(t *testing.T) {
	t.Run("OPS-12 OPS-13 spans and metrics are sent before an invocation ends, because the process may then be frozen", func(t *testing.T) {
		got := make(chan string, 10)
		collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got <- r.URL.Path + " " + string(body)
		}))
		defer collector.Close()
		p := expect.Value(started(t, map[string]string{"MCPEVENTS_SETTINGS": "otlp-endpoint=" + collector.URL}))(t)
		work := invoked(func(context.Context, []byte) ([]byte, error) {
			p.Tracer.Start(trace.Context{}, "attempt", trace.Client).End("")
			p.Metrics.DeadLettered("inbox", 3)
			return nil, nil
		})
		expect.OK(t, expect.ErrOf((measured{work, p}).Invoke(t.Context(), nil)))
		close(got) // anything sent later causes a panic
		var all string
		for body := range got {
			all += body + "\n"
		}
		for _, want := range []string{`/v1/traces `, `"name":"attempt"`, `/v1/metrics `, `"mcpevents_dead_letters"`} {
			expect.Contains(t, "the requests", all, want)
		}
	})
	t.Run("OPS-12 OPS-13 a collector that does not respond delays one invocation per minute by half a second", func(t *testing.T) {
		release := make(chan struct{})
		var asked atomic.Int64
		silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			asked.Add(1)
			<-release
		}))
		defer silent.Close()
		defer close(release)
		p := expect.Value(started(t, map[string]string{"MCPEVENTS_SETTINGS": "otlp-endpoint=" + silent.URL}))(t)
		work := invoked(func(context.Context, []byte) ([]byte, error) {
			p.Tracer.Start(trace.Context{}, "attempt", trace.Client).End("")
			p.Metrics.DeadLettered("inbox", 3)
			return nil, nil
		})
		for range 3 {
			expect.OK(t, expect.ErrOf((measured{work, p}).Invoke(t.Context(), nil)))
		}
		expect.Equal(t, "how often the collector was asked", asked.Load(), 1)
	})
	t.Run("OPS-13 without a collector there is no tracer", func(t *testing.T) {
		p, err := started(t, nil)
		if err != nil || p.Tracer != nil || p.spans != nil || p.emf.Export != nil {
			t.Errorf("got %+v, %v", p, err)
		}
	})
	t.Run("OPS-13 an invalid collector URL stops the function from starting", func(t *testing.T) {
		for _, setting := range []string{"otlp-endpoint=collector:4318", "trace-ratio=2"} {
			expect.Fault(t, setting, expect.ErrOf(started(t, map[string]string{"MCPEVENTS_SETTINGS": setting})), fault.Invalid)
		}
	})
}
