// Command register is the function that makes subscriptions:
// resources/subscriptions/register and events/subscribe. It can seal secrets and
// open none.
package main

import (
	"context"
	"net/http"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/functions/internal/cursors"
	"github.com/mcp-events/mcpevents/functions/internal/sealing"
	"github.com/mcp-events/mcpevents/shared/delivery"
	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/stream"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/webhook"
	"github.com/mcp-events/mcpevents/shared/webhook/targets"
	"github.com/mcp-events/mcpevents/shared/wiring"
	"github.com/mcp-events/mcpevents/shared/wiring/sending"
)

func main() {
	p := boot.Start()
	webhook.MuteTransport()
	sender := webhook.NewSender(webhook.Options{Guard: sending.Guard(p.Limits), UserAgent: boot.UserAgent})
	endpoint := boot.NewLazy(func(ctx context.Context) (http.Handler, error) {
		sealer, err := sealing.Public(ctx, p.DB)
		if err != nil {
			return nil, err
		}
		tokens, err := cursors.Sealer(ctx, p.DB)
		if err != nil {
			return nil, err
		}
		subscriptions := &subscription.Service{
			DB: p.DB, Catalog: p.Catalog, Log: p.EventLog, Sealer: tokens,
			Targets: targets.Targets{Sender: sender, Sealer: sealer},
			Replay:  &delivery.Replayer{Log: p.EventLog, Queue: p.Queues}, Watermark: &delivery.Watermark{DB: p.DB},
			Options: wiring.Subscriptions(p.Limits),

			PrincipalTopic: stream.TopicPrincipal, SubscriptionTopic: stream.TopicSubscription,
		}
		return mcp.New(mcp.Options{
			Server: mcp.Implementation{Name: "mcp-events", Version: boot.Version},
			Auth:   p.Auth, Catalogs: p.Catalog, Registrar: subscriptions,
			AnonymousWebhooks: p.Limits.AllowInsecureTargets, EventCodes: wiring.EventCodes(p.Limits),
			ResourceMetadata: p.ResourceMetadata,
			AllowedOrigins:   p.Limits.AllowedOrigins, Logger: p.Log,
		})
	})
	lambda.Start(boot.Buffered(p.Serve(p.Handler(endpoint), "/mcp")))
}
