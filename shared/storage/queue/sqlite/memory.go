package sqlite

import (
	"container/heap"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// memoryQueue is one queue, with those of its messages that are in memory.
type memoryQueue struct {
	q    *Queues
	name queue.Name
	sql  statements

	lastID atomic.Int64 // of the last message sent or forwarded

	dedup *dedup // nil on a standard queue; only the engine's writer touches it

	mu       sync.Mutex // not held during SQL
	ready    ready
	waiting  []chan struct{} // workers, the last one first
	backoffs backoffHeap

	// The rows without a delay up to loaded are, or were, in memory. Those after it, up to newest, were too many:
	// [memoryQueue.load] reads them when there is room.
	loaded, newest int64
	// unloaded are forwarded and delayed messages that were in memory before [memoryQueue.load] read their rows. It
	// skips those rows.
	unloaded map[int64]string // their groups
	spilled  map[string]*spill
	resident int // messages in memory: ready, in flight, in back-off
	bytes    int // of their bodies

	nextDue int64 // of the rows still delayed, in milliseconds since 1970; 0 if there is none

	total, delayed, inFlight int // messages, for the depth

	accepted settlement
	settling bool      // a job for it has been submitted
	retry    time.Time // when to submit one again after a failure

	wake    chan struct{} // for the pump
	pumping time.Time     // when it will look by itself; zero while it is looking
}

// statements is the SQL of one queue.
type statements struct {
	table                             string
	insert, remove, removeRange, fail string
	load, promote, show, nextDue      string
	refill, row                       string
	body                              string
	oldest                            string
}

func newMemoryQueue(q *Queues, name queue.Name) *memoryQueue {
	t := "queue_" + string(name)
	mq := &memoryQueue{
		q: q, name: name, wake: make(chan struct{}, 1),
		ready: ready{fifo: name.FIFO(), groups: map[string]*group{}}, unloaded: map[int64]string{},
		spilled: map[string]*spill{},
		sql: statements{
			table:       t,
			insert:      "INSERT INTO " + t + " (id, grp, due, received, sent, body) VALUES (?, ?, ?, 0, ?, ?)",
			remove:      "DELETE FROM " + t + " WHERE id=?",
			removeRange: "DELETE FROM " + t + " WHERE id BETWEEN ? AND ?",
			fail:        "UPDATE " + t + " SET received=? WHERE id=?",
			load:        "SELECT id, grp, received, sent, body FROM " + t + " WHERE id > ? AND due = 0 ORDER BY id LIMIT ?",
			refill:      "SELECT id, grp, received, sent, body FROM " + t + " WHERE id BETWEEN ? AND ? AND due = 0 AND grp = ? ORDER BY id LIMIT ?",
			row:         "SELECT id, grp, received, sent, body FROM " + t + " WHERE id=?",
			promote:     "SELECT id, grp, received, sent, body FROM " + t + " WHERE due > 0 AND due > ? AND due <= ? ORDER BY due, id LIMIT ?",
			show:        "UPDATE " + t + " SET due=0 WHERE id=?",
			nextDue:     "SELECT min(due) FROM " + t + " WHERE due > 0",
			body:        "SELECT body FROM " + t + " WHERE id=?",
			oldest:      "SELECT sent FROM " + t + " ORDER BY id LIMIT 1",
		},
	}
	if name.FIFO() {
		mq.dedup = newDedup(t + "_dedup")
	}
	return mq
}

func (mq *memoryQueue) setUp(tx *engine.Tx) error {
	err := tx.Exec(fmt.Sprintf(`
		CREATE TABLE IF NOT EXISTS %[1]s (id INTEGER PRIMARY KEY, grp TEXT NOT NULL, due INTEGER NOT NULL,
			received INTEGER NOT NULL, sent INTEGER NOT NULL, body BLOB NOT NULL);
		CREATE INDEX IF NOT EXISTS %[1]s_due ON %[1]s (due) WHERE due > 0;`, mq.sql.table))
	if err != nil {
		return err
	}
	var last, total, delayed int64
	for _, read := range []struct {
		sql string
		to  *int64
	}{
		{"SELECT max(id) FROM %s", &last},
		{"SELECT min(due) FROM %s WHERE due > 0", &mq.nextDue},
		{"SELECT count(*) FROM %s", &total},
		{"SELECT count(*) FROM %s WHERE due > 0", &delayed},
	} {
		if *read.to, err = tx.Int(fmt.Sprintf(read.sql, mq.sql.table)); err != nil {
			return err
		}
	}
	mq.lastID.Store(last)
	mq.total, mq.delayed, mq.newest = int(total), int(delayed), last
	if mq.dedup != nil {
		return mq.dedup.setUp(tx)
	}
	return nil
}

// publish adds messages after their commit, in the order of their ids.
func (mq *memoryQueue) publish(msgs []*message, delayed int, due int64) {
	mq.mu.Lock()
	defer mq.mu.Unlock()
	mq.total += len(msgs) + delayed
	if delayed > 0 {
		mq.delayed += delayed
		if mq.nextDue == 0 || due < mq.nextDue {
			mq.nextDue = due
			mq.wakePump(time.Now().Add(mq.wait(due)))
		}
	}
	for _, m := range msgs {
		room := mq.loaded == mq.newest && mq.resident < mq.q.opts.MaxReady && mq.bytes < mq.q.opts.MaxBytes
		mq.newest = max(mq.newest, m.id)
		if m.id <= mq.loaded || !room {
			continue // it was read from its row already, or will be
		}
		mq.loaded = m.id
		if mq.mustSpill(m.group) {
			mq.spill(m, m.id)
			continue
		}
		mq.add(m)
	}
	mq.wakeReader()
	mq.wakeWorker()
}

// add makes a message that was not in memory ready.
func (mq *memoryQueue) add(m *message) {
	mq.resident++
	mq.bytes += len(m.body)
	mq.ready.add(m)
}

// forget drops a message that is accepted or dead-lettered.
func (mq *memoryQueue) forget(m *message) {
	mq.resident--
	mq.bytes -= len(m.body)
	mq.total--
}

// hasRoom reports that memory has room for more messages.
func (mq *memoryQueue) hasRoom() bool {
	if mq.ready.count == 0 {
		return mq.resident < mq.q.opts.MaxReady
	}
	return mq.resident <= mq.q.opts.MaxReady/2 && mq.bytes <= mq.q.opts.MaxBytes/2
}

// wakeWorker wakes one worker if a message is ready. That worker wakes the next if it leaves some, so that batches fill
// before more workers run.
func (mq *memoryQueue) wakeWorker() {
	if n := len(mq.waiting); n > 0 && mq.ready.available() {
		mq.waiting[n-1] <- struct{}{}
		mq.waiting[n-1] = nil
		mq.waiting = mq.waiting[:n-1]
	}
}

// batch is messages in flight: a handler has them.
type batch struct {
	msgs        []*message
	batch       []queue.Message // the same for the handler; their state as it was when they were taken
	maxReceives int
}

// take returns a batch, or nil and a channel that receives when there may be one.
func (mq *memoryQueue) take(opts queue.ConsumeOptions) (*batch, chan struct{}) {
	mq.mu.Lock()
	defer mq.mu.Unlock()
	msgs := mq.ready.take(opts.Batch, opts.PerGroup, opts.Bytes)
	if len(msgs) == 0 {
		woken := make(chan struct{}, 1)
		mq.waiting = append(mq.waiting, woken)
		return nil, woken
	}
	f := &batch{msgs: msgs, batch: make([]queue.Message, len(msgs)), maxReceives: opts.MaxReceives}
	for i, m := range msgs {
		m.received++
		f.batch[i].Body, f.batch[i].Received = m.body, m.received
	}
	mq.inFlight += len(msgs)
	mq.wakeWorker()
	if len(mq.spilled) > 0 {
		mq.wakeReader()
	}
	return f, nil
}

// stopWaiting gives up the channel that [memoryQueue.take] returned.
func (mq *memoryQueue) stopWaiting(woken chan struct{}) {
	mq.mu.Lock()
	defer mq.mu.Unlock()
	for i, other := range mq.waiting {
		if other == woken {
			mq.waiting = append(mq.waiting[:i], mq.waiting[i+1:]...)
			return
		}
	}
	mq.wakeWorker() // it was woken and takes nothing; wake another
}

// settle sorts the messages of a batch into accepted, dead, and failed, which wait for their back-off.
func (mq *memoryQueue) settle(f *batch, failed func(*message) bool) {
	mq.mu.Lock()
	defer mq.mu.Unlock()
	mq.inFlight -= len(f.msgs)
	for _, m := range f.msgs {
		mq.ready.left(m)
	}
	now := time.Now()
	if mq.ready.fifo {
		mq.settleGroups(f, failed, now)
	} else {
		for _, m := range f.msgs {
			switch {
			case !failed(m):
				mq.accept(m)
			case mq.fail(m, f.maxReceives):
				mq.resident-- // until its back-off ends, so that it does not keep others out of memory
				mq.bytes -= len(m.body)
				mq.backOff(backoff{until: now.Add(queue.Backoff(m.received)), msg: m})
			}
			mq.ready.settled(m.group)
		}
	}
	mq.wakeWorker()
	mq.submit()
	mq.wakeReader()
}

// wakeReader wakes the pump if it has to read rows for which memory has room.
func (mq *memoryQueue) wakeReader() {
	if mq.mustRead() {
		mq.wakePump(time.Time{})
	}
}

// mustRead reports whether there are rows for which memory has room.
func (mq *memoryQueue) mustRead() bool {
	if mq.loaded < mq.newest && mq.hasRoom() {
		return true
	}
	_, sp, _ := mq.toRefill()
	return sp != nil
}

func (mq *memoryQueue) accept(m *message) {
	if f := m.forwarded; f != nil {
		m.forwarded, m.accepted = nil, true
		f.closeOne()
		if !m.hasRow {
			delete(mq.unloaded, m.id)
			mq.forget(m)
			return
		}
	}
	mq.accepted.ids = append(mq.accepted.ids, m.id)
	mq.forget(m)
}

// fail counts a failure and reports whether the message is redelivered; if not, it is dead-lettered.
func (mq *memoryQueue) fail(m *message, maxReceives int) (again bool) {
	if maxReceives > 0 && m.received >= maxReceives && mq.name != queue.Dead {
		mq.accepted.dead = append(mq.accepted.dead, m)
		mq.forget(m)
		return false
	}
	mq.accepted.failed = append(mq.accepted.failed, failure{m.id, m.received})
	mq.unload(m)
	return true
}

// unload drops the body of a message that waits if there are too many bytes.
func (mq *memoryQueue) unload(m *message) {
	if mq.bytes > mq.q.opts.MaxBytes && m.forwarded == nil && !m.bare {
		mq.bytes -= len(m.body)
		m.body = nil
	}
}

// settleGroups is settle for a FIFO queue. The messages of a group that failed go back to its front. Only the first of
// them has failed itself; for the others no failure is counted.
func (mq *memoryQueue) settleGroups(f *batch, failed func(*message) bool, now time.Time) {
	type outcome struct {
		back  []*message
		until time.Time // when the group is redelivered; zero while none of it has failed
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
			mq.accept(m)
		case !g.until.IsZero():
			m.received--
			mq.unload(m)
			g.back = append(g.back, m)
		case mq.fail(m, f.maxReceives):
			g.back, g.until = append(g.back, m), now.Add(queue.Backoff(m.received))
		default:
			g.until = now
		}
	}
	for name, g := range groups {
		if len(g.back) == 0 {
			mq.ready.unlock(name)
			continue
		}
		mq.ready.pushFront(name, g.back...)
		if g.until.After(now) {
			mq.backOff(backoff{until: g.until, group: name, count: len(g.back)})
		} else {
			mq.ready.unlock(name)
		}
	}
}

func (mq *memoryQueue) backOff(h backoff) {
	heap.Push(&mq.backoffs, h)
	mq.wakePump(h.until)
}

// longest is the longest time until a delayed row is due, with a reserve for small corrections of the clock. A row that is
// due later was written before the clock was set back, and is due now.
const longest = queue.MaxDelay + time.Minute

// wait is how long it is until a delayed row is due.
func (mq *memoryQueue) wait(due int64) time.Duration {
	wait := time.UnixMilli(due).Sub(mq.q.engine.Now())
	if wait > longest {
		return 0
	}
	return wait
}

// wakePump makes the pump run at the given time at the latest.
func (mq *memoryQueue) wakePump(at time.Time) {
	if mq.pumping.IsZero() || !at.Before(mq.pumping) {
		return // it runs and looks again before it sleeps, or wakes early enough
	}
	mq.pumping = time.Time{}
	select {
	case mq.wake <- struct{}{}:
	default:
	}
}

func (mq *memoryQueue) depth() queue.Depth {
	mq.mu.Lock()
	defer mq.mu.Unlock()
	failed := 0
	for _, h := range mq.backoffs {
		failed += max(h.count, 1)
	}
	inFlight := mq.inFlight + failed
	return queue.Depth{Visible: max(mq.total-inFlight-mq.delayed, 0), InFlight: inFlight, Delayed: mq.delayed}
}
