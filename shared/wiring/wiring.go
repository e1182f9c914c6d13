// Package wiring turns the operator's settings into the options of each package,
// once for the embedded server and the functions. It makes no client and
// reads no environment; cmd/mcpevents and functions/ build their graphs with it.
package wiring

import (
	"context"
	"encoding/json"
	"time"

	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/stream"
	"github.com/mcp-events/mcpevents/shared/stream/lease"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

// Gateway reaches the backends and calls itself by the product's name to them.
func Gateway(o gateway.Options, version string) (*gateway.Gateway, error) {
	o.Server, _ = json.Marshal(mcp.Implementation{Name: "mcp-events", Version: version}) // two strings
	return gateway.New(o)
}

// Relay puts what the backends notify of into the log.
func Relay(g *gateway.Gateway, log *eventlog.Log) *gateway.Relay {
	return &gateway.Relay{Gateway: g, Announce: func(ctx context.Context, workspace, backend string, notice json.RawMessage) error {
		return log.Notify(ctx, workspace, stream.TopicBackend(backend), notice)
	}}
}

// Conversation tells what is said in conversations to those whom the configuration names.
func Conversation(l config.Limits, o conversation.Options) (*conversation.Service, error) {
	o.AllowAnonymous, o.Rate = l.AllowInsecureTargets, conversation.NewRate(l.ConversationRate)
	return conversation.New(o)
}

// SharedLeases bound the streams of instances over one store, each of which serves
// so many requests at once.
func SharedLeases(l config.Limits, db store.DB, atOnce int) *lease.Shared {
	const share = 80 // percent, so that calls always get through
	return &lease.Shared{
		DB: db, Max: int(l.Streams), Fleet: l.StreamConcurrency * int64(atOnce) * share / 100,
		Life: l.StreamMaxAge, Check: l.Heartbeat,
	}
}

// Subscriptions are the rules of subscriptions.
func Subscriptions(l config.Limits) subscription.Options {
	return subscription.Options{
		Quota: l.Quota, Rate: subscription.NewRate(l.RegistrationRate), Secret: subscription.SecretType(l.WebhookSecret),
		DefaultTTL: l.DefaultTTL, MinTTL: l.MinTTL, MaxTTL: l.MaxTTL, AllowNoExpiry: l.AllowNoExpiry,
		VerifiedTargets: l.VerifiedTargets, AllowAnonymous: l.AllowInsecureTargets,
		UnknownUnsubscribe: l.UnknownUnsubscribe == "not-found",
	}
}

// AnswerStreamAfter is the option of [mcp.Options] of that name.
func AnswerStreamAfter(l config.Limits) time.Duration {
	if l.AnswerStreamAfter == 0 {
		return -1 // at once
	}
	return l.AnswerStreamAfter
}

// EventCodes are the error numbers of the events methods.
func EventCodes(l config.Limits) mcp.EventCodes {
	if l.EventCodes == "sep3415" {
		return mcp.ProposalCodes
	}
	return mcp.SketchCodes
}
