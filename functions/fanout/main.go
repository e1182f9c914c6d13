// Command fanout is the function that takes accepted events to the log and to
// the subscribers of every pattern that they match.
package main

import (
	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/app/webhooks"
)

func main() {
	p := boot.StartWith(0)
	p.Start(p.Batches(webhooks.Fanout(&p.Core).Handle))
}
