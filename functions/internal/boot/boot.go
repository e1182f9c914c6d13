// Package boot starts the process of a Lambda function, and runs the function's handler for each batch of messages or HTTP request.
//
// The first batch or request has to wait for the start of the process (cold start). So the start sends no requests to AWS services. A
// part of the process that needs such requests is created at its first use ([Lazy]).
package boot

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/mcp-events/mcpevents/functions/internal/parameters"
	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/awsx"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/platform/trace/otlp"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	queuesqs "github.com/mcp-events/mcpevents/shared/storage/queue/sqs"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/dynamo"
)

// template.yaml sets these environment variables in addition to the settings of [config.FromEnv]. The variable for a table or queue ends
// with the table's or queue's name in capitals, for example MCPEVENTS_TABLE_LOG or MCPEVENTS_QUEUE_SLOW_URL. A function gets only the
// variables for tables and queues that its policy allows it to use.
const (
	envTable    = "MCPEVENTS_TABLE_"
	envQueue    = "MCPEVENTS_QUEUE_"
	envAuth     = "MCPEVENTS_AUTH"
	envLogLevel = "MCPEVENTS_LOG_LEVEL"
	envStack    = "MCPEVENTS_STACK"
	// EnvKey names the KMS key that encrypts the private keyset for webhook secrets.
	EnvKey = "MCPEVENTS_KEY_ID"
	// EnvRegister and EnvDeregister name the functions to which the stream function forwards changes of subscriptions.
	EnvRegister   = "MCPEVENTS_REGISTER_FUNCTION"
	EnvDeregister = "MCPEVENTS_DEREGISTER_FUNCTION"
	// EnvPublishURL is the URL of the publish function, to which backends send their events as webhooks.
	EnvPublishURL = "MCPEVENTS_PUBLISH_URL"
	envEventsDead = "MCPEVENTS_QUEUE_EVENTS_DEAD_URL"
)

// Process holds the parts that all functions need.
type Process struct {
	*app.Core
	AWS     aws.Config
	Secrets *parameters.Store
	Mode    auth.Mode

	queues    *queuesqs.Queues
	emf       *metric.EMF
	spans     *sdktrace.TracerProvider // nil if spans are not exported
	collector collector                // limits the time spent on exporting spans and metrics
	getenv    func(string) string
	mount     func(*http.ServeMux)
}

// Build creates the parts of the process from the settings in the environment.
func Build(needs Needs) (*Process, error) { return build(os.Getenv, needs) }

func build(getenv func(string) string, needs Needs) (*Process, error) {
	level := &slog.LevelVar{}
	log := newLog(level)
	s, err := readSettings(getenv, needs, log)
	if err != nil {
		return nil, err
	}
	level.Set(s.level)
	cfg, err := awsx.Load()
	if err != nil {
		return nil, err
	}
	slog.SetDefault(log)
	p := &Process{AWS: cfg, Secrets: parameters.New(cfg, log), Mode: s.mode, getenv: getenv}
	p.queues = queuesqs.New(sqs.NewFromConfig(cfg), func(q queue.Name) string { return getenv(queueVariable(q)) }, log)
	counters, tracer, err := p.createMetrics(s.limits, log)
	if err != nil {
		return nil, err
	}
	db := dynamo.New(dynamodb.NewFromConfig(cfg), func(t store.Table) string { return tableName(getenv(tableVariable(t))) })
	configs := config.NewStored(db, time.Now, log)
	authenticator, metadata := p.authenticator(s, needs, configs)
	p.Core = &app.Core{
		DB: db, Queues: p.queues, Catalogs: catalog.NewStored(db, time.Now, log, configs.EventTypes), Config: configs,
		EventLog: &eventlog.Log{DB: db, Retention: s.limits.LogRetention}, Demand: demand.New(db), Limits: s.limits, Log: log, Metrics: counters, Tracer: tracer,
		Auth: authenticator, Guard: auth.NewGuard(s.limits.AllowedOrigins, s.limits.AllowedHosts, log), ResourceMetadata: metadata,
	}
	return p, fault.Wrap(fault.Internal, p.WatchLog(), "make the metrics")
}

func (p *Process) createMetrics(l config.Limits, log *slog.Logger) (counters *metric.Set, tracer *trace.Tracer, err error) {
	stack := p.getenv(envStack)
	p.emf = metric.NewEMF(newLog(slog.LevelInfo), stack, time.Now) // not subject to the log level, because alarms depend on the metrics
	if counters, err = metric.NewSet(p.emf.Provider()); err != nil {
		return nil, nil, fault.Wrap(fault.Internal, err, "make the metrics")
	}
	if l.OTLPEndpoint == "" {
		return counters, nil, nil
	}
	to := otlp.Options{Endpoint: l.OTLPEndpoint, Ratio: l.TraceRatio, Version: app.Version, Log: log, Metrics: counters}
	if p.spans, _, err = otlp.Provider(to); err != nil {
		return nil, nil, err
	}
	to.HTTP = &http.Client{Timeout: flushTime}
	export, err := otlp.Metrics(to, stack)
	if err != nil {
		return nil, nil, err
	}
	p.emf.Export = func(ctx context.Context, all *metricdata.ResourceMetrics) {
		p.collector.send(ctx, func(ctx context.Context) { export(ctx, all) })
	}
	return counters, trace.New(p.spans), nil
}

// authenticator returns the authenticator for callers, and the URL at which callers learn how to get a token. With --auth keys, functions
// without callers get an authenticator, too, because they use it to check whether principals still have their rights.
func (p *Process) authenticator(s settings, needs Needs, configs *config.Stored) (_ auth.Authenticator, metadataURL string) {
	switch {
	case s.mode == auth.ModeKeys:
		return configs.Authenticator(), ""
	case s.mode == auth.ModeNone && needs&Callers != 0:
		return auth.AcceptAll(), ""
	case s.access != nil:
		p.mount = s.access.Mount
		return s.access, s.access.MetadataURL()
	}
	return nil, ""
}

// Variable returns the value of an environment variable, or an error if the variable is not set.
func (p *Process) Variable(name string) (string, error) {
	if v := p.getenv(name); v != "" {
		return v, nil
	}
	return "", fault.New(fault.Invalid, "%s is not set", name)
}

// IsFrom reports whether arn is the ARN of the queue with the given name. A function uses it to find out from which queue a batch comes.
func (p *Process) IsFrom(arn string, name queue.Name) bool {
	url := p.getenv(queueVariable(name))
	return arn[strings.LastIndexByte(arn, ':')+1:] == url[strings.LastIndexByte(url, '/')+1:]
}

func tableVariable(t store.Table) string { return envTable + strings.ToUpper(string(t)) }

// tableName returns the name of a table. The parameter given is either the name or the ARN of the table.
func tableName(given string) string { return given[strings.LastIndexByte(given, '/')+1:] }

func queueVariable(q queue.Name) string { return envQueue + strings.ToUpper(string(q)) + "_URL" }

// newLog returns a logger that writes JSON with the members timestamp, level and message. Lambda interprets these members.
func newLog(level slog.Leveler) *slog.Logger {
	return slog.New(slog.NewJSONHandler(os.Stdout, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 {
				switch a.Key {
				case slog.TimeKey:
					a.Key = "timestamp"
				case slog.MessageKey:
					a.Key = "message"
				}
			}
			return a
		},
	}))
}

const (
	// flushTime limits how long an invocation, and therefore its caller, waits for the collector of spans and metrics.
	flushTime = 500 * time.Millisecond
	// flushPause is how long a process stops sending to the collector after the collector was too slow.
	flushPause = time.Minute
)

// collector sends spans and metrics to the OpenTelemetry collector. If that is slow, an invocation waits at most flushTime for it, and
// sends no more for the time flushPause.
type collector struct {
	mu     sync.Mutex
	paused time.Time
}

// send calls the function f, which sends spans or metrics to the collector. The context of f ends after flushTime. If the collector was
// too slow recently, send does not call f, and the spans and metrics of that time are lost.
func (c *collector) send(ctx context.Context, f func(ctx context.Context)) {
	c.mu.Lock()
	paused := time.Now().Before(c.paused)
	c.mu.Unlock()
	if paused {
		return
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
	defer cancel()
	f(ctx)
	if time.Since(began) >= flushTime { // compare the time, because the HTTP client of f may have timed out first
		c.mu.Lock()
		defer c.mu.Unlock()
		c.paused = periodic.WallClock().Add(flushPause)
	}
}

// sendSpans sends the finished spans to the collector, if the function has one.
func (p *Process) sendSpans(ctx context.Context) {
	if p.spans != nil {
		p.collector.send(ctx, func(ctx context.Context) { _ = p.spans.ForceFlush(ctx) })
	}
}

// Lazy is a value that is created at its first use, because its creation needs requests. If the creation fails, the next use tries again.
type Lazy[T any] struct {
	make func(context.Context) (T, error)

	mu    sync.Mutex
	made  bool
	value T
}

// NewLazy returns a value that the function make creates at its first use.
func NewLazy[T any](make func(context.Context) (T, error)) *Lazy[T] { return &Lazy[T]{make: make} }

// Get returns the value, and creates it first if necessary. Concurrent callers wait for the creation.
func (l *Lazy[T]) Get(ctx context.Context) (T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.made {
		v, err := l.make(ctx)
		if err != nil {
			return v, err
		}
		l.value, l.made = v, true
	}
	return l.value, nil
}

// Made returns the value if Get has created it. Made itself does not create it.
func (l *Lazy[T]) Made() (value T, made bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.value, l.made
}

// Handler returns an HTTP handler that passes requests to the handler in l. The first request creates the handler in l. If the creation
// fails, the response has status 503.
func (p *Process) Handler(l *Lazy[http.Handler]) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, err := l.Get(r.Context())
		if err != nil {
			p.Log.ErrorContext(r.Context(), "function not ready", "error", err)
			w.Header().Set("Retry-After", "1")
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"error":{"kind":"unavailable","message":"the service is not ready"}}` + "\n"))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// Serve returns the routes for a function with a URL. The handler h serves the given paths. There is also GET /healthz and, if callers
// authenticate with JWTs, the protected resource metadata.
func (p *Process) Serve(h http.Handler, paths ...string) *http.ServeMux {
	mux := http.NewServeMux()
	for _, path := range paths {
		mux.Handle(path, h)
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"status":"ok"}` + "\n"))
	})
	if p.mount != nil {
		p.mount(mux)
	}
	return mux
}
