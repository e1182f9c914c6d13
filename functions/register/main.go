// Command register is the function that creates subscriptions. It serves resources/subscriptions/register and
// events/subscribe. It can seal secrets but not open them.
package main

import (
	"context"
	"net/http"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/functions/internal/cursors"
	"github.com/mcp-events/mcpevents/functions/internal/sealing"
	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/webhooks"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/mcp"
)

func main() {
	p := boot.Start()
	webhook.MuteTransport()
	sender := webhook.NewSender(webhook.Options{Guard: webhooks.Guard(&p.Core), UserAgent: app.UserAgent()})
	endpoint := boot.NewLazy(func(ctx context.Context) (http.Handler, error) {
		tokens, err := cursors.Sealer(ctx, p.DB)
		if err != nil {
			return nil, err
		}
		options := p.Endpoint()
		options.Registrar = webhooks.Register(&p.Core, p.Subscriptions(), sender, &sealing.Sealer{DB: p.DB}, tokens)
		return mcp.New(options)
	})
	p.Start(boot.Buffered(p.Serve(p.Handler(endpoint), "/mcp")))
}
