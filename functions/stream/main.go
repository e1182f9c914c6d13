// Command stream is the function that serves the MCP endpoint. It forwards changes of webhook subscriptions to the functions register and
// deregister. So the function that faces the internet cannot write a subscription or read a secret.
package main

import (
	"context"
	"net/http"
	"os"

	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/functions/internal/cursors"
	"github.com/mcp-events/mcpevents/functions/internal/forward"
	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/mcp"
)

// parts holds the parts that the function's handlers share. They need the stored key of the deployment, so they are created at the first
// request.
type parts struct {
	key      []byte // authenticates cursors and other state that clients hold
	backends *gateway.Gateway
	talk     *conversation.Service
}

func main() { os.Exit(boot.Run(boot.All, create)) }

func create(p *boot.Process) (boot.Handler, error) {
	register, err := forwardTo(p, boot.EnvRegister)
	if err != nil {
		return boot.Handler{}, err
	}
	deregister, err := forwardTo(p, boot.EnvDeregister)
	if err != nil {
		return boot.Handler{}, err
	}
	shared := boot.NewLazy(func(ctx context.Context) (s parts, err error) {
		if s.key, err = cursors.Key(ctx, p.DB); err != nil {
			return s, err
		}
		if s.backends, err = app.NewGateway(p.Core, app.GatewayOptions{Secrets: p.Secrets.Secret, Key: s.key}); err != nil {
			return s, err
		}
		// Events of conversations go to the inbox queue, because only the function publish may send to the events queue.
		s.talk, err = app.NewConversation(p.Core, conversation.Options{
			Secrets: p.Secrets.Secret, Key: s.key, Backends: s.backends, Publisher: publish.InboxPublisher{Queue: p.Queues},
		})
		return s, err
	})
	p.Demand.Key = func(ctx context.Context) ([]byte, error) {
		s, err := shared.Get(ctx)
		return s.key, err
	}
	endpoint := boot.NewLazy(func(ctx context.Context) (http.Handler, error) {
		s, err := shared.Get(ctx)
		if err != nil {
			return nil, err
		}
		tokens, err := eventlog.NewSealer(s.key)
		if err != nil {
			return nil, err
		}
		feeds := stream.New(p.EventLog, p.DB, tokens)
		feeds.Demand = p.Demand
		return app.NewStreamEndpoint(p.Core, app.StreamOptions{
			Feeds: feeds, Leases: app.NewSharedLeases(p.Core, lambdacontext.MaxConcurrency()),
			Backends: s.backends, Conversation: s.talk, ForwardRegistrar: register, ForwardDeregistrar: deregister,
		})
	})
	consent := p.Handler(boot.NewLazy(func(ctx context.Context) (http.Handler, error) {
		s, err := shared.Get(ctx)
		return app.NewConsent(p.Core, s.talk), err
	}))
	mux := p.Serve(p.Handler(endpoint), "/mcp", "/mcp/{"+mcp.PathWorkspace+"}")
	mux.Handle("/consent", consent)
	mux.Handle("/consent/{"+conversation.PathProvider+"}", consent)
	return p.StreamHandler(p.RequireFront(auth.SecretPath{Auth: p.Auth, HTTPS: true}.Handler(mux)), endpoint), nil
}

func forwardTo(p *boot.Process, variable string) (http.Handler, error) {
	name, err := p.Variable(variable)
	return forward.Handler{Invoke: forward.Lambda(p.AWS, name), Log: p.Log}, err
}
