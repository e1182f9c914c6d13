// Command publish is the function that takes events in, from POST /events and
// from the inbox queue, and puts what is valid on the events queue.
package main

import (
	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/queue"
)

func main() {
	p := boot.StartWith(boot.Callers)
	_, url, inbox := p.Publish()
	p.Start(p.Sources(boot.Buffered(p.Serve(url, "/events")), func(arn string) queue.Handler {
		if p.IsFrom(arn, queue.Inbox) {
			return inbox.Handle
		}
		return nil
	}))
}
