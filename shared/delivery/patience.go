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

// first makes the first attempt of a delivery, in the fast lane. An endpoint that hangs
// would keep the page, its place among the attempts and with that all others until the
// timeout. So after [Options.Patience] the delivery is the slow lane's. The attempt goes on
// beside its page if few do: the delivery becomes a chain of which nothing is recorded
// yet, due when the attempt must have ended, and the attempt's outcome continues it. If
// the process dies, the chain is there; if the attempt ends, the chain's message is stale. Other
// attempts are cut off and made anew in the slow lane, which the endpoint may see as a repetition.
//
// May is asked when nothing is left to wait for: [errUnserved] is the result if it says no.
func (d *Dispatcher) first(ctx context.Context, workspace string, sub *subscription.Subscriber, e *event.Event, may func() bool) ([]store.Op, error) {
	target := sub.Target.URL
	id := endpointID(target)
	if d.rate.awaited(id, d.now()) || !d.rate.allow(ctx, id) || !d.endpoints.enterFast(ctx, id, target, d.now()) {
		return nil, d.divert(ctx, workspace, sub, e)
	}
	c := newChain(workspace, sub, e, d.now())
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	together := context.AfterFunc(ctx, cancel)
	defer together()
	held := d.bytes.fast(len(e.Data))
	if !may() {
		cancel()
		held.release()
		d.endpoints.leaveFast(id, target, webhook.Outcome{Category: webhook.Aborted}, d.now())
		return nil, errUnserved
	}
	if d.Options.Patience == 0 {
		defer cancel()
		out := d.attempt(own, workspace, sub, e, 1)
		held.release()
		d.endpoints.leaveFast(id, target, out, d.now())
		return d.outcome(ctx, workspace, sub, e, c, 0, store.Key{}, out)
	}
	answer := make(chan webhook.Outcome, 1)
	d.beside.Go(func() {
		answer <- d.attempt(own, workspace, sub, e, 1)
		held.release()
	})
	patience := time.NewTimer(d.Options.Patience)
	defer patience.Stop()
	select {
	case out := <-answer:
		cancel()
		d.endpoints.leaveFast(id, target, out, d.now())
		return d.outcome(ctx, workspace, sub, e, c, 0, store.Key{}, out)
	case <-patience.C:
	}
	mayGoOn := d.endpoints.hangs(id, target, d.now())
	if mayGoOn && d.goAside(ctx, c, e, held) {
		d.beside.Go(func() {
			defer func() { <-d.aside }()
			defer cancel()
			out := <-answer
			d.endpoints.leaveHanging(id, target, out, d.now())
			d.continued(own, workspace, *sub, *e, c, out)
		})
		return nil, nil
	}
	cancel()
	out := <-answer
	if mayGoOn {
		d.endpoints.leaveHanging(id, target, out, d.now())
	}
	if ours(out) && ctx.Err() == nil {
		return nil, d.divert(ctx, workspace, sub, e)
	}
	return d.outcome(ctx, workspace, sub, e, c, 0, store.Key{}, out) // the answer came just then
}

// errUnserved says that a subscription may have ended since its page was read.
var errUnserved = errors.New("delivery: the subscription may have ended")

// goAside gets a place for an attempt that goes on beside its page, moves what it holds to
// the budget of those that hang, and writes the chain that its outcome continues.
func (d *Dispatcher) goAside(ctx context.Context, c *chain, e *event.Event, held *share) bool {
	select {
	case d.aside <- struct{}{}:
	default:
		return false
	}
	if !d.bytes.hang(held) {
		<-d.aside
		return false
	}
	due := d.now().Add(max(d.Options.Timeout, d.Options.EventsTimeout))
	mine, err := d.scheduleNext(ctx, c, e, 0, store.Key{}, due)
	if err != nil || !mine {
		<-d.aside
		return false
	}
	return true
}

// continued records the outcome of an attempt that went on beside its page.
func (d *Dispatcher) continued(ctx context.Context, workspace string, sub subscription.Subscriber, e event.Event, c *chain, out webhook.Outcome) {
	notes, err := d.outcome(ctx, workspace, &sub, &e, c, c.item().Version, dueKey(c.Workspace, c.Subscription, c.key(), c.DueAt), out)
	if err == nil && len(notes) > 0 {
		err = d.DB.WriteAll(ctx, notes...)
	}
	if err != nil {
		d.log().WarnContext(ctx, "outcome lost; the attempt is made again when it is due",
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
