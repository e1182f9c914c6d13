// Command publish is the function that accepts events: through POST /events, from sources, and from the inbox queue. It puts valid events
// into the events queue.
package main

import (
	"context"
	"os"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/functions/internal/cursors"
	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

func main() { os.Exit(boot.Run(boot.Callers|boot.Records, create)) }

func create(p *boot.Process) (boot.Handler, error) {
	key := boot.NewLazy(func(ctx context.Context) ([]byte, error) { return cursors.Key(ctx, p.DB) })
	publishing := app.NewPublishing(p.Core, app.PublishingOptions{Secrets: p.Secrets.Secret, Key: key.Get})
	mux := p.Serve(publishing.Handler, "/events")
	publishing.Sources.Mount(mux)
	return p.InvokedHandler(p.Sources(boot.BufferedHandler(p.RequireFront(mux)), func(arn string) queue.Handler {
		if p.IsFrom(arn, queue.Inbox) {
			return publishing.Inbox.Handle
		}
		return nil
	})), nil
}
