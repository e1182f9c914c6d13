package delivery

import (
	"context"
	"time"

	"mcpevents/shared/event"
	"mcpevents/shared/store"
	"mcpevents/shared/subscription"
	"mcpevents/shared/webhook"
)

// first makes the first attempt of a delivery, for a page. An endpoint that
// hangs would keep the page, its place among the attempts and with that everybody
// else until the timeout. So after [Options.Patience] the delivery becomes a chain
// of which nothing is recorded yet, due when the attempt must have ended; the
// attempt goes on beside the page, and its outcome continues the chain. Should the process die, the
// chain is there; should the attempt end, the chain's message is stale.
func (d *Dispatcher) first(ctx context.Context, workspace string, sub *subscription.Subscriber, e *event.Event) ([]store.Op, error) {
	c := newChain(workspace, sub, e, d.now())
	if d.Options.Patience == 0 {
		return d.outcome(ctx, workspace, sub, e, c, 0, store.Key{}, d.attempt(ctx, workspace, sub, e, 1))
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	together := context.AfterFunc(ctx, cancel)
	answer := make(chan webhook.Outcome, 1)
	d.beside.Go(func() { answer <- d.attempt(own, workspace, sub, e, 1) })
	done := func(out webhook.Outcome) ([]store.Op, error) {
		together()
		cancel()
		return d.outcome(ctx, workspace, sub, e, c, 0, store.Key{}, out)
	}
	patience := time.NewTimer(d.Options.Patience)
	defer patience.Stop()
	select {
	case out := <-answer:
		return done(out)
	case <-patience.C:
	}
	now := d.now()
	d.health.waits(origin(sub.Target.URL), now)
	select {
	case d.aside <- struct{}{}:
	default: // too many hang; this one is waited for
		return done(<-answer)
	}
	mine, err := d.scheduleNext(ctx, c, e, 0, store.Key{}, now.Add(max(d.Options.Timeout, d.Options.EventsTimeout)))
	if err != nil || !mine {
		<-d.aside
		return done(<-answer)
	}
	together()
	d.beside.Go(func() {
		defer func() { <-d.aside }()
		defer cancel()
		d.continued(own, workspace, *sub, *e, c, <-answer)
	})
	return nil, nil
}

// continued records the outcome of an attempt that was left to itself.
func (d *Dispatcher) continued(ctx context.Context, workspace string, sub subscription.Subscriber, e event.Event, c *chain, out webhook.Outcome) {
	notes, err := d.outcome(ctx, workspace, &sub, &e, c, c.item().Version, dueKey(c.Workspace, c.Subscription, c.key(), c.DueAt), out)
	if err == nil && len(notes) > 0 {
		err = d.DB.WriteAll(ctx, notes...)
	}
	if err != nil {
		d.log().WarnContext(ctx, "the outcome of an attempt was not recorded; it is made again when it is due",
			"subscription", sub.ID, "event", e.ID, "error", err)
	}
}

// Wait returns when no attempt goes on beside its page, or ctx ends.
func (d *Dispatcher) Wait(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		d.beside.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
