package delivery

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/switches"
)

// What a person paused is parked (package switches), without using up attempts or time of its
// schedule:
//
//   - while an event type or everything is paused, the page task, before its subscribers are read. So one
//     event to very many is a few items. A mark per task holds [Watermark] back until it has been attempted.
//   - while an origin or a subscription is paused, each delivery, which keeps its attempts.
//
// A parked message that is released is checked anew, and parked once more if something else is paused.

// parkedKey is where a delivery is parked.
type parkedKey struct {
	Partition string `json:"p"`
	Sort      string `json:"s"`
}

// place is the key of its due entry, or of where it is parked.
func (del *delivery) place() store.Key {
	if del.ParkedAt.IsZero() {
		return dueKey(del.Workspace, del.Subscription, del.key(), del.DueAt)
	}
	return store.Key{Table: store.Deliveries, Partition: del.Parked.Partition, Sort: del.Parked.Sort}
}

// unpark ends the wait of a delivery for a switch, which does not count as time of its schedule.
func (del *delivery) unpark(now time.Time) {
	if !del.ParkedAt.IsZero() {
		del.First = del.First.Add(max(0, now.Sub(del.ParkedAt)))
		del.Parked, del.ParkedAt = parkedKey{}, time.Time{}
	}
}

// parking is where deliveries and pages wait for switches.
type parking struct {
	deliveries *deliveries
	switches   *switches.Set // nil: nothing is paused
}

// park parks a delivery that may not be attempted now, and reports whether it did. Without a
// subscriber it is a notice, without an event.
func (w *parking) park(ctx context.Context, del *delivery, sub *subscription.Subscriber, e *event.Event) (bool, error) {
	if w.switches == nil {
		return false, nil
	}
	which, err := w.switches.Paused(ctx, del.Workspace, del.Name, subscription.OriginOf(del.Target))
	if err == nil && which == "" && sub != nil && sub.Paused != 0 {
		which = switches.Subscription(sub.ID)
	}
	if err != nil || which == "" {
		return false, err
	}
	if e != nil {
		if err := w.deliveries.keepBody(ctx, e, del.key()); err != nil {
			return false, err
		}
	}
	task := del.due().Task
	entry := w.switches.Park(del.Workspace, which, switches.Parked{Queue: queue.Slow, Body: encode(task), Group: task.endpoint()})
	del.Parked, del.ParkedAt = parkedKey{entry.Partition, entry.Sort}, w.deliveries.now()
	del.Due, del.DueAt = time.Time{}, time.Time{}
	_, err = w.deliveries.write(ctx, del, &entry, "park a delivery") // false: it went on elsewhere
	return true, err
}

func parkedPages(workspace string) string { return "w#paused#" + workspace }

// parkPage parks the part of a page whose event types are paused, and leaves the others.
func (w *parking) parkPage(ctx context.Context, p *page) error {
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
		tasks := pages(p.Workspace, p.Pattern, p.Range, 1, events)
		ops = append(ops, w.mark(p.Workspace, tasks)...)
		for _, t := range tasks {
			t.Count, t.Hops = p.Count, p.Hops
			ops = append(ops, store.Put(w.switches.Park(p.Workspace, which, switches.Parked{Queue: queue.Deliveries, Body: t.encode()})))
		}
	}
	if len(rest) == 0 {
		ops = append(ops, p.unmark()...) // by the new marks
	}
	if err := w.deliveries.db.WriteAll(ctx, ops...); err != nil {
		return fault.Wrap(fault.Unavailable, err, "park a page")
	}
	p.Events = rest
	return nil
}

func markKey(workspace, sort string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: parkedPages(workspace), Sort: sort}
}

// mark has [Watermark] wait for tasks whose events are older than their messages.
func (w *parking) mark(workspace string, tasks []PageTask) (ops []store.Op) {
	now := w.deliveries.now()
	for i := range tasks {
		tasks[i].Parked = earliest(now, tasks[i].Events) + rand.Text()
		ops = append(ops, store.Put(store.Item{Key: markKey(workspace, tasks[i].Parked), Expires: now.Add(switches.Kept)}))
	}
	return ops
}

// unmark deletes the marks of a page's tasks.
func (p *page) unmark() (ops []store.Op) {
	for _, sort := range p.wasParked {
		ops = append(ops, store.Delete(markKey(p.Workspace, sort)))
	}
	return ops
}

// markAnew marks the tasks that are left of a page that was parked, in place of the page.
func (w *parking) markAnew(ctx context.Context, p *page, left []PageTask) error {
	if len(p.wasParked) == 0 {
		return nil
	}
	if err := w.deliveries.db.WriteAll(ctx, w.mark(p.Workspace, left)...); err != nil {
		return fault.Wrap(fault.Unavailable, err, "mark a page that was parked")
	}
	return fault.Wrap(fault.Unavailable, w.deliveries.db.WriteAll(ctx, p.unmark()...), "mark a page that was parked")
}
