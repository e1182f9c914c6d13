package boot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// environment returns the variables that the template sets.
func environment(change map[string]string) map[string]string {
	env := map[string]string{envAuth: "keys"}
	for _, t := range store.Tables() {
		env[tableVariable(t)] = "stack-" + string(t)
	}
	for _, q := range queue.Names() {
		env[queueVariable(q)] = "http://sqs/000000000000/stack-" + string(q)
	}
	maps.Copy(env, change)
	return env
}

func started(t *testing.T, change map[string]string) (*Process, error) {
	t.Setenv("AWS_REGION", "us-east-1")
	t.Setenv("AWS_ACCESS_KEY_ID", "a")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "b")
	env := environment(change)
	return build(func(name string) string { return env[name] }, All)
}

func TestMetrics(t *testing.T) {
	t.Run("AWS-20 with LogLevel ERROR metrics are written and log lines are not", func(t *testing.T) {
		r, w, err := os.Pipe()
		expect.OK(t, err)
		stdout := os.Stdout
		os.Stdout = w
		defer func() { os.Stdout = stdout }()
		p := expect.Value(started(t, map[string]string{envLogLevel: "ERROR", envStack: "a-stack"}))(t)
		p.Log.Info("something ordinary")
		p.Metrics.Published(3)
		p.emf.Close(t.Context())
		_ = w.Close()
		written := expect.Value(io.ReadAll(r))(t)
		for text, want := range map[string]bool{metric.EventsPublished: true, "something ordinary": false} {
			if got := strings.Contains(string(written), text); got != want {
				t.Errorf("%q is written: %t, want %t, in %q", text, got, want, written)
			}
		}
	})
}

func TestMetricsOfALongInvocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written bytes.Buffer
		emf := metric.NewEMF(slog.New(slog.NewJSONHandler(&written, nil)), "a-stack", nil)
		set := expect.Value(metric.NewSet(emf.Provider()))(t)
		p := &Process{emf: emf}
		invocation := p.InvokedHandler(func(context.Context) error { // as relay, which runs for 15 minutes
			for minute := range 3 {
				written.Reset()
				set.Published(1)
				time.Sleep(time.Minute + time.Second)
				synctest.Wait()
				expect.Contains(t, fmt.Sprintf("the log of minute %d", minute), written.String(), metric.EventsPublished)
			}
			written.Reset()
			set.Published(1)
			time.Sleep(metric.EMFEvery)
			return nil
		}).BeforeEnd(func() { written.WriteString("before the end;") })
		expect.OK(t, expect.ErrOf(invocation.invoke.(lambda.Handler).Invoke(t.Context(), []byte(`{}`))))
		expect.Contains(t, "the log after the invocation", written.String(), metric.EventsPublished)
		written.Reset()
		set.Published(1)
		if invocation.end(); !strings.HasPrefix(written.String(), "before the end;") || !strings.Contains(written.String(), metric.EventsPublished) {
			t.Errorf("at the end got %q, want the function before the metrics", written.String())
		}
	})
}

func TestTheProcessIsBuiltFromTheEnvironment(t *testing.T) {
	p := expect.Value(started(t, map[string]string{"MCPEVENTS_LOG_RETENTION": "48h", "MCPEVENTS_X": "y"}))(t)
	expect.Equal(t, "the retention", p.EventLog.Retention, 48*time.Hour)
	expect.Equal(t, "MCPEVENTS_X", expect.Value(p.Variable("MCPEVENTS_X"))(t), "y")
	for _, tc := range []struct {
		arn  string
		name queue.Name
		want bool
	}{
		{"arn:aws:sqs:us-east-1:000000000000:stack-slow", queue.Slow, true},
		{"arn:aws:sqs:us-east-1:000000000000:stack-slow", queue.Deliveries, false},
		{"arn:aws:sqs:us-east-1:000000000000:other-slow", queue.Slow, false},
		{"", queue.Slow, false},
	} {
		expect.Equal(t, fmt.Sprintf("IsFrom(%q, %s)", tc.arn, tc.name), p.IsFrom(tc.arn, tc.name), tc.want)
	}
	caller := expect.Value(expect.Value(started(t, map[string]string{envAuth: "none"}))(t).Auth.Authenticate(t.Context(), nil))(t)
	expect.Equal(t, "the caller is anonymous", caller.Anonymous, true)
}

func TestAMissingVariableIsReported(t *testing.T) {
	p := expect.Value(started(t, map[string]string{"MCPEVENTS_QUEUE_INBOX_URL": "", envEventsDead: ""}))(t)
	_, missing := p.Variable(EnvKey)
	_, inbox := p.Drain(queue.Inbox, nil)(t.Context())
	for name, err := range map[string]error{EnvKey: missing, "MCPEVENTS_QUEUE_INBOX_URL": inbox} {
		expect.Fault(t, name, err, fault.Invalid, name+" is not set")
	}
}

// A panic in an invocation must not end the process. All functions are started by Run or NewHandler.
func TestAPanicFailsOneInvocation(t *testing.T) {
	p := expect.Value(started(t, nil))(t)
	var calls atomic.Int32
	panicFirst := func() {
		if calls.Add(1) == 1 {
			panic("oh")
		}
	}
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		panicFirst()
		w.WriteHeader(http.StatusAccepted)
	})
	const request = `{"version":"2.0","rawPath":"/","requestContext":{"domainName":"x","http":{"method":"GET"}}}`
	const batch = `{"Records":[{"messageId":"a","body":"1","eventSourceARN":"mine"}]}`
	for name, tc := range map[string]struct {
		handler              Handler
		event, first, second string
	}{
		"register and deregister": {p.InvokedHandler(BufferedHandler(page)), request, `"statusCode":500`, `"statusCode":202`},
		"publish":                 {p.InvokedHandler(p.Sources(BufferedHandler(page), nil)), request, `"statusCode":500`, `"statusCode":202`},
		"dispatch": {p.InvokedHandler(p.Sources(nil, func(string) queue.Handler {
			return func(context.Context, []queue.Message) ([]string, error) { panicFirst(); return nil, nil }
		})), batch, "panic", `"batchItemFailures":[]`},
		"fanout":          {p.InvokedHandler(p.BatchHandler(func(context.Context, []queue.Message) ([]string, error) { panicFirst(); return nil, nil })), batch, "panic", `"batchItemFailures":[]`},
		"retry and relay": {p.InvokedHandler(func(context.Context) error { panicFirst(); return nil }), `{}`, "the function panicked", "null"},
		"keys":            {NewHandler(func(context.Context) error { panicFirst(); return nil }, nil), `{}`, "the function panicked", "null"},
	} {
		t.Run(name, func(t *testing.T) {
			calls.Store(0)
			for _, want := range []string{tc.first, tc.second} {
				out, err := tc.handler.invoke.(lambda.Handler).Invoke(t.Context(), []byte(tc.event))
				got := string(out)
				if err != nil {
					got = err.Error()
				}
				expect.Contains(t, "the answer", got, want)
			}
		})
	}
	t.Run("stream and admin", func(t *testing.T) {
		calls.Store(0)
		serve := p.StreamHandler(page, nil).invoke.(func(context.Context, *events.LambdaFunctionURLRequest) (*events.LambdaFunctionURLStreamingResponse, error))
		for _, want := range []int{http.StatusInternalServerError, http.StatusAccepted} {
			got := expect.Value(serve(t.Context(), &events.LambdaFunctionURLRequest{RawPath: "/"}))(t)
			if body, err := io.ReadAll(got); err != nil || got.StatusCode != want {
				t.Errorf("got %d %s, %v, want %d", got.StatusCode, body, err, want)
			}
		}
	})
}

// Lambda passes the path of a request on as it is. If the function failed on it, any caller could raise the alarms of errors, and
// with them stop a gradual deployment.
func TestAMalformedPathIsABadRequest(t *testing.T) {
	p := expect.Value(started(t, nil))(t)
	page := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the request is served") })
	event := events.LambdaFunctionURLRequest{RawPath: "/%zz", RequestContext: events.LambdaFunctionURLRequestContext{DomainName: "example.com"}}
	t.Run("AWS-20 buffered", func(t *testing.T) {
		expect.Equal(t, "the status", expect.Value(BufferedHandler(page)(t.Context(), event))(t).StatusCode, http.StatusBadRequest)
	})
	t.Run("AWS-20 streamed", func(t *testing.T) {
		serve := p.StreamHandler(page, nil).invoke.(func(context.Context, *events.LambdaFunctionURLRequest) (*events.LambdaFunctionURLStreamingResponse, error))
		got := expect.Value(serve(t.Context(), &event))(t)
		if body, err := io.ReadAll(got); err != nil || got.StatusCode != http.StatusBadRequest {
			t.Errorf("got %d %s, %v, want %d", got.StatusCode, body, err, http.StatusBadRequest)
		}
	})
}

func TestAFailedStartIsAnExitCode(t *testing.T) {
	t.Setenv("MCPEVENTS_AUTH", "maybe")
	code := Run(All, func(*Process) (Handler, error) {
		t.Error("the function is created although its settings are invalid")
		return Handler{}, nil
	})
	expect.Equal(t, "the exit code", code, 1)
}

func TestARequestIsServedFromItsEvent(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/panic":
			w.WriteHeader(http.StatusAccepted)
			panic("oh")
		case "/nothing":
		case "/binary":
			_, _ = w.Write([]byte{0xff, 0x00})
		default:
			b, _ := io.ReadAll(r.Body)
			w.Header().Add("X-Two", "1")
			w.Header().Add("X-Two", "2")
			w.Header().Add("Set-Cookie", "a=b")
			w.WriteHeader(http.StatusTeapot)
			_, _ = w.Write([]byte(r.Method + " " + r.URL.String() + " " + r.Host + " " + r.Header.Get("Authorization") + " " + string(b)))
		}
	})
	serve := BufferedHandler(h)
	request := httptest.NewRequest("POST", "https://example.com/a%2Fb?c=d", nil)
	request.Header.Set("Authorization", "Bearer x")

	t.Run("serves the request of the event", func(t *testing.T) {
		for name, body := range map[string]string{"text": "hällo", "bytes": "\xff\x01"} {
			got, err := serve(t.Context(), Event(request, []byte(body)))
			want := "POST https://example.com/a%2Fb?c=d example.com Bearer x " + body
			if name == "bytes" {
				expect.True(t, "binary data is base64", got.IsBase64Encoded)
				continue
			}
			if err != nil || got.StatusCode != http.StatusTeapot || got.Body != want || got.Headers["X-Two"] != "1,2" || got.Cookies[0] != "a=b" {
				t.Errorf("got %+v, %v, want %q", got, err, want)
			}
		}
	})
	for name, tc := range map[string]struct {
		path   string
		status int
		body   string
		base64 bool
	}{
		"a panic is only a 500":                {"/panic", http.StatusInternalServerError, "", false},
		"a handler that writes nothing":        {"/nothing", http.StatusOK, "", false},
		"a body that is not a string is coded": {"/binary", http.StatusOK, "/wA=", true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := serve(t.Context(), Event(httptest.NewRequest("GET", "https://example.com"+tc.path, nil), nil))
			if err != nil || got.StatusCode != tc.status || got.Body != tc.body || got.IsBase64Encoded != tc.base64 {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	t.Run("an event that is not a request", func(t *testing.T) {
		got := expect.Value(serve(t.Context(), events.LambdaFunctionURLRequest{Body: "?", IsBase64Encoded: true}))(t)
		expect.Equal(t, "the status code", got.StatusCode, http.StatusBadRequest)
	})
}

func TestEventsReachTheirHandlers(t *testing.T) {
	p := expect.Value(started(t, nil))(t)
	handle := p.Sources(
		BufferedHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })),
		func(arn string) queue.Handler {
			if arn != "mine" {
				return nil
			}
			return func(ctx context.Context, batch []queue.Message) ([]string, error) {
				if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > 8*time.Second {
					return nil, errors.New("the batch has no time left to report")
				}
				return []string{batch[1].ID}, nil
			}
		},
	)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	// These ARNs do not belong to a queue, so the function sends no requests to SQS.
	batch := func(arn string) string {
		return `{"Records":[{"messageId":"a","body":"1","eventSourceARN":"` + arn + `"},{"messageId":"b","body":"2","eventSourceARN":"` + arn + `"}]}`
	}
	for name, tc := range map[string]struct{ event, want string }{
		"a batch":                     {batch("mine"), `{"batchItemFailures":[{"itemIdentifier":"b"}]}`},
		"a request":                   {`{"version":"2.0","rawPath":"/","requestContext":{"domainName":"x","http":{"method":"GET"}}}`, `"statusCode":202`},
		"a batch of another queue":    {batch("other"), "a queue that is not for this function"},
		"an event of another service": {`{"source":"aws.events"}`, "not a batch or a request"},
		"no JSON object":              {`[]`, "read the event"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := handle(ctx, json.RawMessage(tc.event))
			got, _ := json.Marshal(out)
			if err != nil {
				got = []byte(err.Error())
			}
			expect.Contains(t, "the answer", string(got), tc.want)
		})
	}
}

func TestAHandlerIsMadeOnceUnlessItFails(t *testing.T) {
	var calls atomic.Int32
	l := NewLazy(func(context.Context) (http.Handler, error) {
		if calls.Add(1) == 1 {
			return nil, fault.New(fault.Unavailable, "not yet")
		}
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }), nil
	})
	p := expect.Value(started(t, nil))(t)
	h := p.Handler(l)
	status := func() int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		return w.Code
	}
	expect.Equal(t, "the status while the handler cannot be made", status(), http.StatusServiceUnavailable)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			expect.Equal(t, "the status", status(), http.StatusNoContent)
		})
	}
	wg.Wait()
	expect.Equal(t, "how often the handler was made", calls.Load(), 2)
}
