// Command retry is the function that runs every minute, moves due deliveries to
// the slow queue, removes subscriptions that expired, ends those that a changed
// catalog has left behind, and announces changed catalogs and backends if nobody has done that before.
// None of these can hold up another.
package main

import (
	"context"
	"time"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/config/versioned"
	"github.com/mcp-events/mcpevents/shared/delivery"
	"github.com/mcp-events/mcpevents/shared/periodic"
	"github.com/mcp-events/mcpevents/shared/stream"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/wiring"
	"github.com/mcp-events/mcpevents/shared/wiring/sending"
)

func main() {
	p := boot.StartWith(boot.Webhooks)
	subscriptions := &subscription.Service{
		DB: p.DB, Catalog: p.Catalog, Log: p.EventLog, Options: wiring.Subscriptions(p.Limits),
		PrincipalTopic: stream.TopicPrincipal, SubscriptionTopic: stream.TopicSubscription,
	}
	subscriptions.DeadLetter = delivery.DeadLetterItem(p.DB, p.Queues, time.Now, p.Log)
	ender := sending.Terminator(p.Limits, p.Auth, p.DB, p.Queues, p.Catalog, subscriptions)
	retry := &delivery.Retry{DB: p.DB, Queue: p.Queues, Log: p.Log}
	jobs := []periodic.Job{
		{Name: "due retries", Run: retry.Run},
		{Name: "expiry", Run: subscriptions.Sweep},
		{Name: "audit", Run: ender.Audit},
		{Name: "announcements", Run: func(ctx context.Context) (int, error) {
			_, err := versioned.Announce(ctx, p.DB, time.Now(), stream.AnnounceStored(p.EventLog))
			return 0, err
		}},
	}
	lambda.Start(func(ctx context.Context) error {
		each := 50 * time.Second
		if end, ok := ctx.Deadline(); ok {
			each = time.Until(end) - 3*time.Second // to write where they stand
		}
		return periodic.Round(ctx, each, p.Log, jobs...)
	})
}
