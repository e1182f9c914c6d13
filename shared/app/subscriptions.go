package app

import (
	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/stream"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

// Subscriptions reads, ends and expires subscriptions. Register of package webhooks makes them as well.
func (c *Core) Subscriptions() *subscription.Service {
	return &subscription.Service{
		DB: c.DB, Catalog: c.Catalogs, Log: c.EventLog, Options: rules(c.Limits),
		PrincipalTopic: stream.TopicPrincipal, SubscriptionTopic: stream.TopicSubscription,
	}
}

// rules are those of subscriptions.
func rules(l config.Limits) subscription.Options {
	return subscription.Options{
		Quota: l.Quota, Rate: subscription.NewRate(l.RegistrationRate), Secret: subscription.SecretType(l.WebhookSecret),
		DefaultTTL: l.DefaultTTL, MinTTL: l.MinTTL, MaxTTL: l.MaxTTL, AllowNoExpiry: l.AllowNoExpiry,
		VerifiedTargets: l.VerifiedTargets, AllowAnonymous: l.AllowInsecureTargets,
		UnknownUnsubscribe: l.UnknownUnsubscribe == "not-found",
	}
}
