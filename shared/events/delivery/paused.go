package delivery

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
)

// Work that a person has paused (package switches) waits without using up attempts or time of its schedule:
//
//   - While an event type or everything is paused, the page task waits before its subscribers are read. So one event to very
//     many subscribers is only a few items. A mark per task holds the watermark back until the task has been attempted.
//   - While an origin or a subscription is paused, each delivery waits, and keeps its attempts.
//
// After a switch is resumed, its messages are checked again, and wait again if another switch pauses them.

// pauses lets deliveries and pages wait for switches.
type pauses struct {
	deliveries *state.Deliveries
	switches   *switches.Set // nil pauses nothing
}

// switchOf returns the switch that pauses attempts of an event type to a target, or "" if none does. It also looks at the
// subscriber's own switch, unless sub is nil.
func (w *pauses) switchOf(ctx context.Context, workspace, name, target string, sub *subscription.Subscriber) (switches.Name, error) {
	if w.switches == nil {
		return "", nil
	}
	which, err := w.switches.Paused(ctx, workspace, name, subscription.OriginOf(target))
	if err == nil && which == "" && sub != nil && sub.Paused != 0 {
		which = switches.Subscription(sub.ID)
	}
	return which, err
}

// pause lets a delivery wait for a switch. A notice has no event. If another worker continues the delivery, pause leaves it
// to that worker.
func (w *pauses) pause(ctx context.Context, del *state.Delivery, which switches.Name, e *event.Event) error {
	_, err := w.deliveries.Write(ctx, del, state.Change{
		Step: state.StepPause, What: "pause a delivery", Event: e, Keep: switches.Kept + state.RetriedFor,
		Entry: func() store.Item {
			next := del.NextTask().Task
			entry := w.switches.Item(del.Workspace, which, switches.Message{Queue: queue.Slow, Body: task.Encode(next), Group: next.EndpointKey()})
			del.Paused, del.PausedAt = state.PausedKey{Partition: entry.Partition, Sort: entry.Sort}, w.deliveries.Now()
			del.Due, del.DueAt = time.Time{}, time.Time{}
			return entry
		},
	})
	return err
}

// pausePage stores the events of a page whose types are paused, and keeps the other events in the page.
func (w *pauses) pausePage(ctx context.Context, p *page) error {
	if w.switches == nil {
		return nil
	}
	var (
		ops  []store.Op
		rest []event.Event
		by   = map[switches.Name][]event.Event{}
	)
	for _, e := range p.Events {
		which, err := w.switches.Paused(ctx, p.Workspace, e.Name, "")
		if err != nil {
			return err
		}
		if which == "" {
			rest = append(rest, e)
			continue
		}
		by[which] = append(by[which], e)
	}
	if len(by) == 0 {
		return nil
	}
	for which, events := range by {
		tasks := task.Pages(p.Workspace, p.Pattern, p.Range, 1, events)
		ops = append(ops, w.mark(p.Workspace, tasks)...)
		for _, t := range tasks {
			t.Count, t.Hops, t.Retries = p.Count, p.Hops, p.Retries
			ops = append(ops, store.Put(w.switches.Item(p.Workspace, which, switches.Message{Queue: queue.Deliveries, Body: t.Encode(), Group: t.Group()})))
		}
	}
	if len(rest) == 0 {
		ops = append(ops, p.unmark()...) // the new marks replace them
	}
	if err := w.deliveries.DB.WriteAll(ctx, ops...); err != nil {
		return fault.Wrap(fault.Unavailable, err, "pause a page")
	}
	p.Events = rest
	return nil
}

func markKey(workspace, sort string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: lifecycle.PausedPages(workspace), Sort: sort}
}

// mark returns writes of marks that hold the watermark back for tasks whose events are older than their messages.
func (w *pauses) mark(workspace string, tasks []task.Page) (ops []store.Op) {
	now := w.deliveries.Now()
	for i := range tasks {
		tasks[i].Paused = lifecycle.EarliestKey(now, tasks[i].Events) + rand.Text()
		ops = append(ops, store.Put(store.Item{Key: markKey(workspace, tasks[i].Paused), Expires: now.Add(switches.Kept)}))
	}
	return ops
}

// unmark returns deletions of the marks of a page's tasks.
func (p *page) unmark() (ops []store.Op) {
	for _, sort := range p.wasPaused {
		ops = append(ops, store.Delete(markKey(p.Workspace, sort)))
	}
	return ops
}

// markRest replaces the marks of a page that was paused by marks of its remaining tasks.
func (w *pauses) markRest(ctx context.Context, p *page, left []task.Page) error {
	if len(p.wasPaused) == 0 {
		return nil
	}
	if err := w.deliveries.DB.WriteAll(ctx, w.mark(p.Workspace, left)...); err != nil {
		return fault.Wrap(fault.Unavailable, err, "mark a page that was paused")
	}
	return fault.Wrap(fault.Unavailable, w.deliveries.DB.WriteAll(ctx, p.unmark()...), "mark a page that was paused")
}
