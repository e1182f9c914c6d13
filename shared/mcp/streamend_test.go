package mcp

import (
	"bytes"
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

	"github.com/mcp-events/mcpevents/shared/mcp/method"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// endedLine is the log line of a stream's end.
type endedLine struct {
	Msg, Level, Reason, Kind, Workspace, Principal, Error string

	Open float64 `json:"open_s"`
}

// ends are the lines of ends of streams so far.
func (l *logText) ends(t *testing.T) (all []endedLine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.text.Bytes()) {
		var e endedLine
		must(t, json.Unmarshal(line, &e))
		if e.Msg == "stream ended" {
			all = append(all, e)
		}
	}
	return all
}

// fading has the tokens of callers expire.
type fading struct{ auth.Authenticator }

func (f fading) Authenticate(ctx context.Context, h http.Header) (auth.Principal, error) {
	p, err := f.Authenticator.Authenticate(ctx, h)
	p.Expires = time.Now().Add(100 * time.Millisecond)
	return p, err
}

// OPS-12: each end of a stream is a line with its reason, and is counted by it.
func TestWhyAStreamEnded(t *testing.T) {
	const all = `{"resourceSubscriptions":["event://ci/deploy"]}`
	listen := func(f *fixture) *open {
		o := f.listen(alice, "1", all)
		o.next()
		return o
	}
	revoking := &revocable{}
	for name, tc := range map[string]struct {
		change func(*Options)
		open   func(*fixture) *open // nil is a listen
		end    func(*fixture, *open)
		reason string
		kind   string
	}{
		"client_closed":           {end: func(_ *fixture, o *open) { o.cancel() }, reason: "client_closed", kind: "subscriptions/listen"},
		"max_age":                 {change: func(o *Options) { o.MaxAge = 50 * time.Millisecond }, reason: "max_age", kind: "subscriptions/listen"},
		"shutdown":                {end: func(f *fixture, _ *open) { f.close() }, reason: "shutdown", kind: "subscriptions/listen"},
		"superseded":              {change: keep(1, false), end: func(f *fixture, _ *open) { listen(f) }, reason: "superseded", kind: "subscriptions/listen"},
		"credentials_expired":     {change: func(o *Options) { o.Auth = fading{o.Auth} }, reason: "credentials_expired", kind: "subscriptions/listen"},
		"the stream of a session": {open: sessionOf, end: func(_ *fixture, o *open) { o.cancel() }, reason: "client_closed", kind: "session"},
		"session_taken":           {open: sessionOf, end: func(f *fixture, o *open) { f.stream(alice, o.header.Get("Test-Session"), "").event() }, reason: "session_taken", kind: "session"},
		"events/stream":           {open: func(f *fixture) *open { o, _ := f.push(alice, "1", "ci.deploy", `{}`, ""); return o }, end: func(_ *fixture, o *open) { o.cancel() }, reason: "client_closed", kind: "events/stream"},
		"subscription_ended": {open: func(f *fixture) *open { o, _ := f.push(alice, "1", "ci.deploy", `{}`, ""); return o }, end: func(f *fixture, _ *open) {
			f.catalogs.Replace(mustParse(f.t, "events: []\n"))
			must(f.t, f.log.Notify(f.t.Context(), "default", stream.TopicCatalog, json.RawMessage(`{}`)))
		}, reason: "subscription_ended", kind: "events/stream"},
		"credentials_revoked": {change: func(o *Options) { revoking.Authenticator = o.Auth; o.Auth = revoking }, end: func(f *fixture, _ *open) {
			revoking.say(auth.Principal{}, auth.ErrNoToken)
			must(f.t, f.log.Notify(f.t.Context(), "default", stream.TopicCatalog, json.RawMessage(`{}`)))
		}, reason: "credentials_revoked", kind: "subscriptions/listen"},
		"a stream of the dialect, ended": {open: func(f *fixture) *open { o, _ := f.dialectStream(alice); return o }, end: func(f *fixture, _ *open) { f.close() }, reason: "shutdown", kind: "named_events"},
	} {
		t.Run("OPS-12 "+name, func(t *testing.T) {
			log := &logText{}
			reader := sdk.NewManualReader()
			set, err := metric.NewSet(sdk.NewMeterProvider(sdk.WithReader(reader)))
			must(t, err)
			f := newFixture(t, func(o *Options) {
				o.Logger, o.Metrics = slog.New(slog.NewJSONHandler(log, nil)), set
				if tc.change != nil {
					tc.change(o)
				}
			})
			if tc.open == nil {
				tc.open = listen
			}
			o := tc.open(f)
			if tc.end != nil {
				tc.end(f, o)
			}
			f.waitFor("the end of the stream", func() bool { return len(log.ends(t)) > 0 })
			got := log.ends(t)[0]
			hash := sha256.Sum256([]byte("alice"))
			if got.Reason != tc.reason || got.Kind != tc.kind || got.Level != "INFO" || got.Workspace != auth.DefaultWorkspace ||
				got.Principal != hex.EncodeToString(hash[:6]) || strings.Contains(log.text.String(), "alice") || got.Open < 0 || got.Error != "" {
				t.Errorf("got %+v, want %s of %s", got, tc.reason, tc.kind)
			}
			var data metricdata.ResourceMetrics
			must(t, reader.Collect(t.Context(), &data))
			if text := fmt.Sprint(data); !strings.Contains(text, metric.StreamsEnded) || !strings.Contains(text, tc.reason) {
				t.Errorf("the metrics are %s", text)
			}
		})
	}
}

// sessionOf opens the stream of a new session of alice's, and has its header tell the session.
func sessionOf(f *fixture) *open {
	session := f.session(alice, spec.V20251125)
	o := f.stream(alice, session, "")
	o.event()
	o.header.Set("Test-Session", session)
	return o
}

// OPS-13: the trace of a message is that of its _meta, or else that of the HTTP request.
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
		if got := trace.From(c.Request.Context()); got != tc.want {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}
