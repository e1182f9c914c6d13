package delivery

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// fastLane makes first attempts.
type fastLane struct {
	deliveries *deliveries
	sender     *sender
	outcomes   *outcomes
	lanes      *lanes
	rate       *endpointRates
	options    *Options
	now        func() time.Time
	log        *slog.Logger

	attempts sync.WaitGroup // under way
}

// attempt sends an event to one subscriber for the first time and returns the records to write. It releases the slot.
//
// A hanging endpoint must not hold up the page, so attempt waits only for [Options.Patience] and then moves the delivery to
// the slow lane. If there is capacity, it keeps the running POST ("detaches" it): it stores the delivery as due at the time
// by which the POST must have timed out, and the outcome of the POST later replaces that entry. If the process dies, the
// stored entry is retried. If the POST finishes, the entry's message is stale and dropped. Without capacity, attempt cancels
// the POST and the slow lane repeats it, so the endpoint may see the event twice.
//
// Right before the POST it calls mayStart, and it returns [errMaybeEnded] if the subscription may have ended since the page
// was read.
func (f *fastLane) attempt(ctx context.Context, s *slot, sub *subscription.Subscriber, e *event.Event, mayStart func() bool) ([]store.Op, error) {
	defer s.Done(unused) // if it was not released with an outcome
	if !f.rate.allow(ctx, s.endpoint) {
		return nil, f.toSlowLane(ctx, sub, e)
	}
	if !mayStart() {
		return nil, errMaybeEnded
	}
	del := newDelivery(sub, e, f.now())
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	answer := make(chan webhook.Outcome, 1)
	f.attempts.Go(func() { answer <- f.sender.attempt(own, del, sub, e) })
	var over <-chan time.Time // never, unless there is a patience
	if f.options.Patience > 0 {
		patience := time.NewTimer(f.patience(s))
		defer patience.Stop()
		over = patience.C
	}
	select {
	case out := <-answer:
		cancel()
		s.Done(out)
		return f.outcomes.record(ctx, del, sub, e, out)
	case <-over:
	}
	if s.Detach() && f.store(ctx, del, e) {
		detached := *s
		s.kind = noSlot
		f.attempts.Go(func() {
			defer cancel()
			out := <-answer
			detached.Done(out)
			f.recordDetached(own, del, *sub, *e, out)
		})
		return nil, nil
	}
	cancel()
	out := <-answer
	s.Done(out)
	if internal(out) && ctx.Err() == nil {
		return nil, f.toSlowLane(ctx, sub, e)
	}
	return f.outcomes.record(ctx, del, sub, e, out) // the answer arrived at that moment
}

// patience returns how long an attempt may keep its slot without an answer. One that probes an endpoint that hung gets less: an
// endpoint that takes longer than [Options.SlowAnswer] belongs in the slow lane anyway.
func (f *fastLane) patience(s *slot) time.Duration {
	if s.hung {
		return min(f.options.Patience, f.options.SlowAnswer)
	}
	return f.options.Patience
}

// errMaybeEnded says that a subscription may have ended since its page was read.
var errMaybeEnded = errors.New("delivery: the subscription may have ended")

// store writes the delivery that the outcome of a detached attempt will replace.
func (f *fastLane) store(ctx context.Context, del *delivery, e *event.Event) bool {
	due := f.now().Add(max(f.options.Timeout, f.options.EventsTimeout))
	whose, err := f.deliveries.scheduleNext(ctx, del, e, due)
	return err == nil && whose == mine
}

// recordDetached records the outcome of a detached attempt.
func (f *fastLane) recordDetached(ctx context.Context, del *delivery, sub subscription.Subscriber, e event.Event, out webhook.Outcome) {
	notes, err := f.outcomes.record(ctx, del, &sub, &e, out)
	if err == nil && len(notes) > 0 {
		err = writeNotes(ctx, f.deliveries.db, notes)
	}
	if err != nil {
		f.log.WarnContext(ctx, "attempt outcome lost",
			"subscription", sub.ID, "event", e.ID, "error", err)
	}
}

// toSlowLane turns a first attempt into a single delivery in the slow lane. It is due when its endpoint may get attempts
// again. Until then its message is delayed, so it is not received for nothing.
func (f *fastLane) toSlowLane(ctx context.Context, sub *subscription.Subscriber, e *event.Event) error {
	now, id := f.now(), endpointID(sub.Target.URL)
	wait := f.lanes.pauseLeft(id)
	if wait > 0 {
		wait += rand.N(wait/5 + 1)
	}
	turn := f.rate.reserve(ctx, id, now)
	_, err := f.deliveries.scheduleNext(ctx, newDelivery(sub, e, now.Add(turn)), e, now.Add(max(turn, wait)))
	return err
}
