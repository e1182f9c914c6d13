// Command stream is the function behind the MCP endpoint. It lists, reads and
// streams; what changes webhook subscriptions it hands to register and deregister, so
// that the function that faces the internet can neither write a subscription nor
// read a secret.
package main

import (
	"context"
	"net/http"

	"github.com/aws/aws-lambda-go/lambdacontext"
	"github.com/aws/aws-lambda-go/lambdaurl"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/functions/internal/cursors"
	"github.com/mcp-events/mcpevents/functions/internal/forward"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/stream"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/wiring"
)

func main() {
	p := boot.Start()
	register := forward.Handler{Invoke: forward.Lambda(p.AWS, p.Variable(boot.EnvRegister)), Log: p.Log}
	deregister := forward.Handler{Invoke: forward.Lambda(p.AWS, p.Variable(boot.EnvDeregister)), Log: p.Log}
	key := boot.NewLazy(func(ctx context.Context) ([]byte, error) { return cursors.Key(ctx, p.DB) })
	gateways := boot.NewLazy(func(ctx context.Context) (*gateway.Gateway, error) {
		key, err := key.Get(ctx)
		if err != nil {
			return nil, err
		}
		return p.Gateway(key)
	})
	conversations := boot.NewLazy(func(ctx context.Context) (*conversation.Service, error) {
		key, err := key.Get(ctx)
		if err != nil {
			return nil, err
		}
		backends, err := gateways.Get(ctx)
		if err != nil {
			return nil, err
		}
		return p.Conversation(key, backends)
	})
	endpoint := boot.NewLazy(func(ctx context.Context) (http.Handler, error) {
		key, err := key.Get(ctx)
		if err != nil {
			return nil, err
		}
		tokens, err := eventlog.NewSealer(key)
		if err != nil {
			return nil, err
		}
		backends, err := gateways.Get(ctx)
		if err != nil {
			return nil, err
		}
		talk, err := conversations.Get(ctx)
		if err != nil {
			return nil, err
		}
		return mcp.New(mcp.Options{
			Server: mcp.Implementation{Name: "mcp-events", Version: boot.Version},
			Auth:   p.Auth, Catalogs: p.Catalog, Lists: true, Log: p.EventLog,
			Feeds: stream.New(p.EventLog, p.DB, tokens, stream.Options{}), Sessions: p.DB,
			Leases: wiring.SharedLeases(p.Limits, p.DB, lambdacontext.MaxConcurrency()),
			Interest: func(ctx context.Context, workspace string, pattern subscription.Pattern) (eventlog.Interest, error) {
				return subscription.Interested(ctx, p.DB, p.EventLog, workspace, pattern)
			},
			Subscriptions: &subscription.Service{
				DB: p.DB, Catalog: p.Catalog, Log: p.EventLog, Options: wiring.Subscriptions(p.Limits),
			},
			ForwardRegistrar: register, ForwardDeregistrar: deregister,
			AnonymousWebhooks: p.Limits.AllowInsecureTargets, EventCodes: wiring.EventCodes(p.Limits),
			ResourceMetadata: p.ResourceMetadata, Gateway: backends, Conversation: talk,
			AllowedOrigins: p.Limits.AllowedOrigins, MaxAge: p.Limits.StreamMaxAge, Heartbeat: p.Limits.Heartbeat,
			AnswerStreamAfter: wiring.AnswerStreamAfter(p.Limits), PollMin: p.Limits.PollMin, PollMax: p.Limits.PollMax, Logger: p.Log,
		})
	})
	consent := p.Handler(boot.NewLazy(func(ctx context.Context) (http.Handler, error) {
		talk, err := conversations.Get(ctx)
		return &conversation.Handler{
			Service: talk, Auth: p.Auth, Guard: auth.Guard{Origins: p.Limits.AllowedOrigins}, MetadataURL: p.ResourceMetadata, Log: p.Log,
		}, err
	}))
	mux := p.Serve(p.Handler(endpoint), "/mcp", "/mcp/{"+mcp.PathWorkspace+"}")
	mux.Handle("/consent", consent)
	mux.Handle("/consent/{"+conversation.PathProvider+"}", consent)
	lambdaurl.Start(mux, p.Draining(endpoint))
}
