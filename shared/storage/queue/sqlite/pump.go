package sqlite

import (
	"container/heap"
	"context"
	"math"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

const (
	// maxSleep is the longest sleep of the pump while the queue is idle. It is also how often old deduplication ids are removed
	// from the file.
	maxSleep = time.Minute
	// maxUntilDue is the longest time until a delayed row is due, with a reserve for small corrections of the clock. A row
	// that is due later was written before the clock was set back, and is due now.
	maxUntilDue = queue.MaxDelay + time.Minute
)

// pump runs the timer of a queue: it ends back-offs and delays, reads rows for which the window has room, and repeats failed
// writes.
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

// sleep waits for the given time, or until there is something to do. It reports false when the queue is closed.
//
// It uses no timer for a time of 0, because in a bubble of testing/synctest two timers that are due when they are set
// break the race detector (golang.org/issue/78156).
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

// nextPause returns how long the pump may sleep.
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

// endBackoffs makes failed messages ready whose back-off has passed.
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

// untilDue returns how long it is until a delayed row is due.
func (mq *memoryQueue) untilDue(due int64) time.Duration {
	wait := time.UnixMilli(due).Sub(mq.q.engine.Now())
	if wait > maxUntilDue {
		return 0
	}
	return wait
}

// endDelays makes delayed messages ready that are due.
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

// endingDelays is a job that turns delayed rows that are due into ordinary ones.
type endingDelays struct {
	queue *memoryQueue
	room  int

	msgs    []*message
	nextDue int64
}

func (e *endingDelays) Apply(tx *engine.Tx) error {
	e.msgs = nil
	for _, due := range [][2]int64{{0, tx.Now.UnixMilli()}, {tx.Now.Add(maxUntilDue).UnixMilli(), math.MaxInt64}} {
		s, err := tx.Stmt(e.queue.sql.due)
		if err != nil {
			return err
		}
		msgs, err := readMessages(s.Int(1, due[0]).Int(2, due[1]).Int(3, int64(e.room-len(e.msgs))), fetchBytes)
		if err != nil {
			return err
		}
		e.msgs = append(e.msgs, msgs...)
	}
	for _, m := range e.msgs {
		m.place = placeDelayed
		s, err := tx.Stmt(e.queue.sql.endDelay)
		if err != nil {
			return err
		}
		if err := s.Int(1, m.id).Exec(); err != nil {
			return err
		}
	}
	s, err := tx.Stmt(e.queue.sql.nextDue)
	if err != nil {
		return err
	}
	defer s.Reset()
	if _, err = s.Step(); err != nil {
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

// readAhead reads rows while the window has room for them.
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
