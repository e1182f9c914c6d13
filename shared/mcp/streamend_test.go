package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/test/expect"
)

// endedLine is the line that is logged when a stream ends.
type endedLine struct {
	Msg, Level, Reason, Kind, Workspace, Principal, Error string

	Open float64 `json:"open_s"`
}

// ends returns the lines logged so far for ended streams.
func ends(t *testing.T, log *expect.Buffer) (all []endedLine) {
	for line := range strings.Lines(log.String()) {
		var e endedLine
		expect.OK(t, json.Unmarshal([]byte(line), &e))
		if e.Msg == "stream ended" {
			all = append(all, e)
		}
	}
	return all
}

// fading is an authenticator whose callers' tokens expire after 100 ms.
type fading struct{ auth.Authenticator }

func (f fading) Authenticate(ctx context.Context, h http.Header) (auth.Principal, error) {
	p, err := f.Authenticator.Authenticate(ctx, h)
	p.Expires = time.Now().Add(100 * time.Millisecond)
	return p, err
}

// OPS-12: the end of each stream is logged and counted with its reason.
func TestWhyAStreamEnded(t *testing.T) {
	opened := func(by framing) func(*fixture) *follower {
		return func(f *fixture) *follower { return f.follow(by, deploy) }
	}
	listen, inSession, ofType := opened(byListen), opened(bySession), opened(byType)
	leave := func(_ *fixture, c *follower) { c.cancel() }
	revoking := &revocable{}
	for name, tc := range map[string]struct {
		change func(*Options)
		open   func(*fixture) *follower
		end    func(*fixture, *follower) // nil if the stream ends by itself
		reason string
		kind   string
	}{
		"a listen is closed":        {nil, listen, leave, "client_closed", "subscriptions/listen"},
		"a session's is closed":     {nil, inSession, leave, "client_closed", "session"},
		"an events/stream is":       {nil, ofType, leave, "client_closed", "events/stream"},
		"its age":                   {func(o *Options) { o.MaxAge = 50 * time.Millisecond }, listen, nil, "max_age", "subscriptions/listen"},
		"shutdown":                  {nil, listen, func(f *fixture, _ *follower) { f.close() }, "shutdown", "subscriptions/listen"},
		"shutdown, for the dialect": {nil, opened(byDialect), func(f *fixture, _ *follower) { f.close() }, "shutdown", "named_events"},
		"a listen over the quota":   {keep(1, false), listen, func(f *fixture, _ *follower) { listen(f) }, "superseded", "subscriptions/listen"},
		"another of its session":    {nil, inSession, func(f *fixture, c *follower) { f.stream(alice, c.session, "").event() }, "session_taken", "session"},
		"the credentials expire":    {func(o *Options) { o.Auth = fading{o.Auth} }, listen, nil, "credentials_expired", "subscriptions/listen"},
		"its event type is removed": {nil, ofType, func(f *fixture, _ *follower) {
			f.catalogs.Replace(mustParse(f.t, "events: []\n"))
			f.announceCatalog()
		}, "subscription_ended", "events/stream"},
		"the credentials are revoked": {func(o *Options) { revoking.Authenticator = o.Auth; o.Auth = revoking }, listen, func(f *fixture, _ *follower) {
			revoking.say(auth.Principal{}, auth.ErrNoToken)
			f.announceCatalog()
		}, "credentials_revoked", "subscriptions/listen"},
	} {
		t.Run("OPS-12 "+name, func(t *testing.T) {
			log := new(expect.Buffer)
			reader := sdk.NewManualReader()
			set := expect.Value(metric.NewSet(sdk.NewMeterProvider(sdk.WithReader(reader))))(t)
			f := newFixture(t, func(o *Options) {
				o.Logger, o.Metrics = slog.New(slog.NewJSONHandler(log, nil)), set
				if tc.change != nil {
					tc.change(o)
				}
			})
			c := tc.open(f)
			if tc.end != nil {
				tc.end(f, c)
			}
			f.waitFor("the end of the stream", func() bool { return len(ends(t, log)) > 0 })
			got := ends(t, log)[0]
			hash := sha256.Sum256([]byte("alice"))
			if got.Reason != tc.reason || got.Kind != tc.kind || got.Level != "INFO" || got.Workspace != auth.DefaultWorkspace ||
				got.Principal != hex.EncodeToString(hash[:6]) || strings.Contains(log.String(), "alice") || got.Open < 0 || got.Error != "" {
				t.Errorf("got %+v, want %s of %s", got, tc.reason, tc.kind)
			}
			var data metricdata.ResourceMetrics
			expect.OK(t, reader.Collect(t.Context(), &data))
			if text := fmt.Sprint(data); !strings.Contains(text, metric.StreamsEnded) || !strings.Contains(text, tc.reason) {
				t.Errorf("the metrics are %s, want %s with the reason %s", text, metric.StreamsEnded, tc.reason)
			}
		})
	}
}

// OPS-13: a message joins the trace in its _meta. Without a valid one, it joins the trace of the HTTP request.
func TestATraceComesInMetaOrByHTTP(t *testing.T) {
	const a, b = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for name, tc := range map[string]struct {
		header, meta string
		want         trace.Context
	}{
		"none":               {},
		"HTTP":               {a, `{}`, trace.Context{Parent: a}},
		"_meta":              {a, `{"traceparent":"` + b + `","tracestate":"x=1"}`, trace.Context{Parent: b, State: "x=1"}},
		"_meta is malformed": {a, `{"traceparent":7}`, trace.Context{Parent: a}},
	} {
		c := method.Call{Request: httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/mcp", nil), Meta: json.RawMessage(tc.meta)}
		if tc.header != "" {
			c.Request.Header.Set("traceparent", tc.header)
		}
		joinTrace(&c)
		equal(t, name, trace.From(c.Request.Context()), tc.want)
	}
}
