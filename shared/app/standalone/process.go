package standalone

import (
	"context"
	"encoding/json"
	"math"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// debugConnections is the maximum number of concurrent connections to the address of [ServeDebug].
const debugConnections = 16

// ServeDebug serves net/http/pprof and [Server.Counters] at a separate address until ctx ends, and returns immediately. The address must
// be a loopback address, because callers are not authenticated. ServeDebug refuses requests from web pages of other sites, and
// requests whose Host is not a loopback name. The function started returns the server, or nil while the server is starting.
func ServeDebug(ctx context.Context, addr string, started func() *Server) error {
	if err := auth.CheckListen(addr, auth.ModeNone); err != nil {
		return fault.Wrap(fault.Invalid, err, "--debug-addr")
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "listen for debugging")
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/vars", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		counters := map[string]any{} // empty while the server starts
		if s := started(); s != nil {
			counters = s.Counters()
		}
		_ = json.NewEncoder(w).Encode(counters) // fails if the client has disconnected
	})
	guard := auth.NewGuard(nil, nil, nil)
	guarded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := guard.Check(r); err != nil {
			http.Error(w, fault.Public(err), http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
	s := &http.Server{Handler: boundBodies(guarded, bodyTime), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10}
	limited := limitConnections(l, debugConnections)
	limited.attach(s)
	context.AfterFunc(ctx, func() { _ = s.Close() })
	go func() { _ = s.Serve(limited) }()
	return nil
}

// Counters returns internal counters since the start, for debugging.
func (s *Server) Counters() map[string]any {
	return map[string]any{
		"database":                 s.db.Engine().Stats(),
		gateway.MetricDropped:      s.backends.DroppedCounts(),
		conversation.MetricMissing: s.conversation.FailureCounts(),
	}
}

const (
	// minReserve and maxReserve limit the reserve, in bytes. The reserve is how much the process may allocate between two garbage
	// collections while its live heap is small. A server's live heap usually is, so by default Go would collect garbage after every few
	// megabytes.
	minReserve, maxReserve = 16 << 20, 64 << 20
	// betweenGCs is the intended time between two collections. A collection slows down requests for about 10 ms. With one collection
	// every 2 s these are 0.5% of all requests, so the 99th percentile of response times hardly changes.
	betweenGCs = 2 * time.Second
	// quietAfter is the time without a collection after which a busy server counts as quiet and returns unused memory to the
	// system.
	quietAfter = 3 * betweenGCs
	// maxPercent is the largest value for GOGC. It applies if the live heap is almost empty.
	maxPercent = 800
)

// CollectLessOften makes the garbage collector run when the heap has grown by a reserve or by a quarter, whichever is later.
// The reserve is the amount that the process allocates in two seconds (at least 16 and at most 64 MiB). So a busy server
// collects garbage about every two seconds, and the heap of a quiet one stays small. A server that becomes quiet returns the
// memory that it needed while it was busy. Without that, the Go runtime would keep most of it for minutes.
//
// CollectLessOften does nothing if the operator has set GOGC or GOMEMLIMIT. It changes the whole process, so call it only in
// programs whose main task is the server.
func CollectLessOften() {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		collectLessOften(quietAfter, debug.FreeOSMemory)
	}
}

// collectLessOften implements [CollectLessOften]. Tests pass a shorter time and another function instead of the one that
// returns memory.
func collectLessOften(quietAfter time.Duration, returnMemory func()) {
	quiet := time.AfterFunc(quietAfter, returnMemory)
	quiet.Stop()
	set, allocated, last := 0, uint64(0), time.Now()
	var after func()
	after = func() {
		now := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
		metrics.Read(now)
		live, total := now[0].Value.Uint64(), now[1].Value.Uint64()
		reserve := reserveFor(total-allocated, time.Since(last))
		if reserve > minReserve {
			quiet.Reset(quietAfter)
		}
		if percent := gcPercent(live, reserve); percent != set {
			debug.SetGCPercent(percent)
			set = percent
		}
		allocated, last = total, time.Now()
		cycle := new(*byte) // collected by the next cycle
		runtime.AddCleanup(cycle, func(func()) { after() }, after)
	}
	after()
}

// reserveFor returns the reserve in bytes, from the number of bytes that were allocated since the last collection and the time since
// then.
func reserveFor(allocated uint64, since time.Duration) float64 {
	return min(max(float64(allocated)*float64(betweenGCs)/float64(max(since, time.Millisecond)), minReserve), maxReserve)
}

// gcPercent returns the value for GOGC with which a live heap may grow by the reserve before the next collection.
func gcPercent(live uint64, reserve float64) int {
	percent := int(min(math.Ceil(100*reserve/float64(max(live, 1))), maxPercent))
	return max(percent/25*25, 25) // in steps: setting it stops the world
}

const (
	attempts = 256 // concurrent first attempts
	// attemptPatience is how long a first attempt keeps its slot while the endpoint does not respond. After that, the delivery moves to
	// the slow lane.
	attemptPatience = 2 * time.Second
	slowAttempts    = 512 // concurrent attempts of the slow lane
	slowPerEndpoint = 8   // of them for the same endpoint
	// pageWorkers is the number of batches of page tasks that are handled concurrently. It is large because a batch may wait several
	// seconds for slow endpoints. At most pagesPerGroup workers handle page tasks of the same pattern, or of the same busy endpoint, so
	// that there are workers left for others.
	pageWorkers, pagesPerGroup = 512, 128
	// queueBytes limits the total size of the message bodies that a queue keeps in memory. attemptBytes limits the total size
	// of the events in running attempts. Other messages stay in the database. Without these limits, large payloads would need
	// much memory, because each payload is copied several times.
	queueBytes   = 16 << 20
	attemptBytes = 32 << 20
	// savePositions is how often the periodic jobs save how far they have come. It is long, so that an idle server does not write to the
	// disk.
	savePositions = time.Hour
	// replayEvery is how often replays continue. Each time, a replay schedules its deliveries for the next few seconds. The interval is
	// short because canceling a replay does not stop the deliveries that are already scheduled.
	replayEvery = 4 * time.Second
	// callLogDelay is how long the log line of a call to a backend may be delayed, so that several lines are written together. If the
	// process is killed, the delayed lines are lost.
	callLogDelay = 100 * time.Millisecond
)

// run starts the workers. They stop at [Server.Shutdown], and not when ctx ends.
func (s *Server) run(ctx context.Context, r roles) {
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.work(ctx, queue.Events, r.fanout.Handle, queue.ConsumeOptions{Batch: 100, Concurrency: 4, MaxReceives: queue.MaxReceives, Bytes: queueBytes / 2})
	s.work(ctx, queue.Deliveries, s.dispatcher.HandlePages, queue.ConsumeOptions{
		Batch: 10, Concurrency: pageWorkers, PerGroup: pagesPerGroup, Bytes: queueBytes, Visibility: 2 * time.Minute, MaxReceives: queue.MaxReceives,
	})
	s.work(ctx, queue.Slow, s.dispatcher.HandleSingles, queue.ConsumeOptions{
		Batch: 1, Concurrency: slowAttempts, PerGroup: slowPerEndpoint, Visibility: 2 * time.Minute,
	})
	s.work(ctx, queue.Inbox, r.publishing.Inbox.Handle, queue.ConsumeOptions{Batch: 10, Concurrency: 2, MaxReceives: queue.MaxReceives})
	s.work(ctx, queue.Dead, r.operations.FileMessages, queue.ConsumeOptions{})
	s.workers.Go(func() {
		periodic.Every(ctx, time.Minute, s.core.Log, r.jobs...)
	})
	s.workers.Go(func() {
		periodic.Every(ctx, replayEvery, s.core.Log, periodic.Job{Name: "replays", Run: r.replays.Run})
	})
	s.workers.Go(func() { r.relay.Run(ctx) })
}

func (s *Server) work(ctx context.Context, name queue.Name, h queue.Handler, o queue.ConsumeOptions) {
	s.workers.Go(func() {
		if err := s.queues.Consume(ctx, name, h, o); err != nil && ctx.Err() == nil {
			s.core.Log.Error("worker stopped", "queue", name, "error", err)
		}
	})
}

// newRoutes returns the handler of all paths except the admin API and the console.
func (s *Server) newRoutes(publishing app.Publishing, identity *webhook.Identity) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("/mcp", s.endpoint)
	mux.Handle("/mcp/{"+mcp.PathWorkspace+"}", s.endpoint)
	mux.Handle("/events", publishing.Handler)
	publishing.Sources.Mount(mux)
	consent := app.NewConsent(s.core, s.conversation)
	mux.Handle("/consent", consent)
	mux.Handle("/consent/{"+conversation.PathProvider+"}", consent)
	if s.tokens != nil {
		s.tokens.Mount(mux)
	}
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /metrics", s.serveMetrics)
	mux.HandleFunc("GET /.well-known/mcp-webhook-jwks.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/jwk-set+json")
		w.Header().Set("Cache-Control", "public, max-age=300")
		_, _ = w.Write(identity.JWKS())
	})
	return mux
}

// healthz responds with 200 if the server can write to its store, and otherwise with 503.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if err := s.db.Engine().Health(); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(map[string]string{"status": "unavailable", "reason": fault.Public(err)})
		return
	}
	_, _ = w.Write([]byte(`{"status":"ok"}` + "\n"))
}
