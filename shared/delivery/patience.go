package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/webhook"
)

// firstAttempt makes the first attempt of a delivery, in the fast lane. An endpoint that hangs
// would block the page, and with it all other subscribers, until the timeout. So after
// [Options.Patience] the delivery belongs to the slow lane. A few attempts may go on detached
// from their page: the delivery is stored without an attempt, due when the attempt must have
// ended, and the outcome then replaces it. If the process dies, the stored delivery is
// retried; if the attempt ends, its message is stale. All other attempts are canceled and made
// again in the slow lane, which the endpoint may see as a repetition.
//
// May is asked last, right before the POST: the result is [errMaybeEnded] if it says no.
func (d *Dispatcher) firstAttempt(ctx context.Context, sub *subscription.Subscriber, e *event.Event, may func() bool) ([]store.Op, error) {
	target := sub.Target.URL
	id := endpointID(target)
	if d.rate.awaited(id, d.now()) || !d.rate.allow(ctx, id) || !d.endpoints.enterFast(ctx, id, target, d.now()) {
		return nil, d.toSlowLane(ctx, sub, e)
	}
	del := newDelivery(sub, e, d.now())
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	held := d.bytes.fast(len(e.Data))
	if !may() {
		cancel()
		held.release()
		d.endpoints.leaveFast(id, target, webhook.Outcome{Category: webhook.Aborted}, d.now())
		return nil, errMaybeEnded
	}
	answer := make(chan webhook.Outcome, 1)
	d.attempts.Go(func() {
		answer <- d.sender.attempt(own, del, sub, e)
		held.release()
	})
	var over <-chan time.Time // never, unless there is a patience
	if d.Options.Patience > 0 {
		patience := time.NewTimer(d.Options.Patience)
		defer patience.Stop()
		over = patience.C
	}
	select {
	case out := <-answer:
		cancel()
		d.endpoints.leaveFast(id, target, out, d.now())
		return d.outcomes.record(ctx, del, sub, e, out)
	case <-over:
	}
	mayGoOn := d.endpoints.outlivesPatience(id, target, d.now())
	if mayGoOn && d.detach(ctx, del, e, held) {
		d.attempts.Go(func() {
			defer func() { <-d.detachedSlots }()
			defer cancel()
			out := <-answer
			d.endpoints.leaveHanging(id, target, out, d.now())
			d.recordDetached(own, del, *sub, *e, out)
		})
		return nil, nil
	}
	cancel()
	out := <-answer
	if mayGoOn {
		d.endpoints.leaveHanging(id, target, out, d.now())
	}
	if internal(out) && ctx.Err() == nil {
		return nil, d.toSlowLane(ctx, sub, e)
	}
	return d.outcomes.record(ctx, del, sub, e, out) // the answer came just then
}

// errMaybeEnded says that a subscription may have ended since its page was read.
var errMaybeEnded = errors.New("delivery: the subscription may have ended")

// detach lets an attempt outlive its page: it takes a slot, moves the attempt's bytes to the
// budget of hanging ones, and writes the delivery that its outcome will replace.
func (d *Dispatcher) detach(ctx context.Context, del *delivery, e *event.Event, held *share) bool {
	select {
	case d.detachedSlots <- struct{}{}:
	default:
		return false
	}
	if !d.bytes.hang(held) {
		<-d.detachedSlots
		return false
	}
	due := d.now().Add(max(d.Options.Timeout, d.Options.EventsTimeout))
	mine, err := d.deliveries.scheduleNext(ctx, del, e, due)
	if err != nil || !mine {
		<-d.detachedSlots
		return false
	}
	return true
}

// recordDetached records the outcome of a detached attempt.
func (d *Dispatcher) recordDetached(ctx context.Context, del *delivery, sub subscription.Subscriber, e event.Event, out webhook.Outcome) {
	notes, err := d.outcomes.record(ctx, del, &sub, &e, out)
	if err == nil && len(notes) > 0 {
		err = d.DB.WriteAll(ctx, notes...)
	}
	if err != nil {
		d.log().WarnContext(ctx, "attempt outcome lost",
			"subscription", sub.ID, "event", e.ID, "error", err)
	}
}

// Wait returns when no detached attempt is left, or ctx ends.
func (d *Dispatcher) Wait(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		d.attempts.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
