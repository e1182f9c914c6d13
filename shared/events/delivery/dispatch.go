// Package delivery sends the webhooks of events: dispatch signs and posts them, and retry brings failed deliveries back.
//
//	events queue ─▶ fanout ─▶ event log
//	                   │
//	                   ▼ page tasks: events × a range of a pattern's subscribers
//	               deliveries queue ─▶ [Dispatcher.Pages] ─▶ POST
//	                                        │ failed, or the endpoint is known to be slow
//	                                        ▼
//	               slow queue ─────▶ [Dispatcher.Singles] ─▶ POST
//	                   ▲                    │ due later than the queue can delay it
//	                   └──── [Retry] ◀── due table
//
// Everything after the events queue may run twice, at any instance, and may be stopped at any instruction. Package state says why that is
// harmless for retries, and package fanout for the log.
package delivery

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lane"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
)

// Poster sends one signed request. shared/events/webhook implements it.
type Poster interface {
	Send(ctx context.Context, r webhook.Request) webhook.Outcome
}

// Opener opens sealed secrets. shared/events/webhook implements it.
type Opener interface {
	Open(ctx context.Context, sealed []byte, b webhook.Binding) ([]byte, error)
}

// Subscriptions is what dispatch asks of subscriptions beyond their items.
type Subscriptions interface {
	deadletter.Finder
	Disable(ctx context.Context, workspace, principal, id, reason string, resumed int64) (ended bool, err error)
	Suspend(ctx context.Context, workspace, principal, id string, resumed int64) error
}

// Options are the operator's choices. Zero values are the defaults.
type Options struct {
	// Schedule and EventsSchedule replace [StandardSchedule] and [EventsSchedule].
	Schedule, EventsSchedule Schedule
	// Timeout bounds an attempt of a SEP-1803 subscription (20 s), EventsTimeout
	// one of an MCP Events subscription (10 s).
	Timeout, EventsTimeout time.Duration
	// Concurrency is how many first attempts this process has under way at most (128).
	Concurrency int
	// Patience is how long an attempt may keep its slot in the fast lane without an
	// answer. Then the delivery belongs to the slow lane. 0 waits to the end.
	Patience time.Duration
	// SlowAnswer is how long an endpoint takes for an answer that counts as slow (2 s). Its next deliveries take the slow
	// lane.
	SlowAnswer time.Duration
	// Detached is how many attempts may continue without their page after that. The others are canceled and repeated in
	// the slow lane. 0 is right for a process that is frozen when its batch is done.
	Detached int
	// EndpointAtOnce limits the first attempts under way to one endpoint (64). It is at most a quarter of Concurrency.
	EndpointAtOnce int
	// EndpointRate bounds the attempts a second to one endpoint, those of all processes
	// together; 0 does not.
	EndpointRate int64
	// Bytes limits the bodies of the attempts under way (64 MiB): half for the fast lane, a quarter for the slow one, a
	// quarter for attempts that hang.
	Bytes int64
	// Records says which attempts leave a delivery record.
	Records records.Keep
	// Profile is the default for MCP Events subscriptions without a profile.
	Profile spec.Profile
	// LogDeliveries writes a log line for each attempt.
	LogDeliveries bool
}

// Dispatcher sends webhooks: it handles the deliveries queue by [Dispatcher.Pages], and the slow queue by
// [Dispatcher.Singles]. Make it with [NewDispatcher].
type Dispatcher struct {
	DB            store.DB
	Queue         queue.Sender
	Subscriptions Subscriptions
	Catalog       catalog.Source // names the types of webhooks
	Poster        Poster
	Opener        Opener
	// Terminator ends subscriptions that may not go on, and its review is asked before every
	// delivery. It must be set.
	Terminator *Terminator
	// Gaps is needed to send gap notices; nil sends none.
	Gaps *Gaps
	// Switches are what is paused; nil is nothing.
	Switches *switches.Set
	// Gate is set where register runs in the same process.
	Gate    *Gate
	Options Options
	Now     func() time.Time
	Log     *slog.Logger
	// Metrics counts attempts and dead letters; may be nil.
	Metrics *metric.Set
	// Tracer makes a span of each attempt; may be nil.
	Tracer *trace.Tracer

	deliveries *state.Deliveries
	sender     *sender
	notices    *notices
	outcomes   *outcomes
	backlog    *backlog
	pauses     *pauses
	lanes      *lane.Lanes
	attempts   sync.WaitGroup                        // first attempts under way
	handled    *bounded.Map[string, map[string]bool] // of pages that failed: subscribers that are done, by message
	underWay   sync.Map                              // attempts of the slow lane, by [task.Single.ID]
	unrecorded unrecorded
	progress   progress
}

// maxHandled bounds the failed pages of which a dispatcher knows the subscribers that are done.
const maxHandled = 1000

// NewDispatcher makes d ready to use, with the defaults of what is zero, and returns it. Its fields are set before.
func NewDispatcher(d *Dispatcher) *Dispatcher {
	o := &d.Options
	o.Timeout = cmp.Or(o.Timeout, 20*time.Second)
	o.EventsTimeout = cmp.Or(o.EventsTimeout, 10*time.Second)
	o.Concurrency = cmp.Or(o.Concurrency, 128)
	o.Records = cmp.Or(o.Records, records.Failures)
	o.EndpointAtOnce = cmp.Or(o.EndpointAtOnce, 64)
	o.Bytes = cmp.Or(o.Bytes, 64<<20)
	o.SlowAnswer = cmp.Or(o.SlowAnswer, 2*time.Second)
	if o.Schedule == nil {
		o.Schedule = StandardSchedule
	}
	if o.EventsSchedule == nil {
		o.EventsSchedule = EventsSchedule
	}
	d.deliveries = state.NewDeliveries(d.DB, d.Queue, d.now, d.Log)
	d.sender = &sender{d.Poster, d.Opener, d.Catalog, d.Gaps, o, d.now, d.log(), d.Metrics, d.Tracer}
	d.notices = &notices{d.deliveries, d.sender, d.Subscriptions, d.Terminator, d.Gaps, o, d.log()}
	d.outcomes = &outcomes{
		deliveries: d.deliveries, notices: d.notices, subscriptions: d.Subscriptions, terminator: d.Terminator,
		options: o, log: d.log(), metrics: d.Metrics,
		status: statuses{seen: bounded.NewMap[string, seenStatus](maxStatuses)}, records: records.NewLog(d.DB, o.Records),
	}
	d.backlog = &backlog{d.deliveries, d.Subscriptions}
	d.pauses = &pauses{d.deliveries, d.Switches}
	d.lanes = lane.New(d.DB, lane.Limits{
		Attempts: o.Concurrency, PerEndpoint: max(1, min(o.EndpointAtOnce, o.Concurrency/4)), Detached: o.Detached,
		Bytes: o.Bytes, Patience: o.Patience, SlowAnswer: o.SlowAnswer, Rate: o.EndpointRate,
	}, d.now)
	d.handled = bounded.NewMap[string, map[string]bool](maxHandled)
	return d
}

func (d *Dispatcher) now() time.Time    { return timeBy(d.Now) }
func (d *Dispatcher) log() *slog.Logger { return loggerOr(d.Log) }

// Failing counts the endpoints that fail or are slow.
func (d *Dispatcher) Failing() lane.Failing { return d.lanes.Failing() }

// Wait returns when no detached attempt is left, or ctx ends.
func (d *Dispatcher) Wait(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		d.attempts.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// timeBy is the time by a clock; nil is [time.Now].
func timeBy(now func() time.Time) time.Time {
	if now != nil {
		return now()
	}
	return time.Now()
}

// loggerOr is a log, or the default one.
func loggerOr(log *slog.Logger) *slog.Logger { return cmp.Or(log, slog.Default()) }
