package delivery

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
)

// While a subscription is suspended its deliveries form a backlog, without using
// up their retries (SEP-3415, webhook event delivery): a delivery that comes due is suspended, as
// its item alone, without a due entry. An event that was published before the suspension
// and is dispatched after it joins the backlog, too; later ones are in the log. A refresh
// first makes the subscription active, then reactivates the backlog and replays the
// log. Whoever suspends a delivery reads the subscription again afterwards, so that
// one of the two sees the other.

// backlog is the suspended deliveries of all subscriptions.
type backlog struct {
	deliveries    *state.Deliveries
	subscriptions Subscriptions
}

// add suspends the delivery of an event to a suspended subscriber.
func (b *backlog) add(ctx context.Context, sub *subscription.Subscriber, e *event.Event) error {
	if e.Published.After(time.UnixMicro(sub.Suspended).Add(2 * eventlog.MaxSkew)) {
		return nil // the replay brings it
	}
	return b.suspend(ctx, state.New(sub, e, b.deliveries.Now()), e)
}

// suspend puts a delivery into the backlog. The event is needed for a new one, to be stored with it.
func (b *backlog) suspend(ctx context.Context, del *state.Delivery, e *event.Event) error {
	del.Due, del.DueAt = time.Time{}, time.Time{}
	whose, err := b.deliveries.Write(ctx, del, state.Change{Step: state.StepSuspend, What: "suspend a delivery", Event: e, Keep: state.RetriedFor})
	if err != nil || whose != state.Mine {
		return err // another worker continues it, or it is over
	}
	record, err := b.subscriptions.Lookup(ctx, del.Workspace, del.Principal, del.Subscription)
	if err != nil || record == nil || record.State == subscription.Suspended {
		return err
	}
	return b.reactivate(ctx, del)
}

// reactivate schedules the next attempt of a suspended delivery.
func (b *backlog) reactivate(ctx context.Context, del *state.Delivery) error {
	_, err := b.deliveries.WriteNext(ctx, del, b.deliveries.Now()) // another worker may have reactivated it
	return err
}

// reactivateAll reactivates all suspended deliveries of a subscription.
func (b *backlog) reactivateAll(ctx context.Context, workspace string, r task.Reactivation) error {
	record, err := b.subscriptions.Lookup(ctx, workspace, r.Principal, r.Subscription)
	if err != nil || record == nil || record.State == subscription.Suspended {
		return err
	}
	return store.Each(ctx, b.deliveries.DB, state.Key(workspace, r.Subscription, ""), "list the suspended deliveries", func(it *store.Item) error {
		del, err := state.Decode(it)
		if err != nil {
			return b.deliveries.SetAside(ctx, it, err)
		}
		if del.State != state.Suspended {
			return nil
		}
		return b.reactivate(ctx, del)
	})
}
