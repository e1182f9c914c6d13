package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

// While a subscription is suspended its deliveries stand still, without using
// up their retries (SEP-3415, webhook event delivery): a chain that comes due is held, as
// its item alone, without a due entry. An event that was published before the suspension
// and is dispatched after it is held, too; later ones are in the log. A refresh
// first makes the subscription active, then has the held chains go on and the log
// replayed. Who holds a chain looks at the subscription again afterwards, so that
// one of the two sees the other.

// stateHeld is the state of a chain that stands still.
const stateHeld = "held"

// hold keeps an event back from a suspended subscriber.
func (d *Dispatcher) hold(ctx context.Context, workspace string, sub *subscription.Subscriber, e *event.Event) error {
	if e.Published.After(time.UnixMicro(sub.Suspended).Add(2 * eventlog.MaxSkew)) {
		return nil // the replay brings it
	}
	c := newChain(workspace, sub, e, d.now())
	if err := d.storeBody(ctx, e, c.key()); err != nil {
		return err
	}
	return d.park(ctx, c, 0, store.Key{})
}

// park writes a chain as held; was is its due entry so far.
func (d *Dispatcher) park(ctx context.Context, c *chain, had int64, was store.Key) error {
	c.State, c.Due, c.DueAt = stateHeld, time.Time{}, time.Time{}
	ops := []store.Op{store.Put(c.item(), continues(had))}
	if was != (store.Key{}) {
		ops = append(ops, store.Delete(was))
	}
	err := d.DB.Write(ctx, ops...)
	if errors.Is(err, store.ErrConflict) {
		return nil // it went on elsewhere
	}
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "hold a delivery")
	}
	record, err := d.Subscriptions.Lookup(ctx, c.Workspace, c.Principal, c.Subscription)
	if err != nil || record == nil || record.State == subscription.Suspended {
		return err
	}
	return d.release(ctx, c)
}

// release lets a held chain go on where it stood.
func (d *Dispatcher) release(ctx context.Context, c *chain) error {
	c.State = statePending
	_, err := d.writeNext(ctx, c, c.item().Version, store.Key{}, d.now())
	return err
}

// resume releases what was held back for a subscription that is served again.
func (d *Dispatcher) resume(ctx context.Context, workspace string, r Resume) error {
	record, err := d.Subscriptions.Lookup(ctx, workspace, r.Principal, r.Subscription)
	if err != nil || record == nil || record.State == subscription.Suspended {
		return err
	}
	q := store.Query{Table: store.Deliveries, Partition: chainKey(workspace, r.Subscription, "").Partition}
	for {
		page, err := d.DB.Query(ctx, q)
		if err != nil {
			return fault.Wrap(fault.Unavailable, err, "list the deliveries that were held back")
		}
		for i := range page.Items {
			c, err := decodeChain(&page.Items[i])
			if err != nil {
				return err
			}
			if c.State != stateHeld {
				continue
			}
			if err := d.release(ctx, c); err != nil {
				return err
			}
		}
		if !page.More {
			return nil
		}
		q.After = page.Last
	}
}
