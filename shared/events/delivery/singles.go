package delivery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/subscription/review"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lane"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
)

// Singles makes all attempts of a batch concurrently, namely retries, and first attempts to endpoints that are known to be
// slow. It is the [queue.Handler] of the slow queue. If an endpoint has no free slot, Singles reports the message as failed, so
// that it is redelivered after seconds. That costs no write and none of the delivery's attempts.
//
// While earlier outcomes cannot be written, Singles makes no attempts, because it could not record them either.
func (d *Dispatcher) Singles(ctx context.Context, batch []queue.Message) (failed []string, err error) {
	if err := d.writeUnrecorded(ctx); err != nil {
		return nil, err
	}
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		notes []store.Op
		made  = map[string]outcomeOf{} // the notes by message
	)
	fail := func(m queue.Message) {
		mu.Lock()
		defer mu.Unlock()
		failed = append(failed, m.ID)
	}
	for _, m := range batch {
		t, err := task.Decode(m.Body, func(t task.Single) int { return t.V })
		if err != nil {
			if !d.rejected(ctx, queue.Slow, m, err) {
				fail(m)
			}
			continue
		}
		if _, other := d.underWay.LoadOrStore(t.ID(), true); other {
			continue // another message asks for the same attempt, and stays in the queue if that is not made
		}
		defer d.underWay.Delete(t.ID()) // when the outcomes are written
		wg.Go(func() {
			began := d.now()
			ops, err := d.once(ctx, m, t)
			switch {
			case err == nil:
				mu.Lock()
				defer mu.Unlock()
				notes = append(notes, ops...)
				made[m.ID] = outcomeOf{t, began, ops}
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
		if err := state.WriteNotes(ctx, d.DB, notes); err != nil {
			// The messages are redelivered. Until then, or before the next batch, this process writes the outcomes.
			d.unrecorded.add(made)
			return nil, fault.Wrap(fault.Unavailable, err, "record deliveries")
		}
	}
	return failed, nil
}

// failedInternally retries a delivery after an internal failure, and reports whether its message is done. At first it leaves
// the message in the queue, and later the delivery waits in the due table.
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

// outcomeOf is the outcome of an attempt that could not be written.
type outcomeOf struct {
	task  task.Single
	began time.Time
	ops   []store.Op
}

// unrecorded holds the outcomes that could not be written. There are at most as many as attempts ran concurrently, because no
// attempt starts while there are any.
type unrecorded struct {
	mu        sync.Mutex
	byMessage map[string]outcomeOf
	writing   singleflight.Group
}

func (u *unrecorded) add(made map[string]outcomeOf) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.byMessage == nil {
		u.byMessage = map[string]outcomeOf{}
	}
	for message, o := range made {
		if len(o.ops) > 0 {
			u.byMessage[message] = o
		}
	}
}

func (u *unrecorded) all() map[string]outcomeOf {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.byMessage)
}

func (u *unrecorded) remove(done map[string]outcomeOf) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for message := range done {
		delete(u.byMessage, message)
	}
}

// writeUnrecorded writes the outcomes that could not be written before. It skips deliveries that another worker has continued
// since, or that were delivered again.
func (d *Dispatcher) writeUnrecorded(ctx context.Context) error {
	left := d.unrecorded.all()
	if len(left) == 0 {
		return nil
	}
	_, err, _ := d.unrecorded.writing.Do("", func() (any, error) {
		left := d.unrecorded.all()
		var ops []store.Op
		for _, o := range left {
			del, _, err := d.deliveries.Current(ctx, o.task)
			if err != nil && !fault.Is(err, fault.Internal) && !errors.Is(err, state.ErrNewer) {
				return nil, err
			}
			if err == nil && del != nil && !del.First.After(o.began) {
				ops = append(ops, o.ops...)
			}
		}
		if len(ops) > 0 {
			if err := state.WriteNotes(ctx, d.DB, ops); err != nil {
				return nil, fault.Wrap(fault.Unavailable, err, "record earlier deliveries")
			}
		}
		d.unrecorded.remove(left)
		return nil, nil
	})
	return err
}

// errNoSlot says that an endpoint has no free slot for an attempt.
var errNoSlot = errors.New("delivery: the endpoint has no free slot")

// errNoToken is errNoSlot for an endpoint whose rate limit is used up.
var errNoToken = fmt.Errorf("delivery: the endpoint's rate limit is used up: %w", errNoSlot)

const (
	// laterReceives is how often a message waits for its endpoint by failing, each time twice as long as before. Then
	// the delivery waits in the due table. A message that failed stays in flight, and SQS allows 120,000 of them in a queue.
	// The waits in the queue also end before the due entry, the backup of the message, would bring a second one.
	laterReceives = 5
	// tokenReceives is how often a delivery waits in the queue for the endpoint's rate limit.
	tokenReceives = 3
	// minLater and maxLater limit one wait in the due table, unless the endpoint gets no attempts for longer.
	minLater, maxLater = time.Minute, 15 * time.Minute
	// manyWaits is the number of waits in the due table after which a delivery is given up once its schedule is over.
	manyWaits = 6
)

// once makes the attempt that a task asks for. A delivery that had to wait in the queue too often waits in the due table
// instead.
func (d *Dispatcher) once(ctx context.Context, m queue.Message, t task.Single) (notes []store.Op, err error) {
	defer fault.Recovered(&err)
	notes, err = d.inSlowLane(ctx, m, t)
	switch {
	case errors.Is(err, errNoToken) && m.Received >= tokenReceives:
		return nil, d.waitForRate(ctx, t)
	case errors.Is(err, errNoSlot) && m.Received >= laterReceives:
		return nil, d.waitLater(ctx, t, 0, nil)
	}
	return notes, err
}

// waitForRate schedules a delivery for a second that has capacity left under the endpoint's rate limit. The wait does not
// count as time of its schedule, so a delivery is never given up because others were first.
func (d *Dispatcher) waitForRate(ctx context.Context, t task.Single) error {
	del, _, err := d.deliveries.Current(ctx, t)
	if err != nil || del == nil {
		return err
	}
	now := d.now()
	wait := d.lanes.NextTurn(ctx, t.EndpointKey())
	del.First = del.First.Add(wait)
	_, err = d.deliveries.WriteNext(ctx, del, now.Add(wait))
	return err
}

// inSlowLane makes the attempt that a task asks for if its endpoint has a free slot.
func (d *Dispatcher) inSlowLane(ctx context.Context, m queue.Message, t task.Single) ([]store.Op, error) {
	s, wait := d.lanes.ReserveSlow(ctx, lane.Call{Endpoint: t.EndpointKey(), Principal: t.Workspace + "#" + t.Principal, Bytes: int64(t.Size)})
	if s == nil {
		if wait < maxLater {
			return nil, errNoSlot
		}
		return nil, d.waitLater(ctx, t, wait, nil)
	}
	out := lane.Unused
	defer func() { s.Done(out) }()
	return d.single(ctx, t, func(url string, post func() webhook.Outcome) (webhook.Outcome, error) {
		if !s.Start(ctx, url) {
			return webhook.Outcome{}, errNoToken
		}
		out = post()
		return out, nil
	})
}

// waitLater has a delivery wait in the due table, at least for the given time, because its endpoint has had no free slot for
// some time. Meanwhile it has no message. Deliveries that have waited for longer wait for longer, so an endpoint that is
// down costs each of them a few messages, and they arrive soon after it is back. When the time of its schedule has passed
// and it has waited many times, the delivery is dead-lettered with the attempts that it had. Failure, if not nil, is then
// recorded as the last one.
func (d *Dispatcher) waitLater(ctx context.Context, t task.Single, wait time.Duration, failure *state.Result) error {
	del, _, err := d.deliveries.Current(ctx, t)
	if err != nil || del == nil {
		return err
	}
	now := d.now()
	age := now.Sub(del.First)
	if del.Control == nil && del.Waits >= manyWaits && age > d.schedules.Of(del.Origin).Total() {
		if failure != nil {
			del.Attempts = append(del.Attempts, *failure)
		}
		_, err := d.outcomes.Abandon(ctx, del, nil)
		return err
	}
	wait = max(wait, min(age/2, maxLater), minLater)
	del.Later, del.Waits = true, del.Waits+1
	_, err = d.deliveries.WriteNext(ctx, del, now.Add(wait+rand.N(wait/5)))
	return err
}

// withoutRecord ends a delivery whose subscription is not served. A disabled subscription may be resumed, so its deliveries
// are kept as dead letters.
func (d *Dispatcher) withoutRecord(ctx context.Context, del *state.Delivery) ([]store.Op, error) {
	found, err := d.Subscriptions.Find(ctx, del.Workspace, del.Subscription)
	if err != nil {
		return nil, err
	}
	if found == nil || found.Principal != del.Principal || found.State != subscription.Disabled {
		return del.Forget(), nil
	}
	_, err = d.outcomes.Abandon(ctx, del, nil)
	return nil, err
}

// poster makes an attempt if the endpoint rate limit allows it.
type poster func(url string, post func() webhook.Outcome) (webhook.Outcome, error)

// single makes the attempt that a task asks for, unless it is stale.
func (d *Dispatcher) single(ctx context.Context, t task.Single, at poster) ([]store.Op, error) {
	del, body, err := d.deliveries.Current(ctx, t, state.BodyKey(t.Workspace, t.EventKey()))
	if err != nil || del == nil {
		return nil, err
	}
	if del.Control != nil {
		which, err := d.pauses.switchOf(ctx, del.Workspace, del.Name, del.Target, nil)
		if err != nil {
			return nil, err
		}
		if which != "" {
			return nil, d.pauses.pause(ctx, del, which, nil)
		}
		return d.sendNotice(ctx, del, at)
	}
	read := time.Now()
	record, err := d.Subscriptions.Lookup(ctx, t.Workspace, t.Principal, t.Subscription)
	if err != nil {
		return nil, err
	}
	if record == nil {
		return d.withoutRecord(ctx, del)
	}
	if record.State == subscription.Suspended {
		return nil, d.manager.SuspendDelivery(ctx, del, nil)
	}
	e, err := del.EventIn(body[0])
	if err != nil {
		return nil, err
	}
	if e == nil {
		d.log().WarnContext(ctx, "event expired before delivery", "subscription", t.Subscription, "event", t.Event)
		_, err := d.outcomes.Abandon(ctx, del, nil)
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
		right = review.Right{} // it is for the endpoint, whatever the subscription asks for
	}
	may, err := right.May(ctx, e)
	switch {
	case errors.Is(err, review.ErrTypeRemoved):
		_, err := d.outcomes.Abandon(ctx, del, nil)
		return nil, err
	case err != nil:
		return nil, err
	case !may:
		return del.Forget(), nil
	}
	sub := record.Subscriber()
	which, err := d.pauses.switchOf(ctx, del.Workspace, del.Name, del.Target, &sub)
	if err != nil {
		return nil, err
	}
	if which != "" {
		return nil, d.pauses.pause(ctx, del, which, e)
	}
	if !d.Gate.enter(sub.ID, read) {
		return d.single(ctx, t, at) // it has ended since, and may have been created again
	}
	out, err := at(sub.Target.URL, func() webhook.Outcome {
		if !d.Gate.enter(sub.ID, read) {
			return webhook.Outcome{Category: webhook.Aborted, Err: errMaybeEnded}
		}
		return d.sender.attempt(ctx, del, &sub, e)
	})
	if err != nil {
		return nil, err
	}
	return d.outcomes.Record(ctx, del, &sub, e, out)
}
