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

// What a person paused (package switches) waits, without using up attempts or time of its schedule:
//
//   - while an event type or everything is paused, the page task, before its subscribers are read. So one
//     event to very many is a few items. A mark per task holds [Watermark] back until it has been attempted.
//   - while an origin or a subscription is paused, each delivery, which keeps its attempts.
//
// A paused message that is requeued is checked anew, and paused once more if something else is paused.

// pauses has deliveries and pages wait for switches.
type pauses struct {
	deliveries *state.Deliveries
	switches   *switches.Set // nil: nothing is paused
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

// pausePage pauses the part of a page whose event types are paused, and leaves the others.
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
		ops = append(ops, p.unmark()...) // by the new marks
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

// mark has [Watermark] wait for tasks whose events are older than their messages.
func (w *pauses) mark(workspace string, tasks []task.Page) (ops []store.Op) {
	now := w.deliveries.Now()
	for i := range tasks {
		tasks[i].Paused = lifecycle.EarliestKey(now, tasks[i].Events) + rand.Text()
		ops = append(ops, store.Put(store.Item{Key: markKey(workspace, tasks[i].Paused), Expires: now.Add(switches.Kept)}))
	}
	return ops
}

// unmark deletes the marks of a page's tasks.
func (p *page) unmark() (ops []store.Op) {
	for _, sort := range p.wasPaused {
		ops = append(ops, store.Delete(markKey(p.Workspace, sort)))
	}
	return ops
}

// markAnew marks the tasks that are left of a page that was paused, in place of the page.
func (w *pauses) markAnew(ctx context.Context, p *page, left []task.Page) error {
	if len(p.wasPaused) == 0 {
		return nil
	}
	if err := w.deliveries.DB.WriteAll(ctx, w.mark(p.Workspace, left)...); err != nil {
		return fault.Wrap(fault.Unavailable, err, "mark a page that was paused")
	}
	return fault.Wrap(fault.Unavailable, w.deliveries.DB.WriteAll(ctx, p.unmark()...), "mark a page that was paused")
}
