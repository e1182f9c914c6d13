package sqlite

import (
	"container/heap"
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/store/sqlite/engine"
)

const (
	// readStep and readBytes bound what one look into the file brings into memory.
	readStep  = 500
	readBytes = 8 << 20
	// sleep is how long the pump sleeps when it knows of nothing to come. It also
	// is how often old deduplication ids are removed from the file.
	sleep = time.Minute
)

// pump is the timer of a queue: it ends back-offs, reads delayed messages that are due and those
// that memory had no space for, and retries writes that failed.
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

// rest waits so long, or until there is something to do; it reports false when the queue is closed.
//
// What is to be done at once waits for no timer: in a bubble of testing/synctest, two timers that are due when they are
// set break the race detector (golang.org/issue/78156).
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
		at(time.UnixMilli(mq.nextDue))
	}
	if mq.loaded < mq.newest && mq.hasRoom() {
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
		due := mq.nextDue > 0 && mq.nextDue <= time.Now().UnixMilli()
		mq.mu.Unlock()
		if !due || room <= 0 {
			return nil
		}
		if err := mq.q.engine.Do(context.Background(), &promotion{queue: mq, room: room}); err != nil {
			return err
		}
	}
}

// promotion reads the delayed rows that are due. It is a job of the writer
// because only there it is certain that no row with an earlier time is still to
// be committed, so that one position in their order tells which have been read.
type promotion struct {
	queue *memoryQueue
	room  int

	msgs    []*message
	at      position
	nextDue int64
}

// position is a place in the order of the delayed rows.
type position struct {
	due int64 // milliseconds since 1970
	id  int64
}

func (p *promotion) Apply(tx *engine.Tx) error {
	p.at = p.queue.promoted
	s, err := tx.Stmt(p.queue.sql.promote)
	if err != nil {
		return err
	}
	s.Int(1, p.at.due).Int(2, p.at.id).Int(3, tx.Now.UnixMilli()).Int(4, int64(p.room))
	p.msgs, err = rows(s, func() { p.at = position{s.ColumnInt(5), s.ColumnInt(0)} })
	if err != nil {
		return err
	}
	if s, err = tx.Stmt(p.queue.sql.nextDue); err != nil {
		return err
	}
	defer s.Reset()
	p.nextDue = 0
	row, err := s.Int(1, p.at.due).Int(2, p.at.id).Step()
	if row {
		p.nextDue = s.ColumnInt(0)
	}
	return err
}

func (p *promotion) Done(err error) {
	if err != nil {
		return
	}
	mq := p.queue
	mq.promoted = p.at
	mq.mu.Lock()
	defer mq.mu.Unlock()
	mq.nextDue = p.nextDue
	mq.delayed -= len(p.msgs)
	for _, m := range p.msgs {
		mq.add(m)
	}
	mq.wakeWorker()
}

// load reads messages that memory had no space for, in their order, while it has some.
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
			msgs, err = rows(s.Int(1, after).Int(2, int64(room)), func() { last = s.ColumnInt(0) })
			return err
		})
		if err != nil {
			return err
		}
		mq.mu.Lock()
		mq.loaded = last
		if len(msgs) == 0 {
			mq.loaded = newest // nothing is left of what was committed before the read
		}
		for _, m := range msgs {
			if _, here := mq.unloaded[m.id]; !here {
				mq.add(m)
			}
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

// rows reads messages until they are many bytes.
func rows(s *engine.Stmt, each func()) (msgs []*message, err error) {
	defer s.Reset()
	for size := 0; size < readBytes; {
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

// bodies reads the bodies that are not in memory. A row that is gone, because the file was
// edited by hand, has none.
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
