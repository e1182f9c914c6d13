package server_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/server"
	"github.com/mcp-events/mcpevents/test/expect"
)

const orders = `events: [{name: order.shipped, uriTemplate: "event://orders/{order}/shipped", payloadSchema: {type: object}}]`

func start(t *testing.T, o server.Options) *server.Server {
	t.Helper()
	o.Data, o.Catalog, o.Log = server.InMemory, []byte(orders), slog.New(slog.DiscardHandler)
	s := expect.Value(server.New(t.Context(), o))(t)
	t.Cleanup(func() { shutdown(t, s) })
	return s
}

func shutdown(t *testing.T, s *server.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	expect.OK(t, s.Shutdown(ctx), "Shutdown")
}

func TestNewRefusesOptionsThatAreMalformed(t *testing.T) {
	for name, tc := range map[string]struct {
		options server.Options
		want    string // part of the error
	}{
		"without a directory":      {server.Options{}, "Data is missing"},
		"without a catalog":        {server.Options{Data: server.InMemory}, "Catalog: is empty"},
		"unknown setting":          {server.Options{Data: server.InMemory, Settings: map[string]string{"quotas": "5"}}, `unknown setting "quotas"`},
		"setting out of range":     {server.Options{Data: server.InMemory, Settings: map[string]string{"quota": "0"}}, "quota is 0"},
		"setting of the command":   {server.Options{Data: server.InMemory, Settings: map[string]string{"otlp-endpoint": "http://127.0.0.1:4318"}}, "Metrics and Traces"},
		"unknown authentication":   {server.Options{Data: server.InMemory, Auth: "basic"}, "allowed: none, keys, jwt"},
		"malformed configuration":  {server.Options{Data: server.InMemory, Catalog: []byte(orders), Config: []byte("kees: []")}, "kees"},
		"malformed own catalog":    {server.Options{Data: server.InMemory, Catalog: []byte(orders), Workspaces: map[string][]byte{"a": []byte("event: []")}}, "workspace a"},
		"malformed workspace name": {server.Options{Data: server.InMemory, Catalog: []byte(orders), Workspaces: map[string][]byte{"A b": nil}}, `"A b"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := server.New(t.Context(), tc.options)
			if !errors.Is(err, server.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want ErrInvalid with %q", err, tc.want)
			}
		})
	}
}

// The publish rate protects the server from its callers. For the program that runs the server, a reached rate would look like a
// refused event.
func TestPublishHasNoRate(t *testing.T) {
	s := start(t, server.Options{Settings: map[string]string{"publish-rate": "1"}})
	batch := make([]server.Event, 1000) // the burst
	for i := range batch {
		batch[i] = server.Event{URI: "event://orders/1/shipped", Data: json.RawMessage(`{}`)}
	}
	for range 2 {
		expect.OK(t, expect.ErrOf(s.Publish(t.Context(), server.DefaultWorkspace, batch...)))
	}
}

func TestPublishNamesTheReasonOfARefusal(t *testing.T) {
	s := start(t, server.Options{})
	for name, tc := range map[string]struct {
		event server.Event
		want  error
	}{
		"unknown URI":     {server.Event{URI: "event://invoices/1", Data: json.RawMessage(`{}`)}, server.ErrUnknownEvent},
		"payload":         {server.Event{URI: "event://orders/1/shipped", Data: json.RawMessage(`[]`)}, server.ErrSchema},
		"malformed URI":   {server.Event{URI: "orders", Data: json.RawMessage(`{}`)}, server.ErrInvalid},
		"payload's bytes": {server.Event{URI: "event://orders/1/shipped", Data: json.RawMessage(`"` + strings.Repeat("x", 300<<10) + `"`)}, server.ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Is(t, "a publication", expect.ErrOf(s.Publish(t.Context(), server.DefaultWorkspace, tc.event)), tc.want)
		})
	}
}

func TestTheErrorOfSeveralEventsNamesTheRefusedOne(t *testing.T) {
	s := start(t, server.Options{})
	for want, bad := range map[string]server.Event{
		"/1/data: must be object": {URI: "event://orders/1/shipped", Data: json.RawMessage(`[]`)},
		"/1/uri: belongs to no":   {URI: "event://invoices/1", Data: json.RawMessage(`{}`)},
		"/1/id: has 20000 bytes":  {URI: "event://orders/1/shipped", ID: strings.Repeat("x", 20000), Data: json.RawMessage(`{}`)},
	} {
		good := server.Event{URI: "event://orders/1/shipped", Data: json.RawMessage(`{}`)}
		expect.Error(t, "three events", expect.ErrOf(s.Publish(t.Context(), server.DefaultWorkspace, good, bad, good)), want)
	}
}

func TestAClosedServerRefusesCallsWithErrClosed(t *testing.T) {
	s := start(t, server.Options{Settings: map[string]string{"quota": "5"}})
	shutdown(t, s)
	if _, err := s.Publish(t.Context(), server.DefaultWorkspace, server.Event{URI: "event://orders/1/shipped", Data: json.RawMessage(`{}`)}); !errors.Is(err, server.ErrClosed) {
		t.Errorf("Publish: got %v, want ErrClosed", err)
	}
	expect.Is(t, "a reload after the end", s.Reload(t.Context(), server.Options{Catalog: []byte(orders)}), server.ErrClosed)
}

// Shutdown waits for a running call of a tool, so the call must be able to publish what it did.
func TestTheZeroServerIsClosed(t *testing.T) {
	var s server.Server
	expect.Is(t, "publish", expect.ErrOf(s.Publish(t.Context(), server.DefaultWorkspace, server.Event{URI: "event://orders/1/shipped"})), server.ErrClosed)
	expect.Is(t, "reload", s.Reload(t.Context(), server.Options{}), server.ErrClosed)
	expect.Equal(t, "the URLs", s.URL()+s.AdminURL(), "")
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/healthz", nil))
	expect.Equal(t, "the status", w.Code, http.StatusServiceUnavailable)
	expect.True(t, "no error of a listener", s.Served() == nil)
	expect.OK(t, s.Shutdown(t.Context()))
}

func TestAToolThatRunsDuringShutdownPublishes(t *testing.T) {
	var s *server.Server
	began, published := make(chan struct{}), make(chan error, 1)
	tools := mcp.NewServer(&mcp.Implementation{Name: "orders", Version: "1"}, nil)
	mcp.AddTool(tools, &mcp.Tool{Name: "ship"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		close(began)
		for !errors.Is(s.Reload(ctx, server.Options{}), server.ErrClosed) { // until Shutdown was called
			time.Sleep(10 * time.Millisecond)
		}
		published <- expect.ErrOf(s.Publish(ctx, server.DefaultWorkspace, server.Event{URI: "event://orders/1/shipped", Data: json.RawMessage(`{}`)}))
		return nil, nil, nil
	})
	s = start(t, server.Options{Addr: "127.0.0.1:0", Upstream: mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return tools }, nil)})
	c := expect.Value(client.Connect(t.Context(), s.URL(), client.Options{}))(t)
	called := make(chan error, 1)
	go func() {
		called <- c.Call(t.Context(), "tools/call", map[string]any{"name": "ship", "arguments": map[string]any{}}, nil)
	}()
	expect.Receive(t, "the call of the tool", began)
	shutdown(t, s)
	expect.OK(t, <-published, "Publish")
	expect.OK(t, <-called, "the call")
}

// A program may exit when Served reports an error, which would cut off the running deliveries.
func TestServedReportsNoErrorOfShutdown(t *testing.T) {
	s := start(t, server.Options{Addr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0"})
	shutdown(t, s)
	select {
	case err := <-s.Served():
		t.Errorf("got %v, want no error", err)
	case <-time.After(100 * time.Millisecond):
	}
}

// wrapped is a response writer as many middlewares have it.
type wrapped struct{ http.ResponseWriter }

type unwrapped struct{ wrapped }

func (u unwrapped) Unwrap() http.ResponseWriter { return u.ResponseWriter }

// Without a flush, the client of a stream would wait forever, and see no error.
func TestAMiddlewareThatHidesFlushIsLogged(t *testing.T) {
	var log bytes.Buffer
	s := expect.Value(server.New(t.Context(), server.Options{Data: server.InMemory, Catalog: []byte(orders), Log: slog.New(slog.NewTextHandler(&log, nil))}))(t)
	ask := func(wrap func(http.ResponseWriter) http.ResponseWriter) {
		s.Handler().ServeHTTP(wrap(httptest.NewRecorder()), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1/healthz", nil))
	}
	ask(func(w http.ResponseWriter) http.ResponseWriter { return w })
	ask(func(w http.ResponseWriter) http.ResponseWriter { return unwrapped{wrapped{w}} })
	quiet := log.Len()
	for range 2 {
		ask(func(w http.ResponseWriter) http.ResponseWriter { return wrapped{w} })
	}
	shutdown(t, s)
	expect.Equal(t, "the log's length before", quiet, 0)
	expect.Equal(t, "the messages", strings.Count(log.String(), `msg="streams cannot be sent" writer=server_test.wrapped`), 1)
}

// A program ends the server before its HTTP server, which still receives requests then.
func TestTheHandlerOfAClosedServerAnswers503(t *testing.T) {
	var log bytes.Buffer
	s := expect.Value(server.New(t.Context(), server.Options{Data: server.InMemory, Catalog: []byte(orders), Log: slog.New(slog.NewTextHandler(&log, nil))}))(t)
	shutdown(t, s)
	for _, path := range []string{"/healthz", "/readyz", "/admin/v1/subscriptions"} {
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1"+path, nil))
		expect.Equal(t, path, w.Code, http.StatusServiceUnavailable)
	}
	expect.Equal(t, "the log", log.String(), "")
}

func TestAReloadedCatalogAppliesToTheNextEvent(t *testing.T) {
	s := start(t, server.Options{})
	paid := server.Event{URI: "event://orders/1/paid", Data: json.RawMessage(`{}`)}
	expect.Is(t, "a publication before the reload", expect.ErrOf(s.Publish(t.Context(), server.DefaultWorkspace, paid)), server.ErrUnknownEvent)
	both := strings.Replace(orders, "[{", `[{name: order.paid, uriTemplate: "event://orders/{order}/paid"}, {`, 1)
	expect.OK(t, s.Reload(t.Context(), server.Options{Catalog: []byte(both)}))
	expect.OK(t, expect.ErrOf(s.Publish(t.Context(), server.DefaultWorkspace, paid)), "after the reload")
}

func TestTheErrorOfAReloadNamesTheCatalog(t *testing.T) {
	s := start(t, server.Options{})
	expect.Error(t, "a malformed catalog", s.Reload(t.Context(), server.Options{Catalog: []byte("event: []")}), "Catalog:1")
	bad := map[string][]byte{}
	for _, name := range []string{"b", "c", "a", "d"} {
		bad[name] = []byte("event: []")
	}
	expect.Error(t, "four malformed catalogs", s.Reload(t.Context(), server.Options{Catalog: []byte(orders), Workspaces: bad}), "the catalog of workspace a")
}

// key returns the configuration of a key that equals the name of its principal.
func key(principal string) string {
	return fmt.Sprintf("  - {principal: %s, scopes: [\"events:read\"], sha256: %x}\n", principal, sha256.Sum256([]byte(principal)))
}

// checkKey checks whether the server accepts a key.
func checkKey(t *testing.T, s *server.Server, principal string, want bool) {
	t.Helper()
	r, w := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1/admin/v1/subscriptions", nil), httptest.NewRecorder()
	r.Header.Set("Authorization", "Bearer "+principal)
	s.Handler().ServeHTTP(w, r)
	expect.Equal(t, fmt.Sprintf("the key of %s is valid with status %d", principal, w.Code), w.Code != http.StatusUnauthorized, want)
}

func TestAReloadAppliesTheConfigurationDespiteInvalidOptions(t *testing.T) {
	for name, tc := range map[string]struct {
		change  func(*server.Options)
		refused bool // Reload returns an error
	}{
		"unknown setting":          {func(o *server.Options) { o.Settings = map[string]string{"quotas": "5"} }, false},
		"setting out of range":     {func(o *server.Options) { o.Settings = map[string]string{"quota": "0"} }, false},
		"no authentication":        {func(o *server.Options) { o.Auth = "" }, false},
		"unknown authentication":   {func(o *server.Options) { o.Auth = "basic" }, false},
		"malformed workspace name": {func(o *server.Options) { o.Workspaces = map[string][]byte{"A b": []byte(orders)} }, true},
		"malformed own catalog":    {func(o *server.Options) { o.Workspaces = map[string][]byte{"a": []byte("event: []")} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			o := server.Options{Auth: server.AuthKeys, Config: []byte("keys:\n" + key("leaked") + key("kept"))}
			s := start(t, o)
			checkKey(t, s, "leaked", true)
			o.Catalog, o.Config = []byte(orders), []byte("keys:\n"+key("kept"))
			tc.change(&o)
			if err := s.Reload(t.Context(), o); tc.refused != errors.Is(err, server.ErrInvalid) || !tc.refused && err != nil {
				t.Errorf("got the error %v, want ErrInvalid: %v", err, tc.refused)
			}
			checkKey(t, s, "leaked", false)
			checkKey(t, s, "kept", true)
		})
	}
}

func TestAReloadWithoutKeysKeepsTheKeys(t *testing.T) {
	s := start(t, server.Options{Auth: server.AuthKeys, Config: []byte("keys:\n" + key("kept"))})
	for name, o := range map[string]server.Options{
		"no configuration":    {Catalog: []byte(orders)},
		"empty configuration": {Catalog: []byte(orders), Config: []byte{}},
	} {
		expect.Is(t, name, s.Reload(t.Context(), o), server.ErrInvalid)
		checkKey(t, s, "kept", true)
	}
}

func TestAPublishedEventBelongsToTheTraceOfTheContext(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	s := start(t, server.Options{Traces: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))})
	parent := oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
		TraceID: oteltrace.TraceID{1}, SpanID: oteltrace.SpanID{2}, TraceFlags: oteltrace.FlagsSampled,
	})
	ctx := oteltrace.ContextWithSpanContext(t.Context(), parent)
	expect.OK(t, expect.ErrOf(s.Publish(ctx, server.DefaultWorkspace, server.Event{URI: "event://orders/1/shipped", Data: json.RawMessage(`{}`)})))
	for _, span := range spans.Ended() {
		if span.Name() == "publish" {
			expect.Equal(t, "the trace of a span", span.SpanContext().TraceID(), parent.TraceID())
			return
		}
	}
	t.Errorf("got %d spans, want one with the name publish", len(spans.Ended()))
}
