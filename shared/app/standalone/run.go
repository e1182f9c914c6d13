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
	// attempts is how many first attempts are made at once.
	attempts = 256
	// attemptPatience is how long one may keep its place among them without an answer.
	attemptPatience = 2 * time.Second
	// slowAttempts is how many attempts the slow lane makes at once, each for itself.
	slowAttempts = 512
	// slowPerEndpoint is how many of them are for one endpoint.
	slowPerEndpoint = 8
	// pageWorkers is how many batches of pages are handled concurrently, and pagesPerGroup how many pages of one pattern or
	// of one busy endpoint. Pages wait for slow endpoints for seconds, so there are enough workers for the others.
	pageWorkers, pagesPerGroup = 512, 128
	// queueBytes bounds the bodies that a queue keeps in memory, and attemptBytes those of the
	// attempts under way; what is more waits in the file. With large payloads each is held
	// several times on its way.
	queueBytes   = 16 << 20
	attemptBytes = 32 << 20
	// savePositions is how often the jobs of every minute write where they are, so that a
	// server at rest syncs nothing.
	savePositions = time.Hour
	// replayEvery is how often replays go on: often, for canceling one does not stop what is scheduled until then.
	replayEvery = 4 * time.Second
)

// run starts the workers. They end with [Server.Shutdown], not with ctx.
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

// routes are the paths that are served.
func (s *Server) routes(publishing app.Publishing, identity *webhook.Identity) *http.ServeMux {
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

// healthz answers whether the server can write what it accepts.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if err := s.db.Engine().Health(); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(map[string]string{"status": "unavailable", "reason": fault.Public(err)})
		return
	}
	_, _ = w.Write([]byte(`{"status":"ok"}` + "\n"))
}
