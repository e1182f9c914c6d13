// Command deregister is the function that ends subscriptions. It serves resources/subscriptions/deregister and
// events/unsubscribe.
package main

import (
	"context"
	"net/http"
	"os"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/app"
)

func main() { os.Exit(boot.Run(boot.All, create)) }

func create(p *boot.Process) (boot.Handler, error) {
	endpoint := boot.NewLazy(func(context.Context) (http.Handler, error) {
		return app.NewEndpoint(p.Core, app.EndpointOptions{Deregistrar: app.NewSubscriptions(p.Core, app.SubscriptionOptions{})})
	})
	return p.InvokedHandler(boot.BufferedHandler(p.Serve(p.Handler(endpoint), "/mcp"))), nil
}
