package boot

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/base64"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdaurl"

	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Handler serves the invocations of a function. If an invocation panics, only that invocation fails.
type Handler struct {
	invoke any // a handler as [lambda.Start] accepts it
	end    func()
}

// Run starts a function and returns the exit code of its process. First it builds the process. Then it calls the function create, which
// connects the parts of the Lambda function and returns their handler. Run serves invocations with the handler until Lambda ends the
// process.
//
// If the process exits before it serves an invocation, Lambda reports a failed start.
func Run(needs Needs, create func(*Process) (Handler, error)) (code int) {
	p, err := Build(needs)
	if err == nil {
		var h Handler
		if h, err = create(p); err == nil {
			h.Serve()
			return 0
		}
	}
	slog.Error("function start failed", "error", err)
	return 1
}

// NewHandler returns a handler that calls f. The type of f must be one that [lambda.Start] accepts. If end is not nil, the handler calls
// it when Lambda sends SIGTERM to the process. Lambda kills the process 500 ms later.
func NewHandler(f any, end func()) Handler { return Handler{recovering{lambda.NewHandler(f)}, end} }

// Serve serves invocations until Lambda ends the process.
func (h Handler) Serve() {
	if h.end == nil {
		lambda.Start(h.invoke) // never returns
	}
	ended := make(chan struct{})
	go lambda.StartWithOptions(h.invoke, lambda.WithEnableSIGTERM(func() { h.end(); close(ended) }))
	<-ended
}

// InvokedHandler returns a handler that calls f. The type of f must be one that [lambda.Start] accepts. After each invocation, the
// handler writes spans and metrics, because Lambda may then freeze the process. It also writes them every minute of a longer invocation,
// and before the process ends.
func (p *Process) InvokedHandler(f any) Handler {
	h := NewHandler(f, p.flush)
	h.invoke = measured{h.invoke.(lambda.Handler), p}
	return h
}

// BeforeEnd adds a function that is called when Lambda ends the process, before the remaining metrics are written. It returns the changed
// handler.
func (h Handler) BeforeEnd(f func()) Handler {
	end := h.end
	h.end = func() {
		f()
		if end != nil {
			end()
		}
	}
	return h
}

// StreamHandler returns the handler of a function that streams its responses. It writes spans and metrics after each request. The
// parameter open may be nil. Otherwise it is an HTTP handler with long-lived streams, which StreamHandler closes before the process ends.
func (p *Process) StreamHandler(h http.Handler, open *Lazy[http.Handler]) Handler {
	end := p.flush
	if open != nil {
		end = func() { p.endStreams(open) }
	}
	serve := lambdaurl.Wrap(p.measureStream(recoverStream(h)))
	return Handler{func(ctx context.Context, event *events.LambdaFunctionURLRequest) (*events.LambdaFunctionURLStreamingResponse, error) {
		response, err := serve(ctx, event)
		if err != nil { // the URL is malformed, which must not count as an error of the function
			return &events.LambdaFunctionURLStreamingResponse{StatusCode: http.StatusBadRequest}, nil
		}
		return response, nil
	}, end}
}

func (p *Process) flush() {
	p.emf.Close(context.Background())
	p.sendSpans(context.Background())
}

// Lambda kills a process 500 ms after SIGTERM. Open streams have drainTime to end. The process stays alive until lastWords after SIGTERM,
// so that the Lambda runtime can forward the last messages of the streams. The runtime does not signal when it has forwarded them.
const (
	drainTime = 250 * time.Millisecond
	lastWords = 480 * time.Millisecond
)

// endStreams closes the open streams of a handler, and waits until their last messages are sent.
func (p *Process) endStreams(open *Lazy[http.Handler]) {
	end := time.After(lastWords)
	p.drain(open)
	p.emf.Close(context.Background())
	<-end
}

// drain closes the open streams of a handler. It does nothing if the handler was never created or has no method Close.
func (p *Process) drain(open *Lazy[http.Handler]) {
	h, _ := open.Made()
	streams, ok := h.(interface{ Close(context.Context) error })
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	if err := streams.Close(ctx); err != nil {
		p.Log.Warn("stream drain timed out", "error", err)
	}
}

// recovering is a Lambda handler that turns a panic into an error. Otherwise the Lambda runtime would end the process.
type recovering struct{ lambda.Handler }

func (h recovering) Invoke(ctx context.Context, payload []byte) (response []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			slog.ErrorContext(ctx, "invocation panicked", "panic", p, "stack", string(debug.Stack()))
			err = fault.New(fault.Internal, "the function panicked")
		}
	}()
	return h.Handler.Invoke(ctx, payload)
}

// recoverStream returns an HTTP handler that responds with status 500 if h panics before it has written a response. Package lambdaurl
// calls h in a goroutine of its own, so a panic in it would otherwise end the process.
func recoverStream(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				logPanic(r, p)
				w.WriteHeader(http.StatusInternalServerError) // ignored if the response has begun
			}
		}()
		h.ServeHTTP(w, r)
	})
}

func logPanic(r *http.Request, p any) {
	slog.ErrorContext(r.Context(), "request panicked", "panic", p, "stack", string(debug.Stack()))
}

type measured struct {
	lambda.Handler
	process *Process
}

func (m measured) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	defer m.process.flushEvery(ctx, time.Minute)()
	return m.Handler.Invoke(ctx, payload)
}

// flushEvery writes metrics and spans at an interval until the returned function stop is called. stop writes them once more.
func (p *Process) flushEvery(ctx context.Context, interval time.Duration) (stop func()) {
	write := func() {
		p.emf.Flush(ctx)
		p.sendSpans(ctx)
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				write()
			case <-done:
				return
			}
		}
	}()
	return func() {
		close(done)
		<-ended
		write()
	}
}

func (p *Process) measureStream(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer p.sendSpans(r.Context())
		defer p.emf.Flush(context.WithoutCancel(r.Context()))
		h.ServeHTTP(w, r)
	})
}

// BufferedHandler converts an HTTP handler to the handler of a Function URL without streaming. If the HTTP handler panics, the response
// has status 500, and the process continues.
func BufferedHandler(h http.Handler) func(context.Context, events.LambdaFunctionURLRequest) (events.LambdaFunctionURLResponse, error) {
	return func(ctx context.Context, event events.LambdaFunctionURLRequest) (events.LambdaFunctionURLResponse, error) {
		r, err := request(ctx, event)
		if err != nil {
			return events.LambdaFunctionURLResponse{StatusCode: http.StatusBadRequest}, nil
		}
		w := httpjson.NewRecorder()
		serve(w, r, h)
		return response(w), nil
	}
}

func serve(w *httpjson.Recorder, r *http.Request, h http.Handler) {
	defer func() {
		if p := recover(); p != nil {
			logPanic(r, p)
			*w = *httpjson.NewRecorder()
			w.WriteHeader(http.StatusInternalServerError)
		}
	}()
	h.ServeHTTP(w, r)
}

// request converts an event of a Function URL to an HTTP request.
func request(ctx context.Context, event events.LambdaFunctionURLRequest) (*http.Request, error) {
	body := []byte(event.Body)
	if event.IsBase64Encoded {
		var err error
		if body, err = base64.StdEncoding.DecodeString(event.Body); err != nil {
			return nil, err
		}
	}
	url := "https://" + event.RequestContext.DomainName + event.RawPath
	if event.RawQueryString != "" {
		url += "?" + event.RawQueryString
	}
	r, err := http.NewRequestWithContext(ctx, event.RequestContext.HTTP.Method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.RemoteAddr = event.RequestContext.HTTP.SourceIP
	for k, v := range event.Headers {
		r.Header.Set(k, v)
	}
	return r, nil
}

// Event converts an HTTP request to an event of a Function URL. Another function can then serve the request as if it had arrived at its
// own URL.
func Event(r *http.Request, body []byte) events.LambdaFunctionURLRequest {
	event := events.LambdaFunctionURLRequest{
		Version: "2.0", RawPath: r.URL.EscapedPath(), RawQueryString: r.URL.RawQuery,
		Headers: make(map[string]string, len(r.Header)),
		RequestContext: events.LambdaFunctionURLRequestContext{
			DomainName: r.Host,
			HTTP: events.LambdaFunctionURLRequestContextHTTPDescription{
				Method: r.Method, Path: r.URL.Path, Protocol: r.Proto, SourceIP: r.RemoteAddr, UserAgent: r.UserAgent(),
			},
		},
	}
	for k, v := range r.Header {
		event.Headers[strings.ToLower(k)] = strings.Join(v, ",")
	}
	if utf8.Valid(body) {
		event.Body = string(body)
	} else {
		event.Body, event.IsBase64Encoded = base64.StdEncoding.EncodeToString(body), true
	}
	return event
}

func response(w *httpjson.Recorder) events.LambdaFunctionURLResponse {
	w.WriteHeader(http.StatusOK)
	out := events.LambdaFunctionURLResponse{StatusCode: w.Status, Headers: make(map[string]string, len(w.Header()))}
	for k, v := range w.Header() {
		if k == "Set-Cookie" {
			out.Cookies = v
			continue
		}
		out.Headers[k] = strings.Join(v, ",")
	}
	if b := w.Body.Bytes(); utf8.Valid(b) {
		out.Body = string(b)
	} else {
		out.Body, out.IsBase64Encoded = base64.StdEncoding.EncodeToString(b), true
	}
	return out
}

const (
	// envFrontKey is the environment variable with the secret key that CloudFront sends in the header frontHeader of every request. If a
	// client sends this header, CloudFront replaces it. The variable is empty in a deployment without CloudFront.
	envFrontKey = "MCPEVENTS_FRONT_KEY"
	frontHeader = "X-Mcpevents-Front"
)

// RequireFront returns a handler that refuses requests that did not come through CloudFront. Otherwise a client that knows a function's URL
// could bypass CloudFront's firewall. If the deployment does not use CloudFront, RequireFront returns next.
//
// CloudFront sends a secret key in a header of each request. The handler removes this header before it calls next, because functions store
// the headers of some requests in events and dead letters.
func (p *Process) RequireFront(next http.Handler) http.Handler {
	key := []byte(p.getenv(envFrontKey))
	if len(key) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get(frontHeader)), key) != 1 {
			http.Error(w, "this deployment is served at another host", http.StatusForbidden)
			return
		}
		r.Header.Del(frontHeader)
		next.ServeHTTP(w, r)
	})
}
