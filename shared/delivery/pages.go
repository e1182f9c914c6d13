package delivery

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

// page is the work of one batch on one range of one pattern.
type page struct {
	PageTask
	messages []string
	// wasPaused are the tasks' [PageTask.Paused].
	wasPaused []string
	// done are the subscribers that an earlier receive of the message has served.
	done map[string]bool
	err  error
}

// Pages is the [queue.Handler] of the deliveries queue. Tasks of one batch for
// the same range share one read of its subscribers.
//
// A page fails as a whole only where nothing was sent, or where what is left of it cannot
// be queued. Then this process remembers which subscribers are done, and their webhooks are
// not repeated when the page is redelivered.
func (d *Dispatcher) Pages(ctx context.Context, batch []queue.Message) (failed []string, err error) {
	if err := d.progress.late(ctx, d.DB, batch, d.now()); err != nil {
		return nil, err
	}
	work, failed := d.group(ctx, batch)
	var wg sync.WaitGroup
	do := func(p *page) {
		defer recovered(&p.err)
		p.err = d.page(ctx, p)
	}
	for i, p := range work {
		if i == len(work)-1 { // often the only one
			do(p)
			break
		}
		wg.Go(func() { do(p) })
	}
	wg.Wait()
	for _, p := range work {
		if p.err != nil {
			d.log().ErrorContext(ctx, "page failed", "pattern", p.Pattern, "messages", len(p.messages), "error", p.err)
			failed = append(failed, p.messages...)
		}
	}
	if len(failed) == 0 {
		d.progress.atWork(ctx, d.DB, batch, d.now())
	}
	return failed, nil
}

// group decodes a batch and puts tasks for the same range together.
func (d *Dispatcher) group(ctx context.Context, batch []queue.Message) (work []*page, failed []string) {
	type rangeID struct {
		workspace, pattern string
		subscription.Range
	}
	byRange := map[rangeID]*page{}
	for _, m := range batch {
		t, err := decodeTask(m.Body, func(t PageTask) int { return t.V })
		if err != nil {
			if !d.rejected(ctx, queue.Deliveries, m, err) {
				failed = append(failed, m.ID)
			}
			continue
		}
		done, again := d.handled.Get(m.ID)
		id := rangeID{t.Workspace, t.Pattern, t.Range}
		p := byRange[id]
		if p == nil || t.Reactivation != nil || again {
			p = &page{PageTask: t, done: done}
			p.Events = nil
			if t.Reactivation == nil && !again {
				byRange[id] = p
			}
			work = append(work, p)
		}
		p.Events = append(p.Events, t.Events...)
		p.Hops, p.Retries = max(p.Hops, t.Hops), max(p.Retries, t.Retries)
		if t.Paused != "" {
			p.wasPaused = append(p.wasPaused, t.Paused)
		}
		p.messages = append(p.messages, m.ID)
	}
	return work, failed
}

// page sends events to the subscribers of a range, or splits a range that holds
// too many.
func (d *Dispatcher) page(ctx context.Context, p *page) error {
	t := p.PageTask
	if t.Reactivation != nil {
		return d.backlog.reactivateAll(ctx, t.Workspace, *t.Reactivation)
	}
	if err := d.pauses.pausePage(ctx, p); err != nil || len(p.Events) == 0 {
		return err
	}
	t = p.PageTask
	if t.Count > pageSplit {
		if parts := pages(t.Workspace, t.Pattern, t.Range, t.Count, t.Events); len(parts) > 1 {
			if err := d.pauses.markAnew(ctx, p, parts); err != nil {
				return err
			}
			return d.sendPages(ctx, t.Hops+1, parts)
		}
	}
	read := time.Now()
	found, err := subscription.Subscribers(ctx, d.DB, t.Workspace, t.Pattern, t.Range, 4*pageTarget)
	if err != nil {
		return err
	}
	done := d.sendAll(ctx, p, found.List, read)

	// The remaining tasks are queued after everything else is done. The batch may have
	// ended by now.
	ctx, cancel := finishing(ctx)
	defer cancel()
	if len(done.ops) > 0 {
		if err := d.DB.WriteAll(store.Unhurried(ctx), done.ops...); err != nil {
			// The deliveries were made; sending them again for their records would harm.
			d.log().WarnContext(ctx, "delivery records lost", "records", len(done.ops), "error", err)
		}
	}
	if found.More { // more than the header said: the rest is another task
		rest := t.Range
		rest.From = found.Last
		done.left = append(done.left, pages(t.Workspace, t.Pattern, rest, 1, t.Events)...)
	}
	if err = d.pauses.markAnew(ctx, p, done.left); err == nil {
		err = d.sendPages(ctx, t.Hops+1, done.left)
	}
	for _, position := range found.Broken {
		if err == nil {
			err = d.undecodable(ctx, t, position)
		}
	}
	if err != nil {
		for _, m := range p.messages {
			d.handled.Put(m, done.subscribers)
		}
	}
	return err
}

// finishTime bounds what is written after the deliveries of a batch.
const finishTime = 10 * time.Second

// finishing is a context for writes that must happen even if the batch has ended.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), finishTime)
}

// lastStart is until when a page may start attempts, so that those it has
// started end before its batch does: a slow endpoint with many
// events would otherwise have the page canceled and redelivered from its start, for ever.
func (d *Dispatcher) lastStart(ctx context.Context) (at time.Time, ok bool) {
	end, ok := ctx.Deadline()
	if !ok {
		return at, false
	}
	left := time.Until(end)
	return time.Now().Add(max(left/2, left-max(d.Options.Timeout, d.Options.EventsTimeout)-2*time.Second)), true
}

// sendPages queues tasks; hops is how many messages led to them.
func (d *Dispatcher) sendPages(ctx context.Context, hops int, tasks []PageTask) error {
	if len(tasks) == 0 {
		return nil
	}
	out := make([]queue.Outgoing, len(tasks))
	for i, t := range tasks {
		t.Hops = hops
		out[i].Body = t.encode()
		out[i].Delay = pageDelay(t.Retries)
	}
	return fault.Wrap(fault.Unavailable, d.Queue.Send(ctx, queue.Deliveries, out...), "send page tasks")
}

// stale is the age from which the subscribers of a page are read again: on AWS no
// attempt starts more than a second after deregister has answered.
const stale = 800 * time.Millisecond

// sent is the result of a page.
type sent struct {
	ops         []store.Op      // to write
	left        []PageTask      // for the remaining events
	subscribers map[string]bool // the ones that are done
}

// sendAll makes the first attempts of a page: subscribers in parallel, the
// events of one subscriber in order. It returns when all outcomes are recorded. Where
// one subscriber fails internally, only that one is left.
func (d *Dispatcher) sendAll(ctx context.Context, p *page, subs []subscription.Subscriber, read time.Time) sent {
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		out = sent{subscribers: map[string]bool{}}
	)
	for id := range p.done {
		out.subscribers[id] = true
	}
	p.payloads = subscription.Payloads(p.Events)
	last, limited := d.lastStart(ctx)
	late := func() bool { return limited && time.Now().After(last) }
	for i := range subs {
		sub := &subs[i]
		if p.done[sub.ID] {
			continue
		}
		d.slots <- struct{}{}
		serve := func() {
			defer func() { <-d.slots }()
			notes, done, err := d.guardedSendTo(ctx, p.PageTask, sub, read, late)
			left := d.remaining(ctx, p.PageTask, sub, done, err)
			mu.Lock()
			defer mu.Unlock()
			out.ops = append(out.ops, notes...)
			out.left = append(out.left, left...)
			if len(left) == 0 {
				out.subscribers[sub.ID] = true
			}
		}
		if i == len(subs)-1 { // often the only one
			serve()
			break
		}
		wg.Go(serve)
	}
	wg.Wait()
	return out
}

// guardedSendTo is sendTo, with a panic as an error of this subscriber: in a goroutine it would
// end the process, and the next one at the same message.
func (d *Dispatcher) guardedSendTo(ctx context.Context, t PageTask, sub *subscription.Subscriber, read time.Time, late func() bool,
) (notes []store.Op, done int, err error) {
	defer recovered(&err)
	return d.sendTo(ctx, t, sub, read, late)
}

// recovered makes a panic an error.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = panicked(p)
	}
}

func panicked(p any) error { return fmt.Errorf("panic: %v\n%s", p, debug.Stack()) }

// sendTo makes the first attempts for one subscriber and returns the records to
// write. The events from index done on are left to another page.
func (d *Dispatcher) sendTo(ctx context.Context, t PageTask, sub *subscription.Subscriber, read time.Time, late func() bool,
) (notes []store.Op, done int, err error) {
	right, err := d.Terminator.Review.Subscriber(ctx, t.Workspace, t.Pattern, sub, false)
	if err != nil {
		return d.terminate(ctx, t, sub, err)
	}
	for i := range t.Events {
		e := &t.Events[i]
		if ctx.Err() != nil {
			return notes, i, ctx.Err()
		}
		if !sub.Wants(t.payloads[i], d.now()) {
			continue
		}
		if may, err := right.May(ctx, e); err != nil {
			return notes, i, err
		} else if !may {
			continue
		}
		if late() {
			if t.Hops < maxHops {
				return notes, i, nil
			}
			if err := d.fast.toSlowLane(ctx, sub, e); err != nil { // no further page
				return notes, i, err
			}
			continue
		}
		if sub.Suspended != 0 {
			if err := d.backlog.add(ctx, sub, e); err != nil {
				return notes, i, err
			}
			continue
		}
		if paused, err := d.pauses.pause(ctx, newDelivery(sub, e, d.now()), sub, e); err != nil {
			return notes, i, err
		} else if paused {
			continue
		}
		if d.Gate == nil && time.Since(read) > stale {
			served, err := subscription.Served(ctx, d.DB, t.Workspace, t.Pattern, []string{sub.ID})
			if err != nil {
				return notes, i, err
			}
			read = time.Now()
			if !served[sub.ID] {
				return notes, len(t.Events), nil
			}
		}
		if !d.Gate.enter(sub.ID, read) {
			return notes, i, nil // another page sees whether it was created again
		}
		note, err := d.fast.attempt(ctx, sub, e, func() bool {
			if d.Gate == nil {
				return time.Since(read) <= stale+slotWait
			}
			return d.Gate.enter(sub.ID, read)
		})
		notes = append(notes, note...)
		if errors.Is(err, errMaybeEnded) {
			return notes, i, nil // another page sees
		}
		if err != nil {
			return notes, i, err
		}
	}
	return notes, len(t.Events), nil
}

// terminate is sendTo for a subscriber that may not go on by the catalog of this process: it
// is terminated, or, if that catalog turns out to be old, left to a further page.
func (d *Dispatcher) terminate(ctx context.Context, t PageTask, sub *subscription.Subscriber, err error) (notes []store.Op, done int, _ error) {
	if _, is := errors.AsType[*subscription.Terminated](err); !is {
		return nil, 0, err
	}
	if sub.Until != 0 && d.now().Unix() >= sub.Until {
		return nil, len(t.Events), nil
	}
	ended, err := d.Terminator.Terminate(ctx, t.Workspace, sub.Principal, sub.ID)
	if err != nil {
		return nil, 0, err
	}
	if !ended && t.Hops >= maxHops {
		return nil, 0, fault.New(fault.Unavailable, "the catalog in this process is still older than the subscription")
	}
	if !ended {
		return nil, 0, nil
	}
	return nil, len(t.Events), nil
}
