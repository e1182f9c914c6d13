// Command publish is the function that receives events through POST /events, from sources and from the inbox queue.
// It puts valid events on the events queue.
package main

import (
	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

func main() {
	p := boot.StartWith(boot.Callers | boot.Records)
	service, url, inbox := p.Publish()
	mux := p.Serve(url, "/events")
	p.Core.Sources(service, p.Secrets.Secret).Mount(mux)
	p.Start(p.Sources(boot.Buffered(p.Fronted(mux)), func(arn string) queue.Handler {
		if p.IsFrom(arn, queue.Inbox) {
			return inbox.Handle
		}
		return nil
	}))
}
