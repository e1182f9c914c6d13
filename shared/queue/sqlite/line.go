package sqlite

import (
	"container/heap"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/store/sqlite/engine"
)

// line is one queue.
type line struct {
	q    *Queues
	name queue.Name
	sql  lineSQL

	lastID atomic.Int64 // of the last message sent or forwarded

	dedup *dedup // nil on a standard queue; only the engine's writer touches it

	mu      sync.Mutex // never held during SQL
	ready   ready
	waiting []chan struct{} // workers, the last one first
	hidden  hiding

	// The rows without a delay up to loaded are, or were, in memory. Those beyond,
	// up to newest, were too many: [line.load] brings them when there is room.
	loaded, newest int64
	// unloaded are messages that were forwarded or delayed: they are in memory before [line.load] comes
	// to their rows, so it passes those over.
	unloaded map[int64]struct{}
	resident int // messages in memory: ready, in flight, hidden
	bytes    int // of their bodies

	nextDue int64 // of the rows still delayed, in milliseconds since 1970; 0 if there is none

	total, delayed, inFlight int // messages, for the depth

	accepted settlement
	settling bool      // a job for it has been submitted
	retry    time.Time // when to submit one again after a failure

	wake    chan struct{} // for the pump
	pumping time.Time     // when it will look by itself; zero while it is looking
}

// lineSQL are the texts of a line's statements.
type lineSQL struct {
	table                             string
	insert, remove, removeRange, fail string
	load, promote, show, nextDue      string
	body                              string
	oldest                            string
}

func newLine(q *Queues, name queue.Name) *line {
	t := "queue_" + string(name)
	l := &line{
		q: q, name: name, wake: make(chan struct{}, 1),
		ready: ready{fifo: name.FIFO(), groups: map[string]*group{}}, unloaded: map[int64]struct{}{},
		sql: lineSQL{
			table:       t,
			insert:      "INSERT INTO " + t + " (id, grp, due, received, sent, body) VALUES (?, ?, ?, 0, ?, ?)",
			remove:      "DELETE FROM " + t + " WHERE id=?",
			removeRange: "DELETE FROM " + t + " WHERE id BETWEEN ? AND ?",
			fail:        "UPDATE " + t + " SET received=? WHERE id=?",
			load:        "SELECT id, grp, received, sent, body FROM " + t + " WHERE id > ? AND due = 0 ORDER BY id LIMIT ?",
			promote:     "SELECT id, grp, received, sent, body FROM " + t + " WHERE due > 0 AND due > ? AND due <= ? ORDER BY due, id LIMIT ?",
			show:        "UPDATE " + t + " SET due=0 WHERE id=?",
			nextDue:     "SELECT min(due) FROM " + t + " WHERE due > 0",
			body:        "SELECT body FROM " + t + " WHERE id=?",
			oldest:      "SELECT sent FROM " + t + " ORDER BY id LIMIT 1",
		},
	}
	if name.FIFO() {
		l.dedup = newDedup(t + "_dedup")
	}
	return l
}

func (l *line) setUp(tx *engine.Tx) error {
	err := tx.Exec(fmt.Sprintf(`
		CREATE TABLE IF NOT EXISTS %[1]s (id INTEGER PRIMARY KEY, grp TEXT NOT NULL, due INTEGER NOT NULL,
			received INTEGER NOT NULL, sent INTEGER NOT NULL, body BLOB NOT NULL);
		CREATE INDEX IF NOT EXISTS %[1]s_due ON %[1]s (due) WHERE due > 0;`, l.sql.table))
	if err != nil {
		return err
	}
	var last, total, delayed int64
	for _, read := range []struct {
		sql string
		to  *int64
	}{
		{"SELECT max(id) FROM %s", &last},
		{"SELECT min(due) FROM %s WHERE due > 0", &l.nextDue},
		{"SELECT count(*) FROM %s", &total},
		{"SELECT count(*) FROM %s WHERE due > 0", &delayed},
	} {
		if *read.to, err = tx.Int(fmt.Sprintf(read.sql, l.sql.table)); err != nil {
			return err
		}
	}
	l.lastID.Store(last)
	l.total, l.delayed, l.newest = int(total), int(delayed), last
	if l.dedup != nil {
		return l.dedup.setUp(tx)
	}
	return nil
}

// publish takes over messages that have been committed, in the order of their ids.
func (l *line) publish(msgs []*message, delayed int, due int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total += len(msgs) + delayed
	if delayed > 0 {
		l.delayed += delayed
		if l.nextDue == 0 || due < l.nextDue {
			l.nextDue = due
			l.kick(time.Now().Add(l.wait(due)))
		}
	}
	for _, m := range msgs {
		room := l.loaded == l.newest && l.resident < l.q.opts.MaxReady && l.bytes < l.q.opts.MaxBytes
		l.newest = max(l.newest, m.id)
		if m.id <= l.loaded || !room {
			continue // it was read from its row already, or will be
		}
		l.loaded = m.id
		l.enter(m)
	}
	if l.loaded < l.newest && l.hasRoom() {
		l.kick(time.Time{})
	}
	l.wakeWorker()
}

// enter makes a message that was not in memory ready.
func (l *line) enter(m *message) {
	l.resident++
	l.bytes += len(m.body)
	l.ready.add(m)
}

// leave forgets a message that is accepted or dead.
func (l *line) leave(m *message) {
	l.resident--
	l.bytes -= len(m.body)
	l.total--
}

// hasRoom tells whether it is time to bring in what lies beyond the bound.
func (l *line) hasRoom() bool {
	if l.ready.count == 0 {
		return l.resident < l.q.opts.MaxReady
	}
	return l.resident <= l.q.opts.MaxReady/2 && l.bytes <= l.q.opts.MaxBytes/2
}

// wakeWorker wakes one worker if there is something for it. That one wakes the
// next if it leaves anything, so that batches fill before workers multiply.
func (l *line) wakeWorker() {
	if n := len(l.waiting); n > 0 && l.ready.available() {
		l.waiting[n-1] <- struct{}{}
		l.waiting[n-1] = nil
		l.waiting = l.waiting[:n-1]
	}
}

// flight is a batch in the hands of a handler.
type flight struct {
	msgs        []*message
	batch       []queue.Message // the same for the handler; their state as it was when they were taken
	maxReceives int
}

// take returns a batch, or nil and a channel that receives when there may be one.
func (l *line) take(opts queue.ConsumeOptions) (*flight, chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	msgs := l.ready.take(opts.Batch, opts.PerGroup)
	if len(msgs) == 0 {
		woken := make(chan struct{}, 1)
		l.waiting = append(l.waiting, woken)
		return nil, woken
	}
	f := &flight{msgs: msgs, batch: make([]queue.Message, len(msgs)), maxReceives: opts.MaxReceives}
	for i, m := range msgs {
		m.received++
		f.batch[i].Body, f.batch[i].Received = m.body, m.received
	}
	l.inFlight += len(msgs)
	l.wakeWorker()
	return f, nil
}

// stopWaiting takes back what [line.take] has promised.
func (l *line) stopWaiting(woken chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, other := range l.waiting {
		if other == woken {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			return
		}
	}
	l.wakeWorker() // it was woken and will not come; somebody else shall
}

// settle sorts the messages of a batch into accepted, dead, and failed, which are hidden for their back-off.
func (l *line) settle(f *flight, failed func(*message) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight -= len(f.msgs)
	now := time.Now()
	if l.ready.fifo {
		l.settleGroups(f, failed, now)
	} else {
		for _, m := range f.msgs {
			switch {
			case !failed(m):
				l.accept(m)
			case l.fail(m, f.maxReceives):
				l.resident-- // until it is shown: what waits must not keep others out of memory
				l.bytes -= len(m.body)
				l.hide(hide{until: now.Add(queue.Backoff(m.received)), msg: m})
			}
			l.ready.settled(m.group)
		}
	}
	l.wakeWorker()
	l.submit()
	if l.loaded < l.newest && l.hasRoom() {
		l.kick(time.Time{})
	}
}

func (l *line) accept(m *message) {
	if f := m.forwarded; f != nil {
		m.forwarded, m.accepted = nil, true
		f.closeOne()
		if !m.hasRow {
			delete(l.unloaded, m.id)
			l.leave(m)
			return
		}
	}
	l.accepted.ids = append(l.accepted.ids, m.id)
	l.leave(m)
}

// fail counts a failure and reports whether the message is handed out again; if not, it is dead.
func (l *line) fail(m *message, maxReceives int) (again bool) {
	if maxReceives > 0 && m.received >= maxReceives && l.name != queue.Dead {
		l.accepted.dead = append(l.accepted.dead, m)
		l.leave(m)
		return false
	}
	l.accepted.failed = append(l.accepted.failed, failure{m.id, m.received})
	l.unload(m)
	return true
}

// unload drops the body of a message that waits if there are too many bytes.
func (l *line) unload(m *message) {
	if l.bytes > l.q.opts.MaxBytes && m.forwarded == nil && !m.bare {
		l.bytes -= len(m.body)
		m.body = nil
	}
}

// settleGroups is settle for a FIFO queue. The messages of a group that failed go back to its front. The first of
// them has failed; those after it were only in its way, so for them nothing is counted.
func (l *line) settleGroups(f *flight, failed func(*message) bool, now time.Time) {
	type outcome struct {
		back  []*message
		until time.Time // when the group is handed out again; zero while nothing of it has failed
	}
	groups := map[string]*outcome{}
	for _, m := range f.msgs {
		g := groups[m.group]
		if g == nil {
			g = &outcome{}
			groups[m.group] = g
		}
		switch {
		case !failed(m):
			l.accept(m)
		case !g.until.IsZero():
			m.received--
			l.unload(m)
			g.back = append(g.back, m)
		case l.fail(m, f.maxReceives):
			g.back, g.until = append(g.back, m), now.Add(queue.Backoff(m.received))
		default:
			g.until = now
		}
	}
	for name, g := range groups {
		if len(g.back) == 0 {
			l.ready.release(name)
			continue
		}
		l.ready.putBack(name, g.back...)
		if g.until.After(now) {
			l.hide(hide{until: g.until, group: name, count: len(g.back)})
		} else {
			l.ready.release(name)
		}
	}
}

func (l *line) hide(h hide) {
	heap.Push(&l.hidden, h)
	l.kick(h.until)
}

// longest is how far ahead a delayed row can be due, with a clock that is corrected a little. What is
// further away was written before the clock was set back, and is due now.
const longest = queue.MaxDelay + time.Minute

// wait is how long it is until a delayed row is due.
func (l *line) wait(due int64) time.Duration {
	wait := time.UnixMilli(due).Sub(l.q.engine.Now())
	if wait > longest {
		return 0
	}
	return wait
}

// kick makes the pump look at the given time at the latest.
func (l *line) kick(at time.Time) {
	if l.pumping.IsZero() || !at.Before(l.pumping) {
		return // it is looking and will look again before it sleeps, or wakes early enough
	}
	l.pumping = time.Time{}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *line) depth() queue.Depth {
	l.mu.Lock()
	defer l.mu.Unlock()
	hidden := 0
	for _, h := range l.hidden {
		hidden += max(h.count, 1)
	}
	inFlight := l.inFlight + hidden
	return queue.Depth{Visible: max(l.total-inFlight-l.delayed, 0), InFlight: inFlight, Delayed: l.delayed}
}
