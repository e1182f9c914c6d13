package app

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
)

// SubscriptionOptions connect subscriptions with a dispatcher in the same process, which uses a [delivery.Gate]. Both
// functions are nil if the dispatcher is another process.
//
// [delivery.Gate]: https://pkg.go.dev/github.com/mcp-events/mcpevents/shared/events/delivery#Gate
type SubscriptionOptions struct {
	// Started is called before a subscription is written, and Ended before the response to the request that ended it.
	Started, Ended func(id string)
}

// NewSubscriptions returns the service that finds and ends subscriptions. It is the role deregister, and part of other
// roles. Registrars of package webhooks create subscriptions.
func NewSubscriptions(c *Core, o SubscriptionOptions) *subscription.Service {
	ofPrincipal, ofWorkspace := c.Quota(quota.Subscriptions), c.Quota(quota.WorkspaceSubscriptions)
	return &subscription.Service{
		Records: subscription.Records{
			DB: c.DB, Started: o.Started, Ended: o.Ended,
			QuotaOf: func(ctx context.Context, workspace, principal string) int64 {
				return int64(ofPrincipal(ctx, workspace, principal))
			},
			SumOf: func(ctx context.Context, workspace string) int64 { return int64(ofWorkspace(ctx, workspace, "")) },
		},
		Catalog: c.Catalogs, Log: c.EventLog,
		AllowAnonymous: c.Limits.AllowInsecureTargets,
		PrincipalTopic: stream.TopicPrincipal, SubscriptionTopic: stream.TopicSubscription,
	}
}

// NewLists returns the lists of subscriptions by principal, workspace and event type.
func NewLists(c *Core) *subscription.Lists { return &subscription.Lists{DB: c.DB} }
