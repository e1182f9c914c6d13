// Command dispatch is the function that signs and POSTs webhooks: pages of first
// attempts from the deliveries queue, single retries from the slow one.
package main

import (
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/service/kms"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/functions/internal/sealing"
	"github.com/mcp-events/mcpevents/functions/internal/sealing/kmswrap"
	"github.com/mcp-events/mcpevents/shared/delivery"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/stream"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/webhook"
	"github.com/mcp-events/mcpevents/shared/wiring"
	"github.com/mcp-events/mcpevents/shared/wiring/sending"
)

const (
	// atOnce is how many first attempts a process has under way.
	atOnce = 128
	// patience is how long one may keep its place without an answer. The process is frozen
	// when its batch is done, so it is cut off then, and the slow lane makes it anew.
	patience = 3 * time.Second
)

func main() {
	p := boot.StartWith(boot.Webhooks)
	webhook.MuteTransport()
	opener := &sealing.Opener{DB: p.DB, Wrapper: kmswrap.KMS{Client: kms.NewFromConfig(p.AWS), Key: p.Variable(boot.EnvKey)}}
	subscriptions := &subscription.Service{
		DB: p.DB, Catalog: p.Catalog, Log: p.EventLog, Options: wiring.Subscriptions(p.Limits),
		PrincipalTopic: stream.TopicPrincipal, SubscriptionTopic: stream.TopicSubscription,
	}
	deliveries := sending.Deliveries(p.Limits, atOnce, false)
	deliveries.Patience = patience
	dispatcher := delivery.NewDispatcher(&delivery.Dispatcher{
		DB: p.DB, Queue: p.Queues, Subscriptions: subscriptions, Catalog: delivery.WebhookTypes{Source: p.Catalog},
		Poster: webhook.NewSender(webhook.Options{Guard: sending.Guard(p.Limits), UserAgent: boot.UserAgent}),
		Opener: opener, Terminator: sending.Terminator(p.Limits, p.Auth, p.DB, p.Queues, p.Catalog, subscriptions),
		Options: deliveries, Log: p.Log,
	})
	lambda.Start(p.Sources(nil, func(arn string) queue.Handler {
		switch {
		case p.IsFrom(arn, queue.Deliveries):
			return dispatcher.Pages
		case p.IsFrom(arn, queue.Slow):
			return dispatcher.Singles
		}
		return nil
	}))
}
