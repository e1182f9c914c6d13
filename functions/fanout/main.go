// Command fanout is the function that takes accepted events to the log and to
// the subscribers of every pattern that they match.
package main

import (
	"github.com/aws/aws-lambda-go/lambda"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/delivery"
)

func main() {
	p := boot.StartWith(0)
	fanout := &delivery.Fanout{DB: p.DB, Log: p.EventLog, Catalog: p.Catalog, Queue: p.Queues}
	lambda.Start(p.Batches(fanout.Handle))
}
