package delivery

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/webhook"
)

// An internal failure concerns one subscriber only. Its deliveries become single deliveries,
// which wait in the slow lane and use up none of their attempts. When the time of their
// schedule has passed, they are dead letters of the subscription, with the category internal. A
// message that cannot be decoded is a dead letter of its queue. Both can be redriven when the
// cause is mended, and neither delays or repeats anything else.

const (
	// maxHops bounds the page tasks that follow from one another because an endpoint is
	// slow; the remaining events then go to the slow lane.
	maxHops = 64
	// retryPage is the delay of a page task whose events could not even become single
	// deliveries, because the store failed.
	retryPage = 30 * time.Second
)

// rejected dead-letters a message that cannot be decoded, and reports whether it did. A message
// of a newer version stays in its queue for a newer process.
func (d *Dispatcher) rejected(ctx context.Context, q queue.Name, m queue.Message, reason error) bool {
	if newer(reason) {
		d.log().WarnContext(ctx, "newer message left in queue", "queue", q, "message", m.ID)
		return false
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

// undecodable dead-letters the part of a page that belongs to a subscriber whose item cannot be
// decoded.
func (d *Dispatcher) undecodable(ctx context.Context, t PageTask, r subscription.Range) error {
	const reason = "the subscriber's item cannot be decoded"
	d.log().ErrorContext(ctx, "subscriber dead-lettered", "workspace", t.Workspace, "pattern", t.Pattern, "position", r.From, "error", reason)
	var out []queue.Outgoing
	for _, task := range pages(t.Workspace, t.Pattern, r, 1, t.Events) {
		m := queue.Message{Outgoing: queue.Outgoing{Body: task.encode()}, Sent: d.now()}
		out = append(out, queue.NewDeadLetter(queue.Deliveries, m, reason, nil, d.now()))
	}
	if err := d.Queue.Send(ctx, queue.Dead, out...); err != nil {
		return fault.Wrap(fault.Unavailable, err, "dead-letter a subscriber that cannot be decoded")
	}
	d.Metrics.DeadLettered(string(queue.Deliveries), len(out))
	return nil
}

// remaining returns page tasks for the events that a page did not send to one subscriber, those
// from index done on. After an error they become single deliveries instead, and only those that
// could not be written are left.
func (d *Dispatcher) remaining(ctx context.Context, t PageTask, sub *subscription.Subscriber, done int, err error) []PageTask {
	if err != nil {
		ctx, cancel := finishing(ctx)
		defer cancel()
		d.log().WarnContext(ctx, "internal delivery failure", "workspace", t.Workspace, "subscription", sub.ID, "error", err)
		for ; done < len(t.Events); done++ {
			if !sub.Wants(t.payloads[done], d.now()) {
				continue
			}
			if err := d.fast.toSlowLane(ctx, sub, &t.Events[done]); err != nil {
				break
			}
		}
	}
	if done == len(t.Events) {
		return nil
	}
	tasks := pages(t.Workspace, t.Pattern, subscription.At(sub.ID), 1, t.Events[done:])
	for i := range tasks {
		tasks[i].retried = err != nil
	}
	return tasks
}

// failedInternally retries a delivery after an internal failure: first by the queue, then by the
// due table.
func (d *Dispatcher) failedInternally(ctx context.Context, m queue.Message, t SingleTask, reason error) (done bool) {
	d.log().WarnContext(ctx, "internal delivery failure", "workspace", t.Workspace, "subscription", t.Subscription,
		"event", t.Event, "receives", m.Received, "error", reason)
	if m.Received < laterReceives {
		return false
	}
	err := d.waitInDueTable(ctx, t, laterDue, &attempt{At: d.now(), Category: string(webhook.Internal)})
	if fault.Is(err, fault.Internal) {
		return d.rejected(ctx, queue.Slow, m, err) // its item cannot be decoded
	}
	return err == nil
}

// internalError is the error of an attempt that failed internally: it does not count.
func internalError(out webhook.Outcome) error {
	return &fault.Error{Kind: fault.Unavailable, Message: "the attempt failed internally", Err: out.Err}
}
