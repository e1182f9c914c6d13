// Command relay is the function that holds the notification streams of the backends. It
// is invoked every minute: one that finds them held ends at once, another one holds
// them for as long as a function may run, and hands them over to the next.
package main

import (
	"context"
	"os"
	"time"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/gateway"
)

// Parts of an invocation's time: at its end the streams are closed, and in the last
// part before, of more than one of its invocations, the next one takes them over.
const (
	handover = 4
	closing  = 60
	// What a holder that died keeps others waiting.
	lease    = 30
	minLease = 3 * time.Second
)

// lastWords is what Lambda leaves a process after SIGTERM, but for a little.
const lastWords = 450 * time.Millisecond

func main() {
	p := boot.StartWith(0)
	backends, err := p.Gateway(gateway.Options{Secrets: p.Secrets.Secret})
	if err != nil {
		p.Log.Error("function start failed", "error", err)
		os.Exit(1)
	}
	ending, end := context.WithCancel(context.Background())
	idle := make(chan struct{}, 1)
	idle <- struct{}{}
	lambda.StartWithOptions(func(ctx context.Context) error {
		<-idle
		defer func() { idle <- struct{}{} }()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(ending, cancel)()
		relay := p.Relay(backends)
		if deadline, ok := ctx.Deadline(); ok {
			life := time.Until(deadline)
			relay.Until, relay.Handover = deadline.Add(-life/closing), life/handover
			relay.Lease = max(life/lease, minLease)
		}
		relay.Run(ctx)
		return nil
	}, lambda.WithEnableSIGTERM(func() {
		// The leases go back at once, and then the connections.
		end()
		select {
		case <-idle:
		case <-time.After(lastWords):
		}
		os.Exit(0)
	}))
}
