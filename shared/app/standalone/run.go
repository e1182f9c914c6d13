package standalone

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

const (
	attempts = 256 // concurrent first attempts
	// attemptPatience is how long a first attempt keeps its slot while the endpoint does not respond.
	attemptPatience = 2 * time.Second
	slowAttempts    = 512 // concurrent attempts of the slow lane
	slowPerEndpoint = 8   // of them for the same endpoint
	// pageWorkers is the number of batches of pages that are handled concurrently. Pages wait for slow endpoints for seconds.
	// To leave workers for other pages, at most pagesPerGroup of them handle pages of the same pattern or busy endpoint.
	pageWorkers, pagesPerGroup = 512, 128
	// queueBytes limits the bodies that a queue keeps in memory, and attemptBytes the bodies of the running attempts. Other bodies
	// stay in the file. Without the limits, large payloads would need much memory, because each is copied several times.
	queueBytes   = 16 << 20
	attemptBytes = 32 << 20
	// savePositions is how often the periodic jobs save their positions. It is long, so that an idle server does not write to
	// the disk.
	savePositions = time.Hour
	// replayEvery is how often replays continue. It is short, because canceling a replay does not stop the deliveries that it
	// has scheduled for this time.
	replayEvery = 4 * time.Second
	// callLogDelay is how long the log line of a call to a backend may wait for others. A process that is killed loses the waiting lines.
	callLogDelay = 100 * time.Millisecond
)

// run starts the workers, which end with [Server.Shutdown] and not with ctx.
func (s *Server) run(ctx context.Context, r roles) {
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.work(ctx, queue.Events, r.fanout.Handle, queue.ConsumeOptions{Batch: 100, Concurrency: 4, MaxReceives: queue.MaxReceives, Bytes: queueBytes / 2})
	s.work(ctx, queue.Deliveries, s.dispatcher.Pages, queue.ConsumeOptions{
		Batch: 10, Concurrency: pageWorkers, PerGroup: pagesPerGroup, Bytes: queueBytes, Visibility: 2 * time.Minute, MaxReceives: queue.MaxReceives,
	})
	s.work(ctx, queue.Slow, s.dispatcher.Singles, queue.ConsumeOptions{
		Batch: 1, Concurrency: slowAttempts, PerGroup: slowPerEndpoint, Visibility: 2 * time.Minute,
	})
	s.work(ctx, queue.Inbox, r.publishing.Inbox.Handle, queue.ConsumeOptions{Batch: 10, Concurrency: 2, MaxReceives: queue.MaxReceives})
	s.work(ctx, queue.Dead, r.operations.File, queue.ConsumeOptions{})
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
