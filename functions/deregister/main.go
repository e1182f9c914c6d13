// Command deregister is the function that ends subscriptions:
// resources/subscriptions/deregister and events/unsubscribe.
package main

import (
	"context"
	"net/http"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/stream"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/wiring"
)

func main() {
	p := boot.Start()
	endpoint := boot.NewLazy(func(context.Context) (http.Handler, error) {
		subscriptions := &subscription.Service{
			DB: p.DB, Catalog: p.Catalog, Log: p.EventLog, Options: wiring.Subscriptions(p.Limits),
			PrincipalTopic: stream.TopicPrincipal, SubscriptionTopic: stream.TopicSubscription,
		}
		return mcp.New(mcp.Options{
			Server: mcp.Implementation{Name: "mcp-events", Version: boot.Version},
			Auth:   p.Auth, Catalogs: p.Catalog, Deregistrar: subscriptions,
			AnonymousWebhooks: p.Limits.AllowInsecureTargets, EventCodes: wiring.EventCodes(p.Limits),
			ResourceMetadata: p.ResourceMetadata,
			AllowedOrigins:   p.Limits.AllowedOrigins, Logger: p.Log,
		})
	})
	lambda.Start(boot.Buffered(p.Serve(p.Handler(endpoint), "/mcp")))
}
