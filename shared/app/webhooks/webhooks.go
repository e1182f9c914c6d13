// Package webhooks has the constructors of the roles that deliver events to webhooks. It is separate from package app because the
// binaries of functions without it are a third smaller.
package webhooks

import (
	"context"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/delivery"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/shared/events/fanout"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// SenderOptions configure [NewSender].
type SenderOptions struct {
	// OwnHost is the address on which this process listens. The sender sends no webhooks to this address. OwnHost may be empty.
	OwnHost string
	// Identity signs webhooks with the server's own key (v1a signatures of Standard Webhooks). It may be nil.
	Identity *webhook.Identity
	// ConnsPerHost limits the number of connections to one host. If it is 0, the default of package webhook applies.
	ConnsPerHost int
}

// NewSender returns the sender, an HTTP client that verifies webhook endpoints and sends webhooks to them.
func NewSender(c *app.Core, o SenderOptions) *webhook.Sender {
	l := c.Limits
	guard := &webhook.Guard{AllowInsecure: l.AllowInsecureTargets}
	guard.BlockedHosts = append(guard.BlockedHosts, l.BlockedTargets...)
	if o.OwnHost != "" {
		guard.BlockedHosts = append(guard.BlockedHosts, o.OwnHost)
	}
	if !l.AllowInsecureTargets { // with AllowInsecureTargets, any address and port is allowed
		for _, p := range l.TargetPorts {
			guard.Ports = append(guard.Ports, uint16(p))
		}
	}
	return webhook.NewSender(webhook.Options{Guard: guard, Identity: o.Identity, ConnsPerHost: o.ConnsPerHost, UserAgent: app.UserAgent()})
}

// RegistrarOptions configure [NewRegistrar].
type RegistrarOptions struct {
	Subscriptions *subscription.Service
	Targets       subscription.Targets
	Cursors       *eventlog.Sealer
}

// NewRegistrar returns the registrar, which creates webhook subscriptions.
func NewRegistrar(c *app.Core, o RegistrarOptions) *subscription.Registrar {
	l, verifications := c.Limits, c.Quota(quota.Verifications)
	return &subscription.Registrar{
		Service: o.Subscriptions, Sealer: o.Cursors, Targets: o.Targets, Demand: c.Demand.Want,
		Replay: &deadletter.Replayer{Log: c.EventLog, Queue: c.Queues}, Watermark: &lifecycle.Watermark{DB: c.DB},
		Switches: &switches.Set{DB: c.DB, Log: c.Log},
		Options: subscription.Options{
			Rate: subscription.NewRate(c.CallerQuota(quota.RegistrationRate)), Secret: subscription.SecretType(l.WebhookSecret),
			DefaultTTL: l.DefaultTTL, MinTTL: l.MinTTL, MaxTTL: l.MaxTTL, AllowNoExpiry: l.AllowNoExpiry,
			VerifyRegistrations: l.VerifyRegistrations, VerifiedTargets: l.VerifiedTargets,
			Verifications: func(ctx context.Context, workspace, principal string) int64 {
				return int64(verifications(ctx, workspace, principal))
			},
		},
	}
}

// NewFanout returns the fanout, which appends events to the event log, and queues tasks for sending them to the subscribers whose
// patterns match.
func NewFanout(c *app.Core) *fanout.Fanout {
	return &fanout.Fanout{DB: c.DB, Log: c.EventLog, Catalog: c.Catalogs, Queue: c.Queues, Metrics: c.Metrics, Tracer: c.Tracer, Logger: c.Log}
}

// DispatcherOptions configure [NewDispatcher].
type DispatcherOptions struct {
	Subscriptions *subscription.Service
	Terminator    *lifecycle.Terminator
	Switches      *switches.Set
	Sender        delivery.Poster
	Opener        delivery.Opener
	// Cursors returns the sealer that encrypts the cursor in a gap notice. A gap notice tells a subscriber that it has missed events.
	// With the cursor, the subscriber can read the missed events.
	Cursors func(context.Context) (*eventlog.Sealer, error)
	// Gate stops attempts for a subscription as soon as this process has ended the subscription. It is nil if subscriptions end in other
	// processes.
	Gate *delivery.Gate
	// Options has the fields that depend on the process. NewDispatcher sets the other fields from the settings.
	Options delivery.Options
}

// NewDispatcher returns the dispatcher, which signs events and sends them to webhook endpoints.
func NewDispatcher(c *app.Core, o DispatcherOptions) *delivery.Dispatcher {
	l, options := c.Limits, o.Options
	options.Schedule, options.EventsSchedule = l.RetrySchedule, l.EventsSchedule
	options.Timeout, options.EventsTimeout = l.WebhookTimeout, min(l.WebhookTimeout, delivery.EventsTimeout)
	options.EndpointRate, options.Records, options.KeepResponses = l.EndpointRate, records.Keep(l.DeliveryLog), l.KeepResponses
	options.Profile = spec.Profile(l.Profile)
	var now func() time.Time
	if !c.DB.Local() { // on Lambda, where the monotonic clock of a frozen process may stand still
		now = periodic.WallClock
	}
	return delivery.NewDispatcher(delivery.Config{
		DB: c.DB, Queue: c.Queues, Subscriptions: o.Subscriptions, Catalog: c.Catalogs, Poster: o.Sender, Opener: o.Opener,
		Terminator: o.Terminator, Gaps: &lifecycle.Gaps{Log: c.EventLog, Sealer: o.Cursors}, Gate: o.Gate, Switches: o.Switches,
		Options: options, Now: now, Metrics: c.Metrics, Tracer: c.Tracer, Log: c.Log,
	})
}

// WatchEndpoints registers the metrics that count failing webhook endpoints.
func WatchEndpoints(c *app.Core, d *delivery.Dispatcher) error {
	return errors.Join(
		c.Metrics.Watch(metric.EndpointsFailing, func(context.Context) ([]metric.Reading, error) {
			n := d.CountFailing()
			return metric.One(float64(n.Slow + n.Paused)), nil
		}),
		c.Metrics.Watch(metric.EndpointStates, func(context.Context) ([]metric.Reading, error) {
			n := d.CountFailing()
			return []metric.Reading{{By: "slow", Value: float64(n.Slow)}, {By: "paused", Value: float64(n.Paused)}}, nil
		}),
	)
}

// NewTerminator returns the terminator, which ends subscriptions that are no longer allowed.
func NewTerminator(c *app.Core, subs *subscription.Service) *lifecycle.Terminator {
	return &lifecycle.Terminator{
		Queue: c.Queues, Subscriptions: subs, Lists: app.NewLists(c), ErrorObject: method.ErrorObject,
		Profile: spec.Profile(c.Limits.Profile), Plain: c.Limits.PlainTargets, Log: c.Log,
		Review: app.NewReview(c),
	}
}

// NewOperations returns the operations with which operators and subscribers list, retry and erase deliveries.
func NewOperations(c *app.Core) *deadletter.Operations {
	return deadletter.NewOperations(deadletter.Options{DB: c.DB, Queue: c.Queues, Log: c.Log, Metrics: c.Metrics})
}

// NewSwitches returns the switches with which people pause deliveries. The parameter alone is true if this is the only process that
// attempts deliveries.
func NewSwitches(c *app.Core, alone bool) *switches.Set {
	return &switches.Set{DB: c.DB, Queue: c.Queues, Alone: alone, Log: c.Log}
}

// JobOptions configure [NewJobs].
type JobOptions struct {
	Subscriptions *subscription.Service
	Terminator    *lifecycle.Terminator
	Switches      *switches.Set
	Operations    *deadletter.Operations
	// SaveEvery is how often the jobs save their progress. If it is 0, they save it after each run.
	SaveEvery time.Duration
}

// NewJobs returns the jobs of the retry role, which run every minute. On AWS, the function retry runs these jobs, continues replays, and
// reads the inbox queue. A stand-alone server continues replays and reads the inbox queue more often, in other goroutines.
func NewJobs(c *app.Core, o JobOptions) []periodic.Job {
	due := &retry.Job{DB: c.DB, Queue: c.Queues, EventLog: c.EventLog, SaveEvery: o.SaveEvery, Log: c.Log}
	expiry := &subscription.Sweeper{
		Service: o.Subscriptions, SaveEvery: o.SaveEvery, Switches: o.Switches, DeadLetter: func(ctx context.Context, it *store.Item, reason error) error {
			return queue.DeadLetterItem(ctx, c.Queues, c.DB, it, reason, time.Now(), c.Log)
		},
	}
	return []periodic.Job{
		{Name: "due retries", Run: due.Run},
		{Name: "resumed deliveries", Run: o.Switches.Requeue},
		{Name: "log items", Run: due.DeadLetterLogItems},
		{Name: "erasures", Run: o.Operations.SweepErased},
		{Name: "expiry", Run: expiry.Sweep},
		{Name: "counts", Run: expiry.Recount},
		{Name: "unused switches", Run: expiry.SweepSwitches},
		{Name: "recheck", Run: o.Terminator.Recheck},
	}
}
