// Command admin is the function for the admin API and the console. It sends no webhooks and opens no secrets: if an operator retries
// deliveries, the functions retry and dispatch send them. It streams its responses, because a page of events may exceed the size limit of
// a buffered response.
package main

import (
	"net/http"
	"os"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/operators"
	"github.com/mcp-events/mcpevents/shared/app/webhooks"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
)

func main() { os.Exit(boot.Run(boot.All, create)) }

func create(p *boot.Process) (boot.Handler, error) {
	subscriptions, operations := app.NewSubscriptions(p.Core, app.SubscriptionOptions{}), webhooks.NewOperations(p.Core)
	handler := operators.NewHandler(p.Core, operators.Options{
		Mode: p.Mode, Subscriptions: subscriptions, Operations: operations,
		Replays:  &deadletter.Replays{Subscriptions: subscriptions, Operations: operations, EventLog: p.Core.EventLog},
		Switches: webhooks.NewSwitches(p.Core, false),
		Rest:     p.Serve(http.NotFoundHandler()),
	})
	return p.StreamHandler(p.RequireFront(handler), nil), nil
}
