package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
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

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/metric"
)

// scrape reads GET /metrics as Prometheus does, with a key if there is one.
func scrape(t *testing.T, s *Server, key ...string) map[string]*dto.MetricFamily {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range key {
		req.Header.Set("Authorization", "Bearer "+k)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("got %s", resp.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// value is that of a metric, or of the one with this value of its attribute.
func value(families map[string]*dto.MetricFamily, name, by string) (v float64) {
	for _, m := range families[name].GetMetric() {
		if by != "" && m.GetLabel()[0].GetValue() != by {
			continue
		}
		v += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return v
}

func hash(key string) string {
	h := sha256.Sum256([]byte(key))
	return hex.EncodeToString(h[:])
}

// told is what publishers, receivers and backends count themselves.
type told struct{ posts, failures, delivered, asked atomic.Int64 }

// receive is an endpoint where each twentieth event fails for good.
func (c *told) receive(w http.ResponseWriter, r *http.Request) {
	c.posts.Add(1)
	if body, _ := io.ReadAll(r.Body); bytes.Contains(body, []byte(`"number":20,`)) {
		c.failures.Add(1)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	c.delivered.Add(1)
}

// backend is an MCP server that serves nothing.
func (c *told) backend(w http.ResponseWriter, r *http.Request) {
	var m struct{ ID json.RawMessage }
	if json.NewDecoder(r.Body).Decode(&m) != nil || m.ID == nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	c.asked.Add(1)
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}`, m.ID)
}

// metricsAgree makes 10,000 deliveries with known failures, and some of all else that is counted.
func metricsAgree(t *testing.T) {
	const events, subscriptions, deliveries, given = 1000, 10, 10_000, 500
	var c told
	endpoint, backend := httptest.NewServer(http.HandlerFunc(c.receive)), httptest.NewServer(http.HandlerFunc(c.backend))
	defer endpoint.Close()
	defer backend.Close()
	const key = "the-secret-path-of-the-builds-0123456789"
	t.Setenv("MCPEVENTS_TEST_BUILDS", key)
	s := serve(t, func(o *Options) {
		retries(o)
		var err error
		if o.Config, err = config.ParseFile("config.yaml", fmt.Appendf(nil, `backends: [{name: b, url: %q}]
sources:
  - name: builds
    verify: {scheme: none, secrets: ["env:MCPEVENTS_TEST_BUILDS"]}
    events: [{match: {body: {kind: [build]}}, name: ci.build_finished}]
`, backend.URL)); err != nil {
			t.Fatal(err)
		}
	})
	for i := range subscriptions {
		subscribed(t, s, fmt.Sprintf("%s/%d", endpoint.URL, i))
	}
	mcp, err := client.New(client.Server{URL: s.URL, Agent: "test/1"}, mcpspec.V20260728)
	if err != nil {
		t.Fatal(err)
	}
	const polls = 3
	for range polls {
		if err := mcp.Call(t.Context(), "events/poll", map[string]any{"name": "github.pull_request", "arguments": map[string]string{"owner": "acme", "repo": "website"}, "cursor": nil}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := mcp.Call(t.Context(), "tools/list", map[string]any{}, nil); err != nil {
		t.Log("tools/list of a backend without tools:", err)
	}
	if err := mcp.Call(t.Context(), "resources/subscriptions/register", map[string]any{"uris": make([]string, 51), "targetUri": endpoint.URL}, nil); err == nil {
		t.Error("51 URIs are registered")
	}
	for _, k := range []string{key, key, "another key"} {
		resp, err := http.Post(s.URL+"/sources/builds/"+url.PathEscape(k), "application/json", strings.NewReader(`{"kind":"none"}`))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	listenAndLeave(t, s)
	batch := make([]Event, events/10)
	for range 10 {
		for i := range batch {
			batch[i] = Event{
				URI:  "event://github/acme/website/pull_request",
				Data: fmt.Appendf(nil, `{"action":"opened","number":%d,"pull_request":{"title":"t","author":"a","base":"main","url":"https://example.com/1"}}`, 1+i%20),
			}
		}
		if _, err := s.Publish(t.Context(), auth.DefaultWorkspace, batch...); err != nil {
			t.Fatal(err)
		}
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

// listenAndLeave opens a stream and closes it.
func listenAndLeave(t *testing.T, s *Server) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	r, _ := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen",
		"params":{"notifications":{"eventsListChanged":true},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`))
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		mcpspec.HeaderVersion: string(mcpspec.V20260728), mcpspec.HeaderMethod: mcpspec.MethodListen,
	} {
		r.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := resp.Body.Read(make([]byte, 1)); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, err)
	}
}

// served are the names of all metrics as Prometheus has them.
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
	text, err := os.ReadFile("../docs/grafana-dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	known, asked := served(), map[string]bool{}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			for _, name := range regexp.MustCompile(`mcpevents_[a-z_]+`).FindAllString(target.Expr, -1) {
				name = strings.TrimSuffix(name, "_bucket") // of a histogram
				if asked[name] = true; !known[name] {
					t.Errorf("%s asks for %s", p.Title, name)
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

func TestMetrics(t *testing.T) {
	t.Run("OPS-12 metrics agree with what publishers and receivers counted", metricsAgree)
	t.Run("OPS-12 the dashboard asks only for what is served", dashboardAsksForWhatIsServed)
	t.Run("OPS-12 who may not operate sees none", func(t *testing.T) {
		s := serve(t, func(o *Options) {
			o.Auth = auth.ModeKeys
			var err error
			o.Config, err = config.ParseFile("config.yaml", fmt.Appendf(nil, `keys:
  - {principal: alice, scopes: ["events:read", "events:subscribe", "events:publish"], sha256: %s}
  - {principal: op, scopes: ["events:operate"], sha256: %s}
`, hash("alice-key"), hash("op-key")))
			if err != nil {
				t.Fatal(err)
			}
		})
		for key, want := range map[string]int{"": http.StatusUnauthorized, "alice-key": http.StatusForbidden, "op-key": http.StatusOK} {
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/metrics", nil)
			if key != "" {
				r.Header.Set("Authorization", "Bearer "+key)
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != want || strings.Contains(string(body), "mcpevents_") != (want == http.StatusOK) {
				t.Errorf("%q: got %s, %.200s", key, resp.Status, body)
			}
		}
	})
}

// OPS-16: alive and ready are two questions.
func TestReady(t *testing.T) {
	s := serve(t, nil)
	for path, want := range map[string]string{"/healthz": `{"status":"ok"}`, "/readyz": `{"status":"ready"}`} {
		resp, err := http.Get(s.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK || strings.TrimSpace(string(body)) != want {
			t.Errorf("%s: got %s %s", path, resp.Status, body)
		}
	}
}
