package lifecycle

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

// The deliveries of a suspended subscription form a backlog and use up none of their retries (SEP-3415, webhook event
// delivery). A delivery that becomes due is suspended: it keeps its item but has no due entry. An event that was published
// before the suspension and dispatched after it joins the backlog, too. Later events are in the log.
//
// A refresh first makes the subscription active, then reactivates the backlog and replays the log. A worker that suspends a
// delivery reads the subscription again afterwards, so either the worker or the refresh sees the other.

// AddToBacklog suspends the delivery of an event to a suspended subscriber.
func (m *Manager) AddToBacklog(ctx context.Context, sub *subscription.Subscriber, e *event.Event) error {
	if e.Published.After(time.UnixMicro(sub.Suspended).Add(2 * eventlog.MaxSkew)) {
		return nil // the refresh replays it from the log
	}
	return m.SuspendDelivery(ctx, state.New(sub, e, m.Deliveries.Now()), e)
}

// SuspendDelivery puts a delivery into the backlog. The event is stored with a new delivery, and nil for a stored one.
func (m *Manager) SuspendDelivery(ctx context.Context, del *state.Delivery, e *event.Event) error {
	del.Due, del.DueAt = time.Time{}, time.Time{}
	whose, err := m.Deliveries.Write(ctx, del, state.Change{Step: state.StepSuspend, What: "suspend a delivery", Event: e, Keep: state.RetriedFor})
	if err != nil || whose != state.Mine {
		return err // another worker continues it, or it is over
	}
	record, err := m.Subscriptions.Lookup(ctx, del.Workspace, del.Principal, del.Subscription)
	if err != nil || record == nil || record.State == subscription.Suspended {
		return err
	}
	return m.reactivate(ctx, del)
}

// reactivate schedules the next attempt of a suspended delivery.
func (m *Manager) reactivate(ctx context.Context, del *state.Delivery) error {
	_, err := m.Deliveries.WriteNext(ctx, del, m.Deliveries.Now()) // another worker may have reactivated it
	return err
}

// ReactivateAll reactivates all suspended deliveries of a subscription.
func (m *Manager) ReactivateAll(ctx context.Context, workspace string, r task.Reactivation) error {
	record, err := m.Subscriptions.Lookup(ctx, workspace, r.Principal, r.Subscription)
	if err != nil || record == nil || record.State == subscription.Suspended {
		return err
	}
	return store.Each(ctx, m.Deliveries.DB, state.Key(workspace, r.Subscription, ""), "list the suspended deliveries", func(it *store.Item) error {
		del, err := state.Decode(it)
		if err != nil {
			return m.Deliveries.SetAside(ctx, it, err)
		}
		if del.State != state.Suspended {
			return nil
		}
		return m.reactivate(ctx, del)
	})
}
