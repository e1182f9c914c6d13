// Command dispatch is the function that signs webhooks and sends them. A message in the deliveries queue is a page task: it sends events
// to a range of subscribers for the first time. A message in the slow queue is a single attempt: a retry, or a first attempt to a slow
// endpoint.
package main

import (
	"context"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/kms"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/functions/internal/cursors"
	"github.com/mcp-events/mcpevents/functions/internal/sealing"
	"github.com/mcp-events/mcpevents/functions/internal/sealing/kmswrap"
	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/webhooks"
	"github.com/mcp-events/mcpevents/shared/events/delivery"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

const (
	// concurrency is the maximum number of first attempts that a process runs at the same time.
	concurrency = 128
	// patience is how long a page task waits for an endpoint's response to a first attempt. After that, the delivery moves to the slow
	// lane, which is another queue. Lambda freezes the process at the end of a batch, so dispatch cancels the attempt then, and the slow
	// lane repeats it.
	patience = 3 * time.Second
	// minWait replaces patience while batches follow each other quickly. The page task then waits as long as the endpoint usually takes
	// to answer, but at least for minWait. If the endpoint has not answered this process before, the page task waits for half of
	// slowAnswer.
	//
	// A slower attempt continues in the background until patience is over. It can, because Lambda freezes the process only briefly
	// between such batches.
	minWait = 100 * time.Millisecond
	// slowAnswer is the response time above which an endpoint counts as slow. Further events for the endpoint go to the slow lane.
	// Otherwise a page task would wait for its slowest endpoint, although only a few page tasks can run at the same time.
	slowAnswer = time.Second
)

func main() { os.Exit(boot.Run(boot.Webhooks|boot.Records, create)) }

func create(p *boot.Process) (boot.Handler, error) {
	key, err := p.Variable(boot.EnvKey)
	if err != nil {
		return boot.Handler{}, err
	}
	webhook.MuteTransport()
	opener := &sealing.Opener{DB: p.DB, Wrapper: kmswrap.KMS{Client: kms.NewFromConfig(p.AWS), Key: key}}
	subscriptions := app.NewSubscriptions(p.Core, app.SubscriptionOptions{})
	tokens := boot.NewLazy(func(ctx context.Context) (*eventlog.Sealer, error) { return cursors.Sealer(ctx, p.DB) })
	dispatcher := webhooks.NewDispatcher(p.Core, webhooks.DispatcherOptions{
		Subscriptions: subscriptions, Terminator: webhooks.NewTerminator(p.Core, subscriptions), Switches: webhooks.NewSwitches(p.Core, false),
		Sender: webhooks.NewSender(p.Core, webhooks.SenderOptions{}), Opener: opener, Cursors: tokens.Get,
		Options: delivery.Options{
			Concurrency: concurrency, Detached: concurrency, Patience: patience,
			SlowAnswer: slowAnswer, MinWait: minWait, SlowLaneDelay: state.EarlyMessage,
		},
	})
	if err := webhooks.WatchEndpoints(p.Core, dispatcher); err != nil {
		return boot.Handler{}, err
	}
	return p.InvokedHandler(p.Sources(nil, func(arn string) queue.Handler {
		switch {
		case p.IsFrom(arn, queue.Deliveries):
			return dispatcher.HandlePages
		case p.IsFrom(arn, queue.Slow):
			return dispatcher.HandleSingles
		}
		return nil
	})), nil
}
