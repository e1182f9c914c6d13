// Command dispatch is the function that signs and POSTs webhooks: pages of first
// attempts from the deliveries queue, single retries from the slow one.
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
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

const (
	// atOnce is how many first attempts a process has under way.
	atOnce = 128
	// patience is how long one may keep its slot without an answer. The process is frozen when its batch is done, so the
	// attempt is canceled then, and the slow lane repeats it.
	patience = 3 * time.Second
	// slowAnswer is how long an endpoint takes for an answer that counts as slow. Its further deliveries take the slow lane,
	// because a page holds one of few invocations until its slowest endpoint has answered.
	slowAnswer = time.Second
)

func main() {
	p := boot.StartWith(boot.Webhooks | boot.Records)
	webhook.MuteTransport()
	opener := &sealing.Opener{DB: p.DB, Wrapper: kmswrap.KMS{Client: kms.NewFromConfig(p.AWS), Key: p.Variable(boot.EnvKey)}}
	sender := webhook.NewSender(webhook.Options{Guard: webhooks.Guard(&p.Core), UserAgent: app.UserAgent()})
	subscriptions := p.Subscriptions()
	options := webhooks.Deliveries(p.Limits)
	options.Concurrency, options.Patience, options.SlowAnswer = atOnce, patience, slowAnswer
	tokens := boot.NewLazy(func(ctx context.Context) (*eventlog.Sealer, error) { return cursors.Sealer(ctx, p.DB) })
	dispatcher := webhooks.Dispatch(&p.Core, subscriptions, webhooks.Terminator(&p.Core, subscriptions), sender, opener,
		tokens.Get, nil, webhooks.Switches(&p.Core, false), options)
	if err := webhooks.WatchEndpoints(&p.Core, dispatcher); err != nil {
		p.Log.Error("function start failed", "error", err)
		os.Exit(1)
	}
	p.Start(p.Sources(nil, func(arn string) queue.Handler {
		switch {
		case p.IsFrom(arn, queue.Deliveries):
			return dispatcher.Pages
		case p.IsFrom(arn, queue.Slow):
			return dispatcher.Singles
		}
		return nil
	}))
}
