package standalone

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

const (
	// attemptPatience is how long the dispatcher waits for a slow endpoint when it sends an event for the first time. After that time,
	// the attempt continues in the background. If too many attempts are already in the background, the slow lane repeats the attempt. The
	// slow lane is a queue with workers of its own.
	attemptPatience = 2 * time.Second
	slowPerEndpoint = 8 // concurrent attempts of the slow lane to the same endpoint
	// pageWorkers is the number of workers for page tasks, which send an event to a range of subscribers. It is large because a page task
	// may wait several seconds for slow endpoints. At most pagesPerGroup workers handle page tasks for the same URI pattern or the same
	// busy endpoint, so that workers are left for others.
	pageWorkers, pagesPerGroup = 512, 128
	// queueBytes limits the total size of the message bodies that a queue keeps in memory. Further messages stay only in the database.
	// attemptBytes limits the memory for the events in running attempts. It is a separate limit, because attempts have their own copies
	// of the events.
	queueBytes   = 16 << 20
	attemptBytes = 32 << 20
	// savePositions is how often the periodic jobs save how far they have come. The interval is long, so that a server without work does
	// not write to the disk.
	savePositions = time.Hour
	// replayEvery is how often a running replay schedules its next deliveries. It schedules only the deliveries of a few seconds, because
	// the cancellation of a replay does not stop scheduled deliveries.
	replayEvery = 4 * time.Second
	// callLogDelay is how long the log line of a call to a backend may wait, so that several lines are written together. If the process
	// is killed, waiting lines are lost.
	callLogDelay = 100 * time.Millisecond
	// streamLinger is how long the gateway keeps the GET stream of its session with a backend open after a call. A new connection with
	// TLS would take several round trips.
	streamLinger = time.Minute
)

// attemptLimits has the numbers of attempts to send a webhook that may run at the same time.
type attemptLimits struct {
	first    int // attempts to send an event for the first time, for at most attemptPatience
	detached int // first attempts that continue in the background after attemptPatience
	slow     int // attempts of the slow lane; a principal gets at most three quarters of them (see [queue.Outgoing.Owner])
}

// newAttemptLimits divides the connections to endpoints among three kinds of attempts: first attempts, attempts in the slow lane, and
// detached attempts, which are first attempts that continue in the background. The parameter conns is the number of connections.
//
// Slow and detached attempts together get at most half of the connections. So endpoints that hang leave the other half to first attempts.
// With very few connections, first and slow attempts still get at least one each.
func newAttemptLimits(conns int) attemptLimits {
	return attemptLimits{first: min(256, max(1, conns/2)), detached: min(1024, conns/4), slow: min(512, max(1, conns/4))}
}

// run starts the workers. They run until [Server.Shutdown] is called, even if ctx, the context of [New], ends before.
func (s *Server) run(ctx context.Context, r roles) {
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.work(ctx, queue.Events, r.fanout.Handle, queue.ConsumeOptions{Batch: 100, Concurrency: 4, MaxReceives: queue.MaxReceives, Bytes: queueBytes / 2})
	s.work(ctx, queue.Deliveries, s.dispatcher.HandlePages, queue.ConsumeOptions{
		Batch: 10, Concurrency: pageWorkers, PerGroup: pagesPerGroup, Bytes: queueBytes, Visibility: 2 * time.Minute, MaxReceives: queue.MaxReceives,
	})
	s.work(ctx, queue.Slow, s.dispatcher.HandleSingles, queue.ConsumeOptions{
		Batch: 1, Concurrency: s.attempts.slow, PerGroup: slowPerEndpoint, Visibility: 2 * time.Minute,
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
