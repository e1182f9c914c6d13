package boot

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic/periodictest"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/test/expect"
)

// broken are values that are invalid for settings of any kind.
var broken = map[string]string{"MCPEVENTS_AUTH": "maybe", "MCPEVENTS_STREAM_MAX_AGE": "soon", "MCPEVENTS_STREAMS": "-1", "MCPEVENTS_JWT_ISSUER": "?"}

// AWS-02: invalid settings that a function does not need cannot stop it from starting.
func TestAFunctionIgnoresSettingsThatItDoesNotNeed(t *testing.T) {
	started(t, nil) // sets the region and credentials
	for need, names := range limitsOf {
		for _, name := range names {
			expect.True(t, name+" is a limit", config.Names()[name])
			if slices.ContainsFunc([]string{"issuer", "audience", "jwks", "claim", "origins", "targets", "prefix"}, func(part string) bool { return strings.Contains(name, part) }) {
				continue // any text is valid
			}
			for _, variable := range []map[string]string{
				{config.EnvName(name): "!"}, {config.EnvSettings: name + "=!"},
			} {
				env := environment(variable)
				getenv := func(name string) string { return env[name] }
				expect.Fault(t, fmt.Sprintf("a function that needs %v", variable), expect.ErrOf(build(getenv, need)), fault.Invalid)
				expect.OK(t, expect.ErrOf(build(getenv, All&^need)), "a function that does not need", variable)
			}
		}
	}
	env := environment(broken)
	for _, needs := range []Needs{0, Webhooks} {
		p, err := build(func(name string) string { return env[name] }, needs)
		if err != nil || p.Auth != nil {
			t.Errorf("%d: got %v, %v", needs, p, err)
		}
	}
	// The functions that end subscriptions look up principals.
	env = environment(map[string]string{envAuth: "keys"})
	p := expect.Value(build(func(name string) string { return env[name] }, Webhooks))(t)
	if _, ok := p.Auth.(auth.Directory); !ok {
		t.Error("no directory of principals is configured")
	}
}

// AWS-02: the check before a deployment refuses the settings with which functions would not start.
func TestWrongSettingsAreRefusedBeforeAndAtTheStart(t *testing.T) {
	good := map[string]string{envAuth: "jwt", "MCPEVENTS_JWT_ISSUER": "https://login.example.com", "MCPEVENTS_JWT_AUDIENCE": "https://events.example.com/mcp"}
	for name, tc := range map[string]struct {
		change map[string]string
		want   string
	}{
		"good":                         {nil, ""},
		"no issuer":                    {map[string]string{"MCPEVENTS_JWT_ISSUER": ""}, "--jwt-issuer"},
		"no audience":                  {map[string]string{"MCPEVENTS_JWT_AUDIENCE": ""}, "--jwt-audience"},
		"an issuer without TLS":        {map[string]string{"MCPEVENTS_JWT_ISSUER": "http://login.example.com"}, "https"},
		"no mode":                      {map[string]string{envAuth: ""}, "allowed: none, keys, jwt"},
		"another mode":                 {map[string]string{envAuth: "basic"}, "allowed: none, keys, jwt"},
		"an invalid level":             {map[string]string{envLogLevel: "LOUD"}, "DEBUG, INFO, WARN or ERROR"},
		"an invalid limit":             {map[string]string{"MCPEVENTS_QUOTA": "many"}, "MCPEVENTS_QUOTA"},
		"a retention that is too long": {map[string]string{"MCPEVENTS_LOG_RETENTION": "10000h"}, "--log-retention"},
		"a prefix without a slash":     {map[string]string{"MCPEVENTS_PLAIN_TARGETS": "https://a.example"}, "--plain-targets"},
		"a setting that is unknown":    {map[string]string{config.EnvSettings: "quotas=3"}, "quotas"},
	} {
		t.Run(name, func(t *testing.T) {
			env := maps.Clone(good)
			maps.Copy(env, tc.change)
			_, start := started(t, env)
			for when, err := range map[string]error{"before": Check(func(name string) string { return env[name] }), "at the start": start} {
				if (err == nil) != (tc.want == "") || err != nil && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), tc.want)) {
					t.Errorf("%s: got error %v, want %q in it", when, err, tc.want)
				}
			}
		})
	}
}

func TestGivenTheTimeOfAnInvocationWhenItHandlesABatchThenItLeavesTimeToReport(t *testing.T) {
	now := time.Now()
	for limit, want := range map[time.Duration]time.Duration{
		20 * time.Second:        18 * time.Second,
		3 * time.Second:         2 * time.Second,
		1500 * time.Millisecond: time.Second,
	} {
		expect.Equal(t, fmt.Sprintf("the time of a batch in an invocation of %v", limit), batchDeadline(now, now.Add(limit)).Sub(now), want)
	}
}

func TestFront(t *testing.T) {
	for name, tc := range map[string]struct {
		key    string
		header []string
		want   int
	}{
		"AWS-25 with a front, a request that passed it is served":           {"a-key", []string{"a-key"}, http.StatusOK},
		"AWS-25 with a front, a request to the function's URL is refused":   {"a-key", nil, http.StatusForbidden},
		"AWS-25 with a front, a request with another key is refused":        {"a-key", []string{"another"}, http.StatusForbidden},
		"AWS-25 without a front, requests to the function's URL are served": {"", nil, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			p := expect.Value(started(t, map[string]string{envFrontKey: tc.key}))(t)
			mux := p.Serve(http.NotFoundHandler(), "/nothing")
			r := httptest.NewRequest(http.MethodGet, "/healthz", http.NoBody)
			r.Header[frontHeader] = tc.header
			w := httptest.NewRecorder()
			p.RequireFront(mux).ServeHTTP(w, r)
			expect.Equal(t, "the status", w.Code, tc.want)
			expect.True(t, "handlers do not see the key", w.Code != http.StatusOK || r.Header.Get(frontHeader) == "")
		})
	}
}

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
		p.collector.paused = periodictest.AfterFreeze(p.collector.paused, -flushPause)
		p.flush()
		expect.AtLeast(t, "how often the collector was asked after Lambda had frozen the process for a minute", asked.Load(), 2)
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
