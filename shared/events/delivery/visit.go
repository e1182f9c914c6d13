package delivery

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lane"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
)

// visit makes the first attempts of a page for one subscriber: several concurrently, as many as its endpoint may have.
type visit struct {
	d     *Dispatcher
	task  task.Page
	sub   *subscription.Subscriber
	read  time.Time // when sub was read
	right subscription.Right
	call  lane.Call     // without the size of the event
	wait  lane.Patience // for slots
	sent  bool          // an attempt was started

	attempts sync.WaitGroup

	mu     sync.Mutex
	notes  []store.Op // to write
	left   []int      // events for another page, by their index
	failed []int      // events that failed internally
	err    error      // the last failure
}

// decision says what a visit does with an event.
type decision int

const (
	send  decision = iota // attempt it now, in the slot
	skip                  // it needs no attempt now: it is not wanted, waits elsewhere, or takes the slow lane
	leave                 // leave it and the events after it to another page
	stop                  // the subscription has ended, and gets no more events
)

// visit sends the events of a page to one subscriber and returns when the outcomes are recorded. If it ends early because of an
// error, the events that the subscriber wants have failed.
func (d *Dispatcher) visit(ctx context.Context, t task.Page, sub *subscription.Subscriber, read time.Time, wait lane.Patience) *visit {
	v := &visit{d: d, task: t, sub: sub, read: read, wait: wait, call: lane.Call{
		Endpoint: task.EndpointID(sub.Target.URL), URL: sub.Target.URL, Principal: t.Workspace + "#" + sub.Principal, Since: t.Since,
	}}
	done, err := v.sendEvents(ctx)
	for i := done; i < len(t.Events); i++ {
		switch {
		case err == nil:
			v.left = append(v.left, i)
		case v.wants(i):
			v.failed, v.err = append(v.failed, i), err
		}
	}
	slices.Sort(v.left)
	slices.Sort(v.failed)
	return v
}

func (v *visit) wants(i int) bool { return v.sub.Wants(v.task.Payloads[i], v.d.now()) }

// sendEvents starts the attempts and returns when they have ended. The events from index done on had none, because of the error
// or because it is time for another page.
//
// A panic is an error of this subscriber. In a goroutine it would end the process, and the next one at the same message.
func (v *visit) sendEvents(ctx context.Context) (done int, err error) {
	defer v.attempts.Wait()
	defer fault.Recovered(&err)
	v.right, err = v.d.Terminator.Review.Subscriber(ctx, v.task.Workspace, v.task.Pattern, v.sub, false)
	if err != nil {
		return v.terminate(ctx, err)
	}
	last := len(v.task.Events) - 1
	for i := range v.task.Events {
		slot, decision, err := v.decide(ctx, i)
		switch {
		case err != nil:
			return i, err
		case decision == leave:
			return i, nil
		case decision == stop:
			return last + 1, nil
		case decision == skip:
			continue
		}
		v.sent = true
		sub, read := v.sub, v.read
		attempt := func() {
			var err error
			var notes []store.Op
			defer func() { v.add(i, notes, err) }()
			defer fault.Recovered(&err)
			notes, err = v.d.attemptFirst(ctx, slot, sub, &v.task.Events[i], read)
		}
		if i == last { // often the only one
			attempt()
		} else {
			v.attempts.Go(attempt)
		}
	}
	return last + 1, nil
}

// decide makes every decision about one event for the subscriber, from cheap to expensive. It returns a slot only with [send].
func (v *visit) decide(ctx context.Context, i int) (*lane.Slot, decision, error) {
	d, e := v.d, &v.task.Events[i]
	if err := ctx.Err(); err != nil {
		return nil, leave, err
	}
	if !v.wants(i) {
		return nil, skip, nil
	}
	may, err := v.right.May(ctx, e)
	if errors.Is(err, subscription.ErrTypeRemoved) {
		_, err = d.outcomes.Abandon(ctx, state.New(v.sub, e, d.now()), e)
	}
	if err != nil || !may {
		return nil, skip, err
	}
	if diverted, err := v.divert(ctx, e); diverted || err != nil {
		return nil, skip, err
	}
	v.call.Bytes = int64(len(e.Data))
	s, verdict := d.lanes.Reserve(ctx, v.call, v.wait)
	switch {
	case verdict == lane.TooLate && v.task.Hops < maxHops:
		return nil, leave, nil
	case verdict != lane.Granted:
		return nil, skip, d.toSlowLane(ctx, v.sub, e)
	}
	decision, err := v.recheck(ctx, e, s.Waited)
	if decision != send || err != nil {
		s.Done(lane.Unused)
	}
	return s, decision, err
}

// A subscriber whose record is older than this is read again before an attempt. On AWS no attempt may start more than a
// second after deregister has answered. In one process the [Gate] sees to that, and pausing acts within five seconds.
const (
	stale         = 800 * time.Millisecond
	staleWithGate = 2 * time.Second
)

// recheck decides about an event that got its slot. Meanwhile the subscription may have ended or changed.
func (v *visit) recheck(ctx context.Context, e *event.Event, waited bool) (decision, error) {
	limit := stale
	if v.d.Gate != nil {
		limit = staleWithGate
	}
	if now := time.Now(); now.Sub(v.read) > limit {
		found, err := subscription.Subscribers(ctx, v.d.DB, v.task.Workspace, v.task.Pattern, subscription.At(v.sub.ID), 1)
		switch {
		case err != nil:
			return leave, err
		case len(found.List) == 0 && len(found.Broken) == 0:
			return stop, nil
		case len(found.List) > 0 && found.List[0].Target.URL != v.sub.Target.URL:
			return leave, nil
		case len(found.List) > 0:
			v.sub, waited = &found.List[0], true
		}
		v.read = now
	}
	if waited {
		if diverted, err := v.divert(ctx, e); diverted || err != nil {
			return skip, err
		}
	}
	return send, nil
}

// divert handles an event for a subscriber that gets no attempts now, because it is suspended or paused, and reports whether
// it did.
func (v *visit) divert(ctx context.Context, e *event.Event) (bool, error) {
	if v.sub.Suspended != 0 {
		return true, v.d.manager.AddToBacklog(ctx, v.sub, e)
	}
	return v.d.pauses.pause(ctx, state.New(v.sub, e, v.d.now()), v.sub, e)
}

// terminate terminates a subscriber that may not continue by the catalog of this process. If that catalog turns out to be
// old, it leaves the events to a further page.
func (v *visit) terminate(ctx context.Context, err error) (done int, _ error) {
	if _, is := errors.AsType[*subscription.Terminated](err); !is {
		return 0, err
	}
	if v.sub.Until != 0 && v.d.now().Unix() >= v.sub.Until {
		return len(v.task.Events), nil
	}
	ended, err := v.d.Terminator.Terminate(ctx, v.task.Workspace, v.sub.Principal, v.sub.ID)
	switch {
	case err != nil:
		return 0, err
	case ended:
		return len(v.task.Events), nil
	case v.task.Hops >= maxHops:
		return 0, fault.New(fault.Unavailable, "the catalog in this process is still older than the subscription")
	}
	return 0, nil
}

// add adds the result of an attempt.
func (v *visit) add(i int, notes []store.Op, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.notes = append(v.notes, notes...)
	switch {
	case errors.Is(err, errMaybeEnded):
		v.left = append(v.left, i) // another page sees whether it has ended
	case err != nil:
		v.failed, v.err = append(v.failed, i), err
	}
}

// errMaybeEnded says that a subscription may have ended since it was read.
var errMaybeEnded = errors.New("delivery: the subscription may have ended")

// mayStart reports whether an attempt may start for a subscription that was read at the given time.
func (d *Dispatcher) mayStart(id string, read time.Time) bool {
	if d.Gate == nil {
		return time.Since(read) <= time.Second
	}
	return d.Gate.enter(id, read)
}

// attemptFirst sends an event to one subscriber for the first time and returns the records to write. It releases the slot.
//
// A hanging endpoint must not hold up the page, so attemptFirst waits only for [lane.Slot.Patience] and then moves the delivery
// to the slow lane. If there is capacity, it keeps the running POST ("detaches" it): it stores the delivery as due at the time
// by which the POST must have timed out, and the outcome of the POST later replaces that entry. If the process dies, the
// stored entry is retried. If the POST finishes, the entry's message is stale and dropped. Without capacity, attemptFirst
// cancels the POST and the slow lane repeats it, so the endpoint may see the event twice.
//
// It returns [errMaybeEnded] if the subscription may have ended since it was read.
func (d *Dispatcher) attemptFirst(ctx context.Context, s *lane.Slot, sub *subscription.Subscriber, e *event.Event, read time.Time) ([]store.Op, error) {
	out := lane.Unused
	defer func() { s.Done(out) }()
	if !s.Start(ctx, sub.Target.URL) {
		return nil, d.toSlowLane(ctx, sub, e)
	}
	if !d.mayStart(sub.ID, read) {
		return nil, errMaybeEnded
	}
	del := state.New(sub, e, d.now())
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	answer := make(chan webhook.Outcome, 1)
	d.attempts.Go(func() { answer <- d.sender.attempt(own, del, sub, e) })
	late := !await(answer, &out, s.Patience())
	if late {
		if detached := s.Detach(); detached != nil {
			if d.storeDetached(ctx, del, e) {
				d.attempts.Go(func() {
					defer cancel()
					out := <-answer
					detached.Done(out)
					d.recordDetached(own, del, *sub, *e, out)
				})
				return nil, nil
			}
			s = detached
		}
		cancel()
		out = <-answer // perhaps it arrived at that moment
	}
	cancel()
	s.Done(out)
	if late && out.Internal() && ctx.Err() == nil {
		return nil, d.toSlowLane(ctx, sub, e)
	}
	return d.outcomes.Record(ctx, del, sub, e, out)
}

// await waits for an outcome for a time, or to the end if that is 0, and reports whether it arrived.
func await(answer <-chan webhook.Outcome, out *webhook.Outcome, patience time.Duration) bool {
	var over <-chan time.Time
	if patience > 0 {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case *out = <-answer:
		return true
	case <-over:
		return false
	}
}

// storeDetached writes the delivery that the outcome of a detached attempt will replace.
func (d *Dispatcher) storeDetached(ctx context.Context, del *state.Delivery, e *event.Event) bool {
	due := d.now().Add(max(d.Options.Timeout, d.Options.EventsTimeout))
	whose, err := d.deliveries.ScheduleNext(ctx, del, e, due)
	return err == nil && whose == state.Mine
}

// recordDetached records the outcome of a detached attempt.
func (d *Dispatcher) recordDetached(ctx context.Context, del *state.Delivery, sub subscription.Subscriber, e event.Event, out webhook.Outcome) {
	notes, err := d.outcomes.Record(ctx, del, &sub, &e, out)
	if err == nil && len(notes) > 0 {
		err = state.WriteNotes(ctx, d.DB, notes)
	}
	if err != nil {
		d.log().WarnContext(ctx, "attempt outcome lost", "subscription", sub.ID, "event", e.ID, "error", err)
	}
}

// toSlowLane turns a first attempt into a single delivery in the slow lane. Its message is delayed until its endpoint may get
// attempts, so it is not received for nothing.
func (d *Dispatcher) toSlowLane(ctx context.Context, sub *subscription.Subscriber, e *event.Event) error {
	now := d.now()
	turn, wait := d.lanes.Postpone(ctx, task.EndpointID(sub.Target.URL))
	_, err := d.deliveries.ScheduleNext(ctx, state.New(sub, e, now.Add(turn)), e, now.Add(wait))
	return err
}
