package sqlite

import (
	"bytes"
	"container/heap"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// retryAfter is how long a queue waits after a failed read or write of the file before it tries again.
const retryAfter = time.Second

// settle records the outcome of each message of a handled batch. The message is accepted, becomes a dead letter, or waits for its next
// delivery.
func (mq *memoryQueue) settle(b *batch, failed func(*message) bool, opts *queue.ConsumeOptions) {
	mq.mu.Lock()
	defer mq.mu.Unlock()
	for _, m := range slices.Concat(b.msgs, b.refused) {
		mq.window.ready.release(m)
	}
	now := time.Now()
	if mq.window.ready.fifo {
		mq.settleGroups(b, failed, opts, now)
	} else {
		for _, m := range b.msgs {
			switch {
			case !failed(m):
				mq.accept(m)
			case mq.fail(m, opts):
				mq.window.move(m, placeBackOff)
				mq.backOff(backoff{until: now.Add(queue.Backoff(m.received)), msg: m})
			}
		}
	}
	mq.wakeWorker()
	mq.submit()
	mq.wakeReader()
}

// settleGroups is [memoryQueue.settle] for a FIFO queue. It puts the failed messages of a group back at the group's front. Only the first
// of them counts a receive, because the handler fails the others only to keep the order.
func (mq *memoryQueue) settleGroups(b *batch, failed func(*message) bool, opts *queue.ConsumeOptions, now time.Time) {
	type outcome struct {
		back  []*message
		until time.Time // when the group is redelivered; zero while none of its messages has failed
	}
	groups := map[string]*outcome{}
	for _, m := range b.refused {
		mq.window.move(m, placeAccepted)
		groups[m.group] = &outcome{}
	}
	for _, m := range b.msgs {
		g := groups[m.group]
		if g == nil {
			g = &outcome{}
			groups[m.group] = g
		}
		switch {
		case !failed(m):
			mq.accept(m)
		case m.row == rowFailed:
			mq.window.move(m, placeAccepted) // its sender got an error, so drop it
		case !g.until.IsZero():
			m.received--
			mq.window.dropBody(m)
			g.back = append(g.back, m)
		case mq.fail(m, opts):
			g.back, g.until = append(g.back, m), now.Add(queue.Backoff(m.received))
		default:
			g.until = now
		}
	}
	for name, g := range groups {
		blocked := len(g.back) > 0 && g.until.After(now)
		to := placeReady
		if blocked {
			to = placeBlocked
			mq.backOff(backoff{until: g.until, group: name, count: len(g.back)})
		}
		for _, m := range g.back {
			mq.window.move(m, to)
		}
		mq.window.ready.pushFront(name, g.back...)
		if !blocked {
			mq.window.ready.unlock(name)
		}
	}
}

func (mq *memoryQueue) accept(m *message) {
	mq.window.move(m, placeAccepted)
	switch m.row {
	case rowAwaited:
		m.forwarding.closeOne()
		delete(mq.window.early, m.id)
		return
	case rowWriting:
		m.forwarding.closeOne()
	}
	mq.settled.accepted = append(mq.settled.accepted, m.id)
}

// fail counts a failure of a message. It returns true if the message is to be delivered again. Otherwise the message becomes a dead
// letter.
func (mq *memoryQueue) fail(m *message, opts *queue.ConsumeOptions) (again bool) {
	if mq.exhausted(m, opts) {
		mq.settled.dead = append(mq.settled.dead, m)
		mq.window.move(m, placeDead)
		return false
	}
	mq.settled.receives = append(mq.settled.receives, receiveCount{m.id, m.received})
	mq.window.dropBody(m)
	return true
}

// exhausted reports whether a message was received as often as opts.MaxReceives allows. For a message on [queue.Dead] it returns false,
// because such a message cannot move to another queue.
func (mq *memoryQueue) exhausted(m *message, opts *queue.ConsumeOptions) bool {
	return opts.MaxReceives > 0 && m.received >= opts.MaxReceives && mq.name != queue.Dead
}

func (mq *memoryQueue) backOff(b backoff) {
	heap.Push(&mq.backoffs, b)
	mq.wakePump(b.until)
}

type handlerResults struct {
	accepted []int64    // rows to delete
	dead     []*message // to be dead-lettered
	receives []receiveCount
}

// receiveCount is how often a message was received. The queue writes it to the message's row after a failure. For a message that an
// earlier process left in the file, it writes the count before the handler gets the message.
type receiveCount struct {
	id       int64
	received int
}

func (r *handlerResults) empty() bool { return len(r.accepted)+len(r.dead)+len(r.receives) == 0 }

func (r *handlerResults) append(other *handlerResults) {
	r.accepted = append(r.accepted, other.accepted...)
	r.dead = append(r.dead, other.dead...)
	r.receives = append(r.receives, other.receives...)
	clear(other.dead)
	other.accepted, other.dead, other.receives = other.accepted[:0], other.dead[:0], other.receives[:0]
}

// submit lets the next commit write the handler results in mq.settled. They need no commit of their own: after a crash, the next process
// delivers the messages again, and only the count of their failures is lost. A message that crashes every process still becomes a dead
// letter; see [memoryQueue.inherited].
func (mq *memoryQueue) submit() {
	if mq.submitted || mq.settled.empty() || !mq.resubmitAt.IsZero() {
		return
	}
	// After Close, Lazily returns an error and the results are lost, so the next process delivers the messages again.
	mq.submitted = mq.q.engine.Lazily(&settling{queue: mq}) == nil
}

// flush writes the handler results in mq.settled, and returns when they are committed. Unlike [memoryQueue.submit], it does not wait for
// the commit of another job.
func (mq *memoryQueue) flush() error {
	return mq.q.engine.Do(context.Background(), &settling{queue: mq})
}

// settling is an [engine.Job] that writes the handler results of a queue. It includes results that arrive before the job is applied.
type settling struct {
	queue *memoryQueue
	taken handlerResults
	dead  []*message
}

func (s *settling) Apply(tx *engine.Tx) error {
	mq := s.queue
	mq.mu.Lock()
	s.taken.append(&mq.settled)
	mq.submitted = false
	mq.mu.Unlock()

	if err := s.delete(tx); err != nil {
		return err
	}
	for _, f := range s.taken.receives {
		if err := tx.Stmt(mq.sql.fail).Int(1, int64(f.received)).Int(2, f.id).Exec(); err != nil {
			return err
		}
	}
	return s.deadLetter(tx)
}

// delete deletes the rows of accepted messages, with one statement for consecutive ids.
func (s *settling) delete(tx *engine.Tx) error {
	ids := s.taken.accepted
	slices.Sort(ids)
	for len(ids) > 0 {
		n := 1
		for n < len(ids) && ids[n] == ids[n-1]+1 {
			n++
		}
		sql := s.queue.sql.remove
		if n > 1 {
			sql = s.queue.sql.removeRange
		}
		stmt := tx.Stmt(sql)
		stmt.Int(1, ids[0])
		if n > 1 {
			stmt.Int(2, ids[n-1])
		}
		if err := stmt.Exec(); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

func (s *settling) deadLetter(tx *engine.Tx) error {
	s.dead = s.dead[:0]
	dead := s.queue.q.queues[queue.Dead]
	for _, m := range s.taken.dead {
		stmt := tx.Stmt(s.queue.sql.body)
		found, err := stmt.Int(1, m.id).Step()
		if err != nil {
			return err
		}
		body := m.body
		if found {
			body = bytes.Clone(stmt.ColumnBlob(0))
		}
		stmt.Reset()
		group, owner := splitGroup(m.group)
		letter := queue.NewDeadLetter(s.queue.name, queue.Message{
			ID: strconv.FormatInt(m.id, 10), Outgoing: queue.Outgoing{Body: body, Group: group, Owner: owner},
			Received: m.received, Sent: microseconds(m.sent),
		}, queue.ReasonReceives, nil, tx.Now)
		stmt = tx.Stmt(dead.sql.insert)
		id := dead.lastID.Add(1)
		if err := stmt.Int(1, id).Text(2, m.group).Int(3, 0).Int(4, m.sent).Blob(5, letter.Body).Exec(); err != nil {
			return err
		}
		stmt = tx.Stmt(s.queue.sql.remove)
		if err := stmt.Int(1, m.id).Exec(); err != nil {
			return err
		}
		s.dead = append(s.dead, &message{id: id, group: m.group, sent: m.sent})
	}
	return nil
}

// Done makes new dead letters available to consumers after the commit. If the handler results could not be written, it keeps them for
// another attempt.
func (s *settling) Done(err error) {
	mq := s.queue
	if err == nil {
		if len(s.dead) > 0 {
			mq.q.queues[queue.Dead].publish(s.dead, 0, 0)
			if f := mq.q.opts.DeadLettered; f != nil {
				f(mq.name, len(s.dead))
			}
		}
		return
	}
	mq.mu.Lock()
	defer mq.mu.Unlock()
	mq.settled.append(&s.taken)
	mq.submitted = false // Apply does this too, but is not called if no transaction begins
	mq.resubmitAt = time.Now().Add(retryAfter)
	mq.wakePump(mq.resubmitAt)
}

// discardRows limits how many rows [Queues.Discard] searches at a time, and discardDeletes how many rows it deletes at a time. Other
// reads and writes can run in between.
const (
	discardRows    = 2000
	discardDeletes = 500
)

// Discard implements [queue.Discarder]. It searches with a connection that only reads, so that writes wait only while it deletes.
func (q *Queues) Discard(ctx context.Context, name queue.Name, texts ...string) error {
	mq, err := q.findQueue(name)
	if err != nil {
		return err
	}
	var patterns []string
	for _, text := range texts {
		patterns = append(patterns, regexp.QuoteMeta(text))
	}
	contains := regexp.MustCompile(strings.Join(patterns, "|")).Match // a regular expression takes hardly longer for many texts
	for after, more := int64(0), len(texts) > 0; more; {
		var found []int64
		err := q.engine.Read(ctx, func(c *engine.Conn) error {
			var err error
			found, after, more, err = mq.findDelayed(c, after, contains)
			return err
		})
		for len(found) > 0 && err == nil {
			n := min(len(found), discardDeletes)
			err = q.engine.Do(ctx, &discarding{queue: mq, ids: found[:n]})
			found = found[n:]
		}
		if err != nil {
			return fault.Wrap(engine.Kind(err), err, "discard delayed messages of %s", name)
		}
	}
	return nil
}

// findDelayed reads up to [discardRows] delayed rows whose ids are greater than the parameter after. It returns the ids of the rows whose
// bodies match, and the id of the last row that it read. The result more says that there may be further rows.
func (mq *memoryQueue) findDelayed(c *engine.Conn, after int64, matches func([]byte) bool) (found []int64, last int64, more bool, err error) {
	s := c.Stmt(fmt.Sprintf("SELECT id, body FROM %s WHERE due > 0 AND id > ? ORDER BY id LIMIT %d", mq.sql.table, discardRows))
	defer s.Reset()
	s.Int(1, after)
	last = after
	for n := 0; ; n++ {
		row, err := s.Step()
		if err != nil || !row {
			return found, last, n == discardRows, err
		}
		last = s.ColumnInt(0)
		if matches(s.ColumnBlob(1)) {
			found = append(found, last)
		}
	}
}

// discarding is an [engine.Job] that deletes the rows with the given ids if they are still delayed. It keeps rows that became due
// meanwhile, because their messages are in memory.
type discarding struct {
	queue *memoryQueue
	ids   []int64
	n     int
}

func (d *discarding) Apply(tx *engine.Tx) error {
	d.n = 0
	s := tx.Stmt(fmt.Sprintf("DELETE FROM %s WHERE id = ? AND due > 0", d.queue.sql.table))
	for _, id := range d.ids {
		if err := s.Int(1, id).Exec(); err != nil {
			return err
		}
		d.n += tx.Changes()
	}
	return nil
}

func (d *discarding) Done(err error) {
	if err != nil {
		return
	}
	mq := d.queue
	mq.mu.Lock()
	defer mq.mu.Unlock()
	mq.window.counts[placeDelayed] -= d.n
}
