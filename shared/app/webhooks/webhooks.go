// Package webhooks has the constructors of the roles that deliver events to webhooks. It is separate from package app
// because functions that do not import it are a third smaller.
package webhooks

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/delivery"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/events/webhook/targets"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/fanout"
)

// Fanout appends accepted events to the log and finds who wants them.
func Fanout(c *app.Core) *fanout.Fanout {
	return &fanout.Fanout{DB: c.DB, Log: c.EventLog, Catalog: c.Catalogs, Queue: c.Queues, Metrics: c.Metrics, Tracer: c.Tracer}
}

// Guard is where webhooks may go.
func Guard(c *app.Core) *webhook.Guard {
	l := c.Limits
	g := &webhook.Guard{AllowInsecure: l.AllowInsecureTargets, BlockedHosts: l.BlockedTargets}
	if l.AllowInsecureTargets {
		return g // any port, as any address
	}
	for _, p := range l.TargetPorts {
		g.Ports = append(g.Ports, uint16(p))
	}
	return g
}

// Register makes subscriptions: sender verifies endpoints, sealer seals their secrets, and cursors their cursors.
func Register(c *app.Core, subs *subscription.Service, sender *webhook.Sender, sealer targets.Sealer, cursors *eventlog.Sealer) *subscription.Registrar {
	return &subscription.Registrar{
		Service: subs, Sealer: cursors, Targets: targets.Targets{Sender: sender, Sealer: sealer}, Options: c.Registrations(),
		Replay: &deadletter.Replayer{Log: c.EventLog, Queue: c.Queues}, Watermark: &delivery.Watermark{DB: c.DB},
	}
}

// Deliveries are the rules of attempts, as the operator set them.
func Deliveries(l config.Limits) delivery.Options {
	return delivery.Options{
		Schedule: l.RetrySchedule, EventsSchedule: l.EventsSchedule,
		Timeout: l.WebhookTimeout, EventsTimeout: l.EventsTimeout,
		EndpointRate: l.EndpointRate,
		Records:      records.Keep(l.DeliveryLog), Profile: spec.Profile(l.Profile),
	}
}

// Terminator ends subscriptions that may not go on. [app.Core.Auth] may be a directory of principals; if
// not, what they were granted stands.
func Terminator(c *app.Core, subs *subscription.Service) *delivery.Terminator {
	directory, _ := c.Auth.(auth.Directory)
	return &delivery.Terminator{
		Queue: c.Queues, Subscriptions: subs, Lists: c.Lists(), ErrorObject: method.ErrorObject, Profile: spec.Profile(c.Limits.Profile), Plain: c.Limits.PlainTargets, Log: c.Log,
		Review: &subscription.Review{DB: c.DB, Catalog: c.Catalogs, Directory: directory},
	}
}

// Dispatch signs and POSTs. Gate is nil where subscriptions end in another process.
func Dispatch(c *app.Core, subs *subscription.Service, terminator *delivery.Terminator, sender delivery.Poster, opener delivery.Opener,
	cursors func(context.Context) (*eventlog.Sealer, error), gate *delivery.Gate, set *switches.Set, options delivery.Options,
) *delivery.Dispatcher {
	return delivery.NewDispatcher(&delivery.Dispatcher{
		DB: c.DB, Queue: c.Queues, Subscriptions: subs, Catalog: c.Catalogs,
		Poster: sender, Opener: opener, Terminator: terminator, Gaps: &delivery.Gaps{Log: c.EventLog, Sealer: cursors}, Gate: gate, Switches: set, Options: options, Metrics: c.Metrics, Tracer: c.Tracer, Log: c.Log,
	})
}

// Operations are what operators and owners do to deliveries.
func Operations(c *app.Core) *deadletter.Operations {
	o := deadletter.NewOperations(c.DB, c.Queues, nil)
	o.Metrics = c.Metrics
	return o
}

// Replays are the jobs that deliver again what a selection has.
func Replays(c *app.Core, subs *subscription.Service, operations *deadletter.Operations) *deadletter.Replays {
	return deadletter.NewReplays(operations, subs, c.EventLog)
}

// Switches are what people pause. Alone is true where no other process attempts deliveries.
func Switches(c *app.Core, alone bool) *switches.Set {
	return &switches.Set{DB: c.DB, Queue: c.Queues, Alone: alone}
}

// Retry moves what is due to the slow lane.
func Retry(c *app.Core) *delivery.Retry {
	return &delivery.Retry{DB: c.DB, Queue: c.Queues, EventLog: c.EventLog, Log: c.Log}
}

// Expiry removes subscriptions that expired, and dead-letters what it cannot read.
func Expiry(c *app.Core, subs *subscription.Service) *subscription.Sweeper {
	return &subscription.Sweeper{Service: subs, DeadLetter: state.DeadLetterItem(c.DB, c.Queues, time.Now, c.Log)}
}
