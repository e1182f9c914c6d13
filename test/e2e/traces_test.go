//go:build unix

package e2e

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// exported is a span in OTLP's JSON encoding.
type exported struct {
	TraceID, SpanID, ParentSpanID, Name string

	Status struct{ Message string }
}

// TestTracesOnLocalAWS: each span is sent by a different function, and none of them runs when the test looks for the
// spans.
func TestTracesOnLocalAWS(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var spans []exported
	counted := map[string]float64{} // values by counter
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var body struct {
			ResourceSpans []struct {
				ScopeSpans []struct{ Spans []exported }
			}
			ResourceMetrics []struct {
				ScopeMetrics []struct {
					Metrics []struct {
						Name string
						Sum  struct{ DataPoints []struct{ AsDouble float64 } }
					}
				}
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, resource := range body.ResourceSpans {
			for _, scope := range resource.ScopeSpans {
				spans = append(spans, scope.Spans...)
			}
		}
		for _, resource := range body.ResourceMetrics {
			for _, scope := range resource.ScopeMetrics {
				for _, m := range scope.Metrics {
					for _, p := range m.Sum.DataPoints {
						counted[m.Name] += p.AsDouble
					}
				}
			}
		}
	}))
	defer collector.Close()
	aws := harness.StartAWS(t, harness.AWSOptions{Env: map[string]string{
		"MCPEVENTS_OTLP_ENDPOINT": collector.URL, "MCPEVENTS_TRACE_RATIO": "0", "MCPEVENTS_RETRY_SCHEDULE": "0s,1s,1s",
	}})
	t.Run("OPS-13 a trace leads from the publisher through the functions to the webhook and its retry", func(t *testing.T) {
		const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
		hook := harness.NewReceiver(t).Endpoint("traced")
		hook.Answer(func(n int, _ *harness.Delivery) harness.Reply {
			if n == 1 {
				return harness.Reply{Status: http.StatusInternalServerError}
			}
			return harness.Reply{}
		})
		register(t, aws.Stateless("alice"), hook, "event://ci/build-finished")
		body := expect.Value(json.Marshal(build("traced", 1)))(t)
		a := aws.PostEvents(t, "publisher", "application/json", string(body), "Traceparent", "00-"+trace+"-"+parent+"-01")
		expect.MustEqual(t, "the status of "+string(a.Body), a.Status, http.StatusAccepted)
		var mine []exported
		named := func(name string) (all []exported) {
			for _, s := range mine {
				if s.Name == name {
					all = append(all, s)
				}
			}
			return all
		}
		attempts := hook.WaitAttempts(t, 2)
		if !harness.Within(t, harness.Patience, func() bool {
			mu.Lock()
			defer mu.Unlock()
			mine = slices.DeleteFunc(slices.Clone(spans), func(s exported) bool { return s.TraceID != trace })
			return len(named("attempt")) == 2
		}) {
			t.Fatalf("got %+v", mine)
		}
		publish, fanout, attempt := named("publish"), named("fanout"), named("attempt")
		if len(publish) != 1 || len(fanout) != 1 || publish[0].ParentSpanID != parent || fanout[0].ParentSpanID != publish[0].SpanID ||
			attempt[0].Status.Message != "http_5xx" || attempt[1].Status.Message != "" {
			t.Fatalf("got %+v", mine)
		}
		for i, s := range attempt {
			if got := attempts[i].Header.Get("Traceparent"); got != "00-"+trace+"-"+s.SpanID+"-01" || s.ParentSpanID != fanout[0].SpanID {
				t.Errorf("attempt %d: sent %s, the span is %+v", i+1, got, s)
			}
		}
	})
	t.Run("OPS-12 the collector has each count of the functions once", func(t *testing.T) {
		aws.Retire("DispatchFunction") // its processes then send the remaining metrics
		var published, attempts float64
		if !harness.Within(t, harness.Patience, func() bool {
			mu.Lock()
			defer mu.Unlock()
			published, attempts = counted["mcpevents_events_published"], counted["mcpevents_delivery_attempts"]
			return published == 1 && attempts == 2
		}) {
			t.Errorf("%v events and %v attempts, want 1 and 2", published, attempts)
		}
	})
}
