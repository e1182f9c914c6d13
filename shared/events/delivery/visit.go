package delivery

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/subscription/review"
	"github.com/mcp-events/mcpevents/shared/events/switches"
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
	right review.Right
	call  lane.Call     // without the size of the event
	wait  lane.Patience // for slots
	sent  bool          // at least one attempt was started

	attempts sync.WaitGroup

	mu     sync.Mutex
	notes  []store.Op // to write
	left   []int      // events for another page, by their index
	failed []int      // events that failed internally
	err    error      // the last failure
}

// action is the way in which a visit handles an event.
type action int

const (
	attempt  action = iota // send it now, in the verdict's slot
	skip                   // do nothing, because the subscriber does not want it
	abandon                // give it up, because its type was removed from the catalog
	suspend                // add it to the backlog of a suspended subscription
	pause                  // let it wait for the verdict's switch
	slowLane               // let the slow lane attempt it
	leave                  // leave it and the events after it to another page
	stop                   // the subscription has ended, and gets no more events
)

// verdict is the decision about one event for one subscriber.
type verdict struct {
	action action
	slot   *lane.Slot    // of an attempt, which releases it
	paused switches.Name // the switch of a pause
}

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

// sendEvents starts the attempts and returns when they have ended. It made no attempts for the events from index done on,
// because of the error or because it is time for another page.
//
// It turns a panic into an error of this subscriber. Otherwise the panic would end the process, and the next process would
// end at the same message.
func (v *visit) sendEvents(ctx context.Context) (done int, err error) {
	defer v.attempts.Wait()
	defer fault.Recovered(&err)
	v.right, err = v.d.Terminator.Review.Subscriber(ctx, v.task.Workspace, v.task.Pattern, v.sub, false)
	if err != nil {
		return v.terminate(ctx, err)
	}
	last := len(v.task.Events) - 1
	for i := range v.task.Events {
		how, err := v.judge(ctx, i)
		switch {
		case err != nil:
			return i, err
		case how.action == leave:
			return i, nil
		case how.action == stop:
			return last + 1, nil
		case how.action != attempt:
			if err := v.divert(ctx, how, &v.task.Events[i]); err != nil {
				return i, err
			}
			continue
		}
		v.sent = true
		sub, read := v.sub, v.read
		send := func() {
			var err error
			var notes []store.Op
			defer func() { v.add(i, notes, err) }()
			defer fault.Recovered(&err)
			notes, err = v.d.attemptFirst(ctx, how.slot, sub, &v.task.Events[i], read)
		}
		if i == last { // often the only one
			send()
		} else {
			v.attempts.Go(send)
		}
	}
	return last + 1, nil
}

// judge decides about one event for the subscriber, from cheap checks to expensive ones. It changes nothing: sendEvents acts
// on its verdict.
func (v *visit) judge(ctx context.Context, i int) (verdict, error) {
	d, e := v.d, &v.task.Events[i]
	if err := ctx.Err(); err != nil {
		return verdict{}, err
	}
	if !v.wants(i) {
		return verdict{action: skip}, nil
	}
	may, err := v.right.May(ctx, e)
	switch {
	case errors.Is(err, review.ErrTypeRemoved):
		return verdict{action: abandon}, nil
	case err != nil:
		return verdict{}, err
	case !may:
		return verdict{action: skip}, nil
	}
	if waits, err := v.judgeState(ctx, e); waits.action != attempt || err != nil {
		return waits, err
	}
	v.call.Bytes = int64(len(e.Data))
	slot, granted := d.lanes.Reserve(ctx, v.call, v.wait)
	switch {
	case granted == lane.TooLate && v.task.Hops < maxHops:
		return verdict{action: leave}, nil
	case granted != lane.Granted:
		return verdict{action: slowLane}, nil
	}
	again, err := v.judgeAgain(ctx, e, slot.Waited)
	if again.action != attempt || err != nil {
		slot.Done(lane.Unused)
	}
	again.slot = slot
	return again, err
}

// judgeState decides whether the subscriber gets attempts now, or is suspended or paused.
func (v *visit) judgeState(ctx context.Context, e *event.Event) (verdict, error) {
	if v.sub.Suspended != 0 {
		return verdict{action: suspend}, nil
	}
	which, err := v.d.pauses.switchOf(ctx, e.Workspace, e.Name, v.sub.Target.URL, v.sub)
	if err != nil || which == "" {
		return verdict{}, err
	}
	return verdict{action: pause, paused: which}, nil
}

// divert acts on a verdict without an attempt.
func (v *visit) divert(ctx context.Context, how verdict, e *event.Event) (err error) {
	switch how.action {
	case abandon:
		_, err = v.d.outcomes.Abandon(ctx, state.New(v.sub, e, v.d.now()), e)
	case suspend:
		err = v.d.manager.AddToBacklog(ctx, v.sub, e)
	case pause:
		err = v.d.pauses.pause(ctx, state.New(v.sub, e, v.d.now()), how.paused, e)
	case slowLane:
		err = v.d.toSlowLane(ctx, v.sub, e)
	}
	return err
}

// A subscriber whose record is older than this is read again before an attempt. On AWS no attempt may start more than a
// second after deregister has answered. In one process the [Gate] sees to that, and pausing acts within five seconds.
const (
	stale         = 800 * time.Millisecond
	staleWithGate = 2 * time.Second
)

// judgeAgain decides about an event that got its slot, because the subscription may have ended or changed meanwhile.
func (v *visit) judgeAgain(ctx context.Context, e *event.Event, waited bool) (verdict, error) {
	limit := stale
	if v.d.Gate != nil {
		limit = staleWithGate
	}
	if now := time.Now(); now.Sub(v.read) > limit {
		found, err := subscription.Subscribers(ctx, v.d.DB, v.task.Workspace, v.task.Pattern, subscription.At(v.sub.ID), 1)
		switch {
		case err != nil:
			return verdict{}, err
		case len(found.List) == 0 && len(found.Broken) == 0:
			return verdict{action: stop}, nil
		case len(found.List) > 0 && found.List[0].Target.URL != v.sub.Target.URL:
			return verdict{action: leave}, nil
		case len(found.List) > 0:
			v.sub, waited = &found.List[0], true
		}
		v.read = now
	}
	if !waited {
		return verdict{}, nil
	}
	return v.judgeState(ctx, e)
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
		v.left = append(v.left, i) // another page reads the subscription again
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
		out = <-answer // it may have arrived at that moment
	}
	cancel()
	s.Done(out)
	if late && out.Internal() && ctx.Err() == nil {
		return nil, d.toSlowLane(ctx, sub, e)
	}
	return d.outcomes.Record(ctx, del, sub, e, out)
}

// await waits for an outcome, at most for the given time unless that is 0, and reports whether it arrived.
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

// toSlowLane turns a first attempt into a single delivery in the slow lane. It delays the message until the endpoint may get
// attempts, because earlier receives would be in vain.
func (d *Dispatcher) toSlowLane(ctx context.Context, sub *subscription.Subscriber, e *event.Event) error {
	now := d.now()
	turn, wait := d.lanes.Postpone(ctx, task.EndpointID(sub.Target.URL))
	_, err := d.deliveries.ScheduleNext(ctx, state.New(sub, e, now.Add(turn)), e, now.Add(wait))
	return err
}
