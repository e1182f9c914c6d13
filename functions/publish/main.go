// Command publish is the function that receives events through POST /events, from sources and from the inbox queue.
// It puts valid events on the events queue.
package main

import (
	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

func main() {
	p := boot.StartWith(boot.Callers | boot.Records)
	publishing := app.NewPublishing(p.Core, p.Secrets.Secret)
	mux := p.Serve(publishing.Handler, "/events")
	publishing.Sources.Mount(mux)
	p.Start(p.Sources(boot.Buffered(p.Fronted(mux)), func(arn string) queue.Handler {
		if p.IsFrom(arn, queue.Inbox) {
			return publishing.Inbox.Handle
		}
		return nil
	}))
}
