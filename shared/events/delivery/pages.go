package delivery

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
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

// Pages is the [queue.Handler] of the deliveries queue. Tasks of one batch for the same range share one read of its
// subscribers.
//
// A page holds its worker and its messages for seconds only. Events that no endpoint's slot became free for meanwhile become
// tasks of their own. A page fails as a whole only if it sent nothing, or if those tasks cannot be queued. Then this
// process remembers which subscribers are done, and does not repeat their webhooks when the page is redelivered.
func (d *Dispatcher) Pages(ctx context.Context, batch []queue.Message) (failed []string, err error) {
	received := make([]receivedPage, len(batch))
	batch = slices.Clone(batch)
	for i, m := range batch {
		r := receivedPage{message: m}
		r.task, r.err = decodeTask(m.Body, func(t PageTask) int { return t.V })
		switch {
		case r.err == nil && r.task.Since != 0:
			batch[i].Sent = time.UnixMilli(r.task.Since)
		case r.err == nil:
			r.task.Since = m.Sent.UnixMilli()
		}
		received[i] = r
	}
	if err := d.progress.late(ctx, d.DB, batch, d.now()); err != nil {
		return nil, err
	}
	work, failed := d.group(ctx, received)
	var wg sync.WaitGroup
	do := func(p *page) {
		defer fault.Recovered(&p.err)
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

// receivedPage is a message of the deliveries queue.
type receivedPage struct {
	message queue.Message
	task    PageTask
	err     error // it cannot be decoded
}

// group puts tasks for the same range together.
func (d *Dispatcher) group(ctx context.Context, received []receivedPage) (work []*page, failed []string) {
	type rangeID struct {
		workspace, pattern string
		subscription.Range
	}
	byRange := map[rangeID]*page{}
	for _, r := range received {
		m, t := r.message, r.task
		if r.err != nil {
			if !d.rejected(ctx, queue.Deliveries, m, r.err) {
				failed = append(failed, m.ID)
			}
			continue
		}
		done, again := d.handled.Get(m.ID)
		id := rangeID{t.Workspace, t.Pattern, t.Range}
		p := byRange[id]
		// A retry has a limit of its own, which must not count for the events of other tasks.
		alone := t.Reactivation != nil || again || t.Retries > 0
		if p == nil || alone {
			p = &page{PageTask: t, done: done}
			p.Events = nil
			if !alone {
				byRange[id] = p
			}
			work = append(work, p)
		}
		p.Events = append(p.Events, t.Events...)
		p.Hops, p.Since = max(p.Hops, t.Hops), min(p.Since, t.Since)
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
			return d.sendPages(ctx, followUps(t, parts))
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
		if err := writeNotes(store.Unhurried(ctx), d.DB, done.ops); err != nil {
			// The deliveries were made; sending them again for their records would harm.
			d.log().WarnContext(ctx, "delivery records lost", "records", len(done.ops), "error", err)
		}
	}
	if found.More { // more than the header said: the rest is another task
		rest := t.Range
		rest.From = found.Last
		done.left = append(done.left, followUps(t, pages(t.Workspace, t.Pattern, rest, 1, t.Events))...)
	}
	if err = d.pauses.markAnew(ctx, p, done.left); err == nil {
		err = d.sendPages(ctx, done.left)
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

const (
	// busyHold is how long a page waits for an endpoint that has all the attempts under way that it may have, and hold how
	// long it waits for slots that others have.
	busyHold = time.Second
	hold     = 5 * time.Second
)

// patienceOf is how long a page waits for slots. Its attempts have to end before its batch does, or the page would be
// canceled and redelivered from its start.
func (d *Dispatcher) patienceOf(ctx context.Context) patience {
	now := time.Now()
	p := patience{busy: now.Add(busyHold), others: now.Add(hold)}
	if end, ok := ctx.Deadline(); ok {
		left := end.Sub(now)
		last := now.Add(max(left/2, left-max(d.Options.Timeout, d.Options.EventsTimeout)-2*time.Second))
		p = patience{busy: earlier(p.busy, last), others: earlier(p.others, last)}
	}
	return p
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// followUps are the tasks that a task is split into.
func followUps(t PageTask, parts []PageTask) []PageTask {
	for i := range parts {
		parts[i].Hops, parts[i].Since = t.Hops+1, t.Since
	}
	return parts
}

// sendPages queues tasks.
func (d *Dispatcher) sendPages(ctx context.Context, tasks []PageTask) error {
	if len(tasks) == 0 {
		return nil
	}
	out := make([]queue.Outgoing, len(tasks))
	for i, t := range tasks {
		out[i] = t.outgoing()
	}
	return fault.Wrap(fault.Unavailable, d.Queue.Send(ctx, queue.Deliveries, out...), "send page tasks")
}

// A subscriber whose record is older than this is read again before an attempt. On AWS no attempt may start more than a
// second after deregister has answered. In one process the [Gate] sees to that, and pausing acts within five seconds.
const (
	stale         = 800 * time.Millisecond
	staleWithGate = 2 * time.Second
)

// sent is the result of a page.
type sent struct {
	ops         []store.Op      // to write
	left        []PageTask      // for the remaining events
	subscribers map[string]bool // the ones that are done
}

// sendAll makes the first attempts of a page, to all subscribers concurrently, and returns when all outcomes are recorded. If
// an event fails internally for one subscriber, only that event is left.
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
	wait := d.patienceOf(ctx)
	for i := range subs {
		sub := &subs[i]
		if p.done[sub.ID] {
			continue
		}
		serve := func() {
			r := d.sendTo(ctx, p.PageTask, sub, read, wait)
			left := d.remaining(ctx, p.PageTask, sub, r)
			mu.Lock()
			defer mu.Unlock()
			out.ops = append(out.ops, r.notes...)
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

// served is the result of a page for one subscriber.
type served struct {
	mu     sync.Mutex
	notes  []store.Op // to write
	sent   bool       // an attempt was made
	left   []int      // events for another page, by their index
	failed []int      // events that failed internally
	err    error      // the last failure
}

// add adds the result of an event.
func (r *served) add(i int, notes []store.Op, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, notes...)
	switch {
	case errors.Is(err, errMaybeEnded):
		r.left = append(r.left, i) // another page sees whether it has ended
	case err != nil:
		r.failed, r.err = append(r.failed, i), err
	}
}

// sendTo makes the first attempts for one subscriber: several at the same time, as many as its endpoint may have.
func (d *Dispatcher) sendTo(ctx context.Context, t PageTask, sub *subscription.Subscriber, read time.Time, wait patience) *served {
	r := &served{}
	done, err := d.start(ctx, t, sub, read, wait, r)
	for i := done; i < len(t.Events); i++ {
		switch {
		case err == nil:
			r.left = append(r.left, i)
		case sub.Wants(t.payloads[i], d.now()):
			r.failed, r.err = append(r.failed, i), err
		}
	}
	slices.Sort(r.left)
	slices.Sort(r.failed)
	return r
}

// start starts the attempts of [Dispatcher.sendTo], and returns when they have ended. The events from index done on have had
// none: because of the error, or because it is time for another page.
//
// A panic is an error of this subscriber. In a goroutine it would end the process, and the next one at the same message.
func (d *Dispatcher) start(ctx context.Context, t PageTask, sub *subscription.Subscriber, read time.Time, wait patience, r *served) (done int, err error) {
	var attempts sync.WaitGroup
	defer attempts.Wait()
	defer fault.Recovered(&err)
	right, err := d.Terminator.Review.Subscriber(ctx, t.Workspace, t.Pattern, sub, false)
	if err != nil {
		return d.terminate(ctx, t, sub, err)
	}
	next := call{endpoint: endpointID(sub.Target.URL), url: sub.Target.URL, principal: t.Workspace + "#" + sub.Principal, since: t.Since}
	for ; done < len(t.Events); done++ {
		e := &t.Events[done]
		if ctx.Err() != nil {
			return done, ctx.Err()
		}
		if !sub.Wants(t.payloads[done], d.now()) {
			continue
		}
		may, err := right.May(ctx, e)
		if errors.Is(err, subscription.ErrTypeRemoved) {
			_, err = d.outcomes.abandon(ctx, newDelivery(sub, e, d.now()), e)
		}
		if err != nil {
			return done, err
		}
		if !may {
			continue
		}
		if diverted, err := d.divert(ctx, sub, e); err != nil {
			return done, err
		} else if diverted {
			continue
		}
		if d.rate.awaited(next.endpoint, d.now()) {
			if err := d.fast.toSlowLane(ctx, sub, e); err != nil {
				return done, err
			}
			continue
		}
		next.bytes = int64(len(e.Data))
		s, verdict := d.lanes.Reserve(ctx, next, wait)
		if verdict == tooLate && t.Hops < maxHops {
			return done, nil
		}
		if verdict != granted {
			if err := d.fast.toSlowLane(ctx, sub, e); err != nil {
				return done, err
			}
			continue
		}
		fresh, err := d.again(ctx, t, sub, &read)
		if err != nil || fresh == nil {
			s.Done(unused)
			if err == nil {
				done = len(t.Events) // it has ended
			}
			return done, err
		}
		if fresh != sub || s.waited {
			if fresh.Target.URL != sub.Target.URL {
				s.Done(unused)
				return done, nil
			}
			sub = fresh
			if diverted, err := d.divert(ctx, sub, e); diverted || err != nil {
				s.Done(unused)
				if err != nil {
					return done, err
				}
				continue
			}
		}
		if !d.Gate.enter(sub.ID, read) {
			s.Done(unused)
			return done, nil // another page sees whether it was created again
		}
		r.sent = true
		i, to, read := done, sub, read
		attempt := func() {
			var err error
			var notes []store.Op
			defer func() { r.add(i, notes, err) }()
			defer fault.Recovered(&err)
			notes, err = d.fast.attempt(ctx, s, to, e, func() bool {
				if d.Gate == nil {
					return time.Since(read) <= time.Second
				}
				return d.Gate.enter(to.ID, read)
			})
		}
		if done == len(t.Events)-1 { // often the only one
			attempt()
		} else {
			attempts.Go(attempt)
		}
	}
	return done, nil
}

// again returns the subscriber, read again if its record is too old, or nil if it has ended.
func (d *Dispatcher) again(ctx context.Context, t PageTask, sub *subscription.Subscriber, read *time.Time) (*subscription.Subscriber, error) {
	limit := stale
	if d.Gate != nil {
		limit = staleWithGate
	}
	now := time.Now()
	if now.Sub(*read) <= limit {
		return sub, nil
	}
	found, err := subscription.Subscribers(ctx, d.DB, t.Workspace, t.Pattern, subscription.At(sub.ID), 1)
	switch {
	case err != nil:
		return nil, err
	case len(found.List) > 0:
		sub = &found.List[0]
	case len(found.Broken) == 0:
		return nil, nil
	}
	*read = now
	return sub, nil
}

// divert handles an event for a subscriber that gets no attempts now, because it is suspended or paused, and reports whether
// it did.
func (d *Dispatcher) divert(ctx context.Context, sub *subscription.Subscriber, e *event.Event) (bool, error) {
	if sub.Suspended != 0 {
		return true, d.backlog.add(ctx, sub, e)
	}
	return d.pauses.pause(ctx, newDelivery(sub, e, d.now()), sub, e)
}

// terminate terminates a subscriber that may not continue by the catalog of this process. If that catalog turns out to be
// old, it leaves the events to a further page.
func (d *Dispatcher) terminate(ctx context.Context, t PageTask, sub *subscription.Subscriber, err error) (done int, _ error) {
	if _, is := errors.AsType[*subscription.Terminated](err); !is {
		return 0, err
	}
	if sub.Until != 0 && d.now().Unix() >= sub.Until {
		return len(t.Events), nil
	}
	ended, err := d.Terminator.Terminate(ctx, t.Workspace, sub.Principal, sub.ID)
	switch {
	case err != nil:
		return 0, err
	case ended:
		return len(t.Events), nil
	case t.Hops >= maxHops:
		return 0, fault.New(fault.Unavailable, "the catalog in this process is still older than the subscription")
	}
	return 0, nil
}
