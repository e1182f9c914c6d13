// Command register is the function that creates subscriptions. It serves resources/subscriptions/register and events/subscribe. It can
// seal (encrypt) webhook secrets, but not open them.
package main

import (
	"context"
	"net/http"
	"os"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/functions/internal/cursors"
	"github.com/mcp-events/mcpevents/functions/internal/sealing"
	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/webhooks"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/events/webhook/targets"
)

func main() { os.Exit(boot.Run(boot.All, create)) }

func create(p *boot.Process) (boot.Handler, error) {
	webhook.MuteTransport()
	sender := webhooks.NewSender(p.Core, webhooks.SenderOptions{})
	p.Demand.Key = boot.NewLazy(func(ctx context.Context) ([]byte, error) { return cursors.Key(ctx, p.DB) }).Get
	endpoint := boot.NewLazy(func(ctx context.Context) (http.Handler, error) {
		tokens, err := cursors.Sealer(ctx, p.DB)
		if err != nil {
			return nil, err
		}
		return app.NewEndpoint(p.Core, app.EndpointOptions{Registrar: webhooks.NewRegistrar(p.Core, webhooks.RegistrarOptions{
			Subscriptions: app.NewSubscriptions(p.Core, app.SubscriptionOptions{}),
			Targets:       targets.Targets{Sender: sender, Sealer: &sealing.Sealer{DB: p.DB}},
			Cursors:       tokens,
		})})
	})
	return p.InvokedHandler(boot.BufferedHandler(p.Serve(p.Handler(endpoint), "/mcp"))), nil
}
