package sqlite

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// retryAfter is how long a failed settlement waits to be written again.
const retryAfter = time.Second

// settlement holds results of handlers that are not written yet.
type settlement struct {
	ids    []int64    // accepted: to be deleted
	dead   []*message // to be dead-lettered
	failed []failure
}

// failure is a message with the number of times it was received.
type failure struct {
	id       int64
	received int
}

func (s *settlement) empty() bool { return len(s.ids)+len(s.dead)+len(s.failed) == 0 }

// append moves everything of other to s.
func (s *settlement) append(other *settlement) {
	s.ids = append(s.ids, other.ids...)
	s.dead = append(s.dead, other.dead...)
	s.failed = append(s.failed, other.failed...)
	clear(other.dead)
	other.ids, other.dead, other.failed = other.ids[:0], other.dead[:0], other.failed[:0]
}

// submit has the settlement written with the next commit. It needs none of its own: a crash before that only delivers
// those messages again.
func (mq *memoryQueue) submit() {
	if mq.settling || mq.accepted.empty() || !mq.retry.IsZero() {
		return
	}
	// After Close the engine refuses; those messages are delivered again too.
	mq.settling = mq.q.engine.Lazily(&settling{queue: mq}) == nil
}

// flush writes the settlement and everything before it, now.
func (mq *memoryQueue) flush() error {
	return mq.q.engine.Do(context.Background(), &settling{queue: mq})
}

// settling writes everything that is settled when the job is applied, of any number of batches.
type settling struct {
	queue *memoryQueue
	taken settlement
	dead  []*message
}

func (s *settling) Apply(tx *engine.Tx) error {
	mq := s.queue
	mq.mu.Lock()
	s.taken.append(&mq.accepted)
	mq.settling = false
	mq.mu.Unlock()

	if err := s.delete(tx); err != nil {
		return err
	}
	for _, f := range s.taken.failed {
		stmt, err := tx.Stmt(mq.sql.fail)
		if err != nil {
			return err
		}
		if err := stmt.Int(1, int64(f.received)).Int(2, f.id).Exec(); err != nil {
			return err
		}
	}
	return s.deadLetter(tx)
}

// delete removes rows, those with neighbouring ids by one statement.
func (s *settling) delete(tx *engine.Tx) error {
	ids := s.taken.ids
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
		stmt, err := tx.Stmt(sql)
		if err != nil {
			return err
		}
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

// deadLetter moves rows to the dead-letter queue.
func (s *settling) deadLetter(tx *engine.Tx) error {
	s.dead = s.dead[:0]
	dead := s.queue.q.queues[queue.Dead]
	for _, m := range s.taken.dead {
		stmt, err := tx.Stmt(s.queue.sql.body)
		if err != nil {
			return err
		}
		found, err := stmt.Int(1, m.id).Step()
		if err != nil {
			return err
		}
		body := m.body
		if found {
			body = bytes.Clone(stmt.ColumnBlob(0))
		}
		stmt.Reset()
		letter := queue.NewDeadLetter(s.queue.name, queue.Message{
			ID: strconv.FormatInt(m.id, 10), Outgoing: queue.Outgoing{Body: body, Group: m.group},
			Received: m.received, Sent: microseconds(m.sent),
		}, queue.ReasonReceives, nil, tx.Now)
		if stmt, err = tx.Stmt(dead.sql.insert); err != nil {
			return err
		}
		id := dead.lastID.Add(1)
		if err := stmt.Int(1, id).Text(2, m.group).Int(3, 0).Int(4, m.sent).Blob(5, letter.Body).Exec(); err != nil {
			return err
		}
		if stmt, err = tx.Stmt(s.queue.sql.remove); err != nil {
			return err
		}
		if err := stmt.Int(1, m.id).Exec(); err != nil {
			return err
		}
		s.dead = append(s.dead, &message{id: id, group: m.group, sent: m.sent})
	}
	return nil
}

// Done keeps what could not be written, for the next try.
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
	mq.accepted.append(&s.taken)
	mq.settling = false // where no transaction began, it was not applied
	mq.retry = time.Now().Add(retryAfter)
	mq.wakePump(mq.retry)
}
