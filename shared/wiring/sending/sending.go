// Package sending is the part of the wiring for those who send webhooks. The functions that do not
// are smaller by what it brings.
package sending

import (
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/delivery"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/webhook"
	"github.com/mcp-events/mcpevents/shared/wiring"
)

// Guard is where webhooks may go.
func Guard(l config.Limits) *webhook.Guard {
	g := &webhook.Guard{AllowInsecure: l.AllowInsecureTargets, BlockedHosts: l.BlockedTargets}
	if l.AllowInsecureTargets {
		return g // any port, as any address
	}
	for _, p := range l.TargetPorts {
		g.Ports = append(g.Ports, uint16(p))
	}
	return g
}

// Deliveries are the rules of attempts; at once is how many run at a time.
func Deliveries(l config.Limits, atOnce int, logEach bool) delivery.Options {
	return delivery.Options{
		Schedule: l.RetrySchedule, EventsSchedule: l.EventsSchedule,
		Timeout: l.WebhookTimeout, EventsTimeout: l.EventsTimeout,
		EndpointAtOnce: int(l.EndpointConcurrency), EndpointRate: l.EndpointRate,
		Concurrency: atOnce, Records: delivery.Records(l.DeliveryLog), LogDeliveries: logEach,
	}
}

// Ender ends subscriptions that may not go on. Callers may be a directory of principals; if
// not, what they were granted stands.
func Terminator(l config.Limits, callers auth.Authenticator, db store.DB, q queue.Sender, catalogs catalog.Source, subs *subscription.Service) *delivery.Terminator {
	directory, _ := callers.(auth.Directory)
	return &delivery.Terminator{
		Queue: q, Subscriptions: subs, ErrorObject: wiring.EventCodes(l).ErrorObject, Plain: l.PlainTargets,
		Review: &subscription.Review{DB: db, Catalog: catalogs, Directory: directory},
	}
}
