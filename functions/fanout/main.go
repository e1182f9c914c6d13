// Command fanout is the function that writes accepted events to the event log. For the subscribers whose patterns match the events, it
// queues tasks, with which the function dispatch sends the webhooks.
package main

import (
	"os"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/app/webhooks"
)

func main() { os.Exit(boot.Run(0, create)) }

func create(p *boot.Process) (boot.Handler, error) {
	return p.InvokedHandler(p.BatchHandler(webhooks.NewFanout(p.Core).Handle)), nil
}
