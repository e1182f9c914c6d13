package delivery

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/webhook"
)

// What fails on our side stays where it fails. A subscriber's internal error becomes
// single deliveries, which wait in the slow lane and use up none of their attempts. When
// the time of their schedule is over they are dead letters of the subscription, under the
// category internal. What cannot be decoded at all is a dead letter of its queue. Either can
// be sent again when its cause is gone, and neither holds up or repeats anything else.

const (
	// maxHops bounds the pages that follow from one another because an endpoint takes its
	// time; what is left then goes to the slow lane.
	maxHops = 64
	// retryPage is how long a page waits for what of it could not even be made single deliveries,
	// because the store failed.
	retryPage = 30 * time.Second
)

// rejected deals with a message that could not be decoded, and reports whether it is done
// with. One of a newer version is left for a newer process.
func (d *Dispatcher) rejected(ctx context.Context, q queue.Name, m queue.Message, reason error) bool {
	if newer(reason) {
		d.log().WarnContext(ctx, "message of a newer version left", "queue", q, "message", m.ID)
		return false
	}
	d.log().ErrorContext(ctx, "message dead-lettered", "queue", q, "message", m.ID, "error", reason)
	err := d.Queue.Send(ctx, queue.Dead, queue.NewDeadLetter(q, m, fault.Public(reason), nil, d.now()))
	if err != nil {
		d.log().ErrorContext(ctx, "dead letter not queued", "queue", q, "message", m.ID, "error", err)
	}
	return err == nil
}

// undecodable makes the part of a page for a subscriber whose item cannot be decoded a
// dead letter.
func (d *Dispatcher) undecodable(ctx context.Context, t PageTask, r subscription.Range) error {
	const reason = "the subscriber's item cannot be decoded"
	d.log().ErrorContext(ctx, "subscriber dead-lettered", "workspace", t.Workspace, "pattern", t.Pattern, "place", r.From, "error", reason)
	var out []queue.Outgoing
	for _, task := range pages(t.Workspace, t.Pattern, r, 1, t.Events) {
		m := queue.Message{Outgoing: queue.Outgoing{Body: task.encode()}, Sent: d.now()}
		out = append(out, queue.NewDeadLetter(queue.Deliveries, m, reason, nil, d.now()))
	}
	return fault.Wrap(fault.Unavailable, d.Queue.Send(ctx, queue.Dead, out...), "dead-letter a subscriber that cannot be decoded")
}

// leftOf deals with what a page did not do for one subscriber, the events from number done
// on. After an error they become single deliveries; what was only late is left for another page, and so is
// what could not be written.
func (d *Dispatcher) leftOf(ctx context.Context, t PageTask, sub *subscription.Subscriber, done int, err error) []PageTask {
	if err != nil {
		ctx, cancel := finishing(ctx)
		defer cancel()
		d.log().WarnContext(ctx, "delivery failed on our side", "workspace", t.Workspace, "subscription", sub.ID, "error", err)
		for ; done < len(t.Events); done++ {
			if !sub.Wants(t.payloads[done], d.now()) {
				continue
			}
			if err := d.divert(ctx, t.Workspace, sub, &t.Events[done]); err != nil {
				break
			}
		}
	}
	if done == len(t.Events) {
		return nil
	}
	tasks := pages(t.Workspace, t.Pattern, subscription.At(sub.ID), 1, t.Events[done:])
	for i := range tasks {
		tasks[i].again = err != nil
	}
	return tasks
}

// failedOurselves decides what becomes of a delivery that failed on our side: it comes again by the
// queue, then by the due table.
func (d *Dispatcher) failedOurselves(ctx context.Context, m queue.Message, t SingleTask, reason error) (done bool) {
	d.log().WarnContext(ctx, "delivery failed on our side", "workspace", t.Workspace, "subscription", t.Subscription,
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

// errOurs is the error of an attempt that failed on our side: it does not count.
func errOurs(out webhook.Outcome) error {
	return &fault.Error{Kind: fault.Unavailable, Message: "the attempt failed on our side", Err: out.Err}
}
