package sqlite

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// Consume runs opts.Concurrency workers until ctx ends or the queues are closed.
//
// The context of a call ends with the visibility timeout or with the queues, not with ctx, so that a call that began may
// finish. Its messages stay in flight until it returns, however late. As on Lambda, a panic in h is an error of the
// batch, and an unknown id among the failed ones fails the whole batch.
func (q *Queues) Consume(ctx context.Context, name queue.Name, h queue.Handler, opts queue.ConsumeOptions) error {
	mq, err := q.queue(name)
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
		workers.Go(func() { mq.work(ctx, calls, h, opts) })
	}
	workers.Wait()
	if q.open.Err() != nil {
		return errClosed
	}
	if err := mq.flush(); err != nil {
		q.opts.Log.Warn("queue acknowledgements not written", "queue", name, "error", err)
	}
	return nil
}

// work takes and handles batches until ctx ends or the queues are closed; calls is the parent of their contexts.
func (mq *memoryQueue) work(ctx, calls context.Context, h queue.Handler, opts queue.ConsumeOptions) {
	for ctx.Err() == nil && mq.q.open.Err() == nil {
		f, woken := mq.take(opts)
		if f != nil {
			mq.settle(f, mq.handle(calls, h, f, opts.Visibility))
			continue
		}
		select {
		case <-woken:
			if ctx.Err() != nil {
				mq.stopWaiting(woken) // another worker takes the message
			}
		case <-ctx.Done():
			mq.stopWaiting(woken)
		case <-mq.q.open.Done():
			mq.stopWaiting(woken)
		}
	}
}

func all(*message) bool { return true }

func microseconds(us int64) time.Time { return time.UnixMicro(us).UTC() }

func none(*message) bool { return false }

// handle calls h and returns which messages failed.
func (mq *memoryQueue) handle(ctx context.Context, h queue.Handler, f *batch, limit time.Duration) (failed func(*message) bool) {
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
		if err := mq.bodies(ctx, f); err != nil {
			mq.q.opts.Log.Warn("queue message bodies unreadable", "queue", mq.name, "messages", len(f.msgs), "error", err)
			return all
		}
	}
	ids, err := mq.call(ctx, h, f.batch)
	if took := time.Since(began); took > limit {
		mq.q.opts.Log.Warn("handler overran its time", "queue", mq.name, "messages", len(f.msgs), "took", took, "limit", limit)
	}
	if err != nil {
		mq.q.opts.Log.Warn("handler failed", "queue", mq.name, "messages", len(f.msgs), "error", err)
		return all
	}
	if len(ids) == 0 {
		return none
	}
	bad := make(map[int64]bool, len(ids))
	for _, id := range ids {
		if !slices.ContainsFunc(f.batch, func(m queue.Message) bool { return m.ID == id }) {
			mq.q.opts.Log.Error("handler reported unknown message", "queue", mq.name, "message", id)
			return all
		}
		n, _ := strconv.ParseInt(id, 10, 64) // it is one of ours
		bad[n] = true
	}
	return func(m *message) bool { return bad[m.id] }
}

func (mq *memoryQueue) call(ctx context.Context, h queue.Handler, batch []queue.Message) (failed []string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return h(ctx, batch)
}
