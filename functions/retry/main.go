// Command retry is the function that runs every minute. It moves due deliveries to the slow queue, publishes the
// messages in the inbox, files dead letters of queues and undecodable items of the event log, removes
// expired subscriptions, recounts subscriptions, ends subscriptions whose event type a changed catalog lacks, and announces changed catalogs
// and backends that have not been announced yet. The jobs run concurrently, so that one cannot hold up another.
package main

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/app/webhooks"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
)

// announceLast is how much longer this function waits than the command that applies a catalog. Usually the command
// announces the change, and this function then finds that there is nothing left to do.
const announceLast = 2 * time.Second

func main() {
	p := boot.StartWith(boot.Webhooks | boot.Records)
	subscriptions := p.Subscriptions()
	expiry := webhooks.Expiry(&p.Core, subscriptions)
	operations := webhooks.Operations(&p.Core)
	retry := webhooks.Retry(&p.Core)
	jobs := []periodic.Job{
		{Name: "due retries", Run: retry.Run},
		{Name: "resumed deliveries", Run: webhooks.Switches(&p.Core, false).Requeue},
		{Name: "replays", Run: webhooks.Replays(&p.Core, subscriptions, operations).Run},
		// By default no event source mapping reads the inbox, because it would take two concurrent executions.
		{Name: "inbox", Run: p.Drain(queue.Inbox, p.Inbox().Handle)},
		{Name: "dead letters", Run: p.Dead(operations.File)},
		{Name: "log items", Run: retry.LogItems},
		{Name: "erasures", Run: operations.SweepErased},
		{Name: "expiry", Run: expiry.Sweep},
		{Name: "counts", Run: expiry.Recount},
		{Name: "audit", Run: webhooks.Terminator(&p.Core, subscriptions).Audit},
		{Name: "announcements", Run: func(ctx context.Context) (int, error) {
			return 0, settings.Announce(ctx, p.DB, settings.MaxAge+announceLast, stream.AnnounceStored(p.EventLog))
		}},
	}
	p.Start(func(ctx context.Context) error {
		each := 50 * time.Second
		if end, ok := ctx.Deadline(); ok {
			each = time.Until(end) - 3*time.Second // leave time to record their progress
		}
		return periodic.Round(ctx, each, p.Log, jobs...)
	})
}
