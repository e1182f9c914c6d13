package sqlite

import (
	"container/heap"
	"context"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

const (
	// maxSleep is the longest sleep of the pump, which is the queue's background goroutine. It is also how often the pump removes old
	// deduplication ids from the file.
	maxSleep = time.Minute
	// maxUntilDue is the longest time until a delayed row is due: the maximum delay, and a minute for small corrections of the clock. If
	// a row seems to be due later, the clock was set back after the row was written, so the row counts as due now.
	maxUntilDue = queue.MaxDelay + time.Minute
)

// pump does the background work of a queue in a goroutine. It ends back-offs and delays, reads rows into memory when there is room, and
// repeats failed writes.
func (mq *memoryQueue) pump() {
	timer := time.NewTimer(maxSleep)
	defer timer.Stop()
	var forgotten time.Time
	for pause := time.Duration(0); mq.sleep(timer, pause); {
		mq.endBackoffs(time.Now())
		err := mq.endDelays()
		if e := mq.readAhead(); err == nil {
			err = e
		}
		if mq.dedup != nil && time.Since(forgotten) >= maxSleep {
			forgotten = time.Now()
			if e := mq.dedup.forget(mq.q.engine); err == nil {
				err = e
			}
		}
		if err != nil {
			mq.q.opts.Log.Warn("queue read failed", "queue", mq.name, "error", err)
		}
		pause = mq.nextPause(err != nil)
	}
}

// sleep waits for the given time, or until the pump is woken. It returns false if the queue is closed.
//
// For a time of 0 it does not set the timer, because two timers that are due immediately break the race detector in a bubble of
// testing/synctest (golang.org/issue/78156).
func (mq *memoryQueue) sleep(timer *time.Timer, pause time.Duration) bool {
	if pause <= 0 {
		return mq.q.open.Err() == nil
	}
	timer.Reset(pause)
	select {
	case <-mq.q.open.Done():
		return false
	case <-timer.C:
	case <-mq.wake:
	}
	return true
}

// nextPause returns how long the pump may sleep. The parameter failed says that a read or write has failed and must be repeated soon.
func (mq *memoryQueue) nextPause(failed bool) time.Duration {
	mq.mu.Lock()
	defer mq.mu.Unlock()
	now := time.Now()
	next := now.Add(maxSleep)
	at := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	if len(mq.backoffs) > 0 {
		at(mq.backoffs[0].until)
	}
	if !mq.resubmitAt.IsZero() {
		at(mq.resubmitAt)
	}
	if mq.nextDue > 0 && mq.window.free() > 0 {
		at(now.Add(mq.untilDue(mq.nextDue)))
	}
	if _, ok := mq.window.nextFetch(); ok {
		at(now)
	}
	if failed {
		next = now.Add(retryAfter)
	}
	mq.wakeAt = next
	return next.Sub(now)
}

// endBackoffs makes failed messages ready again when their back-off has ended. It also repeats failed writes of handler results.
func (mq *memoryQueue) endBackoffs(now time.Time) {
	mq.mu.Lock()
	defer mq.mu.Unlock()
	mq.wakeAt = time.Time{}
	w := &mq.window
	for len(mq.backoffs) > 0 && !mq.backoffs[0].until.After(now) {
		b := heap.Pop(&mq.backoffs).(backoff)
		if w.ready.fifo {
			for i := range b.count {
				w.move(*w.ready.groups[b.group].ready.at(i), placeReady)
			}
			w.ready.unlock(b.group)
		} else {
			w.move(b.msg, placeReady)
			w.ready.pushFront(b.msg.group, b.msg)
		}
	}
	if !mq.resubmitAt.IsZero() && !mq.resubmitAt.After(now) {
		mq.resubmitAt = time.Time{}
		mq.submit()
	}
	mq.wakeWorker()
}

// untilDue returns how long it takes until a delayed row is due. The parameter due is the row's time in milliseconds since 1970. If the
// result would exceed [maxUntilDue], the row counts as due and the result is 0.
func (mq *memoryQueue) untilDue(due int64) time.Duration {
	wait := time.UnixMilli(due).Sub(mq.q.engine.Now())
	if wait > maxUntilDue {
		return 0
	}
	return wait
}

// endDelays reads delayed messages from the file when they are due and makes them ready, as far as memory has room for them.
func (mq *memoryQueue) endDelays() error {
	for {
		mq.mu.Lock()
		room := min(mq.window.free(), fetchRows)
		due := mq.nextDue > 0 && mq.untilDue(mq.nextDue) <= 0
		mq.mu.Unlock()
		if !due || room <= 0 {
			return nil
		}
		if err := mq.q.engine.Do(context.Background(), &endingDelays{queue: mq, room: room}); err != nil {
			return err
		}
	}
}

type endingDelays struct {
	queue *memoryQueue
	room  int

	msgs    []*message
	nextDue int64
}

func (e *endingDelays) Apply(tx *engine.Tx) error {
	e.msgs = nil
	for _, due := range [][2]int64{{0, tx.Now.UnixMilli()}, {tx.Now.Add(maxUntilDue).UnixMilli(), math.MaxInt64}} {
		msgs, err := readMessages(tx.Stmt(e.queue.sql.due).Int(1, due[0]).Int(2, due[1]).Int(3, int64(e.room-len(e.msgs))), fetchBytes)
		if err != nil {
			return err
		}
		e.msgs = append(e.msgs, msgs...)
	}
	for _, m := range e.msgs {
		m.place = placeDelayed
		if err := tx.Stmt(e.queue.sql.endDelay).Int(1, m.id).Exec(); err != nil {
			return err
		}
	}
	s := tx.Stmt(e.queue.sql.nextDue)
	defer s.Reset()
	if _, err := s.Step(); err != nil {
		return err
	}
	e.nextDue = s.ColumnInt(0) // 0 if no row is delayed
	return nil
}

func (e *endingDelays) Done(err error) {
	if err != nil {
		return
	}
	mq := e.queue
	mq.mu.Lock()
	defer mq.mu.Unlock()
	mq.nextDue = e.nextDue
	for _, m := range e.msgs {
		mq.window.addDue(m)
	}
	mq.wakeWorker()
}

func (mq *memoryQueue) readAhead() error {
	for {
		mq.mu.Lock()
		f, ok := mq.window.nextFetch()
		mq.mu.Unlock()
		if !ok {
			return nil
		}
		var msgs []*message
		err := mq.q.engine.Read(context.Background(), func(c *engine.Conn) (err error) {
			msgs, err = f.read(c, &mq.sql)
			return err
		})
		if err != nil {
			return err
		}
		mq.mu.Lock()
		mq.window.finish(&f, msgs)
		mq.wakeWorker()
		mq.mu.Unlock()
	}
}

// Consume runs opts.Concurrency workers until ctx ends or the queues are closed. As on Lambda, a panic of h and an unknown id in its
// result fail the whole batch.
//
// The context of a handler's call does not end with ctx, so that a running call can finish. It ends after the visibility timeout, or when
// the queues are closed. The messages of the call stay in flight until the handler returns.
func (q *Queues) Consume(ctx context.Context, name queue.Name, h queue.Handler, opts queue.ConsumeOptions) error {
	mq, err := q.findQueue(name)
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
	if err := q.registerConsumer(); err != nil {
		return err
	}
	defer q.consumers.Done()
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(q.open, cancel)()
	var workers sync.WaitGroup
	for range opts.Concurrency {
		workers.Go(func() { mq.work(ctx, calls, h, &opts) })
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

// work takes batches of messages and handles them until ctx ends or the queues are closed. The parameter calls is the parent of the
// contexts of the handler's calls.
func (mq *memoryQueue) work(ctx, calls context.Context, h queue.Handler, opts *queue.ConsumeOptions) {
	for ctx.Err() == nil && mq.q.open.Err() == nil {
		b, woken := mq.take(opts)
		if b != nil {
			mq.settle(b, mq.handle(calls, h, b, opts.Visibility), opts)
			continue
		}
		select {
		case <-woken:
			if ctx.Err() != nil {
				mq.stopWaiting(woken) // this worker stops, so wake another one for the message
			}
		case <-ctx.Done():
			mq.stopWaiting(woken)
		case <-mq.q.open.Done():
			mq.stopWaiting(woken)
		}
	}
}

type batch struct {
	msgs    []*message
	handed  []queue.Message // msgs in the form in which the handler gets them
	refused []*message      // messages of a FIFO queue that the handler does not get, because their senders got an error
	// counted says that the worker must write the receive counts to the file before it calls the handler. It is true if a message of the
	// batch may be from an earlier process; see [memoryQueue.inherited].
	counted bool
	// exhausted is true if the only message of the batch was received as often as allowed, by processes that ended before its handler
	// returned. The message becomes a dead letter without another call of the handler.
	exhausted bool
}

// take returns the next batch for a worker. If no message is ready, it returns a channel instead, which receives a value when a message
// may be ready.
func (mq *memoryQueue) take(opts *queue.ConsumeOptions) (*batch, chan struct{}) {
	mq.mu.Lock()
	defer mq.mu.Unlock()
	w := &mq.window
	msgs := w.ready.take(opts)
	if len(msgs) == 0 {
		woken := make(chan struct{}, 1)
		mq.waiting = append(mq.waiting, woken)
		return nil, woken
	}
	b := &batch{msgs: make([]*message, 0, len(msgs)), handed: make([]queue.Message, 0, len(msgs))}
	for _, m := range msgs {
		w.move(m, placeInFlight)
		if w.ready.fifo && m.row == rowFailed {
			b.refused = append(b.refused, m)
			continue
		}
		if b.exhausted = mq.exhausted(m, opts); b.exhausted {
			b.msgs = append(b.msgs, m) // a received message is always alone in its batch
			continue
		}
		m.received++
		if m.id <= mq.inherited {
			b.counted = true
			mq.settled.receives = append(mq.settled.receives, receiveCount{m.id, m.received})
		}
		handed := queue.Message{Received: m.received, First: !m.tried && m.id > mq.inherited, Unwritten: m.row != rowWritten}
		m.tried = true
		handed.Body, handed.Value = m.body, m.value
		m.value = nil // a handler may change the value and then fail, so the next one must decode the body
		b.msgs, b.handed = append(b.msgs, m), append(b.handed, handed)
	}
	mq.wakeWorker()
	if len(w.spills) > 0 {
		mq.wakeReader()
	}
	return b, nil
}

// stopWaiting ends an idle worker's wait for a message. The parameter woken is the channel that [memoryQueue.take] returned to this worker.
// If the worker was already woken through this channel, stopWaiting wakes another worker, because a message may be ready.
func (mq *memoryQueue) stopWaiting(woken chan struct{}) {
	mq.mu.Lock()
	defer mq.mu.Unlock()
	if i := slices.Index(mq.waiting, woken); i >= 0 {
		mq.waiting = slices.Delete(mq.waiting, i, i+1)
		return
	}
	mq.wakeWorker()
}

// always reports for each message that it failed. [memoryQueue.handle] returns the function always if the whole batch failed, and the
// function never if the whole batch succeeded.
func always(*message) bool { return true }

func never(*message) bool { return false }

func microseconds(us int64) time.Time { return time.UnixMicro(us).UTC() }

// handle calls h with the batch and returns a function that reports whether a message failed. The parameter limit is the visibility
// timeout, after which the context of the call ends.
func (mq *memoryQueue) handle(ctx context.Context, h queue.Handler, b *batch, limit time.Duration) (failed func(*message) bool) {
	switch {
	case len(b.msgs) == 0:
		return never
	case b.exhausted:
		return always
	case b.counted:
		if err := mq.flush(); err != nil {
			mq.q.opts.Log.Warn("queue receives not written", "queue", mq.name, "messages", len(b.msgs), "error", err)
			return always
		}
	}
	began := time.Now()
	ctx, cancel := context.WithDeadline(ctx, began.Add(limit))
	defer cancel()
	missing := false
	for i, m := range b.msgs {
		to := &b.handed[i]
		to.ID, to.Sent = strconv.FormatInt(m.id, 10), microseconds(m.sent)
		to.Group, to.Owner = splitGroup(m.group)
		missing = missing || to.Body == nil
	}
	if missing {
		if err := mq.readBodies(ctx, b); err != nil {
			mq.q.opts.Log.Warn("queue message bodies unreadable", "queue", mq.name, "messages", len(b.msgs), "error", err)
			return always
		}
	}
	ids, err := h.Call(ctx, b.handed)
	if took := time.Since(began); took > limit {
		mq.q.opts.Log.Warn("handler took too long", "queue", mq.name, "messages", len(b.msgs), "took", took, "limit", limit)
	}
	if err != nil {
		mq.q.opts.Log.Warn("handler failed", "queue", mq.name, "messages", len(b.msgs), "error", err)
		return always
	}
	if len(ids) == 0 {
		return never
	}
	bad := make(map[int64]bool, len(ids))
	for _, id := range ids {
		i := slices.IndexFunc(b.handed, func(m queue.Message) bool { return m.ID == id })
		if i < 0 {
			mq.q.opts.Log.Error("handler reported unknown message", "queue", mq.name, "message", id)
			return always
		}
		bad[b.msgs[i].id] = true
	}
	return func(m *message) bool { return bad[m.id] }
}

// readBodies reads the message bodies that are not in memory from the file. If an operator has deleted a message's row with SQL, the body
// stays nil.
func (mq *memoryQueue) readBodies(ctx context.Context, b *batch) error {
	return mq.q.engine.Read(ctx, func(c *engine.Conn) error {
		for i, m := range b.msgs {
			to := &b.handed[i]
			if to.Body != nil {
				continue
			}
			s := c.Stmt(mq.sql.body)
			row, err := s.Int(1, m.id).Step()
			if row {
				to.Body = s.ColumnBlob(0)
			}
			s.Reset()
			if err != nil {
				return err
			}
		}
		return nil
	})
}
