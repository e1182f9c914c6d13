package deadletter

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// Replayer sends past events from the event log to one subscription, for example if its client resumes from an older cursor.
type Replayer struct {
	Log   *eventlog.Log
	Queue queue.Sender
}

const (
	// MaxReplay is the largest number of events that a replay for a subscribe request sends. If the client missed more events, the
	// response says truncated: true.
	MaxReplay = 5000
	// replayTime limits how long a replay for a subscribe request takes, because the client waits for the response.
	replayTime = time.Minute
)

// Replay implements [subscription.Replayer]. It queues page tasks, i.e. tasks to send events, for the events of the log that match the
// subscription's patterns and whose keys are greater than the parameter after. Within a partition of the log, it sends the oldest events
// first.
//
// Replay returns truncated if it leaves out events. It leaves out events that cannot be read, for example because a later release wrote
// them, and events for which the time or [MaxReplay] does not suffice. It returns no error for these events, because the client would
// repeat its request, and the repeated request would meet the same events.
func (r *Replayer) Replay(ctx context.Context, s *subscription.Subscription, after int64) (truncated bool, err error) {
	if err := r.Log.AwaitBatches(ctx); err != nil {
		return false, err
	}
	sent, end := 0, time.Now().Add(within(ctx, replayTime))
	for _, p := range s.Patterns {
		for _, part := range p.Partitions(r.Log, s.Workspace) {
			start := after - r.Log.LookBack(part).Microseconds()
			for more := true; more; {
				if !time.Now().Before(end) {
					return true, nil
				}
				var entries []eventlog.Entry
				entries, more, start, err = r.Log.ReadPast(ctx, part, start, 100)
				if err != nil {
					return false, err
				}
				var events []event.Event
				for _, e := range entries {
					if e.Lost {
						truncated = true
						continue
					}
					events = append(events, *e.Event)
				}
				if sent += len(events); sent > MaxReplay {
					return true, nil
				}
				if err := enqueue(ctx, r.Queue, tasksOf(s.Workspace, p.Key, s.ID, events, 0)); err != nil {
					return false, err
				}
			}
		}
	}
	return truncated, nil
}

func tasksOf(workspace, pattern, id string, events []event.Event, delay time.Duration) (out []queue.Outgoing) {
	for _, t := range task.Pages(workspace, pattern, subscription.RangeOf(id), 1, events) {
		t.Delay, t.Late = delay, true
		out = append(out, t.Outgoing())
	}
	return out
}

func enqueue(ctx context.Context, q queue.Sender, tasks []queue.Outgoing) error {
	if len(tasks) == 0 {
		return nil
	}
	return fault.Wrap(fault.Unavailable, q.Send(ctx, queue.Deliveries, tasks...), "enqueue a replay")
}

// Reactivate implements [subscription.Replayer]. It queues a task to schedule the subscription's suspended deliveries.
func (r *Replayer) Reactivate(ctx context.Context, s *subscription.Subscription) error {
	return reactivate(ctx, r.Queue, s)
}

// Reactivate queues a task to schedule the suspended deliveries of a subscription that a person enabled again. It can be repeated,
// because the task ignores deliveries that are not suspended, and does nothing while the subscription is suspended.
func (o *Operations) Reactivate(ctx context.Context, s *subscription.Subscription) error {
	return reactivate(ctx, o.Deliveries.Queue, s)
}

func reactivate(ctx context.Context, q queue.Sender, s *subscription.Subscription) error {
	task := task.Page{
		V: task.Version, Workspace: s.Workspace, Range: subscription.RangeOf(s.ID),
		Reactivation: &task.Reactivation{Principal: s.Principal, Subscription: s.ID},
	}
	err := q.Send(ctx, queue.Deliveries, task.Outgoing())
	return fault.Wrap(fault.Unavailable, err, "reactivate the deliveries of a subscription")
}

// readEvents returns the next events of a replay's time span that the subscription wants. Each call reads one page of one partition of
// the event log, from the given position. The result next is the position for the next call, or "" at the end. The result pattern is the
// key of the subscription's pattern to which the partition belongs.
//
// Events of the same microsecond are returned together, even beyond the limit, because the position has no finer resolution.
func (rs *Replays) readEvents(ctx context.Context, sub *subscription.Subscription, s ReplaySelect, position string, limit int) (pattern string, events []event.Event, next string, err error) {
	var parts []eventlog.Partition
	var keys []string
	for _, p := range sub.Patterns {
		for _, part := range p.Partitions(rs.EventLog, sub.Workspace) {
			parts, keys = append(parts, part), append(keys, p.Key)
		}
	}
	begin := s.Since.UnixMicro() - 1
	at, after := 0, begin
	if position != "" {
		if _, err := fmt.Sscanf(position, "%d/%d", &at, &after); err != nil {
			return "", nil, "", fault.Wrap(fault.Internal, err, "read the position of a replay")
		}
	}
	if at >= len(parts) {
		return "", nil, "", nil
	}
	entries, more, after, err := rs.EventLog.ReadPast(ctx, parts[at], after, 100)
	if err != nil || len(entries) == 0 && more {
		return keys[at], nil, fmt.Sprintf("%d/%d", at, after), err
	}
	subscribers, err := subscription.ReadSubscribers(ctx, rs.Operations.Deliveries.DB, sub.Workspace, keys[at], subscription.RangeOf(sub.ID), 1)
	if err != nil {
		return "", nil, "", err
	}
	for i, e := range entries {
		if e.Key > s.Until.UnixMicro() {
			more = false
			break
		}
		if len(events) >= limit && e.Key > entries[i-1].Key {
			more, after = true, entries[i-1].Key
			break
		}
		if e.Event != nil && len(subscribers.List) > 0 && subscribers.List[0].Wants(&match.Payload{Event: e.Event}, rs.Operations.Deliveries.Now()) {
			events = append(events, *e.Event)
		}
	}
	pattern = keys[at]
	if !more {
		at, after = at+1, begin
	}
	if at < len(parts) {
		next = fmt.Sprintf("%d/%d", at, after)
	}
	return pattern, events, next, nil
}

const maxReads = 1000 // the maximum number of pages of the log that countEvents, or one step of a replay, reads

// countEvents counts the events that a replay would send. The result more says that countEvents stopped early, so that there may be more.
func (rs *Replays) countEvents(ctx context.Context, sub *subscription.Subscription, s ReplaySelect) (n int, more bool, err error) {
	if s.Until.IsZero() {
		s.Until = rs.Operations.Deliveries.Now()
	}
	next, end := "", time.Now().Add(within(ctx, countTime))
	for range maxReads {
		var events []event.Event
		if _, events, next, err = rs.readEvents(ctx, sub, s, next, maxCount); err != nil {
			return 0, false, err
		}
		if n += len(events); next == "" || n >= maxCount || !time.Now().Before(end) {
			break
		}
	}
	return n, next != "", nil
}

// stepEvents sends the next events of a replay, r.Rate per second, and then saves the replay's position. If a worker dies in between, or
// two workers make the same step, some events are sent twice, but no event is lost. A suspended subscription gets no events, because its
// next refresh replays them.
func (rs *Replays) stepEvents(ctx context.Context, r *Replay, now time.Time, limit int) (n int, err error) {
	sub, err := rs.Subscriptions.Find(ctx, r.Workspace, r.Select.Subscription)
	if err != nil {
		return 0, err
	}
	over, left := sub == nil || sub.State == subscription.Disabled, limit
	if over {
		r.countSkipped(SkippedEnded, r.Total-r.Replayed-r.Skipped)
	}
	end := time.Now().Add(within(ctx, stepTime))
	for reads := 0; !over && left > 0 && reads < maxReads && (reads == 0 || time.Now().Before(end)); reads++ {
		pattern, events, next, err := rs.readEvents(ctx, sub.Subscription, r.selection(), r.Before, left)
		if err != nil {
			return n, err
		}
		r.Before, left, over = next, left-len(events), next == ""
		if sub.State == subscription.Suspended {
			r.countSkipped(SkippedSuspended, len(events))
			continue
		}
		var out []queue.Outgoing
		for second := range slices.Chunk(events, r.Rate) {
			delay := (max(0, r.Next.Sub(now)) + time.Second - 1).Truncate(time.Second)
			out = append(out, tasksOf(r.Workspace, pattern, sub.ID, second, delay)...)
			r.Next = r.Next.Add(time.Duration(len(second)) * time.Second / time.Duration(r.Rate))
		}
		if err := enqueue(ctx, rs.Operations.Deliveries.Queue, out); err != nil {
			return n, err
		}
		n += len(events)
	}
	if r.Replayed += n; over {
		r.State, r.Finished = ReplayDone, rs.Operations.Deliveries.Now().UTC()
	}
	return n, rs.save(ctx, r)
}
