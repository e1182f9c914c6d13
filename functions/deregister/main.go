// Command deregister is the function that ends subscriptions. It serves resources/subscriptions/deregister and
// events/unsubscribe.
package main

import (
	"context"
	"net/http"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/mcp"
)

func main() {
	p := boot.Start()
	endpoint := boot.NewLazy(func(context.Context) (http.Handler, error) {
		options := p.Endpoint()
		options.Deregistrar = p.Subscriptions()
		return mcp.New(options)
	})
	p.Start(boot.Buffered(p.Serve(p.Handler(endpoint), "/mcp")))
}
