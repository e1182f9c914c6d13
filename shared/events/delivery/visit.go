package delivery

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/judge"
	"github.com/mcp-events/mcpevents/shared/events/delivery/lane"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/subscription/review"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// visit is the part of a page task that concerns one subscriber. It makes the first attempts to send the task's events to the subscriber.
// The attempts run concurrently, as far as package lane permits.
type visit struct {
	d     *Dispatcher
	task  task.Page
	sub   *subscription.Subscriber
	read  time.Time // when sub was read
	right review.Right
	call  lane.Call // the parameters of lane.Lanes.Reserve; visit.judge sets Bytes for each event
	wait  lane.PageWait
	sent  bool // whether the visit has started an attempt

	attempts sync.WaitGroup // running attempts, and hand-overs to the slow lane

	mu     sync.Mutex
	notes  []store.Op // writes that the page makes after the visit
	left   []int      // indexes of the events that another page handles
	failed []int      // indexes of the events that failed because of this program
	err    error      // the last error of the events in failed
	stuck  error      // the last error from handing an event over to the slow lane

	handOvers chan struct{} // has one element per running hand-over to the slow lane; nil before the first
}

// maxHandOvers limits how many deliveries to one subscriber a page task moves to the slow lane concurrently. If it moved a hundred
// deliveries one after another, it would occupy one of few Lambda invocations for over a second.
const maxHandOvers = 8

// action says what to do with an event for one subscriber.
type action int

const (
	undecided action = iota
	attempt          // send it now
	forget           // do not send it, and delete the delivery if it is stored
	abandon          // give it up, because the event or its type no longer exists
	suspend          // add it to the backlog of a suspended subscription
	pause            // let it wait until a person resumes the verdict's switch
	postpone         // only in the slow lane: attempt it at the verdict's time
	slowLane         // only in the fast lane: hand it over to the slow lane
	leave            // only in the fast lane: leave it and the events after it to another page
	announce         // only in the fast lane: notify the subscriber of a gap, i.e. of lost events
	terminate        // only in the slow lane: end the subscription or, if it may continue after all, decide again
	stop             // there is nothing left to do: the subscription has ended, or the task is stale
)

// verdict is the decision what to do with one event for one subscriber.
type verdict struct {
	action action
	slot   *lane.FastSlot // the slot of an attempt in the fast lane; the attempt releases it
	paused switches.Name  // for the action pause: the switch that pauses the delivery
	due    time.Time      // for the action postpone: when to attempt the delivery
}

// judge decides whether a subscriber gets an event now. It is shared by [visit.judge] and [single.judge]. The parameter right says which
// events the subscriber's principal may receive.
func (d *Dispatcher) judge(ctx context.Context, right review.Right, sub *subscription.Subscriber, e *event.Event) (verdict, error) {
	ruling, err := judge.Decide(ctx, d.Switches, right, sub, e)
	if err != nil {
		return verdict{}, err
	}
	return verdict{action: actions[ruling.Decision], paused: ruling.Switch}, nil
}

var actions = map[judge.Decision]action{
	judge.Send: attempt, judge.NotPermitted: forget, judge.Replayed: forget, judge.TypeRemoved: abandon, judge.Suspended: suspend, judge.Paused: pause,
}

// carryOut carries out a verdict other than an attempt, for example by pausing the delivery. The caller still has to write the returned
// operations.
func (d *Dispatcher) carryOut(ctx context.Context, how verdict, del *state.Delivery, e *event.Event) (notes []store.Op, err error) {
	switch how.action {
	case forget:
		return del.DeletionNotes(), nil
	case abandon:
		_, err = d.outcomes.Abandon(ctx, del, e)
	case suspend:
		err = d.manager.SuspendDelivery(ctx, del, e)
	case pause:
		_, err = d.deliveries.Pause(ctx, del, e, d.Switches, how.paused)
	case postpone:
		del.First = how.due
		_, err = d.deliveries.Schedule(ctx, del, nil, how.due)
	case announce:
		err = d.manager.AnnounceGap(ctx, del)
	case stop:
	default:
		err = fault.New(fault.Internal, "no lane acts on the verdict %d", how.action)
	}
	return nil, err
}

// visit sends the events of a page task to one subscriber. It returns when each attempt has ended or continues in the background. If an
// error ends it early, all remaining events that the subscriber wants count as failed.
func (d *Dispatcher) visit(ctx context.Context, t task.Page, sub *subscription.Subscriber, read time.Time, wait lane.PageWait) *visit {
	v := &visit{d: d, task: t, sub: sub, read: read, wait: wait, call: lane.Call{
		Endpoint: task.EndpointID(sub.Target.URL), URL: sub.Target.URL, Principal: t.Workspace + "#" + sub.Principal, Since: t.Since,
	}}
	v.sendEvents(ctx)
	slices.Sort(v.left)
	slices.Sort(v.failed)
	return v
}

// wants reports whether the subscriber wants event i of the page task. It returns a panic in one of the subscriber's filters as an error,
// so that the panic affects only this subscriber.
func (v *visit) wants(i int) (wants bool, err error) {
	defer fault.Recovered(&err)
	return v.sub.Wants(v.task.Payloads[i], v.d.now()), nil
}

// result says what a visit, which serves one subscriber, has done with one event.
type result struct {
	handling handling
	notes    []store.Op // writes that the page makes after the visit
	err      error      // a failure of this program, because of which this event and all later ones fail
}

// handling says who handles an event: this visit, another page task, or no task because the subscription has ended.
type handling int

const (
	handled handling = iota // the event is done, or its attempt is running and will report another result
	left                    // another page handles the event and all events after it
	ended                   // the subscription has ended, so the event and all events after it are not sent
)

// sendEvents starts an attempt for each event in turn, and returns when each attempt has ended or continues in the background. If it
// cannot continue after an event, for example because the subscription has ended, it records the same result for all later events without
// trying them.
func (v *visit) sendEvents(ctx context.Context) {
	defer v.attempts.Wait()
	r := v.begin(ctx)
	for i := range v.task.Events {
		if r.handling == handled && r.err == nil {
			r = v.send(ctx, i)
		}
		if r.err != nil {
			if wants, err := v.wants(i); !wants && err == nil {
				continue // the subscriber does not want this event, so it has not failed
			}
		}
		v.record(i, r)
	}
}

// begin checks whether the subscriber may still receive events. It turns a panic into an error, so that the panic affects only this
// subscriber. Otherwise the panic would end this process, and then each other process to which the queue redelivers the task.
func (v *visit) begin(ctx context.Context) (r result) {
	defer fault.Recovered(&r.err)
	right, err := v.d.Terminator.Review.CheckSubscriber(ctx, v.task.Workspace, v.task.Pattern, v.sub)
	if err != nil {
		return v.terminate(ctx, err)
	}
	v.right = right
	return result{}
}

// send decides what to do with event i of the page task, and does it. For example, it starts an attempt, which may end after send has
// returned.
func (v *visit) send(ctx context.Context, i int) (r result) {
	defer fault.Recovered(&r.err)
	e := &v.task.Events[i]
	how, err := v.judge(ctx, i)
	if err != nil {
		return result{err: err}
	}
	switch how.action {
	case attempt:
		v.sent = true
		v.startAttempt(ctx, i, how.slot)
	case slowLane:
		return v.startHandOver(ctx, i)
	case forget: // the delivery is not stored, so there is nothing to delete
	case leave:
		return result{handling: left}
	case stop:
		return result{handling: ended}
	default:
		_, err := v.d.carryOut(ctx, how, state.New(v.sub, e, v.d.now()), e)
		return result{err: err}
	}
	return result{}
}

// startAttempt makes the first attempt for an event in another goroutine, which records the result.
func (v *visit) startAttempt(ctx context.Context, i int, slot *lane.FastSlot) {
	sub, e, read := v.sub, &v.task.Events[i], v.read // variables, because v.judgeAgain may replace v.sub and v.read for a later event
	v.attempts.Add(1)
	report := func(notes []store.Op, err error) {
		defer v.attempts.Done()
		r := result{notes: notes, err: err}
		if errors.Is(err, errMaybeEnded) {
			r = result{handling: left} // another page reads the subscription again
		}
		v.record(i, r)
	}
	v.d.attempts.Go(func() {
		defer reportPanic(slot, report)
		v.d.attemptFirst(ctx, slot, sub, e, v.task.Late, read, report)
	})
}

// startHandOver moves an event to the slow lane in another goroutine. After one failure, it returns the same error for later events,
// because these would fail, too.
func (v *visit) startHandOver(ctx context.Context, i int) result {
	v.mu.Lock()
	stuck := v.stuck
	v.mu.Unlock()
	if stuck != nil {
		return result{err: stuck}
	}
	if v.handOvers == nil {
		v.handOvers = make(chan struct{}, maxHandOvers)
	}
	v.handOvers <- struct{}{}
	sub := v.sub // a variable, because v.judgeAgain may replace v.sub for a later event
	v.attempts.Go(func() {
		var r result
		defer func() {
			v.record(i, r)
			<-v.handOvers
		}()
		defer fault.Recovered(&r.err)
		if r.err = v.d.moveToSlowLane(ctx, sub, &v.task.Events[i], v.task.Late); r.err != nil {
			v.mu.Lock()
			v.stuck = r.err
			v.mu.Unlock()
		}
	})
	return result{}
}

func (v *visit) record(i int, r result) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.notes == nil {
		v.notes = r.notes
	} else {
		v.notes = append(v.notes, r.notes...)
	}
	switch {
	case r.err != nil:
		v.failed, v.err = append(v.failed, i), r.err
	case r.handling == left:
		v.left = append(v.left, i)
	}
}

// judge decides what to do with event i of the page task for this subscriber. It makes the cheap checks first. It writes nothing, because
// [visit.send] carries out the verdict.
func (v *visit) judge(ctx context.Context, i int) (how verdict, err error) {
	e := &v.task.Events[i]
	if err := ctx.Err(); err != nil {
		return verdict{}, err
	}
	if wants, err := v.wants(i); !wants || err != nil {
		return verdict{action: forget}, err
	}
	if e.Gap {
		return verdict{action: announce}, nil
	}
	if how, err := v.d.judge(ctx, v.right, v.sub, e); how.action != attempt || err != nil {
		return how, err
	}
	v.call.Bytes = int64(len(e.Data))
	slot, granted := v.d.lanes.Reserve(ctx, v.call, v.wait)
	switch {
	case granted == lane.TooLate && v.task.Hops < maxHops:
		return verdict{action: leave}, nil
	case granted != lane.Granted:
		return verdict{action: slowLane}, nil
	}
	defer func() { // in a defer, so that the slot is also released after a panic
		if how.slot == nil {
			slot.Done(lane.Unused)
		}
	}()
	if how, err = v.judgeAgain(ctx, e, slot.Waited); how.action == attempt && err == nil {
		how.slot = slot
	}
	return how, err
}

// Right before an attempt, [visit.judgeAgain] reads the subscriber again if the last read is too long ago. Without a [Gate], the limit is
// stale. It is a little shorter than a second, because [Dispatcher.mayStart] refuses an attempt more than one second after the read.
//
// With a gate, the limit is staleWithGate. It can be longer, because the gate itself stops attempts to ended subscriptions. It only
// limits how late a person's pause of the subscription takes effect.
const (
	stale         = 800 * time.Millisecond
	staleWithGate = 2 * time.Second
)

// judgeAgain decides once more, right before an attempt, whether to send the event. It decides again only if the subscriber was read too
// long ago, or if the attempt had to wait for its slot (the parameter waited).
func (v *visit) judgeAgain(ctx context.Context, e *event.Event, waited bool) (verdict, error) {
	limit := stale
	if v.d.Gate != nil {
		limit = staleWithGate
	}
	if now := time.Now(); now.Sub(v.read) > limit {
		found, err := subscription.ReadSubscribers(ctx, v.d.DB, v.task.Workspace, v.task.Pattern, subscription.RangeOf(v.sub.ID), 1)
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
		return verdict{action: attempt}, nil
	}
	return v.d.judge(ctx, v.right, v.sub, e)
}

// terminate ends the subscription if err is a [subscription.Terminated], i.e. if the catalog in this process no longer permits the
// subscription. It returns any other err as the result. If the catalog in this process turns out to be outdated, the subscription stays,
// and another page task delivers the events later.
func (v *visit) terminate(ctx context.Context, err error) result {
	if _, is := errors.AsType[*subscription.Terminated](err); !is {
		return result{err: err}
	}
	if v.sub.Until != 0 && !v.d.now().Before(v.sub.Until.Time()) {
		return result{handling: ended}
	}
	terminated, err := v.d.Terminator.Terminate(ctx, v.task.Workspace, v.sub.Principal, v.sub.ID)
	switch {
	case err != nil:
		return result{err: err}
	case terminated:
		return result{handling: ended}
	case v.task.Hops >= maxHops:
		return result{err: fault.New(fault.Unavailable, "the catalog in this process is still older than the subscription")}
	}
	return result{handling: left}
}
