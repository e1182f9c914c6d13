package standalone

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/trace/otlp"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// scrape reads GET /metrics as Prometheus does. The key is optional.
func scrape(t *testing.T, s *Server, key ...string) map[string]*dto.MetricFamily {
	t.Helper()
	who := ""
	for _, k := range key {
		who = k
	}
	resp := request(t, s, who, "GET", "/metrics", "", "")
	defer resp.Body.Close()
	expect.MustEqual(t, "the status", resp.StatusCode, http.StatusOK)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return expect.Value(parser.TextToMetricFamilies(resp.Body))(t)
}

// value returns the sum of a metric over all its series. If by is not empty, it counts only the series whose first label
// has this value. A histogram counts with its number of samples.
func value(families map[string]*dto.MetricFamily, name, by string) (v float64) {
	for _, m := range families[name].GetMetric() {
		if by != "" && m.GetLabel()[0].GetValue() != by {
			continue
		}
		v += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return v
}

// counts has the numbers of requests as the webhook endpoint and the backend see them, to compare them with the metrics.
type counts struct{ posts, failures, delivered, asked atomic.Int64 }

// receive handles webhooks. Each twentieth event always fails, also when it is retried.
func (c *counts) receive(w http.ResponseWriter, r *http.Request) {
	c.posts.Add(1)
	if body, _ := io.ReadAll(r.Body); bytes.Contains(body, []byte(`"number":20,`)) {
		c.failures.Add(1)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	c.delivered.Add(1)
}

// backend handles the requests to an MCP server without any methods.
func (c *counts) backend(w http.ResponseWriter, r *http.Request) {
	var m struct{ ID json.RawMessage }
	if json.NewDecoder(r.Body).Decode(&m) != nil || m.ID == nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	c.asked.Add(1)
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}`, m.ID)
}

// secretPath is the key of a source.
const secretPath = "the-secret-path-of-the-builds-0123456789"

func init() { _ = os.Setenv("MCPEVENTS_TEST_BUILDS", secretPath) } // t.Setenv is not allowed in parallel tests

// metricsAgree compares the metrics with the numbers of the test. It makes 2,000 deliveries with known failures, and a few
// requests of each other kind that is counted.
func metricsAgree(t *testing.T) {
	t.Parallel() // retries wait
	const events, subscriptions, deliveries, given = 200, 10, 2000, 100
	var c counts
	endpoint, backend := httptest.NewServer(http.HandlerFunc(c.receive)), httptest.NewServer(http.HandlerFunc(c.backend))
	defer endpoint.Close()
	defer backend.Close()
	s := serve(t, func(o *Options) {
		retries(o)
		o.Config = configured(t, fmt.Sprintf(`backends: [{name: b, url: %q}]
sources:
  - name: builds
    verify: {scheme: none, secrets: ["env:MCPEVENTS_TEST_BUILDS"]}
    events: [{match: {body: {kind: [build]}}, name: ci.build_finished}]
`, backend.URL))
	})
	for i := range subscriptions {
		subscribed(t, s, fmt.Sprintf("%s/%d", endpoint.URL, i), pullRequest)
	}
	mcp := expect.Value(client.Connect(t.Context(), s.URL, client.Options{Agent: "test/1", Revision: string(spec.V20260728)}))(t)
	const polls = 3
	for range polls {
		expect.OK(t, mcp.Call(t.Context(), "events/poll", map[string]any{"name": "github.pull_request", "arguments": map[string]string{"owner": "acme", "repo": "website"}, "cursor": nil}, nil))
	}
	if err := mcp.Call(t.Context(), "tools/list", map[string]any{}, nil); err != nil {
		t.Log("tools/list of a backend without tools:", err)
	}
	expect.Error(t, "a call of an unknown tool", mcp.Call(t.Context(), "tools/call", map[string]any{"name": "unknown"}, nil))
	expect.Error(t, "the registration of 51 URIs", mcp.Call(t.Context(), "resources/subscriptions/register", map[string]any{"uris": make([]string, 51), "targetUri": endpoint.URL}, nil))
	for _, k := range []string{secretPath, secretPath, "another key"} {
		ask(t, s, "", "POST", "/sources/builds/"+url.PathEscape(k), `{"kind":"none"}`)
	}
	stream := call(t, s, "", spec.MethodListen, map[string]any{"notifications": map[string]any{"eventsListChanged": true}})
	if _, err := stream.Body.Read(make([]byte, 1)); err != nil || stream.StatusCode != http.StatusOK {
		t.Fatal(stream.Status, err)
	}
	_ = stream.Body.Close() // which ends it
	batch := make([]Event, events/10)
	for range 10 {
		for i := range batch {
			batch[i] = Event{
				URI:  pullRequest,
				Data: fmt.Appendf(nil, `{"action":"opened","number":%d,"pull_request":{"title":"t","author":"a","base":"main","url":"https://example.com/1"}}`, 1+i%20),
			}
		}
		expect.OK(t, expect.ErrOf(s.Publish(t.Context(), auth.DefaultWorkspace, batch...)))
	}
	var families map[string]*dto.MetricFamily
	wrong := func() (all []string) {
		families = scrape(t, s)
		posts := float64(c.posts.Load())
		for _, x := range []struct {
			name, by string
			want     float64
		}{
			{"mcpevents_events_published_total", "", events},
			{"mcpevents_dead_letters_total", metric.Webhook, given},
			{"mcpevents_delivery_attempts_total", "", posts},
			{"mcpevents_delivery_attempts_total", metric.Success, deliveries - given},
			{"mcpevents_delivery_attempts_total", metric.Success, float64(c.delivered.Load())},
			{"mcpevents_delivery_attempts_total", "http_5xx", 3 * given},
			{"mcpevents_delivery_attempts_total", "http_5xx", float64(c.failures.Load())},
			{"mcpevents_attempt_duration_seconds", "", posts},
			{"mcpevents_first_attempt_lag_seconds", "", deliveries},
			{"mcpevents_delivery_lag_seconds", "", deliveries - given},
			{"mcpevents_retries_waiting", "", 0},
			{"mcpevents_queue_depth", "", 0},
			{"mcpevents_streams_open", "", 0},
			{"mcpevents_streams_ended_total", "client_closed", 1},
			{"mcpevents_polls_total", "", polls},
			{"mcpevents_limits_reached_total", "registrationURIs", 1},
			{"mcpevents_source_requests_total", "unmatched", 2},
			{"mcpevents_source_requests_total", "unverified", 1},
			{"mcpevents_source_refused_total", "builds", 1},
			{"mcpevents_backend_calls_total", "b", float64(c.asked.Load())},
			{"mcpevents_gateway_call_duration_seconds", "-", 1},
			{"mcpevents_backend_errors_total", "b", float64(c.asked.Load())},
		} {
			if got := value(families, x.name, x.by); got != x.want {
				all = append(all, fmt.Sprintf("%s %s: got %v, want %v", x.name, x.by, got, x.want))
			}
		}
		return all
	}
	for deadline := time.Now().Add(2 * patience); ; time.Sleep(50 * time.Millisecond) {
		all := wrong()
		if len(all) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(strings.Join(all, "\n"))
		}
	}
	expect.True(t, "the backend was asked", c.asked.Load() > 0)
	for name := range served() {
		if families[name] == nil && !strings.Contains(name, metric.LogLateEntries) && !slices.Contains(problems, strings.TrimSuffix(name, "_total")) {
			t.Errorf("GET /metrics lacks %s", name)
		}
	}
}

// problems are the metrics that [problemsAreCounted] is about, and the one for problems that only functions have.
var problems = []string{metric.BackendDropped, metric.ContextMissing, metric.ItemsUndecodable, metric.SpansNotSent, metric.MetricsNotSent}

// problemsAreCounted makes a problem of each kind that the server logs at most every ten seconds.
func problemsAreCounted(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct{ ID json.RawMessage }
		if json.NewDecoder(r.Body).Decode(&m) != nil || m.ID == nil {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"tools":[{}]}}`, m.ID)
	}))
	defer backend.Close()
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	provider, failed, err := otlp.Provider(otlp.Options{Endpoint: down.URL, Ratio: 1, Log: quiet()})
	expect.OK(t, err)
	reader := sdk.NewManualReader() // receives what an exporter of OpenTelemetry does
	s := serve(t, func(o *Options) {
		o.Traces, o.SpansNotSent, o.Metrics, o.Limits.AllowInsecureTargets = provider, failed, []sdk.Reader{reader}, true
		o.Config = configured(t, fmt.Sprintf(`backends: [{name: b, url: %q}]
conversation: {userMessages: true, providers: [{name: absent, url: %q}, {name: damaged, url: %q}]}
`, backend.URL, down.URL, down.URL))
	})
	_, _ = read(t, call(t, s, "", "tools/list", map[string]any{}))
	for _, name := range []string{"absent", "damaged"} {
		if status, text := ask(t, s, "", "PUT", "/consent/"+name, ""); status >= 300 {
			t.Fatal(status, text)
		}
	}
	anyone := expect.Value(auth.AcceptAll().Authenticate(t.Context(), nil))(t)
	consent := conversation.ConsentsKey(anyone.Workspace, anyone.ID)
	consent.Sort += "damaged"
	expect.OK(t, s.db.Write(t.Context(), store.Put(store.Item{Key: consent, Value: []byte("{")})))
	_, _ = read(t, call(t, s, "", "conversation/userMessage", map[string]any{"messageId": "1", "content": "hello"}))
	expect.OK(t, provider.ForceFlush(t.Context()))
	families := scrape(t, s)
	for name, want := range map[string]map[string]string{
		metric.BackendDropped:   {"workspace": "default", "backend": "b", "reason": "an entry of a list without a name"},
		metric.ContextMissing:   {"workspace": "default", "provider": "absent", "reason": "unreachable"},
		metric.ItemsUndecodable: {"item": "consent"},
		metric.SpansNotSent:     {"reason": "the collector cannot be reached"},
	} {
		got := map[string]string{}
		for _, m := range families[name+"_total"].GetMetric() {
			for _, l := range m.GetLabel() {
				got[l.GetName()] = l.GetValue()
			}
			expect.AtLeast(t, name, m.GetCounter().GetValue(), 1)
		}
		expect.Map(t, "the attributes of "+name, got, want)
	}
	var exported metricdata.ResourceMetrics
	expect.OK(t, reader.Collect(t.Context(), &exported))
	var names []string
	for _, m := range exported.ScopeMetrics[0].Metrics {
		names = append(names, m.Name)
	}
	for _, name := range problems[:4] {
		expect.Has(t, "the exported metrics", names, name)
	}
}

// served returns the names of all metrics in the form that Prometheus uses.
func served() map[string]bool {
	all := map[string]bool{}
	for _, d := range metric.Table {
		name := d.Name
		if d.Unit == "s" {
			name += "_seconds"
		}
		if d.Kind == metric.Counter {
			name += "_total"
		}
		all[name] = true
	}
	return all
}

func dashboardAsksForWhatIsServed(t *testing.T) {
	text := expect.Value(os.ReadFile("../../../docs/grafana-dashboard.json"))(t)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	expect.OK(t, json.Unmarshal(text, &dashboard))
	known, asked := served(), map[string]bool{}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			for _, name := range regexp.MustCompile(`mcpevents_[a-z_]+`).FindAllString(target.Expr, -1) {
				name = strings.TrimSuffix(name, "_bucket") // of a histogram
				if asked[name] = true; !known[name] {
					t.Errorf("panel %q uses the unknown metric %s", p.Title, name)
				}
			}
		}
	}
	for name := range known {
		expect.True(t, "a panel shows "+name, asked[name])
	}
}

func alertsAskForWhatIsServed(t *testing.T) {
	text := expect.Value(os.ReadFile("../../../docs/prometheus-alerts.yml"))(t)
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	expect.OK(t, yaml.Unmarshal(text, &file))
	runbook := expect.Value(os.ReadFile("../../../docs/runbook-stand-alone.md"))(t)
	known, alerts := served(), 0
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			alerts++
			for _, name := range regexp.MustCompile(`mcpevents_[a-z_]+`).FindAllString(r.Expr, -1) {
				histogram := strings.TrimSuffix(strings.TrimSuffix(name, "_sum"), "_count")
				if !known[name] && !known[histogram] {
					t.Errorf("%s uses the unknown metric %s", r.Alert, name)
				}
			}
			anchor := strings.ToLower(r.Alert)
			for _, part := range []string{"\n## " + r.Alert + "\n", "| [" + r.Alert + "](#" + anchor + ") | "} {
				expect.Contains(t, "docs/runbook-stand-alone.md", string(runbook), part)
			}
			expect.Contains(t, "docs/prometheus-alerts.yml", string(text), "runbook: docs/runbook-stand-alone.md#"+anchor+"}")
		}
	}
	expect.Equal(t, "the headings of the runbook", strings.Count(string(runbook), "\n## "), alerts)
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	t.Run("OPS-12 metrics agree with what publishers and receivers counted", metricsAgree)
	t.Run("OPS-12 problems that are also logged are counted, for Prometheus and for OpenTelemetry", problemsAreCounted)
	t.Run("OPS-12 the dashboard asks only for what is served", dashboardAsksForWhatIsServed)
	t.Run("OPS-12 the alerts ask only for what is served, and the runbook has each", alertsAskForWhatIsServed)
	t.Run("OPS-12 AUT-05 only operators of the default workspace see them", func(t *testing.T) {
		s := serve(t, func(o *Options) {
			o.Auth, o.Config = auth.ModeKeys, configured(t, fmt.Sprintf(`keys:
  - {principal: alice, scopes: ["events:read", "events:subscribe", "events:publish"], sha256: %s}
  - {principal: op, scopes: ["events:operate"], sha256: %s}
  - {principal: op, workspace: other, scopes: ["events:operate"], sha256: %s}
`, hash("alice-key"), hash("op-key"), hash("other-key")))
		})
		for key, want := range map[string]int{"": http.StatusUnauthorized, "alice-key": http.StatusForbidden, "op-key": http.StatusOK, "other-key": http.StatusForbidden} {
			if status, body := ask(t, s, key, "GET", "/metrics", ""); status != want || strings.Contains(body, "mcpevents_") != (want == http.StatusOK) {
				t.Errorf("%q: got %d, %.200s", key, status, body)
			}
		}
	})
}

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
		expect.Lacks(t, "EVS-10 the spans", string(body), "whsec_")
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
		provider, _, err := otlp.Provider(otlp.Options{Endpoint: c.URL, Log: quiet()})
		expect.OK(t, err)
		s := serve(t, func(o *Options) { retries(o); o.Traces = provider })
		endpoint, got := failing(t, 1)
		subscribed(t, s, endpoint, pullRequest)
		publishedIn(t, s, "pr-1", sampledParent, "vendor=1")
		first, second := expect.Receive(t, "a webhook", got), expect.Receive(t, "a webhook", got)
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
			if h := expect.Receive(t, "a webhook", got); h.Get("Traceparent") != sampledParent || h.Get("Tracestate") != "vendor=1" {
				t.Errorf("without an exporter, got headers %v, want the publisher's trace context", h)
			}
		}
		var letters struct{ Items []struct{ ID string } }
		expect.Eventually(t, "the dead letter is listed", func() bool {
			_, text := ask(t, s, "", "GET", "/admin/v1/dead-letters", "")
			expect.OK(t, json.Unmarshal([]byte(text), &letters))
			return len(letters.Items) > 0
		})
		ask(t, s, "", "POST", "/admin/v1/dead-letters/"+letters.Items[0].ID+"/retry", "")
		expect.Equal(t, "the traceparent of the webhook", expect.Receive(t, "a webhook", got).Get("Traceparent"), sampledParent)
	})
	t.Run("OPS-13 what the publisher does not sample is not exported, and neither is the rest of traces that begin here", func(t *testing.T) {
		t.Parallel() // retries wait
		c := newSpanCollector(t)
		provider, _, err := otlp.Provider(otlp.Options{Endpoint: c.URL, Ratio: 0, Log: quiet()})
		expect.OK(t, err)
		s := serve(t, func(o *Options) { retries(o); o.Traces = provider })
		endpoint, got := failing(t, 0)
		subscribed(t, s, endpoint, pullRequest)
		const unsampled = "00-" + publisherTrace + "-" + publisherSpan + "-00"
		publishedIn(t, s, "pr-1", unsampled, "")
		expect.Equal(t, "the traceparent of the webhook", expect.Receive(t, "a webhook", got).Get("Traceparent"), unsampled)
		ask(t, s, "", "POST", "/events", pull("pr-2"))
		expect.Equal(t, "the traceparent without sampling", expect.Receive(t, "a webhook", got).Get("Traceparent"), "")
		end(t, s)
		if err := provider.Shutdown(t.Context()); err != nil || len(c.spans) > 0 {
			t.Errorf("got %v, %v", c.spans, err)
		}
	})
}

// OPS-12: a server that shuts down has its gauges while it waits for running deliveries.
func TestMetricsOfADrain(t *testing.T) {
	reader := sdk.NewManualReader()
	s := serve(t, func(o *Options) { o.Metrics = []sdk.Reader{reader} })
	gauges := func() (names []string) {
		var now metricdata.ResourceMetrics
		expect.OK(t, reader.Collect(t.Context(), &now))
		for _, scope := range now.ScopeMetrics {
			for _, m := range scope.Metrics {
				if _, ok := m.Data.(metricdata.Gauge[float64]); ok {
					names = append(names, m.Name)
				}
			}
		}
		return names
	}
	before := gauges()
	s.close() // the shutdown begins with it
	expect.List(t, "gauges", gauges(), before)
	expect.Has(t, "gauges", before, metric.Healthy)
}

// OPS-12: a reader of the metrics, such as an exporter to a collector, reads them for the last time after the server has shut down.
func TestLastMetrics(t *testing.T) {
	var log bytes.Buffer
	reader := sdk.NewManualReader()
	s := serve(t, func(o *Options) {
		o.Metrics, o.Log = []sdk.Reader{reader}, slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	expect.OK(t, expect.ErrOf(s.Publish(t.Context(), auth.DefaultWorkspace, Event{URI: buildFinished, Data: []byte(`{"build":1,"status":"passed"}`)})))
	end(t, s)
	var last metricdata.ResourceMetrics
	expect.OK(t, reader.Collect(t.Context(), &last))
	published := int64(0)
	for _, scope := range last.ScopeMetrics {
		for _, m := range scope.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == metric.EventsPublished {
				published = sum.DataPoints[0].Value
			}
		}
	}
	expect.Equal(t, "published events", published, 1)
	expect.Equal(t, "the log", log.String(), "")
}
