package app

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/stream"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

// Subscriptions reads, ends and expires subscriptions. Register of package webhooks makes them as well.
func (c *Core) Subscriptions() *subscription.Service {
	return &subscription.Service{
		DB: c.DB, Catalog: c.Catalogs, Log: c.EventLog, Options: c.rules(),
		PrincipalTopic: stream.TopicPrincipal, SubscriptionTopic: stream.TopicSubscription,
	}
}

// rules are those of subscriptions.
func (c *Core) rules() subscription.Options {
	l, most, sum := c.Limits, c.Most(config.Subscriptions), c.Most(config.WorkspaceSubscriptions)
	return subscription.Options{
		QuotaOf: func(ctx context.Context, workspace, principal string) int64 {
			return int64(most(ctx, workspace, principal))
		},
		SumOf: func(ctx context.Context, workspace string) int64 { return int64(sum(ctx, workspace, "")) },
		Rate:  subscription.NewRate(c.rate(config.RegistrationRate)), Secret: subscription.SecretType(l.WebhookSecret),
		DefaultTTL: l.DefaultTTL, MinTTL: l.MinTTL, MaxTTL: l.MaxTTL, AllowNoExpiry: l.AllowNoExpiry,
		VerifyRegistrations: l.VerifyRegistrations, VerifiedTargets: l.VerifiedTargets, AllowAnonymous: l.AllowInsecureTargets,
		UnknownUnsubscribe: l.UnknownUnsubscribe == "not-found",
	}
}
