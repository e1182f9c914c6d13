package delivery

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
)

// An internal failure concerns one subscriber only. Its deliveries become single deliveries,
// which wait in the slow lane and use up none of their attempts. When the time of their
// schedule has passed, they are dead letters of the subscription, with the category internal. A
// message that cannot be decoded is a dead letter of its queue. Both can be redriven when the
// cause is mended, and neither delays or repeats anything else.

const (
	// maxHops limits the page tasks that follow from one another without an attempt, because the endpoint of a subscriber
	// is busy. Its events then go to the slow lane.
	maxHops = 64
	// retryPage is the first delay of a page task whose events could not even become single deliveries, because the
	// store failed. It doubles with each retry, up to [queue.MaxDelay].
	retryPage = 30 * time.Second
	// maxPageRetries bounds these retries, which take about four hours. Each of them may repeat a webhook.
	maxPageRetries = 20
)

// pageDelay returns the delay of a page task's retry.
func pageDelay(retries int) time.Duration {
	if retries == 0 {
		return 0
	}
	return min(retryPage<<min(retries-1, 10), queue.MaxDelay)
}

// rejected handles a message that cannot be decoded, and reports whether the message is done. It dead-letters the message,
// unless a newer program wrote it. That one stays in its queue for a newer process, or a copy of it does.
func (d *Dispatcher) rejected(ctx context.Context, q queue.Name, m queue.Message, reason error) bool {
	if task.Newer(reason) {
		d.log().WarnContext(ctx, "newer message left in queue", "queue", q, "message", m.ID)
		return task.Renew(ctx, d.Queue, q, m)
	}
	d.log().ErrorContext(ctx, "message dead-lettered", "queue", q, "message", m.ID, "error", reason)
	err := d.Queue.Send(ctx, queue.Dead, queue.NewDeadLetter(q, m, fault.Public(reason), nil, d.now()))
	if err != nil {
		d.log().ErrorContext(ctx, "dead letter not sent", "queue", q, "message", m.ID, "error", err)
		return false
	}
	d.Metrics.DeadLettered(string(q), 1)
	return true
}

// undecodable dead-letters the part of a page that belongs to a subscriber whose item cannot be decoded.
func (d *Dispatcher) undecodable(ctx context.Context, t task.Page, r subscription.Range) error {
	return d.deadLetterPages(ctx, task.Pages(t.Workspace, t.Pattern, r, 1, t.Events), "the subscriber's item cannot be decoded")
}

// deadLetterPages dead-letters page tasks. A task that is sent back starts from the beginning.
func (d *Dispatcher) deadLetterPages(ctx context.Context, tasks []task.Page, reason string) error {
	var out []queue.Outgoing
	for _, t := range tasks {
		d.log().ErrorContext(ctx, "page dead-lettered", "workspace", t.Workspace, "pattern", t.Pattern, "range", t.Range, "reason", reason)
		m := queue.Message{Outgoing: queue.Outgoing{Body: t.Encode()}, Sent: d.now()}
		out = append(out, queue.NewDeadLetter(queue.Deliveries, m, reason, nil, d.now()))
	}
	if err := d.Queue.Send(ctx, queue.Dead, out...); err != nil {
		return fault.Wrap(fault.Unavailable, err, "dead-letter a page")
	}
	d.Metrics.DeadLettered(string(queue.Deliveries), len(out))
	return nil
}

// remaining returns page tasks for the events that a page did not send to one subscriber. Events that failed internally
// become single deliveries instead. Those that cannot be written are left to another page, which repeats their first
// attempt, up to [maxPageRetries] times. After that, or if an event can never be written, they are dead letters of the
// deliveries queue.
func (d *Dispatcher) remaining(ctx context.Context, t task.Page, sub *subscription.Subscriber, v *visit) []task.Page {
	tasksOf := func(events []event.Event) []task.Page {
		tasks := task.Pages(t.Workspace, t.Pattern, subscription.At(sub.ID), 1, events)
		for i := range tasks {
			tasks[i].Endpoint, tasks[i].Since, tasks[i].Hops = task.EndpointID(sub.Target.URL), t.Since, t.Hops+1
		}
		return tasks
	}
	var left []event.Event
	for _, i := range v.left {
		left = append(left, t.Events[i])
	}
	tasks := tasksOf(left)
	for i := range tasks {
		if v.sent { // the task gets shorter, so it needs no limit and no pause
			tasks[i].Hops = t.Hops
		} else {
			tasks[i].Delay = time.Duration(min(t.Hops, 30)) * time.Second
		}
	}
	if v.err == nil {
		return tasks
	}
	ctx, cancel := finishing(ctx)
	defer cancel()
	d.log().WarnContext(ctx, "internal delivery failure", "workspace", t.Workspace, "subscription", sub.ID, "error", v.err)
	var unwritten []event.Event
	for n, i := range v.failed {
		err := d.toSlowLane(ctx, sub, &t.Events[i])
		if task.Permanent(err) {
			err = d.deadLetterPages(ctx, tasksOf(t.Events[i:i+1]), fault.Public(err))
		}
		if err != nil {
			for _, i := range v.failed[n:] {
				unwritten = append(unwritten, t.Events[i])
			}
			break
		}
	}
	again := tasksOf(unwritten)
	if len(again) > 0 && t.Retries >= maxPageRetries && d.deadLetterPages(ctx, again, "the deliveries could not be written") == nil {
		return tasks
	}
	for i := range again {
		again[i].Retries = t.Retries + 1
		again[i].Delay = pageDelay(again[i].Retries)
	}
	return append(tasks, again...)
}

// failedInternally retries a delivery after an internal failure: first by the queue, then by the
// due table.
func (d *Dispatcher) failedInternally(ctx context.Context, m queue.Message, t task.Single, reason error) (done bool) {
	d.log().WarnContext(ctx, "internal delivery failure", "workspace", t.Workspace, "subscription", t.Subscription,
		"event", t.Event, "receives", m.Received, "error", reason)
	if m.Received < laterReceives {
		return false
	}
	err := d.waitLater(ctx, t, 0, &state.Result{At: d.now(), Category: string(webhook.Internal)})
	if fault.Is(err, fault.Internal) {
		return d.rejected(ctx, queue.Slow, m, err) // its item cannot be decoded
	}
	return err == nil
}
