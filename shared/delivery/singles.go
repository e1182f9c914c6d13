package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"mcpevents/shared/event"
	"mcpevents/shared/fault"
	"mcpevents/shared/queue"
	"mcpevents/shared/store"
	"mcpevents/shared/subscription"
)

// Singles is the [queue.Handler] of the slow queue.
func (d *Dispatcher) Singles(ctx context.Context, batch []queue.Message) (failed []string, err error) {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		notes []store.Op
	)
	for _, m := range batch {
		t, err := decodeTask(m.Body, func(t SingleTask) int { return t.V })
		if err != nil {
			d.log().ErrorContext(ctx, "a delivery task was put aside", "error", err, "message", m.ID)
			if err := d.Queue.Send(ctx, queue.Dead, queue.Outgoing{Body: m.Body}); err != nil {
				failed = append(failed, m.ID)
			}
			continue
		}
		wg.Go(func() {
			ops, err := d.single(ctx, t)
			mu.Lock()
			defer mu.Unlock()
			notes = append(notes, ops...)
			if err != nil {
				d.log().ErrorContext(ctx, "a delivery failed on our side; it comes again",
					"subscription", t.Subscription, "event", t.Event, "error", err)
				failed = append(failed, m.ID)
			}
		})
	}
	wg.Wait()
	if len(notes) > 0 {
		if err := d.DB.WriteAll(ctx, notes...); err != nil {
			// Among them are the ends of chains: without them a delivered event
			// would be sent again, which is allowed, by a message that still exists.
			return nil, fault.Wrap(fault.Unavailable, err, "record deliveries")
		}
	}
	return failed, nil
}

// single makes the attempt that a task asks for, unless it is stale.
func (d *Dispatcher) single(ctx context.Context, t SingleTask) ([]store.Op, error) {
	items, err := d.DB.Get(ctx, chainKey(t.Workspace, t.Subscription, t.key()), bodyKey(t.Workspace, t.key()))
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read a delivery")
	}
	if items[0] == nil {
		return nil, nil // delivered, or ended with its subscription
	}
	c, err := decodeChain(items[0])
	if err != nil {
		return nil, err
	}
	if c.State != statePending || len(c.Attempts)+1 != t.Attempt {
		return nil, nil
	}
	had := items[0].Version
	was := dueKey(c.Workspace, c.Subscription, c.key(), c.DueAt)
	if c.Control != nil {
		return d.tell(ctx, c, had, was)
	}
	read := time.Now()
	record, err := d.Subscriptions.Lookup(ctx, t.Workspace, t.Principal, t.Subscription)
	if err != nil {
		return nil, err
	}
	if record == nil {
		return []store.Op{store.Delete(items[0].Key), store.Delete(was)}, nil
	}
	if record.State == subscription.Suspended {
		return nil, d.park(ctx, c, had, was)
	}
	if items[1] == nil {
		d.log().WarnContext(ctx, "an event is no longer kept; its delivery ends", "subscription", t.Subscription, "event", t.Event)
		_, err := d.bury(ctx, c, nil, had, was)
		return nil, err
	}
	var e event.Event
	if err := json.Unmarshal(items[1].Value, &e); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "decode a kept event")
	}
	right, err := d.Ender.Review.Subscription(ctx, record, false)
	if _, is := errors.AsType[*subscription.Ended](err); is {
		if _, err := d.Ender.End(ctx, t.Workspace, t.Principal, t.Subscription); err != nil {
			return nil, err
		}
		return d.single(ctx, t) // it is gone, or what was known here was old
	}
	if err != nil {
		return nil, err
	}
	if may, err := right.May(ctx, &e); err != nil {
		return nil, err
	} else if !may {
		return []store.Op{store.Delete(items[0].Key), store.Delete(was)}, nil
	}
	select {
	case d.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	sub := record.Subscriber()
	if !d.Gate.enter(sub.ID, read) {
		<-d.slots
		return d.single(ctx, t) // it has ended since, and may have been made anew
	}
	defer func() { <-d.slots }()
	out := d.attempt(ctx, t.Workspace, &sub, &e, t.Attempt)
	return d.outcome(ctx, t.Workspace, &sub, &e, c, had, was, out)
}
