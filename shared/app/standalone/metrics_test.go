package standalone

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
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
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("got %s", resp.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families := expect.Value(parser.TextToMetricFamilies(resp.Body))(t)
	return families
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
	if err := mcp.Call(t.Context(), "tools/call", map[string]any{"name": "unknown"}, nil); err == nil {
		t.Error("an unknown tool has a result")
	}
	if err := mcp.Call(t.Context(), "resources/subscriptions/register", map[string]any{"uris": make([]string, 51), "targetUri": endpoint.URL}, nil); err == nil {
		t.Error("51 URIs are registered")
	}
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
	if c.asked.Load() == 0 {
		t.Error("the backend was not asked")
	}
	for name := range served() {
		if families[name] == nil && !strings.Contains(name, metric.LogLateEntries) {
			t.Errorf("GET /metrics lacks %s", name)
		}
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
		if !asked[name] {
			t.Errorf("no panel shows %s", name)
		}
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
				if !strings.Contains(string(runbook), part) {
					t.Errorf("docs/runbook-stand-alone.md lacks %q", part)
				}
			}
			if !strings.Contains(string(text), "runbook: docs/runbook-stand-alone.md#"+anchor+"}") {
				t.Errorf("%s has no link to its heading in the runbook", r.Alert)
			}
		}
	}
	expect.Equal(t, "the headings of the runbook", strings.Count(string(runbook), "\n## "), alerts)
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	t.Run("OPS-12 metrics agree with what publishers and receivers counted", metricsAgree)
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
