package sqlite

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/queue"
)

// Consume runs opts.Concurrency workers until ctx ends or the queues are closed.
//
// A call's context ends with the visibility timeout or with the queues, not with ctx: what has
// begun may finish. Its messages are its own until it returns, however late. A panic in h is an error of the batch, as it would be in
// Lambda, where it ends only that one process. An unknown id among the failed
// ones fails the whole batch, also as there.
func (q *Queues) Consume(ctx context.Context, name queue.Name, h queue.Handler, opts queue.ConsumeOptions) error {
	l, err := q.line(name)
	if err != nil {
		return err
	}
	if opts.Batch <= 0 {
		opts.Batch = 10
	}
	if opts.Concurrency <= 0 {
		opts.Concurrency = 1
	}
	if opts.Visibility <= 0 {
		opts.Visibility = 30 * time.Second
	}
	ended, err := q.consumer()
	if err != nil {
		return err
	}
	defer ended()
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(q.open, cancel)()
	var workers sync.WaitGroup
	for range opts.Concurrency {
		workers.Go(func() { l.work(ctx, calls, h, opts) })
	}
	workers.Wait()
	if q.open.Err() != nil {
		return errClosed
	}
	if err := l.flush(); err != nil {
		q.opts.Log.Warn("What was accepted could not be written; it may be handed out again.", "queue", name, "error", err)
	}
	return nil
}

// work takes and handles batches until ctx ends or the queues are closed; calls is the parent of their contexts.
func (l *line) work(ctx, calls context.Context, h queue.Handler, opts queue.ConsumeOptions) {
	for ctx.Err() == nil && l.q.open.Err() == nil {
		f, woken := l.take(opts)
		if f != nil {
			l.settle(f, l.handle(calls, h, f, opts.Visibility))
			continue
		}
		select {
		case <-woken:
			if ctx.Err() != nil {
				l.stopWaiting(woken) // what it was woken for is another's now
			}
		case <-ctx.Done():
			l.stopWaiting(woken)
		case <-l.q.open.Done():
			l.stopWaiting(woken)
		}
	}
}

func all(*message) bool { return true }

func microseconds(us int64) time.Time { return time.UnixMicro(us).UTC() }

func none(*message) bool { return false }

// handle calls h and tells which messages failed.
func (l *line) handle(ctx context.Context, h queue.Handler, f *flight, limit time.Duration) (failed func(*message) bool) {
	began := time.Now()
	ctx, cancel := context.WithDeadline(ctx, began.Add(limit))
	defer cancel()
	missing := false
	for i, m := range f.msgs {
		to := &f.batch[i]
		to.ID, to.Group, to.Sent = strconv.FormatInt(m.id, 10), m.group, microseconds(m.sent)
		missing = missing || to.Body == nil
	}
	if missing {
		if err := l.bodies(ctx, f); err != nil {
			l.q.opts.Log.Warn("Messages could not be read; they are handed out again.", "queue", l.name, "messages", len(f.msgs), "error", err)
			return all
		}
	}
	ids, err := l.call(ctx, h, f.batch)
	if took := time.Since(began); took > limit {
		l.q.opts.Log.Warn("Handler overran its time.", "queue", l.name, "messages", len(f.msgs), "took", took, "limit", limit)
	}
	if err != nil {
		l.q.opts.Log.Warn("A handler failed; its messages are handed out again.", "queue", l.name, "messages", len(f.msgs), "error", err)
		return all
	}
	if len(ids) == 0 {
		return none
	}
	bad := make(map[int64]bool, len(ids))
	for _, id := range ids {
		if !slices.ContainsFunc(f.batch, func(m queue.Message) bool { return m.ID == id }) {
			l.q.opts.Log.Error("A handler reports a message that it was not given; the batch is handed out again.", "queue", l.name, "id", id)
			return all
		}
		n, _ := strconv.ParseInt(id, 10, 64) // it is one of ours
		bad[n] = true
	}
	return func(m *message) bool { return bad[m.id] }
}

func (l *line) call(ctx context.Context, h queue.Handler, batch []queue.Message) (failed []string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return h(ctx, batch)
}
