package delivery

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lane"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/subscription/review"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// HandleSingles handles a batch of tasks from the slow queue concurrently. Each task asks for one attempt of a stored delivery: a retry,
// or a first attempt to an endpoint that is known to be slow. If the endpoint has too many attempts under way, HandleSingles reports the
// message as failed, so that the queue redelivers it a few seconds later.
//
// While HandleSingles cannot write the outcomes of earlier attempts, it makes no new ones, because it could not record them either.
func (d *Dispatcher) HandleSingles(ctx context.Context, batch []queue.Message) (failed []string, err error) {
	if err := d.writeUnrecorded(ctx); err != nil {
		return nil, err
	}
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		notes []store.Op
		made  = map[string]taskOutcome{} // the outcomes that the operations in notes will record, by message id
	)
	fail := func(m queue.Message) {
		mu.Lock()
		defer mu.Unlock()
		failed = append(failed, m.ID)
	}
	for _, m := range batch {
		t, err := task.Decode(m.Body, func(t task.Single) int { return t.V })
		if err != nil {
			if !d.rejectMessage(ctx, queue.Slow, m, err) {
				fail(m)
			}
			continue
		}
		if _, other := d.underWay.LoadOrStore(t.ID(), true); other {
			// Drop this message: another message for the same attempt is being handled, and stays in the queue if the attempt is not made.
			continue
		}
		defer d.underWay.Delete(t.ID()) // when HandleSingles returns, i.e. after the outcomes are written
		wg.Go(func() {
			began := d.now()
			ops, err := []store.Op(nil), errReceives
			if m.Received <= mostReceives {
				ops, err = d.attemptSingle(ctx, m, t)
			}
			switch {
			case err == nil:
				mu.Lock()
				defer mu.Unlock()
				if len(ops) > 0 {
					notes = append(notes, ops...)
					made[m.ID] = taskOutcome{t, began, ops}
				}
			case errors.Is(err, errNoSlot):
				fail(m)
			case !d.retryInternalFailure(ctx, m, t, err):
				fail(m)
			}
		})
	}
	wg.Wait()
	if len(notes) > 0 {
		ctx, cancel := finishContext(ctx)
		defer cancel()
		if err := state.WriteNotes(ctx, d.DB, notes); err != nil {
			// Report only the messages in made as failed, because their outcomes were not written. If HandleSingles returned an error,
			// the queue would redeliver the batch's other messages, too, although they are done. The next batch writes the outcomes
			// before it makes any attempt.
			d.unrecorded.add(made)
			d.log().WarnContext(ctx, "attempt outcomes not written", "messages", len(made), "error", err)
			failed = slices.AppendSeq(failed, maps.Keys(made))
		}
	}
	return failed, nil
}

// retryInternalFailure makes sure that a delivery is attempted again after a failure of this program, and reports whether the queue can
// delete the message m. For the first few failures, the message stays in the queue. After that, the delivery moves to the due table, from
// which it is queued again later.
func (d *Dispatcher) retryInternalFailure(ctx context.Context, m queue.Message, t task.Single, reason error) (done bool) {
	d.log().WarnContext(ctx, "internal delivery failure", "workspace", t.Workspace, "subscription", t.Subscription,
		"event", t.Event, "receives", m.Received, "error", reason)
	if m.Received < laterReceives {
		return false
	}
	err := d.waitLater(ctx, t, 0, &state.Result{At: d.now(), Category: string(webhook.Internal)})
	if fault.Is(err, fault.Internal) {
		return d.rejectMessage(ctx, queue.Slow, m, err) // the delivery's item cannot be decoded
	}
	return err == nil
}

// taskOutcome has the store operations that record the outcome of the attempt for a task.
type taskOutcome struct {
	task  task.Single
	began time.Time
	ops   []store.Op
}

// unrecorded holds the outcomes of attempts that could not be written to the store. No attempt starts while it holds any, so it never has
// more outcomes than there can be concurrent attempts.
type unrecorded struct {
	mu        sync.Mutex
	byMessage map[string]taskOutcome
	writing   singleflight.Group
}

func (u *unrecorded) add(made map[string]taskOutcome) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.byMessage == nil {
		u.byMessage = map[string]taskOutcome{}
	}
	maps.Copy(u.byMessage, made)
}

func (u *unrecorded) all() map[string]taskOutcome {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.byMessage)
}

func (u *unrecorded) remove(done map[string]taskOutcome) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for message := range done {
		delete(u.byMessage, message)
	}
}

// writeUnrecorded writes the outcomes of earlier attempts that could not be written to the store before. It skips an outcome if another
// worker has continued the delivery since, or if the event was requested again after the attempt began.
func (d *Dispatcher) writeUnrecorded(ctx context.Context) error {
	left := d.unrecorded.all()
	if len(left) == 0 {
		return nil
	}
	_, err, _ := d.unrecorded.writing.Do("", func() (any, error) {
		left := d.unrecorded.all()
		var ops []store.Op
		for _, o := range left {
			del, _, err := d.deliveries.LoadCurrent(ctx, o.task)
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

// errNoSlot is the error for a task that must wait in the queue, because its endpoint has too many attempts under way or because the
// endpoint's rate limit is used up.
var errNoSlot = errors.New("delivery: the endpoint has no free slot")

// errReceives says that a message was received more than [mostReceives] times.
var errReceives = errors.New("delivery: the message was received too often")

const (
	// laterReceives is how often a message is received before it stops waiting in the queue for a free slot of its endpoint, or for the
	// end of a failure of this program. Its delivery then waits in the due table instead, because SQS allows only 120,000 messages in
	// flight per queue.
	//
	// All these receives must happen within [state.Backup]. After that time, the delivery's due entry sends a second message.
	laterReceives = 5
	// mostReceives is how often a message may be received before its delivery moves to the due table without an attempt. A message is
	// received so often only if the store fails for about an hour, or if each attempt ends the process. The limit keeps such an attempt
	// from ending the server again and again.
	mostReceives = 20
	// tokenReceives is the number of receives after which a message no longer waits in the queue for the endpoint's rate limit. Instead,
	// [Dispatcher.waitForRate] schedules the delivery for a second in which the limit has capacity left.
	tokenReceives = 3
	// minLater and maxLater limit how long a delivery waits in the due table before it is tried again. It waits longer only if its
	// endpoint is paused for longer (see package lane).
	minLater, maxLater = time.Minute, 15 * time.Minute
	// maxWaitWrites limits how many deliveries a process moves to the due table at the same time. Without it, a hundred deliveries to one
	// hanging endpoint would delay the other writes of the process.
	maxWaitWrites = 4
	// manyWaits is how often a delivery must have waited in the due table before it can be given up for being older than its retry
	// schedule.
	manyWaits = 6
	// maxJudged limits how often attemptSingle decides what to do with a delivery. It decides again if the subscription may have ended
	// since the last decision.
	maxJudged = 3
)

// single is a stored delivery that the slow lane attempts, with its event and its subscriber.
type single struct {
	d    *Dispatcher
	task task.Single
	read time.Time // the time right before judge read the subscription

	del *state.Delivery
	e   *event.Event // nil if the delivery is a notice without an event
	sub subscription.Subscriber
}

// attemptSingle makes the attempt that a task asks for. If the delivery may not be attempted now, attemptSingle acts on the reason; for
// example, it ends the subscription. If the task must wait in the queue for its endpoint, the error is errNoSlot.
func (d *Dispatcher) attemptSingle(ctx context.Context, m queue.Message, t task.Single) (notes []store.Op, err error) {
	defer fault.Recovered(&err)
	slot, wait := d.lanes.ReserveSlow(ctx, lane.Call{Endpoint: t.Endpoint, Principal: t.Workspace + "#" + t.Principal, Bytes: int64(t.Size)})
	switch {
	case slot != nil:
	case wait >= maxLater:
		return nil, d.waitLater(ctx, t, wait, nil)
	case m.Received >= laterReceives:
		return nil, d.waitLater(ctx, t, 0, nil)
	default:
		return nil, errNoSlot
	}
	out := lane.Unused
	defer func() { slot.Done(out) }()
	started := false
	for range maxJudged {
		s := single{d: d, task: t}
		how, err := s.judge(ctx)
		switch {
		case err != nil:
			return nil, err
		case how.action == terminate:
			if _, err := d.Terminator.Terminate(ctx, t.Workspace, t.Principal, t.Subscription); err != nil {
				return nil, err
			}
			continue // judge again: Terminate has ended the subscription, or found that this process had an old catalog
		case how.action != attempt:
			return d.carryOut(ctx, how, s.del, s.e)
		}
		if started = started || slot.Start(ctx, s.sub.Target.URL); !started {
			if m.Received >= tokenReceives {
				return nil, d.waitForRate(ctx, t)
			}
			return nil, errNoSlot
		}
		if !d.mayStart(t.Subscription, s.read) {
			continue
		}
		if out = d.sender.attempt(ctx, s.del, &s.sub, s.e); out.Category == webhook.Timeout {
			slot.Warn(ctx)
		}
		return d.outcomes.Record(ctx, s.del, &s.sub, s.e, out)
	}
	return nil, errMaybeEnded
}

// judge decides what to do with the task's delivery, for example to send it or to delete it. It makes the cheap checks first. It writes
// nothing, because attemptSingle carries out the verdict.
func (s *single) judge(ctx context.Context) (verdict, error) {
	d, t := s.d, s.task
	del, body, err := d.deliveries.LoadCurrent(ctx, t, state.BodyKey(t.Workspace, t.EventKey()))
	if err != nil || del == nil {
		return verdict{action: stop}, err
	}
	if s.del = del; del.Control != nil {
		return s.judgeNotice(ctx)
	}
	if del.State == state.Suspended {
		return verdict{action: suspend}, nil
	}
	s.read = time.Now()
	record, err := d.Subscriptions.Lookup(ctx, t.Workspace, t.Principal, t.Subscription)
	switch {
	case err != nil:
		return verdict{}, err
	case record == nil:
		return s.judgeWithoutRecord(ctx)
	case record.State == subscription.Suspended:
		return verdict{action: suspend}, nil
	}
	s.sub = record.Subscriber()
	if s.e, err = del.EventIn(body[0]); err != nil {
		return verdict{}, err
	}
	if s.e == nil {
		d.log().WarnContext(ctx, "event expired before delivery", "subscription", t.Subscription, "event", t.Event)
		return verdict{action: abandon}, nil
	}
	right, err := d.Terminator.Review.CheckSubscription(ctx, record, refresh.Cached)
	if _, is := errors.AsType[*subscription.Terminated](err); is {
		return verdict{action: terminate}, nil
	}
	if err != nil {
		return verdict{}, err
	}
	if del.Test {
		right = review.All() // a test event is sent even if the subscription does not select it
	}
	return d.judge(ctx, right, &s.sub, s.e)
}

// judgeWithoutRecord decides what to do with a delivery whose subscription has ended or is disabled. If the subscription has ended, the
// delivery is deleted. If it is disabled, the delivery becomes a dead letter, because the owner may resume the subscription.
func (s *single) judgeWithoutRecord(ctx context.Context) (verdict, error) {
	found, err := s.d.Subscriptions.Find(ctx, s.del.Workspace, s.del.Subscription)
	if err == nil && found != nil && found.Principal == s.del.Principal && found.State == subscription.Disabled {
		return verdict{action: abandon}, nil
	}
	return verdict{action: forget}, err
}

// judgeNotice decides whether to send a control message, i.e. a message about the subscription itself.
func (s *single) judgeNotice(ctx context.Context) (verdict, error) {
	d, del := s.d, s.del
	s.sub = subscription.Subscriber{ID: del.Subscription, Target: del.Control.Target}
	how, err := d.judge(ctx, review.All(), &s.sub, &event.Event{Workspace: del.Workspace, Name: del.Name})
	if how.action != attempt || err != nil {
		return how, err
	}
	s.read = time.Now()
	record, err := d.Subscriptions.Lookup(ctx, del.Workspace, del.Principal, del.Subscription)
	if err != nil {
		return verdict{}, err
	}
	// Send a termination notice only if the subscription does not exist. If the client has subscribed again, it would think that the
	// notice is about the new subscription. For a notice of lost events, PrepareGap decides.
	send, later := record == nil, time.Time{}
	if del.Control.Gap != "" {
		send, later, err = d.manager.PrepareGap(ctx, del, record)
		s.sub.Target = del.Control.Target
	}
	switch {
	case err != nil:
		return verdict{}, err
	case !later.IsZero():
		return verdict{action: postpone, due: later}, nil
	case !send:
		return verdict{action: forget}, nil
	}
	return verdict{action: attempt}, nil
}

// waitLater moves a delivery from the queue to the due table, where it waits at least for the given time before it is tried again. The
// older a delivery is, the longer it waits. So an endpoint that is down costs each delivery only a few messages, and a young delivery
// arrives soon after the endpoint is back.
//
// A delivery that has waited many times and is older than its retry schedule becomes a dead letter. If the parameter failure is not nil,
// it is then recorded as the last attempt.
func (d *Dispatcher) waitLater(ctx context.Context, t task.Single, wait time.Duration, failure *state.Result) error {
	if err := d.waitWrites.Acquire(ctx, 1); err != nil {
		return fault.Wrap(fault.Unavailable, err, "have a delivery wait")
	}
	defer d.waitWrites.Release(1)
	del, _, err := d.deliveries.LoadCurrent(ctx, t)
	if err != nil || del == nil {
		return err
	}
	now := d.now()
	age := now.Sub(del.First)
	overdue := age > d.outcomes.Schedules.ScheduleFor(del.Origin).Total()
	if del.Control == nil && del.State == state.Pending && del.Waits >= manyWaits && overdue {
		if failure != nil {
			del.Attempts = append(del.Attempts, *failure)
		}
		_, err := d.outcomes.Abandon(ctx, del, nil)
		return err
	}
	wait = max(wait, min(age/2, maxLater), minLater)
	del.Later, del.Waits = true, del.Waits+1
	_, err = d.deliveries.Schedule(ctx, del, nil, now.Add(wait+rand.N(wait/5)))
	return err
}

// waitForRate schedules a delivery for a second in which the endpoint's rate limit has capacity left. The wait does not count towards the
// delivery's age, so a delivery is never given up because other deliveries used up the limit.
func (d *Dispatcher) waitForRate(ctx context.Context, t task.Single) error {
	del, _, err := d.deliveries.LoadCurrent(ctx, t)
	if err != nil || del == nil {
		return err
	}
	now := d.now()
	wait := d.lanes.ReserveTurn(ctx, t.Endpoint)
	del.First = del.First.Add(wait)
	_, err = d.deliveries.Schedule(ctx, del, nil, now.Add(wait))
	return err
}
