// Command retry is the function that runs every minute, moves due deliveries to
// the slow queue, removes subscriptions that expired, ends those that a changed
// catalog has left behind, and announces changed catalogs and backends if nobody has done that before.
package main

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-lambda-go/lambda"

	"mcpevents/functions/internal/boot"
	"mcpevents/shared/config/versioned"
	"mcpevents/shared/delivery"
	"mcpevents/shared/stream"
	"mcpevents/shared/subscription"
	"mcpevents/shared/wiring"
	"mcpevents/shared/wiring/sending"
)

func main() {
	p := boot.Start()
	subscriptions := &subscription.Service{
		DB: p.DB, Catalog: p.Catalog, Log: p.EventLog, Options: wiring.Subscriptions(p.Limits),
		PrincipalTopic: stream.TopicPrincipal, SubscriptionTopic: stream.TopicSubscription,
	}
	ender := sending.Ender(p.Limits, p.Auth, p.DB, p.Queues, p.Catalog, subscriptions)
	retry := &delivery.Retry{DB: p.DB, Queue: p.Queues, Sweep: subscriptions.Sweep, Audit: ender.Audit}
	lambda.Start(func(ctx context.Context) error {
		moved, err := retry.Run(ctx)
		if moved > 0 {
			p.Log.InfoContext(ctx, "due deliveries were moved", "deliveries", moved)
		}
		_, announced := versioned.Announce(ctx, p.DB, time.Now(), stream.AnnounceStored(p.EventLog))
		return errors.Join(err, announced)
	})
}
