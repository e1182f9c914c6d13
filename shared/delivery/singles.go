package delivery

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/webhook"
)

// Singles is the [queue.Handler] of the slow queue: further attempts, and first ones to
// endpoints known to be slow. All of a batch run at once. A delivery whose endpoint has no free
// slot is not attempted: it is reported as failed and redelivered after seconds,
// which costs no write and none of its attempts.
func (d *Dispatcher) Singles(ctx context.Context, batch []queue.Message) (failed []string, err error) {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		notes []store.Op
		made  = map[string][]store.Op{} // the same, by attempt
	)
	fail := func(m queue.Message) {
		mu.Lock()
		defer mu.Unlock()
		failed = append(failed, m.ID)
	}
	for _, m := range batch {
		t, err := decodeTask(m.Body, func(t SingleTask) int { return t.V })
		if err != nil {
			if !d.rejected(ctx, queue.Slow, m, err) {
				fail(m)
			}
			continue
		}
		wg.Go(func() {
			ops, err := d.once(ctx, m, t)
			switch {
			case err == nil:
				mu.Lock()
				defer mu.Unlock()
				notes = append(notes, ops...)
				made[t.id()] = ops
			case errors.Is(err, errNoSlot):
				fail(m)
			case !d.failedInternally(ctx, m, t, err):
				fail(m)
			}
		})
	}
	wg.Wait()
	if len(notes) > 0 {
		ctx, cancel := finishing(ctx)
		defer cancel()
		if err := d.DB.WriteAll(ctx, notes...); err != nil {
			// Among them are ends of deliveries. The messages are redelivered, and this process
			// then writes them without another attempt.
			for id, ops := range made {
				d.unrecorded.Put(id, ops)
			}
			return nil, fault.Wrap(fault.Unavailable, err, "record deliveries")
		}
	}
	return failed, nil
}

// errNoSlot says that an endpoint has no free slot for an attempt.
var errNoSlot = errors.New("delivery: the endpoint has no free slot")

const (
	// laterReceives is how often a delivery waits for its endpoint in the queue; afterwards it
	// waits in the due table.
	laterReceives = 12
	// laterDue is how long it waits there, at least; longer than a queue delays a message,
	// so that the one entry replaces all messages.
	laterDue = queue.MaxDelay
)

// once is inSlowLane, unless the attempt was made and could only not be recorded.
func (d *Dispatcher) once(ctx context.Context, m queue.Message, t SingleTask) (notes []store.Op, err error) {
	defer recovered(&err)
	if ops, ok := d.unrecorded.Get(t.id()); ok && len(ops) > 0 {
		return ops, nil
	}
	notes, err = d.inSlowLane(ctx, m, t)
	if errors.Is(err, errNoSlot) && m.Received >= laterReceives {
		return nil, d.waitInDueTable(ctx, t, laterDue, nil)
	}
	return notes, err
}

// inSlowLane makes the attempt that a task asks for if its endpoint has a free slot.
func (d *Dispatcher) inSlowLane(ctx context.Context, m queue.Message, t SingleTask) ([]store.Op, error) {
	id := t.endpoint()
	wait, ok := d.endpoints.enterSlow(ctx, id, d.now())
	if !ok {
		if wait < laterDue {
			return nil, errNoSlot
		}
		return nil, d.waitInDueTable(ctx, t, wait, nil)
	}
	var target string
	var out webhook.Outcome
	defer func() { d.endpoints.leaveSlow(id, target, out, d.now()) }()
	return d.single(ctx, t, func(url string, n int, post func() webhook.Outcome) (webhook.Outcome, error) {
		if !d.rate.allow(ctx, id) {
			return webhook.Outcome{}, errNoSlot
		}
		held, ok := d.bytes.slow(n, d.endpoints.isOpen(id))
		if !ok {
			return webhook.Outcome{}, errNoSlot
		}
		defer held.release()
		target, out = url, post()
		return out, nil
	})
}

// waitInDueTable postpones a delivery whose endpoint has had no free slot for long. When the
// time of its schedule has passed, it is dead-lettered with the attempts that it had.
// Failure, if not nil, is then recorded as the last one.
func (d *Dispatcher) waitInDueTable(ctx context.Context, t SingleTask, wait time.Duration, failure *attempt) error {
	del, _, err := d.deliveries.current(ctx, t)
	if err != nil || del == nil {
		return err
	}
	now := d.now()
	if del.Control == nil && now.Sub(del.First) > d.Options.schedule(del.Origin).total() {
		if failure != nil {
			del.Attempts = append(del.Attempts, *failure)
		}
		_, err := d.outcomes.abandon(ctx, del, nil)
		return err
	}
	wait = max(wait, laterDue)
	_, err = d.deliveries.writeNext(ctx, del, now.Add(wait+rand.N(wait/5)))
	return err
}

// current reads the delivery that a task is for, which waits no more, and other items; nil when the task is stale.
func (ds *deliveries) current(ctx context.Context, t SingleTask, others ...store.Key) (*delivery, []*store.Item, error) {
	keys := append(make([]store.Key, 0, 2), deliveryKey(t.Workspace, t.Subscription, t.key()))
	items, err := ds.db.Get(ctx, append(keys, others...)...)
	if err != nil {
		return nil, nil, fault.Wrap(fault.Unavailable, err, "read a delivery")
	}
	if items[0] == nil {
		return nil, nil, nil // delivered, or ended with its subscription
	}
	del, err := decodeDelivery(items[0])
	if err != nil || del.State != statePending || len(del.Attempts)+1 != t.Attempt || del.Control != nil && del.Event != t.Event {
		return nil, nil, err
	}
	del.resume(ds.now())
	return del, items[1:], nil
}

// poster makes an attempt with an event of n bytes, if the memory budget allows it.
type poster func(url string, n int, post func() webhook.Outcome) (webhook.Outcome, error)

// single makes the attempt that a task asks for, unless it is stale.
func (d *Dispatcher) single(ctx context.Context, t SingleTask, at poster) ([]store.Op, error) {
	del, body, err := d.deliveries.current(ctx, t, bodyKey(t.Workspace, t.key()))
	if err != nil || del == nil {
		return nil, err
	}
	if del.Control != nil {
		if paused, err := d.pauses.pause(ctx, del, nil, nil); paused || err != nil {
			return nil, err
		}
		return d.notices.send(ctx, del, at)
	}
	read := time.Now()
	record, err := d.Subscriptions.Lookup(ctx, t.Workspace, t.Principal, t.Subscription)
	if err != nil {
		return nil, err
	}
	if record == nil {
		return del.forget(), nil
	}
	if record.State == subscription.Suspended {
		return nil, d.backlog.suspend(ctx, del, nil)
	}
	e, err := del.eventIn(body[0])
	if err != nil {
		return nil, err
	}
	if e == nil {
		d.log().WarnContext(ctx, "event expired before delivery", "subscription", t.Subscription, "event", t.Event)
		_, err := d.outcomes.abandon(ctx, del, nil)
		return nil, err
	}
	right, err := d.Terminator.Review.Subscription(ctx, record, false)
	if _, is := errors.AsType[*subscription.Terminated](err); is {
		if _, err := d.Terminator.Terminate(ctx, t.Workspace, t.Principal, t.Subscription); err != nil {
			return nil, err
		}
		return d.single(ctx, t, at) // it is gone, or the catalog here was old
	}
	if err != nil {
		return nil, err
	}
	if del.Test {
		right = subscription.Right{} // it is for the endpoint, whatever the subscription asks for
	}
	if may, err := right.May(ctx, e); err != nil {
		return nil, err
	} else if !may {
		return del.forget(), nil
	}
	sub := record.Subscriber()
	if paused, err := d.pauses.pause(ctx, del, &sub, e); paused || err != nil {
		return nil, err
	}
	if !d.Gate.enter(sub.ID, read) {
		return d.single(ctx, t, at) // it has ended since, and may have been created again
	}
	out, err := at(sub.Target.URL, len(e.Data), func() webhook.Outcome {
		if !d.Gate.enter(sub.ID, read) {
			return webhook.Outcome{Category: webhook.Aborted, Err: errMaybeEnded}
		}
		return d.sender.attempt(ctx, del, &sub, e)
	})
	if err != nil {
		return nil, err
	}
	return d.outcomes.record(ctx, del, &sub, e, out)
}
