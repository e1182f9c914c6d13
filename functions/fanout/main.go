// Command fanout is the function that writes accepted events to the log and passes them to the subscribers whose
// patterns match.
package main

import (
	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/app/webhooks"
)

func main() {
	p := boot.StartWith(0)
	p.Start(p.Batches(webhooks.NewFanout(p.Core).Handle))
}
