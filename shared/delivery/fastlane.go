package delivery

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/webhook"
)

// fastLane makes first attempts, in which no endpoint may keep the others waiting.
type fastLane struct {
	deliveries *deliveries
	sender     *sender
	outcomes   *outcomes
	endpoints  *endpoints
	rate       *endpointRates
	bytes      *budgets
	options    *Options
	now        func() time.Time
	log        *slog.Logger

	attempts sync.WaitGroup // under way
	detached chan struct{}  // holds one for each attempt that goes on without its page
}

// attempt makes the first attempt of a delivery. An endpoint that hangs
// would block the page, and with it all other subscribers, until the timeout. So after
// [Options.Patience] the delivery belongs to the slow lane. A few attempts may go on detached
// from their page: the delivery is stored without an attempt, due when the attempt must have
// ended, and the outcome then replaces it. If the process dies, the stored delivery is
// retried; if the attempt ends, its message is stale. All other attempts are canceled and made
// again in the slow lane, which the endpoint may see as a repetition.
//
// May is asked last, right before the POST: the result is [errMaybeEnded] if it says no.
func (f *fastLane) attempt(ctx context.Context, sub *subscription.Subscriber, e *event.Event, may func() bool) ([]store.Op, error) {
	target := sub.Target.URL
	id := endpointID(target)
	if f.rate.awaited(id, f.now()) || !f.rate.allow(ctx, id) || !f.endpoints.enterFast(ctx, id, target, f.now()) {
		return nil, f.toSlowLane(ctx, sub, e)
	}
	del := newDelivery(sub, e, f.now())
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	held := f.bytes.fast(len(e.Data))
	if !may() {
		cancel()
		held.release()
		f.endpoints.leaveFast(id, target, webhook.Outcome{Category: webhook.Aborted}, f.now())
		return nil, errMaybeEnded
	}
	answer := make(chan webhook.Outcome, 1)
	f.attempts.Go(func() {
		answer <- f.sender.attempt(own, del, sub, e)
		held.release()
	})
	var over <-chan time.Time // never, unless there is a patience
	if f.options.Patience > 0 {
		patience := time.NewTimer(f.options.Patience)
		defer patience.Stop()
		over = patience.C
	}
	select {
	case out := <-answer:
		cancel()
		f.endpoints.leaveFast(id, target, out, f.now())
		return f.outcomes.record(ctx, del, sub, e, out)
	case <-over:
	}
	mayGoOn := f.endpoints.outlivesPatience(id, target, f.now())
	if mayGoOn && f.detach(ctx, del, e, held) {
		f.attempts.Go(func() {
			defer func() { <-f.detached }()
			defer cancel()
			out := <-answer
			f.endpoints.leaveHanging(id, target, out, f.now())
			f.recordDetached(own, del, *sub, *e, out)
		})
		return nil, nil
	}
	cancel()
	out := <-answer
	if mayGoOn {
		f.endpoints.leaveHanging(id, target, out, f.now())
	}
	if internal(out) && ctx.Err() == nil {
		return nil, f.toSlowLane(ctx, sub, e)
	}
	return f.outcomes.record(ctx, del, sub, e, out) // the answer came just then
}

// errMaybeEnded says that a subscription may have ended since its page was read.
var errMaybeEnded = errors.New("delivery: the subscription may have ended")

// detach lets an attempt outlive its page: it takes a slot, moves the attempt's bytes to the
// budget of hanging ones, and writes the delivery that its outcome will replace.
func (f *fastLane) detach(ctx context.Context, del *delivery, e *event.Event, held *share) bool {
	select {
	case f.detached <- struct{}{}:
	default:
		return false
	}
	if !f.bytes.hang(held) {
		<-f.detached
		return false
	}
	due := f.now().Add(max(f.options.Timeout, f.options.EventsTimeout))
	whose, err := f.deliveries.scheduleNext(ctx, del, e, due)
	if err != nil || whose != mine {
		<-f.detached
		return false
	}
	return true
}

// recordDetached records the outcome of a detached attempt.
func (f *fastLane) recordDetached(ctx context.Context, del *delivery, sub subscription.Subscriber, e event.Event, out webhook.Outcome) {
	notes, err := f.outcomes.record(ctx, del, &sub, &e, out)
	if err == nil && len(notes) > 0 {
		err = f.deliveries.db.WriteAll(ctx, notes...)
	}
	if err != nil {
		f.log.WarnContext(ctx, "attempt outcome lost",
			"subscription", sub.ID, "event", e.ID, "error", err)
	}
}

// toSlowLane turns a first attempt into a single delivery in the slow lane.
func (f *fastLane) toSlowLane(ctx context.Context, sub *subscription.Subscriber, e *event.Event) error {
	now := f.now()
	_, err := f.deliveries.scheduleNext(ctx, newDelivery(sub, e, now), e, now.Add(f.rate.delay(endpointID(sub.Target.URL), now)))
	return err
}
