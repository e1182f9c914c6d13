// Command publish is the function that takes events in, from POST /events and
// from the inbox queue, and puts what is valid on the events queue.
package main

import (
	"github.com/aws/aws-lambda-go/lambda"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/publish"
	"github.com/mcp-events/mcpevents/shared/queue"
)

func main() {
	p := boot.StartWith(boot.Callers)
	service := &publish.Service{Catalog: p.Catalog, Queue: p.Queues, Rate: publish.NewRate(p.Limits.PublishRate)}
	inbox := &publish.Inbox{Service: service, Log: p.Log}
	url := p.Serve(&publish.Handler{
		Service: service, Auth: p.Auth, Guard: auth.Guard{Origins: p.Limits.AllowedOrigins},
		MetadataURL: p.ResourceMetadata, Log: p.Log,
	}, "/events")
	lambda.Start(p.Sources(boot.Buffered(url), func(arn string) queue.Handler {
		if p.IsFrom(arn, queue.Inbox) {
			return inbox.Handle
		}
		return nil
	}))
}
