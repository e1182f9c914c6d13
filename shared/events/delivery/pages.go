package delivery

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lane"
	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// joinedPage is one task that replaces several tasks of a batch, because they send events to the same range of subscribers.
type joinedPage struct {
	task.Page
	messages  []string        // the ids of the joined tasks' messages
	wasPaused []string        // the sort keys of the marks (see [Dispatcher.mark]) of the joined tasks that waited for a switch
	done      map[string]bool // the subscribers to which this process sent the events when it received the message before
	inHurry   bool            // see [lane.PageWait.InHurry]
	err       error
}

// HandlePages handles a batch of page tasks from the deliveries queue, i.e. tasks to send events to a range of subscribers. It returns
// the ids of the messages that the queue must redeliver. It joins the tasks for the same range, so that it reads these subscribers once.
//
// A task takes a few seconds at most. If a subscriber's endpoint has too many attempts under way all that time, the subscriber's events
// become a new task. If a failed task is redelivered to this process, the process does not repeat the webhooks that it has already sent.
func (d *Dispatcher) HandlePages(ctx context.Context, batch []queue.Message) (failed []string, err error) {
	defer d.batches.end()
	wide := 0 // tasks for wide fan-outs
	received := make([]receivedPage, len(batch))
	batch = slices.Clone(batch)
	for i, m := range batch {
		r := receivedPage{message: m}
		r.task, r.err = task.DecodePage(m)
		switch {
		case r.err == nil && r.task.Since != 0:
			batch[i].Sent = time.UnixMilli(r.task.Since)
		case r.err == nil:
			r.task.Since = m.Sent.UnixMilli()
		}
		if r.task.Wide {
			wide++
		}
		received[i] = r
	}
	inHurry := d.batches.begin(wide)
	if err := d.progress.RecordLate(ctx, d.DB, batch, d.now()); err != nil {
		return nil, err
	}
	if err := d.pauseTasks(ctx, received); err != nil {
		return nil, err
	}
	work, failed := d.groupTasks(ctx, received)
	var wg sync.WaitGroup
	do := func(p *joinedPage) {
		defer fault.Recovered(&p.err)
		p.inHurry = inHurry
		p.err = d.sendPage(ctx, p)
	}
	for i, p := range work {
		if i == len(work)-1 { // run the last one in this goroutine; often it is the only one
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
		d.progress.RecordWork(ctx, d.DB, batch, d.now())
	}
	return failed, nil
}

type receivedPage struct {
	message queue.Message
	task    task.Page
	err     error // set if the message cannot be decoded
}

// groupTasks joins the page tasks that have the same URI pattern, range of subscribers and Late flag. It leaves out tasks without events,
// unless they reactivate a subscription ([task.Page.Reactivation]). The result failed has the ids of messages that must be redelivered.
func (d *Dispatcher) groupTasks(ctx context.Context, received []receivedPage) (work []*joinedPage, failed []string) {
	type rangeID struct {
		workspace, pattern string
		subscription.Range
		late bool
	}
	byRange := map[rangeID]*joinedPage{}
	for _, r := range received {
		m, t := r.message, r.task
		if r.err != nil {
			if !d.rejectMessage(ctx, queue.Deliveries, m, r.err) {
				failed = append(failed, m.ID)
			}
			continue
		}
		if len(t.Events) == 0 && t.Reactivation == nil {
			continue
		}
		done, again := d.handled.Get(m.ID)
		id := rangeID{t.Workspace, t.Pattern, t.Range, t.Late}
		p := byRange[id]
		// Do not join a task that reactivates a subscription, was redelivered, or was retried. Its retries would count for the other
		// tasks' events, too, and the other tasks would skip the subscribers that this task has served before.
		alone := t.Reactivation != nil || again || t.Retries > 0
		if p == nil || alone {
			p = &joinedPage{Page: t, done: done}
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

// sendPage sends the events of a task to its range of subscribers. If the range has too many subscribers, it queues several smaller tasks
// instead. For a task that reactivates a subscription, it resumes the subscription's suspended deliveries.
func (d *Dispatcher) sendPage(ctx context.Context, p *joinedPage) error {
	t := p.Page
	if t.Reactivation != nil {
		return d.manager.ReactivateAll(ctx, t.Workspace, *t.Reactivation)
	}
	if t.Count > task.PageSplit {
		if parts := task.Pages(t.Workspace, t.Pattern, t.Range, t.Count, t.Events); len(parts) > 1 {
			if err := d.markRest(ctx, p, parts); err != nil {
				return err
			}
			return d.sendPages(ctx, followUps(t, parts))
		}
	}
	read := time.Now()
	found, err := subscription.ReadSubscribers(ctx, d.DB, t.Workspace, t.Pattern, t.Range, 4*task.PageTarget)
	if err != nil {
		return err
	}
	done := d.sendAll(ctx, p, found.List, read)

	// Write the records and queue the remaining tasks even if the batch has run out of time by now.
	ctx, cancel := finishContext(ctx)
	defer cancel()
	if len(done.ops) > 0 {
		if err := state.WriteNotes(ctx, store.Unhurried(d.DB), done.ops); err != nil {
			// The webhooks were sent. Losing their records is better than failing the page task, because the queue would redeliver the
			// task, and the webhooks would be repeated.
			d.log().WarnContext(ctx, "delivery records lost", "records", len(done.ops), "error", err)
		}
	}
	if found.More { // the range has more subscribers than one read returns, so the rest is another task
		rest := t.Range
		rest.From = found.Last
		done.left = append(done.left, followUps(t, task.Pages(t.Workspace, t.Pattern, rest, 1, t.Events))...)
	}
	if err = d.markRest(ctx, p, done.left); err == nil {
		err = d.sendPages(ctx, done.left)
	}
	for _, position := range found.Broken {
		if err == nil {
			tasks := task.Pages(t.Workspace, t.Pattern, position, 1, t.Events)
			err = d.deadLetterPages(ctx, tasks, "the subscriber's item cannot be decoded")
		}
	}
	if err != nil {
		for _, m := range p.messages {
			d.handled.Put(m, done.subscribers)
		}
	}
	return err
}

// A person can pause deliveries with a switch (package switches). Paused deliveries wait without using up attempts or time of their retry
// schedule:
//
//   - While an event type or everything is paused, each page task waits as a whole, before its subscribers are read. So an event with
//     very many subscribers needs only a few items in the store.
//   - While an origin or a subscription is paused, each delivery waits separately, and keeps its attempts.
//
// Each waiting page task has a second item, its mark, with the position of its earliest event in the event log. Subscriptions' cursors do
// not advance past the mark, so that a client that resumes from its cursor gets the paused events (see [lifecycle.Watermark]). When the
// switch is resumed, the waiting messages go back to their queue.

// pauseTasks stores the paused events of the received tasks as separate tasks, which wait until a person resumes the switch. It runs
// before groupTasks joins tasks. So a message whose events are all paused is done even if other messages fail.
func (d *Dispatcher) pauseTasks(ctx context.Context, received []receivedPage) error {
	if d.Switches == nil {
		return nil
	}
	var ops []store.Op
	for i := range received {
		paused, err := d.pauseTask(ctx, received[i].message, &received[i].task)
		if err != nil {
			return err
		}
		ops = append(ops, paused...)
	}
	if len(ops) == 0 {
		return nil
	}
	return fault.Wrap(fault.Unavailable, d.DB.WriteAll(ctx, ops...), "pause pages")
}

// pauseTask removes the paused events from the task t, and returns the operations that store them. The keys of the stored items contain
// the id of the task's message, so that a redelivered message does not store an event twice.
func (d *Dispatcher) pauseTask(ctx context.Context, m queue.Message, t *task.Page) (ops []store.Op, err error) {
	var rest []event.Event
	by := map[switches.Name][]event.Event{}
	for _, e := range t.Events {
		which, err := d.Switches.FindPaused(ctx, t.Workspace, e.Name, "")
		if err != nil {
			return nil, err
		}
		if which == "" {
			rest = append(rest, e)
			continue
		}
		by[which] = append(by[which], e)
	}
	if len(by) == 0 {
		return nil, nil
	}
	for which, events := range by {
		for i, w := range task.Pages(t.Workspace, t.Pattern, t.Range, 1, events) {
			w.Count, w.Hops, w.Retries, w.Late = t.Count, t.Hops, t.Retries, true
			sort := switches.SortKey(m.Sent, fmt.Sprintf("%s#%d#%s", m.ID, i, which))
			ops = append(ops, d.mark(&w, m.Sent, sort))
			ops = append(ops, store.Put(d.Switches.Item(t.Workspace, which, switches.Message{
				Queue: queue.Deliveries, Body: w.Encode(), Group: w.Group(), Sort: sort,
			})))
		}
	}
	if len(rest) == 0 && t.Paused != "" {
		ops = append(ops, store.Delete(markKey(t.Workspace, t.Paused))) // all events of the task wait again, with new marks
	}
	t.Events = rest
	return ops, nil
}

func markKey(workspace, sort string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: lifecycle.PausedPages(workspace), Sort: sort}
}

// mark returns the operation that writes the mark of a waiting task, and sets t.Paused to the mark's sort key. A mark is an item with a
// position in the event log before all events of the task. It keeps subscriptions' cursors from advancing past these events. The
// parameter id distinguishes marks with the same position.
func (d *Dispatcher) mark(t *task.Page, sent time.Time, id string) store.Op {
	t.Paused = lifecycle.EarliestKey(sent, t.Events) + id
	return store.Put(store.Item{Key: markKey(t.Workspace, t.Paused), Expires: d.now().Add(switches.Kept)})
}

// markRest updates the marks (see [Dispatcher.mark]) of a page task whose events were paused. It replaces them by marks for the tasks in
// the parameter left, which will send the remaining events. It writes the new marks before it deletes the old ones, so that no cursor can
// advance past the events in between.
func (d *Dispatcher) markRest(ctx context.Context, p *joinedPage, left []task.Page) error {
	if len(p.wasPaused) == 0 {
		return nil
	}
	var marks []store.Op
	for i := range left {
		marks = append(marks, d.mark(&left[i], d.now(), rand.Text()))
	}
	if err := d.DB.WriteAll(ctx, marks...); err != nil {
		return fault.Wrap(fault.Unavailable, err, "mark a page that was paused")
	}
	var old []store.Op
	for _, sort := range p.wasPaused {
		old = append(old, store.Delete(markKey(p.Workspace, sort)))
	}
	return fault.Wrap(fault.Unavailable, d.DB.WriteAll(ctx, old...), "mark a page that was paused")
}

const finishTime = 10 * time.Second // the time for the writes at the end of a batch

// finishContext returns a context for writes that must happen even if the time of the batch is over.
func finishContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), finishTime)
}

const (
	// A first attempt needs a slot, i.e. the permission to start. If its endpoint already has as many attempts as allowed, it waits for a
	// slot for up to busyHold. If attempts to other endpoints use up the slots, it waits for up to hold.
	busyHold = time.Second
	hold     = 5 * time.Second
)

// batches measures how long the process was idle between its batches of page tasks.
type batches struct {
	mu    sync.Mutex
	ended time.Time        // when the last batch ended
	idle  [2]time.Duration // how long the process was idle before the current batch, and before the previous batch
}

const (
	// maxIdle limits the total idle time between the last three batches of a busy process. A process that was idle for longer does not
	// count as busy.
	maxIdle = time.Second
	// fullBatch is the number of messages in the largest batch that SQS passes to the Lambda function (BatchSize in template.yaml).
	fullBatch = 10
)

// begin records that a batch begins, and reports whether the process is busy. A busy process probably gets another batch soon, so this
// batch is in a hurry (see [Options.MinWait]).
//
// The parameter wide is the number of tasks in the batch whose events have very many subscribers ([task.Page.Wide]). If a full batch
// consists of such tasks, more of them probably wait in the queue, so the process is busy.
func (b *batches) begin(wide int) (busy bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.idle = [2]time.Duration{periodic.Since(time.Now(), b.ended), b.idle[0]}
	return wide >= fullBatch || max(b.idle[0], b.idle[1], b.idle[0]+b.idle[1]) < maxIdle
}

func (b *batches) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = time.Now()
}

// pageWaitOf returns the times until which the first attempts of a page task may wait for their slots. Enough time must remain for the
// attempts to end before ctx does, because the queue would otherwise redeliver the whole task.
func (d *Dispatcher) pageWaitOf(ctx context.Context, inHurry bool) lane.PageWait {
	now := time.Now()
	wait := lane.PageWait{IfBusy: now.Add(busyHold), IfFull: now.Add(hold), InHurry: inHurry}
	if end, ok := ctx.Deadline(); ok {
		left := end.Sub(now)
		last := now.Add(max(left/2, left-max(d.Options.Timeout, d.Options.EventsTimeout)-2*time.Second))
		wait.IfBusy, wait.IfFull = periodic.Earlier(wait.IfBusy, last), periodic.Earlier(wait.IfFull, last)
	}
	return wait
}

// followUps prepares the parts into which the task t was split, and returns them. Their Hops are one higher than the Hops of t. A limit
// for Hops keeps events from moving from task to task forever.
func followUps(t task.Page, parts []task.Page) []task.Page {
	for i := range parts {
		parts[i].Hops, parts[i].Since, parts[i].Late, parts[i].Wide = t.Hops+1, t.Since, t.Late, t.Wide
	}
	return parts
}

func (d *Dispatcher) sendPages(ctx context.Context, tasks []task.Page) error {
	if len(tasks) == 0 {
		return nil
	}
	out := make([]queue.Outgoing, len(tasks))
	for i, t := range tasks {
		out[i] = t.Outgoing()
	}
	return fault.Wrap(fault.Unavailable, d.Queue.Send(ctx, queue.Deliveries, out...), "send page tasks")
}

// pageResult has the store operations and the tasks that remain when the events of a page task have been sent.
type pageResult struct {
	ops         []store.Op      // writes that record the outcomes
	left        []task.Page     // tasks for the events that were not sent
	subscribers map[string]bool // the subscribers that are done, i.e. for which left has no task
}

// sendAll sends the events of a page task to all subscribers concurrently. It returns when each attempt has ended or continues in the
// background.
func (d *Dispatcher) sendAll(ctx context.Context, p *joinedPage, subs []subscription.Subscriber, read time.Time) pageResult {
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		out = pageResult{subscribers: map[string]bool{}}
	)
	for id := range p.done {
		out.subscribers[id] = true
	}
	p.Payloads = match.NewPayloads(p.Events)
	wait := d.pageWaitOf(ctx, p.inHurry)
	for i := range subs {
		sub := &subs[i]
		if p.done[sub.ID] {
			continue
		}
		serve := func() {
			notes, left := d.serve(ctx, p.Page, sub, read, wait)
			mu.Lock()
			defer mu.Unlock()
			out.ops = append(out.ops, notes...)
			out.left = append(out.left, left...)
			if len(left) == 0 {
				out.subscribers[sub.ID] = true
			}
		}
		if i == len(subs)-1 { // serve the last one in this goroutine; often it is the only one
			serve()
			break
		}
		wg.Go(serve)
	}
	wg.Wait()
	return out
}

// serve sends the events of a page task to one subscriber. It returns the operations that record the outcomes, and tasks for the events
// that were not sent. After a panic, these tasks repeat all events for this subscriber.
func (d *Dispatcher) serve(ctx context.Context, t task.Page, sub *subscription.Subscriber, read time.Time, wait lane.PageWait) (notes []store.Op, left []task.Page) {
	err := func() (err error) {
		defer fault.Recovered(&err)
		v := d.visit(ctx, t, sub, read, wait)
		notes = v.notes
		left = d.remainingTasks(ctx, t, sub, v)
		return nil
	}()
	if err != nil {
		d.log().ErrorContext(ctx, "subscriber not served", "workspace", t.Workspace, "subscription", sub.ID, "error", err)
		left = d.retryTasks(ctx, t, tasksFor(t, sub, t.Events))
	}
	return notes, left
}

const (
	// maxHops is how often a busy endpoint's events may move to another page task before they are stored for the slow lane (see package
	// lane).
	maxHops = 64
	// retryPage is the delay before a page task repeats events that failed because of this program and could not be stored for the slow
	// lane. The delay doubles with each retry, up to [queue.MaxDelay]: 30 s, 1 min, 2 min and so on.
	retryPage = 30 * time.Second
	// maxPageRetries limits how often page tasks repeat an event after failures of this program. All repetitions together take about four
	// hours, and each may repeat webhooks that were sent before.
	maxPageRetries = 20
)

// remainingTasks returns page tasks for the events that a page task could not send to one subscriber.
//
// An event that failed because of this program becomes a delivery in the slow lane instead. If that is not possible, another page task
// repeats the event, up to [maxPageRetries] times. After that, the event becomes a dead letter of the deliveries queue.
func (d *Dispatcher) remainingTasks(ctx context.Context, t task.Page, sub *subscription.Subscriber, v *visit) []task.Page {
	if len(v.left) == 0 && v.err == nil {
		return nil
	}
	var left []event.Event
	for _, i := range v.left {
		left = append(left, t.Events[i])
	}
	tasks := tasksFor(t, sub, left)
	for i := range tasks {
		if v.sent { // the next task has fewer events, so it needs no delay and does not count as a hop
			tasks[i].Hops = t.Hops
		} else {
			tasks[i].Delay = time.Duration(min(t.Hops, 30)) * time.Second
		}
	}
	if v.err == nil {
		return tasks
	}
	ctx, cancel := finishContext(ctx)
	defer cancel()
	d.log().WarnContext(ctx, "internal delivery failure", "workspace", t.Workspace, "subscription", sub.ID, "error", v.err)
	var unwritten []event.Event
	for n, i := range v.failed {
		// Do not move this event to the slow lane. The slow lane does not check filters, and would send a notice of lost events (Gap) as
		// an event without a payload.
		if _, err := v.wants(i); err != nil || t.Events[i].Gap {
			unwritten = append(unwritten, t.Events[i])
			continue
		}
		err := d.moveToSlowLane(ctx, sub, &t.Events[i], t.Late)
		if task.IsPermanent(err) {
			err = d.deadLetterPages(ctx, tasksFor(t, sub, t.Events[i:i+1]), fault.Public(err))
		}
		if err != nil {
			for _, i := range v.failed[n:] {
				unwritten = append(unwritten, t.Events[i])
			}
			break
		}
	}
	return append(tasks, d.retryTasks(ctx, t, tasksFor(t, sub, unwritten))...)
}

// tasksFor returns page tasks that send events of the task t to only one of its subscribers. They count as one more hop (see [maxHops]).
func tasksFor(t task.Page, sub *subscription.Subscriber, events []event.Event) []task.Page {
	tasks := task.Pages(t.Workspace, t.Pattern, subscription.RangeOf(sub.ID), 1, events)
	for i := range tasks {
		tasks[i].Endpoint, tasks[i].Since, tasks[i].Hops, tasks[i].Late = task.EndpointID(sub.Target.URL), t.Since, t.Hops+1, t.Late
	}
	return tasks
}

// retryTasks prepares the tasks in the parameter again, which repeat a part of the task t, and returns them. It sets their delay and
// counts them as a further retry of t. If t was retried [maxPageRetries] times already, retryTasks dead-letters the tasks and returns
// nil.
func (d *Dispatcher) retryTasks(ctx context.Context, t task.Page, again []task.Page) []task.Page {
	if len(again) > 0 && t.Retries >= maxPageRetries && d.deadLetterPages(ctx, again, "the deliveries could not be made or written") == nil {
		return nil
	}
	for i := range again {
		again[i].Retries = t.Retries + 1
		again[i].Delay = min(retryPage<<min(t.Retries, 10), queue.MaxDelay)
	}
	return again
}

// deadLetterPages sends page tasks, which are messages to deliver events to several subscribers, to the dead letter queue. The caller
// leaves the tasks' Retries at 0. So if an operator later sends a task back to its queue, the task can be retried [maxPageRetries] times
// again.
func (d *Dispatcher) deadLetterPages(ctx context.Context, tasks []task.Page, reason string) error {
	var out []queue.Outgoing
	for _, t := range tasks {
		d.log().ErrorContext(ctx, "page dead-lettered", "workspace", t.Workspace, "pattern", t.Pattern, "range", t.Range, "reason", reason)
		t.Late = true // its events will be late if an operator sends the task back
		m := queue.Message{Outgoing: queue.Outgoing{Body: t.Encode()}, Sent: d.now()}
		out = append(out, queue.NewDeadLetter(queue.Deliveries, m, reason, nil, d.now()))
	}
	if err := d.Queue.Send(ctx, queue.Dead, out...); err != nil {
		return fault.Wrap(fault.Unavailable, err, "dead-letter a page")
	}
	d.Metrics.DeadLettered(string(queue.Deliveries), len(out))
	return nil
}
