package sqlite

import (
	"container/heap"
	"context"
	"math"
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

// pump does for a queue what has a time: it shows again what has failed, brings delayed
// messages and those that were too many, and writes again what failed.
func (l *line) pump() {
	timer := time.NewTimer(sleep)
	defer timer.Stop()
	var forgotten time.Time
	for pause := time.Duration(0); l.rest(timer, pause); {
		l.show(time.Now())
		err := l.promote()
		if e := l.load(); err == nil {
			err = e
		}
		if l.dedup != nil && time.Since(forgotten) >= sleep {
			forgotten = time.Now()
			if e := l.dedup.forget(l.q.engine); err == nil {
				err = e
			}
		}
		if err != nil {
			l.q.opts.Log.Warn("A queue cannot read its file; it tries again.", "queue", l.name, "error", err)
		}
		pause = l.pause(err != nil)
	}
}

// rest waits so long, or until there is something to do; it reports false when the queue is closed.
//
// What is to be done at once waits for no timer: in a bubble of testing/synctest, two timers that are due when they are
// set break the race detector (golang.org/issue/78156).
func (l *line) rest(timer *time.Timer, pause time.Duration) bool {
	if pause <= 0 {
		return l.q.open.Err() == nil
	}
	timer.Reset(pause)
	select {
	case <-l.q.open.Done():
		return false
	case <-timer.C:
	case <-l.wake:
	}
	return true
}

// pause decides how long the pump may sleep.
func (l *line) pause(troubled bool) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	next := now.Add(sleep)
	at := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	if len(l.hidden) > 0 {
		at(l.hidden[0].until)
	}
	if !l.retry.IsZero() {
		at(l.retry)
	}
	if l.nextDue > 0 && l.resident < l.q.opts.MaxReady {
		at(now.Add(l.wait(l.nextDue)))
	}
	if l.loaded < l.newest && l.hasRoom() {
		at(now)
	}
	if troubled {
		next = now.Add(retryAfter)
	}
	l.pumping = next
	return next.Sub(now)
}

// show hands out again what has failed and has waited long enough.
func (l *line) show(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pumping = time.Time{}
	for len(l.hidden) > 0 && !l.hidden[0].until.After(now) {
		h := heap.Pop(&l.hidden).(hide)
		if l.ready.fifo {
			l.ready.release(h.group)
		} else {
			l.resident++
			l.bytes += len(h.msg.body)
			l.ready.putBack(h.msg.group, h.msg)
		}
	}
	if !l.retry.IsZero() && !l.retry.After(now) {
		l.retry = time.Time{}
		l.submit()
	}
	l.wakeWorker()
}

// promote brings delayed messages whose time has come.
func (l *line) promote() error {
	for {
		l.mu.Lock()
		room := min(l.q.opts.MaxReady-l.resident, readStep)
		due := l.nextDue > 0 && l.wait(l.nextDue) <= 0
		l.mu.Unlock()
		if !due || room <= 0 {
			return nil
		}
		if err := l.q.engine.Do(context.Background(), &promotion{line: l, room: room}); err != nil {
			return err
		}
	}
}

// promotion makes the delayed rows that are due ordinary ones.
type promotion struct {
	line *line
	room int

	msgs    []*message
	nextDue int64
}

func (p *promotion) Apply(tx *engine.Tx) error {
	p.msgs = nil
	for _, due := range [][2]int64{{0, tx.Now.UnixMilli()}, {tx.Now.Add(longest).UnixMilli(), math.MaxInt64}} {
		s, err := tx.Stmt(p.line.sql.promote)
		if err != nil {
			return err
		}
		msgs, err := rows(s.Int(1, due[0]).Int(2, due[1]).Int(3, int64(p.room-len(p.msgs))), func() {})
		if err != nil {
			return err
		}
		p.msgs = append(p.msgs, msgs...)
	}
	for _, m := range p.msgs {
		s, err := tx.Stmt(p.line.sql.show)
		if err != nil {
			return err
		}
		if err := s.Int(1, m.id).Exec(); err != nil {
			return err
		}
	}
	s, err := tx.Stmt(p.line.sql.nextDue)
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
	l := p.line
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nextDue = p.nextDue
	l.delayed -= len(p.msgs)
	for _, m := range p.msgs {
		if m.id > l.loaded {
			l.unloaded[m.id] = struct{}{}
		}
		l.enter(m)
		l.pass(m)
	}
	l.wakeWorker()
}

// load brings messages that were too many, in their order, while there is room.
func (l *line) load() error {
	for {
		l.mu.Lock()
		if l.loaded >= l.newest || !l.hasRoom() {
			l.mu.Unlock()
			return nil
		}
		after, newest := l.loaded, l.newest
		room := min(l.q.opts.MaxReady-l.resident, readStep)
		l.mu.Unlock()

		var msgs []*message
		last := after
		err := l.q.engine.Read(context.Background(), func(c *engine.Conn) error {
			s, err := c.Stmt(l.sql.load)
			if err != nil {
				return err
			}
			msgs, err = rows(s.Int(1, after).Int(2, int64(room)), func() { last = s.ColumnInt(0) })
			return err
		})
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.loaded = last
		if len(msgs) == 0 {
			l.loaded = newest // nothing is left of what was committed before the read
		}
		for _, m := range msgs {
			if _, here := l.unloaded[m.id]; !here {
				l.enter(m)
			}
		}
		for id := range l.unloaded {
			if id <= l.loaded {
				delete(l.unloaded, id) // its row is passed, or never comes
			}
		}
		l.newest = max(l.newest, l.loaded) // a commit may have been read before it was published
		l.wakeWorker()
		l.mu.Unlock()
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

// bodies reads the bodies that are not in memory. A row that is gone, which
// nothing but a hand in the file explains, has none.
func (l *line) bodies(ctx context.Context, f *flight) error {
	return l.q.engine.Read(ctx, func(c *engine.Conn) error {
		for i, m := range f.msgs {
			to := &f.batch[i]
			if to.Body != nil {
				continue
			}
			s, err := c.Stmt(l.sql.body)
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
