// Command retry is the function for periodic jobs. It runs every minute. It runs the jobs of [webhooks.NewJobs], continues replays,
// publishes the messages in the inbox queue, stores dead letters for operators, and tells clients when the operator's catalogs or
// configuration have changed.
package main

import (
	"context"
	"os"
	"time"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/webhooks"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
)

// announceLast is how long this function waits, in addition to [settings.MaxAge], before it tells clients about a changed catalog or
// configuration. Usually, the command that made the change has already told them by then. In this case, the function does not tell them
// again.
const announceLast = 2 * time.Second

func main() { os.Exit(boot.Run(boot.Webhooks|boot.Records, create)) }

func create(p *boot.Process) (boot.Handler, error) {
	subscriptions, operations := app.NewSubscriptions(p.Core, app.SubscriptionOptions{}), webhooks.NewOperations(p.Core)
	jobs := webhooks.NewJobs(p.Core, webhooks.JobOptions{
		Subscriptions: subscriptions, Terminator: webhooks.NewTerminator(p.Core, subscriptions),
		Switches: webhooks.NewSwitches(p.Core, false), Operations: operations,
	})
	jobs = append(jobs, []periodic.Job{
		{Name: "replays", Run: (&deadletter.Replays{Subscriptions: subscriptions, Operations: operations, EventLog: p.Core.EventLog}).Run},
		// By default (InboxConcurrency is 0), only this job reads the inbox queue. With an event source mapping instead, the queue could
		// use two of the account's concurrent executions.
		{Name: "inbox", Run: p.Drain(queue.Inbox, app.NewInbox(p.Core).Handle)},
		{Name: "dead letters", Run: p.DeadLetterJob(operations.FileMessages)},
		{Name: "announcements", Run: func(ctx context.Context) (int, error) {
			return 0, settings.Announce(ctx, p.DB, settings.MaxAge+announceLast, stream.AnnounceStored(p.EventLog))
		}},
	}...)
	return p.InvokedHandler(func(ctx context.Context) error {
		each := 50 * time.Second
		if end, ok := ctx.Deadline(); ok {
			each = time.Until(end) - 3*time.Second // leave time in which the jobs record their progress
		}
		return periodic.Round(ctx, each, p.Log, jobs...)
	}), nil
}
