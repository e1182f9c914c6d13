package delivery

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

// Replayer sends the events of the log to one subscription.
type Replayer struct {
	Log   *eventlog.Log
	Queue queue.Sender
}

// MaxReplay bounds one replay; a client with a longer gap gets truncated.
const MaxReplay = 5000

// Replay implements [subscription.Replayer]: it enqueues the events of the
// subscription's patterns after the given key, oldest first within a partition.
func (r *Replayer) Replay(ctx context.Context, s *subscription.Subscription, after int64) (truncated bool, err error) {
	sent := 0
	for _, p := range s.Patterns {
		for _, part := range p.Partitions(r.Log, s.Workspace) {
			start := after - r.Log.LookBack(part).Microseconds()
			for more := true; more; {
				var entries []eventlog.Entry
				entries, more, start, err = r.Log.Read(ctx, part, start, 100)
				if err != nil {
					return false, err
				}
				var events []event.Event
				for _, e := range entries {
					events = append(events, *e.Event)
				}
				if sent += len(events); sent > MaxReplay {
					return true, nil
				}
				var out []queue.Outgoing
				for _, t := range pages(s.Workspace, p.Key, subscription.At(s.ID), 1, events) {
					out = append(out, queue.Outgoing{Body: t.encode()})
				}
				if len(out) == 0 {
					continue
				}
				if err := r.Queue.Send(ctx, queue.Deliveries, out...); err != nil {
					return false, fault.Wrap(fault.Unavailable, err, "enqueue a replay")
				}
			}
		}
	}
	return false, nil
}

// Reactivate implements [subscription.Replayer]: dispatch makes the deliveries that were
// suspended with the subscription.
func (r *Replayer) Reactivate(ctx context.Context, s *subscription.Subscription) error {
	task := PageTask{
		V: taskVersion, Workspace: s.Workspace, Range: subscription.At(s.ID),
		Reactivation: &Reactivation{Principal: s.Principal, Subscription: s.ID},
	}
	err := r.Queue.Send(ctx, queue.Deliveries, queue.Outgoing{Body: task.encode()})
	return fault.Wrap(fault.Unavailable, err, "reactivate the deliveries of a subscription")
}
