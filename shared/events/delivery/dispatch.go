// Package delivery sends events to subscribers. It decides for each subscriber whether to send an event, sends it with package webhook,
// and records the outcome. Its work arrives in two queues: a page task asks to send events to a range of subscribers, and a single task
// asks for one attempt of a stored delivery.
//
//	events queue ─▶ fanout ─▶ event log
//	                   │
//	                   ▼ page tasks: events × a range of a pattern's subscribers
//	               deliveries queue ─▶ [Dispatcher.HandlePages] ─▶ POST
//	                                        │ failed, or the endpoint is known to be slow
//	                                        ▼
//	               slow queue ─────▶ [Dispatcher.HandleSingles] ─▶ POST
//	                   ▲                    │ due later than the queue can delay it
//	                   └──── retry.Job ◀── due table
//
// Each task may run twice, and the process may die at any instruction. Package state explains why two workers still do not continue the
// same retry.
//
// A failure of this program, such as an unreadable secret, delays only the deliveries that it affects, and does not use up their
// attempts. A delivery that is still waiting when its retry schedule is over becomes a dead letter with the category internal. A message
// that cannot be decoded becomes a dead letter of its queue. Operators can retry both kinds of dead letters when the cause is fixed.
package delivery

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/lane"
	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Poster sends a webhook as one signed HTTP request. Package webhook implements it.
type Poster interface {
	Send(ctx context.Context, r webhook.Request) webhook.Outcome
}

// Opener decrypts the sealed secrets with which webhooks are signed. Package webhook implements it.
type Opener interface {
	Open(ctx context.Context, sealed []byte, b webhook.Binding) ([]byte, error)
}

// EventsTimeout is the time limit of an attempt to send an MCP Events webhook.
const EventsTimeout = 10 * time.Second

// Options are the operator's settings for a [Dispatcher]. A zero value means the default, which is given in parentheses.
type Options struct {
	// Schedule and EventsSchedule are the retry schedules of SEP-1803 and MCP Events subscriptions ([retry.StandardSchedule] and
	// [retry.EventsSchedule]).
	Schedule, EventsSchedule retry.Schedule
	// Timeout limits the duration of an attempt for a SEP-1803 subscription (20 s), and EventsTimeout for an MCP Events subscription (10
	// s).
	Timeout, EventsTimeout time.Duration
	// Concurrency limits the concurrent first attempts of this process (128).
	Concurrency int
	// Patience is how long a page task waits for the response to a first attempt. After that, the attempt continues in the background, or
	// the slow lane repeats it (see package lane). 0 means that the task waits until the attempt ends.
	Patience time.Duration
	// SlowAnswer is the response time at which an endpoint counts as slow (2 s). The next deliveries to a slow endpoint take the slow
	// lane (see package lane), where they do not hold up page tasks.
	SlowAnswer time.Duration
	// MinWait is for a process that handles one batch of page tasks at a time and is frozen in between, such as a Lambda function. While
	// batches quickly follow each other, a task waits for a first attempt only as long as the endpoint usually takes to respond, and at
	// least for MinWait, for example 100 ms. A slower attempt continues in the background until Patience is over.
	//
	// Without this, an endpoint that begins to hang would soon hold up all processes. 0 turns it off, so that tasks always wait for
	// Patience. See package lane.
	MinWait time.Duration
	// SlowLaneDelay is for deliveries that move to the slow lane without a first attempt. It is the minimum delay of their queue messages
	// (0). A delay of at least [state.EarlyMessage] makes page tasks faster, because they can send such a message while they still write
	// the delivery.
	SlowLaneDelay time.Duration
	// Detached is how many first attempts may continue in the background at the same time, after their page task has stopped waiting for
	// them. Further attempts are canceled, and the slow lane repeats them.
	//
	// A process that is frozen between batches of tasks, such as a Lambda function, finishes an attempt in the background only if another
	// batch follows soon. Such a process needs MinWait if Detached is not 0, because MinWait limits these attempts to times when batches
	// quickly follow each other.
	Detached int
	// EndpointRate limits the attempts per second to one endpoint, across all processes; 0 means no limit.
	EndpointRate int64
	// Bytes limits the memory for the bodies of concurrent attempts (64 MiB). Half of it is for the fast lane, i.e. first attempts, a
	// quarter for the slow lane, and a quarter for attempts that hang.
	Bytes int64
	// Records says which attempts are recorded in the delivery log.
	Records records.Keep
	// KeepResponses keeps the beginning of each failed response in the record of the attempt.
	KeepResponses bool
	// Profile is the protocol version for MCP Events subscriptions that do not name one (see [spec.Profile]).
	Profile spec.Profile
	// LogDeliveries lets the dispatcher write a log line for each attempt.
	LogDeliveries bool
}

// Config configures a [Dispatcher].
type Config struct {
	DB            store.DB
	Queue         queue.Sender
	Subscriptions lifecycle.Subscriptions
	Catalog       catalog.Source // has the event types, from which the "type" in webhooks comes
	Poster        Poster
	Opener        Opener
	// Terminator ends subscriptions that may not continue, for example because their principal lost access. Its field Review checks
	// before each delivery whether the subscription may continue. The Terminator must be set.
	Terminator *lifecycle.Terminator
	// Gaps has the event log and the sealer, which encrypts cursors. Both are needed for gap notices, i.e. messages that tell a client
	// that it missed events. For subscriptions with the profile [spec.Final], the sealer also makes the webhook-ids. Gaps must be set.
	Gaps *lifecycle.Gaps
	// Switches lets people pause deliveries. If it is nil, deliveries cannot be paused.
	Switches *switches.Set
	// Gate stops webhooks to a subscription as soon as a client has unsubscribed. That works only if this process also handles the
	// requests to subscribe and unsubscribe, which open and close the gate. Without a Gate, as on AWS, an attempt may still start up to a
	// second after the response to the client.
	Gate    *Gate
	Options Options
	Now     func() time.Time
	Log     *slog.Logger
	// Metrics counts attempts and dead letters; may be nil.
	Metrics *metric.Set
	// Tracer records a trace span for each attempt; may be nil.
	Tracer *trace.Tracer
}

// Dispatcher sends webhooks. [Dispatcher.HandlePages] makes the first attempts, for the tasks of the deliveries queue.
// [Dispatcher.HandleSingles] makes the other attempts, for the tasks of the slow queue.
type Dispatcher struct {
	Config

	deliveries *state.Deliveries
	sender     *sender
	manager    *lifecycle.Manager
	outcomes   *retry.Outcomes
	lanes      *lane.Lanes
	attempts   sync.WaitGroup                        // running first attempts
	handled    *bounded.Map[string, map[string]bool] // the subscribers that a failed page has served, by the id of the page's message
	underWay   sync.Map                              // running attempts of the slow lane, by [task.Single.ID]
	unrecorded unrecorded
	progress   lifecycle.Progress
	batches    batches
	waitWrites *semaphore.Weighted // limits the concurrent writes of [Dispatcher.waitLater]
}

const maxPerEndpoint = 64 // concurrent first attempts to one endpoint, or a quarter of [Options.Concurrency] if that is lower

// maxHandled is the number of failed page tasks that a dispatcher remembers, each with the subscribers that were served. If the queue
// redelivers such a task, the dispatcher does not repeat the webhooks to these subscribers.
const maxHandled = 1000

// NewDispatcher returns a dispatcher. It replaces Options that are zero by their defaults.
func NewDispatcher(c Config) *Dispatcher {
	o := &c.Options
	o.Timeout = cmp.Or(o.Timeout, 20*time.Second)
	o.EventsTimeout = cmp.Or(o.EventsTimeout, EventsTimeout)
	o.Concurrency = cmp.Or(o.Concurrency, 128)
	o.Records = cmp.Or(o.Records, records.Failures)
	o.Bytes = cmp.Or(o.Bytes, 64<<20)
	o.SlowAnswer = cmp.Or(o.SlowAnswer, 2*time.Second)
	if o.Schedule == nil {
		o.Schedule = retry.StandardSchedule
	}
	if o.EventsSchedule == nil {
		o.EventsSchedule = retry.EventsSchedule
	}
	d := &Dispatcher{Config: c, waitWrites: semaphore.NewWeighted(maxWaitWrites)}
	d.deliveries = state.NewDeliveries(c.DB, c.Queue, d.now, c.Log)
	d.sender = &sender{
		poster: c.Poster, opener: c.Opener, catalog: c.Catalog, gaps: c.Gaps, options: &d.Options, now: d.now, log: d.log(),
		metrics: c.Metrics, tracer: c.Tracer,
	}
	d.manager = &lifecycle.Manager{
		Deliveries: d.deliveries, Subscriptions: c.Subscriptions, Terminator: c.Terminator, Gaps: c.Gaps, Log: d.log(), Metrics: c.Metrics,
	}
	d.outcomes = retry.NewOutcomes(retry.Options{
		Deliveries: d.deliveries, Manager: d.manager, Schedules: retry.Schedules{Standard: o.Schedule, Events: o.EventsSchedule}, Records: o.Records, Log: d.log(), Metrics: c.Metrics,
	})
	d.lanes = lane.New(c.DB, lane.Limits{
		Attempts: o.Concurrency, PerEndpoint: max(1, min(maxPerEndpoint, o.Concurrency/4)), Detached: o.Detached,
		Bytes: o.Bytes, Patience: o.Patience, SlowAnswer: o.SlowAnswer, MinWait: o.MinWait, Rate: o.EndpointRate,
	}, d.now)
	d.handled = bounded.NewMap[string, map[string]bool](maxHandled)
	return d
}

func (d *Dispatcher) now() time.Time { return periodic.Clock(d.Now)() }

func (d *Dispatcher) log() *slog.Logger { return cmp.Or(d.Log, slog.Default()) }

// CountFailing returns how many endpoints this process knows to be slow, and how many get no webhooks for now because they failed.
func (d *Dispatcher) CountFailing() lane.Failing { return d.lanes.CountFailing() }

// Wait blocks until all running first attempts have ended, or until ctx is done. A first attempt can still run after
// [Dispatcher.HandlePages] has returned.
func (d *Dispatcher) Wait(ctx context.Context) {
	_ = periodic.Wait(ctx, &d.attempts) // an error means that ctx has ended
}

// rejectMessage sends a message that cannot be decoded to the dead letter queue, and reports whether the caller may delete the message. A
// message from a newer release stays in its queue, because a newer process can handle it (see [task.Renew]).
func (d *Dispatcher) rejectMessage(ctx context.Context, q queue.Name, m queue.Message, reason error) bool {
	if task.IsNewer(reason) {
		d.log().WarnContext(ctx, "newer message left in queue", "queue", q, "message", m.ID)
		return task.Renew(ctx, d.log(), d.Queue, q, m)
	}
	d.log().ErrorContext(ctx, "message dead-lettered", "queue", q, "message", m.ID, "error", reason)
	err := d.Queue.Send(ctx, queue.Dead, queue.NewDeadLetter(q, m, fault.Public(reason), nil, d.now()))
	if err != nil {
		d.log().ErrorContext(ctx, "dead letter not sent", "queue", q, "message", m.ID, "error", err)
		return false
	}
	d.Metrics.DeadLettered(string(q), 1)
	return true
}
