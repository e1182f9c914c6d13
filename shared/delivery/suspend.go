package delivery

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

// While a subscription is suspended its deliveries form a backlog, without using
// up their retries (SEP-3415, webhook event delivery): a delivery that comes due is suspended, as
// its item alone, without a due entry. An event that was published before the suspension
// and is dispatched after it joins the backlog, too; later ones are in the log. A refresh
// first makes the subscription active, then reactivates the backlog and replays the
// log. Whoever suspends a delivery reads the subscription again afterwards, so that
// one of the two sees the other.

// stateSuspended is the state of a delivery in the backlog.
const stateSuspended = "held"

// addToBacklog suspends the delivery of an event to a suspended subscriber.
func (d *Dispatcher) addToBacklog(ctx context.Context, sub *subscription.Subscriber, e *event.Event) error {
	if e.Published.After(time.UnixMicro(sub.Suspended).Add(2 * eventlog.MaxSkew)) {
		return nil // the replay brings it
	}
	del := newDelivery(sub, e, d.now())
	if err := d.deliveries.storeBody(ctx, e, del.key()); err != nil {
		return err
	}
	return d.suspend(ctx, del)
}

// suspend puts a delivery into the backlog.
func (d *Dispatcher) suspend(ctx context.Context, del *delivery) error {
	del.State, del.Due, del.DueAt = stateSuspended, time.Time{}, time.Time{}
	if mine, err := d.deliveries.write(ctx, del, nil, "suspend a delivery"); err != nil || !mine {
		return err // nil: it went on elsewhere
	}
	record, err := d.Subscriptions.Lookup(ctx, del.Workspace, del.Principal, del.Subscription)
	if err != nil || record == nil || record.State == subscription.Suspended {
		return err
	}
	return d.reactivate(ctx, del)
}

// reactivate schedules the next attempt of a suspended delivery.
func (d *Dispatcher) reactivate(ctx context.Context, del *delivery) error {
	del.State = statePending
	del.version = del.item().Version
	_, err := d.deliveries.writeNext(ctx, del, d.now())
	return err
}

// reactivateBacklog reactivates all suspended deliveries of a subscription.
func (d *Dispatcher) reactivateBacklog(ctx context.Context, workspace string, r Reactivation) error {
	record, err := d.Subscriptions.Lookup(ctx, workspace, r.Principal, r.Subscription)
	if err != nil || record == nil || record.State == subscription.Suspended {
		return err
	}
	return store.Each(ctx, d.DB, deliveryKey(workspace, r.Subscription, ""), "list the suspended deliveries", func(it *store.Item) error {
		del, err := decodeDelivery(it)
		if err != nil || del.State != stateSuspended {
			return err
		}
		return d.reactivate(ctx, del)
	})
}
