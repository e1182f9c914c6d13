package app

import (
	"context"
	"encoding/json"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/stream/lease"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/gateway/relay"
	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/mcp/eventtools/logsource"
	"github.com/mcp-events/mcpevents/shared/mcp/streams"
	"github.com/mcp-events/mcpevents/shared/platform/descriptors"
)

func implementation() mcp.Implementation {
	return mcp.Implementation{Name: "mcp-events", Version: Version}
}

// Endpoint are the options of an MCP endpoint that serves nothing yet: the role adds its methods.
func (c *Core) Endpoint() mcp.Options {
	return mcp.Options{
		Server: implementation(), Auth: c.Auth, Catalogs: c.Catalogs, ResourceMetadata: c.ResourceMetadata,
		AnonymousWebhooks: c.Limits.AllowInsecureTargets, Profile: c.Profile,
		Guard: c.Guard(), Logger: c.Log, Metrics: c.Metrics,
	}
}

// Stream are the options of the endpoint that lists, reads, streams and polls, and relays for the
// backends. How subscriptions are made and end is added by who can.
func (c *Core) Stream(feeds *stream.Tails, leases streams.Leases, backends *gateway.Gateway, talk *conversation.Service) mcp.Options {
	o, l := c.Endpoint(), c.Limits
	o.Feeds, o.Sessions, o.Leases = feeds, c.DB, leases
	o.Subscriptions, o.Gateway, o.Conversation = c.Lists(), backends, talk
	o.MaxAge, o.Heartbeat, o.AnswerStreamAfter = l.StreamMaxAge, l.Heartbeat, l.AnswerStreamAfter
	o.MaxSessions = c.Sessions
	o.Calls = quota.NewHeld(quota.Calls, "calls to backends", c.Rate(quota.Calls), descriptors.Outgoing())
	o.PollMin, o.PollMax = l.PollMin, l.PollMax
	if l.EventTools {
		o.EventTools = logsource.New
	}
	return o
}

// SharedLeases bound the streams of instances over one store, each of which serves
// so many requests at once.
func (c *Core) SharedLeases(atOnce int) *lease.Shared {
	const share = 80 // percent, so that calls always get through
	l := c.Limits
	return &lease.Shared{
		DB: c.DB, Max: c.Streams, Fleet: l.StreamConcurrency * int64(atOnce) * share / 100,
		Life: l.StreamMaxAge, Check: l.Heartbeat, Refuse: RefusesStreams(l),
	}
}

// Gateway reaches the backends of the configuration, and calls itself by the product's name to them. The
// options say how secrets are looked up.
func (c *Core) Gateway(o gateway.Options) (*gateway.Gateway, error) {
	o.Server, _ = json.Marshal(implementation()) // two strings
	o.DB, o.Log, o.Source, o.Metrics, o.Tracer = c.DB, c.Log, c.Config.Backends, c.Metrics, c.Tracer
	return gateway.New(o)
}

// Relay puts what the backends notify of into the log.
func (c *Core) Relay(g *gateway.Gateway) *relay.Relay {
	return &relay.Relay{
		Backends: func(ctx context.Context) (all []relay.Backend) {
			for _, b := range g.Followed(ctx) {
				all = append(all, b)
			}
			return all
		},
		Announce: func(ctx context.Context, workspace, backend string, notice json.RawMessage) error {
			return c.EventLog.Notify(ctx, workspace, stream.TopicBackend(backend), notice)
		},
		DB: c.DB, Log: c.Log,
	}
}

// Conversation passes what is said in conversations on to those whom the configuration names.
func (c *Core) Conversation(o conversation.Options) (*conversation.Service, error) {
	o.DB, o.Catalogs, o.Source, o.Log = c.DB, c.Catalogs, c.Config, c.Log
	o.AllowAnonymous, o.Rate = c.Limits.AllowInsecureTargets, conversation.NewRate(c.Rate(quota.ConversationRate))
	return conversation.New(o)
}

// Consent serves /consent.
func (c *Core) Consent(s *conversation.Service) *conversation.Handler {
	return &conversation.Handler{Service: s, Auth: c.Auth, Guard: c.Guard(), MetadataURL: c.ResourceMetadata, Log: c.Log}
}

// RefusesStreams reports whether a stream over a principal's quota is refused, or the oldest ends.
func RefusesStreams(l config.Limits) bool { return l.FullStreams == "refuse" }
