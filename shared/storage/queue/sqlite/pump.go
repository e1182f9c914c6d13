package sqlite

import (
	"container/heap"
	"context"
	"math"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

const (
	// readStep and readBytes bound what one read of the file brings into memory.
	readStep  = 500
	readBytes = 8 << 20
	// sleep is how long the pump sleeps when nothing is due. It is also how often old deduplication ids are removed
	// from the file.
	sleep = time.Minute
)

// pump is the timer of a queue. It ends back-offs, reads delayed messages that are due and messages for which memory had
// no room, and retries writes that failed.
func (mq *memoryQueue) pump() {
	timer := time.NewTimer(sleep)
	defer timer.Stop()
	var forgotten time.Time
	for pause := time.Duration(0); mq.rest(timer, pause); {
		mq.endBackoffs(time.Now())
		err := mq.promote()
		if e := mq.load(); err == nil {
			err = e
		}
		if e := mq.refill(); err == nil {
			err = e
		}
		if mq.dedup != nil && time.Since(forgotten) >= sleep {
			forgotten = time.Now()
			if e := mq.dedup.forget(mq.q.engine); err == nil {
				err = e
			}
		}
		if err != nil {
			mq.q.opts.Log.Warn("queue read failed", "queue", mq.name, "error", err)
		}
		pause = mq.pause(err != nil)
	}
}

// rest waits for a time, or until there is something to do. It reports false when the queue is closed.
//
// It uses no timer for a time of 0: in a bubble of testing/synctest, two timers that are due when they are set break the
// race detector (golang.org/issue/78156).
func (mq *memoryQueue) rest(timer *time.Timer, pause time.Duration) bool {
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

// pause decides how long the pump may sleep.
func (mq *memoryQueue) pause(troubled bool) time.Duration {
	mq.mu.Lock()
	defer mq.mu.Unlock()
	now := time.Now()
	next := now.Add(sleep)
	at := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	if len(mq.backoffs) > 0 {
		at(mq.backoffs[0].until)
	}
	if !mq.retry.IsZero() {
		at(mq.retry)
	}
	if mq.nextDue > 0 && mq.resident < mq.q.opts.MaxReady {
		at(now.Add(mq.wait(mq.nextDue)))
	}
	if mq.mustRead() {
		at(now)
	}
	if troubled {
		next = now.Add(retryAfter)
	}
	mq.pumping = next
	return next.Sub(now)
}

// endBackoffs makes failed messages ready whose back-off has passed.
func (mq *memoryQueue) endBackoffs(now time.Time) {
	mq.mu.Lock()
	defer mq.mu.Unlock()
	mq.pumping = time.Time{}
	for len(mq.backoffs) > 0 && !mq.backoffs[0].until.After(now) {
		h := heap.Pop(&mq.backoffs).(backoff)
		if mq.ready.fifo {
			mq.ready.unlock(h.group)
		} else {
			mq.resident++
			mq.bytes += len(h.msg.body)
			mq.ready.pushFront(h.msg.group, h.msg)
		}
	}
	if !mq.retry.IsZero() && !mq.retry.After(now) {
		mq.retry = time.Time{}
		mq.submit()
	}
	mq.wakeWorker()
}

// promote reads delayed messages that are due.
func (mq *memoryQueue) promote() error {
	for {
		mq.mu.Lock()
		room := min(mq.q.opts.MaxReady-mq.resident, readStep)
		due := mq.nextDue > 0 && mq.wait(mq.nextDue) <= 0
		mq.mu.Unlock()
		if !due || room <= 0 {
			return nil
		}
		if err := mq.q.engine.Do(context.Background(), &promotion{queue: mq, room: room}); err != nil {
			return err
		}
	}
}

// promotion makes the delayed rows that are due ordinary ones.
type promotion struct {
	queue *memoryQueue
	room  int

	msgs    []*message
	nextDue int64
}

func (p *promotion) Apply(tx *engine.Tx) error {
	p.msgs = nil
	for _, due := range [][2]int64{{0, tx.Now.UnixMilli()}, {tx.Now.Add(longest).UnixMilli(), math.MaxInt64}} {
		s, err := tx.Stmt(p.queue.sql.promote)
		if err != nil {
			return err
		}
		msgs, err := rows(s.Int(1, due[0]).Int(2, due[1]).Int(3, int64(p.room-len(p.msgs))), readBytes, func() {})
		if err != nil {
			return err
		}
		p.msgs = append(p.msgs, msgs...)
	}
	for _, m := range p.msgs {
		s, err := tx.Stmt(p.queue.sql.show)
		if err != nil {
			return err
		}
		if err := s.Int(1, m.id).Exec(); err != nil {
			return err
		}
	}
	s, err := tx.Stmt(p.queue.sql.nextDue)
	if err != nil {
		return err
	}
	defer s.Reset()
	if _, err = s.Step(); err != nil {
		return err
	}
	p.nextDue = s.ColumnInt(0) // of none, 0
	return nil
}

func (p *promotion) Done(err error) {
	if err != nil {
		return
	}
	mq := p.queue
	mq.mu.Lock()
	defer mq.mu.Unlock()
	mq.nextDue = p.nextDue
	mq.delayed -= len(p.msgs)
	for _, m := range p.msgs {
		if mq.mustSpill(m.group) {
			mq.spill(m, mq.loaded+1) // rows before that may be in memory
			continue
		}
		if m.id > mq.loaded {
			mq.unloaded[m.id] = m.group
		}
		mq.add(m)
		mq.pass(m)
	}
	mq.wakeWorker()
}

// load reads messages that had no room in memory, in their order, while there is room.
func (mq *memoryQueue) load() error {
	for {
		mq.mu.Lock()
		if mq.loaded >= mq.newest || !mq.hasRoom() {
			mq.mu.Unlock()
			return nil
		}
		after, newest := mq.loaded, mq.newest
		room := min(mq.q.opts.MaxReady-mq.resident, readStep)
		mq.mu.Unlock()

		var msgs []*message
		last := after
		err := mq.q.engine.Read(context.Background(), func(c *engine.Conn) error {
			s, err := c.Stmt(mq.sql.load)
			if err != nil {
				return err
			}
			msgs, err = rows(s.Int(1, after).Int(2, int64(room)), readBytes, func() { last = s.ColumnInt(0) })
			return err
		})
		if err != nil {
			return err
		}
		mq.mu.Lock()
		mq.loaded = last
		if len(msgs) == 0 {
			mq.loaded = newest // everything that was committed before the read is in memory
		}
		for _, m := range msgs {
			if _, here := mq.unloaded[m.id]; here {
				continue
			}
			if mq.mustSpill(m.group) {
				mq.spill(m, m.id)
				continue
			}
			mq.add(m)
		}
		for id := range mq.unloaded {
			if id <= mq.loaded {
				delete(mq.unloaded, id) // its row is passed, or never comes
			}
		}
		mq.newest = max(mq.newest, mq.loaded) // a commit may have been read before it was published
		mq.wakeWorker()
		mq.mu.Unlock()
	}
}

// rows reads messages until their bodies have many bytes.
func rows(s *engine.Stmt, most int, each func()) (msgs []*message, err error) {
	defer s.Reset()
	for size := 0; size < most; {
		row, err := s.Step()
		if err != nil || !row {
			return msgs, err
		}
		m := &message{
			id: s.ColumnInt(0), group: s.ColumnText(1), received: int(s.ColumnInt(2)), sent: s.ColumnInt(3), body: s.ColumnBlob(4),
		}
		each()
		size += len(m.body)
		msgs = append(msgs, m)
	}
	return msgs, nil
}

// bodies reads the bodies that are not in memory. A row that was deleted by hand has none.
func (mq *memoryQueue) bodies(ctx context.Context, f *batch) error {
	return mq.q.engine.Read(ctx, func(c *engine.Conn) error {
		for i, m := range f.msgs {
			to := &f.batch[i]
			if to.Body != nil {
				continue
			}
			s, err := c.Stmt(mq.sql.body)
			if err != nil {
				return err
			}
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
