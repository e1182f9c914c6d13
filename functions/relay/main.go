// Command relay is the Lambda function that stays connected to the backends and receives their notifications and events. It is invoked
// every minute. An invocation ends immediately if another invocation is connected. Otherwise it stays connected for as long as a Lambda
// function may run (15 minutes), and then hands its connections over to the next invocation.
package main

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/functions/internal/cursors"
	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/relays"
	"github.com/mcp-events/mcpevents/shared/gateway/relay"
)

// shutdownTime limits how long the relay takes to shut down after SIGTERM. Lambda sends SIGKILL 500 ms after SIGTERM, so 100 ms remain
// for writing the metrics.
const shutdownTime = 400 * time.Millisecond

// ignoreChanged does nothing. The relay calls it after it has stored changed event types of a backend. On AWS, the function retry tells
// clients about the change, as soon as all functions use the changed types.
func ignoreChanged(context.Context) error { return nil }

func main() { os.Exit(boot.Run(0, create)) }

func create(p *boot.Process) (boot.Handler, error) {
	backends, err := app.NewGateway(p.Core, app.GatewayOptions{Secrets: p.Secrets.Secret})
	if err != nil {
		return boot.Handler{}, err
	}
	receiver, err := p.Variable(boot.EnvPublishURL)
	if err != nil {
		return boot.Handler{}, err
	}
	p.Limits.PublicURL = cmp.Or(p.Limits.PublicURL, receiver)
	key := boot.NewLazy(func(ctx context.Context) ([]byte, error) { return cursors.Key(ctx, p.DB) })
	p.Demand.Key = key.Get
	invocations := relay.NewInvocations(func() *relay.Relay { return relays.New(p.Core, backends, key.Get, ignoreChanged) })
	return p.InvokedHandler(invocations.Serve).BeforeEnd(func() { invocations.Shutdown(shutdownTime) }), nil
}
