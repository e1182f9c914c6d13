package server

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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

func TestMetrics(t *testing.T) {
	t.Run("OPS-12 metrics agree with what publishers and receivers counted", func(t *testing.T) {
		s := serve(t, func(o *Options) {
			o.Limits.RetrySchedule = []time.Duration{0, 10 * time.Millisecond}
			o.Limits.EventsSchedule = o.Limits.RetrySchedule
		})
		var posts, failures, delivered atomic.Int64
		seen := make(chan struct{}, 1)
		var answer http.HandlerFunc = func(w http.ResponseWriter, r *http.Request) {
			posts.Add(1)
			switch body, _ := io.ReadAll(r.Body); {
			case bytes.Contains(body, []byte(`"number":3`)): // fails for good
				failures.Add(1)
				w.WriteHeader(http.StatusInternalServerError)
			default:
				delivered.Add(1)
			}
			select {
			case seen <- struct{}{}:
			default:
			}
		}
		endpoint := httptest.NewServer(answer)
		defer endpoint.Close()
		c, err := client.New(client.Server{URL: s.URL, Agent: "test/1"}, mcpspec.V20260728)
		if err != nil {
			t.Fatal(err)
		}
		var registered json.RawMessage
		if err := c.Call(t.Context(), "resources/subscriptions/register", map[string]any{
			"uris": []string{"event://github/acme/website/pull_request"}, "targetUri": endpoint.URL,
		}, &registered); err != nil {
			t.Fatal(err)
		}
		const events = 60
		for i := range events {
			number := 1 + i%3
			data := fmt.Sprintf(`{"action":"opened","number":%d,"pull_request":{"title":"t","author":"a","base":"main","url":"https://example.com/1"}}`, number)
			if _, err := s.Publish(t.Context(), auth.DefaultWorkspace, Event{URI: "event://github/acme/website/pull_request", Data: json.RawMessage(data)}); err != nil {
				t.Fatal(err)
			}
		}
		deadline := time.After(patience)
		for {
			families := scrape(t, s)
			if value(families, "mcpevents_dead_letters_total", metric.Webhook) == events/3 && delivered.Load() == events*2/3 &&
				value(families, "mcpevents_delivery_attempts_total", metric.Success) == events*2/3 {
				break
			}
			select {
			case <-seen:
			case <-time.After(100 * time.Millisecond):
			case <-deadline:
				t.Fatalf("%d POSTs, %d failed; metrics: %v", posts.Load(), failures.Load(), families)
			}
		}
		families := scrape(t, s)
		for name, want := range map[string]float64{
			"mcpevents_events_published_total":    events,
			"mcpevents_delivery_attempts_total":   float64(posts.Load()),
			"mcpevents_attempt_duration_seconds":  float64(posts.Load()),
			"mcpevents_first_attempt_lag_seconds": events,
			"mcpevents_delivery_lag_seconds":      float64(delivered.Load()),
			"mcpevents_retries_waiting":           0,
			"mcpevents_streams_open":              0,
		} {
			if got := value(families, name, ""); got != want {
				t.Errorf("%s: got %v, want %v", name, got, want)
			}
		}
		if got := value(families, "mcpevents_delivery_attempts_total", "http_5xx"); got != float64(failures.Load()) {
			t.Errorf("failed attempts: got %v, want %d; %v", got, failures.Load(), families["mcpevents_delivery_attempts_total"])
		}
		resp, err := http.Post(s.URL+"/events", "application/json", strings.NewReader(`{"uri":"event://ci/`+strings.Repeat("x", 1025)+`","data":{}}`))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		families = scrape(t, s)
		for _, d := range metric.Table {
			name := d.Name
			if d.Unit == "s" {
				name += "_seconds"
			}
			if d.Kind == metric.Counter {
				name += "_total"
			}
			if families[name] == nil && d.Name != metric.LogLateEntries {
				t.Errorf("GET /metrics lacks %s", name)
			}
		}
	})
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
