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
		options := p.Stream(stream.New(p.EventLog, p.DB, tokens), p.SharedLeases(lambdacontext.MaxConcurrency()),
			p.Subscriptions(), backends, talk)
		options.ForwardRegistrar, options.ForwardDeregistrar = register, deregister
		return mcp.New(options)
	})
	consent := p.Handler(boot.NewLazy(func(ctx context.Context) (http.Handler, error) {
		talk, err := conversations.Get(ctx)
		return p.Consent(talk), err
	}))
	mux := p.Serve(p.Handler(endpoint), "/mcp", "/mcp/{"+mcp.PathWorkspace+"}")
	mux.Handle("/consent", consent)
	mux.Handle("/consent/{"+conversation.PathProvider+"}", consent)
	lambdaurl.Start(p.Measured(auth.SecretPath{Auth: p.Auth, HTTPS: true}.Handler(mux)), p.Draining(endpoint))
}
