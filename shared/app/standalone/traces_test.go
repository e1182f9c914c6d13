package standalone

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/mcp-events/mcpevents/shared/platform/trace/otlp"
	"github.com/mcp-events/mcpevents/test/expect"
)

// spanCollector is an OpenTelemetry collector that keeps the spans it receives. Requests must be valid OTLP messages.
type spanCollector struct {
	*httptest.Server
	mu    sync.Mutex
	spans []*tracepb.Span
}

func newSpanCollector(t *testing.T) *spanCollector {
	c := &spanCollector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var request collector.ExportTraceServiceRequest
		if err := protojson.Unmarshal(body, &request); err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %v in %s", r.URL, err, body)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, resource := range request.GetResourceSpans() {
			for _, scope := range resource.GetScopeSpans() {
				c.spans = append(c.spans, scope.GetSpans()...)
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// id returns an id in hexadecimal. OTLP's JSON has ids in hexadecimal, but protojson decodes them as base64. Encoding the
// bytes in base64 restores the hexadecimal text.
func id(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// named returns the spans of a trace with a name, in the order in which they arrived.
func (c *spanCollector) named(trace, name string) (all []*tracepb.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if id(s.GetTraceId()) == trace && s.GetName() == name {
			all = append(all, s)
		}
	}
	return all
}

func attributeOf(s *tracepb.Span, key string) any {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == key {
			if a.GetValue().GetStringValue() != "" {
				return a.GetValue().GetStringValue()
			}
			return a.GetValue().GetIntValue()
		}
	}
	return nil
}

// pull returns an event with the given id, about an opened pull request.
func pull(id string) string {
	return `{"uri":"` + pullRequest + `","id":"` + id + `","data":{"action":"opened","number":1,"pull_request":{"title":"t","author":"a","base":"main","url":"https://example.com/1"}}}`
}

// publishedIn publishes an event with the headers of a trace.
func publishedIn(t *testing.T, s *Server, id, parent, state string) {
	t.Helper()
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/events", strings.NewReader(pull(id)))
	r.Header = http.Header{"Content-Type": {"application/json"}, "Traceparent": {parent}, "Tracestate": {state}}
	resp := expect.Value(http.DefaultClient.Do(r))(t)
	if status, text := read(t, resp); status != http.StatusAccepted {
		t.Fatalf("got %d %s", status, text)
	}
}

// failing starts a server that answers the first n requests with an error. It sends the headers of all requests to got.
func failing(t *testing.T, n int) (url string, got chan http.Header) {
	got = make(chan http.Header, 100)
	var mu sync.Mutex
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if n--; n >= 0 {
			w.WriteHeader(http.StatusInternalServerError)
		}
		got <- r.Header
	}))
	t.Cleanup(s.Close)
	return s.URL, got
}

func receive(t *testing.T, got chan http.Header) http.Header {
	t.Helper()
	select {
	case h := <-got:
		return h
	case <-time.After(patience):
		t.Fatal("no webhook came")
		return nil
	}
}

const (
	publisherTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	publisherSpan  = "00f067aa0ba902b7"
	sampledParent  = "00-" + publisherTrace + "-" + publisherSpan + "-01"
)

func retries(o *Options) {
	o.Limits.RetrySchedule = []time.Duration{0, time.Second, time.Second}
}

func TestTraces(t *testing.T) {
	t.Parallel()
	t.Run("OPS-13 a collector gets publish, fanout, and each attempt, in the publisher's trace", func(t *testing.T) {
		t.Parallel() // retries wait
		c := newSpanCollector(t)
		provider := expect.Value(otlp.Provider(otlp.Options{Endpoint: c.URL, Log: quiet()}))(t)
		s := serve(t, func(o *Options) { retries(o); o.Traces = provider })
		endpoint, got := failing(t, 1)
		subscribed(t, s, endpoint, pullRequest)
		publishedIn(t, s, "pr-1", sampledParent, "vendor=1")
		first, second := receive(t, got), receive(t, got)
		end(t, s)
		expect.OK(t, provider.Shutdown(t.Context()))
		publish, fanout, attempts := c.named(publisherTrace, "publish"), c.named(publisherTrace, "fanout"), c.named(publisherTrace, "attempt")
		if len(publish) != 1 || len(fanout) != 1 || len(attempts) != 2 {
			t.Fatalf("got %v", c.spans)
		}
		if id(publish[0].GetParentSpanId()) != publisherSpan || id(fanout[0].GetParentSpanId()) != id(publish[0].GetSpanId()) {
			t.Errorf("got %v, %v", publish, fanout)
		}
		for i, sent := range []http.Header{first, second} {
			span := attempts[i]
			want := "00-" + publisherTrace + "-" + id(span.GetSpanId()) + "-01"
			if sent.Get("Traceparent") != want || sent.Get("Tracestate") != "vendor=1" || id(span.GetParentSpanId()) != id(fanout[0].GetSpanId()) {
				t.Errorf("attempt %d: sent %v, span %v", i+1, sent, span)
			}
			status, failure := int64(http.StatusOK), tracepb.Status_STATUS_CODE_UNSET
			if i == 0 {
				status, failure = http.StatusInternalServerError, tracepb.Status_STATUS_CODE_ERROR
			}
			if attributeOf(span, "mcpevents.attempt") != int64(i+1) || attributeOf(span, "messaging.message.id") != "pr-1" ||
				attributeOf(span, "http.response.status_code") != status || span.GetStatus().GetCode() != failure ||
				span.GetEndTimeUnixNano() < span.GetStartTimeUnixNano() || span.GetKind() != tracepb.Span_SPAN_KIND_CLIENT {
				t.Errorf("attempt %d: %v", i+1, span)
			}
		}
	})
	t.Run("OPS-13 a replayed dead letter is of the publisher's trace", func(t *testing.T) {
		t.Parallel() // retries wait
		s := serve(t, retries)
		endpoint, got := failing(t, 3)
		subscribed(t, s, endpoint, pullRequest)
		publishedIn(t, s, "pr-1", sampledParent, "vendor=1")
		for range 3 {
			if h := receive(t, got); h.Get("Traceparent") != sampledParent || h.Get("Tracestate") != "vendor=1" {
				t.Errorf("without an exporter, got headers %v, want the publisher's trace context", h)
			}
		}
		var letters struct{ Items []struct{ ID string } }
		for deadline := time.Now().Add(patience); len(letters.Items) == 0; time.Sleep(5 * time.Millisecond) {
			_, text := ask(t, s, "", "GET", "/admin/v1/dead-letters", "")
			if err := json.Unmarshal([]byte(text), &letters); err != nil || time.Now().After(deadline) {
				t.Fatalf("no dead letter in %s, %v", text, err)
			}
		}
		status, _ := ask(t, s, "", "POST", "/admin/v1/dead-letters/"+letters.Items[0].ID+"/retry", "")
		if h := receive(t, got); h.Get("Traceparent") != sampledParent {
			t.Errorf("got %v, %d", h, status)
		}
	})
	t.Run("OPS-13 what the publisher does not sample is not exported, and neither is the rest of traces that begin here", func(t *testing.T) {
		t.Parallel() // retries wait
		c := newSpanCollector(t)
		provider := expect.Value(otlp.Provider(otlp.Options{Endpoint: c.URL, Ratio: 0, Log: quiet()}))(t)
		s := serve(t, func(o *Options) { retries(o); o.Traces = provider })
		endpoint, got := failing(t, 0)
		subscribed(t, s, endpoint, pullRequest)
		const unsampled = "00-" + publisherTrace + "-" + publisherSpan + "-00"
		publishedIn(t, s, "pr-1", unsampled, "")
		expect.Equal(t, "the traceparent of the webhook", receive(t, got).Get("Traceparent"), unsampled)
		ask(t, s, "", "POST", "/events", pull("pr-2"))
		expect.Equal(t, "the traceparent without sampling", receive(t, got).Get("Traceparent"), "")
		end(t, s)
		if err := provider.Shutdown(t.Context()); err != nil || len(c.spans) > 0 {
			t.Errorf("got %v, %v", c.spans, err)
		}
	})
}
