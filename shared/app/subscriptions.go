package app

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
)

// Subscriptions finds and ends subscriptions. Register of package webhooks makes them.
func (c *Core) Subscriptions() *subscription.Service {
	most, sum := c.Most(quota.Subscriptions), c.Most(quota.WorkspaceSubscriptions)
	return &subscription.Service{
		Records: subscription.Records{
			DB: c.DB,
			QuotaOf: func(ctx context.Context, workspace, principal string) int64 {
				return int64(most(ctx, workspace, principal))
			},
			SumOf: func(ctx context.Context, workspace string) int64 { return int64(sum(ctx, workspace, "")) },
		},
		Catalog: c.Catalogs, Log: c.EventLog,
		AllowAnonymous: c.Limits.AllowInsecureTargets,
		PrincipalTopic: stream.TopicPrincipal, SubscriptionTopic: stream.TopicSubscription,
	}
}

// Lists are the subscriptions of principals, workspaces and event types.
func (c *Core) Lists() *subscription.Lists { return &subscription.Lists{DB: c.DB} }

// Registrations are the rules of subscriptions that are made.
func (c *Core) Registrations() subscription.Options {
	l, verifications := c.Limits, c.Most(quota.Verifications)
	return subscription.Options{
		Rate: subscription.NewRate(c.Rate(quota.RegistrationRate)), Secret: subscription.SecretType(l.WebhookSecret),
		DefaultTTL: l.DefaultTTL, MinTTL: l.MinTTL, MaxTTL: l.MaxTTL, AllowNoExpiry: l.AllowNoExpiry,
		VerifyRegistrations: l.VerifyRegistrations, VerifiedTargets: l.VerifiedTargets,
		Verifications: func(ctx context.Context, workspace, principal string) int64 {
			return int64(verifications(ctx, workspace, principal))
		},
	}
}
