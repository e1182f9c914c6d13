package sqlite

import (
	"bytes"
	"context"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// forwardWithin is how long a forwarded message may be without a row. A message that is accepted within this time, and
// before any other commit, never gets a row.
const forwardWithin = 10 * time.Millisecond

// forwarding is a job that writes messages whose delivery may begin before. Their sender waits until each message has a row
// or is accepted.
//
//	Forward ─▶ ready ─▶ handler ─▶ accepted: no row
//	    └─▶ job: a row for each message that is not accepted yet
type forwarding struct {
	queue *memoryQueue
	msgs  []*message
	open  atomic.Int64 // messages for which the sender waits
	err   error
	done  chan struct{}
}

var _ queue.Forwarder = (*Queues)(nil)

// Forward implements [queue.Forwarder]. It calls Send if a message has a delay, if the queue is a FIFO queue, or if the
// messages do not fit into memory.
func (q *Queues) Forward(ctx context.Context, name queue.Name, msgs ...queue.Outgoing) error {
	mq, err := q.findQueue(name)
	if err != nil {
		return err
	}
	size, plain := 0, !name.FIFO()
	for i := range msgs {
		if err := check(name, &msgs[i]); err != nil {
			return err
		}
		plain = plain && msgs[i].Delay == 0
		size += len(msgs[i].Body)
	}
	if len(msgs) == 0 {
		return ctx.Err()
	}
	f := &forwarding{queue: mq, done: make(chan struct{})}
	if !plain || !mq.forward(f, msgs, size) {
		return q.Send(ctx, name, msgs...)
	}
	if err := q.engine.Within(forwardWithin, f); err != nil {
		return fault.Wrap(engine.Kind(err), err, "forward %d messages to %s", len(msgs), name)
	}
	select {
	case <-f.done:
		return fault.Wrap(engine.Kind(f.err), f.err, "forward %d messages to %s", len(msgs), name)
	case <-ctx.Done():
		return ctx.Err() // the messages are handled and written nevertheless
	}
}

// forward makes messages ready without rows. It reports false if they do not fit into memory.
func (mq *memoryQueue) forward(f *forwarding, msgs []queue.Outgoing, size int) bool {
	mq.mu.Lock()
	defer mq.mu.Unlock()
	w := &mq.window
	if !w.complete() || !w.fits(len(msgs), size) {
		return false
	}
	for i := range msgs {
		if w.mustSpill(msgs[i].Group) {
			return false
		}
	}
	sent := mq.q.engine.Now().UnixMicro()
	f.open.Store(int64(len(msgs)))
	for i := range msgs {
		m := &message{
			id: mq.lastID.Add(1), group: msgs[i].Group, body: bytes.Clone(msgs[i].Body), sent: sent, row: rowAwaited, forwarding: f,
		}
		f.msgs = append(f.msgs, m)
		w.counts[m.place]++
		w.addEarly(m)
	}
	mq.wakeWorker()
	return true
}

// closeOne counts a message for which the sender need not wait any more.
func (f *forwarding) closeOne() {
	if f.open.Add(-1) == 0 {
		close(f.done)
	}
}

func (f *forwarding) Apply(tx *engine.Tx) error {
	mq := f.queue
	for _, m := range f.msgs {
		mq.mu.Lock()
		accepted, received, body := m.place == placeAccepted, m.received, m.body
		if !accepted {
			m.row = rowWriting
		}
		mq.mu.Unlock()
		if accepted {
			continue
		}
		stmt, err := tx.Stmt(mq.sql.insert)
		if err != nil {
			return err
		}
		if err := stmt.Int(1, m.id).Text(2, m.group).Int(3, 0).Int(4, m.sent).Blob(5, body).Exec(); err != nil {
			return err
		}
		if received > 1 {
			if stmt, err = tx.Stmt(mq.sql.fail); err != nil {
				return err
			}
			if err := stmt.Int(1, int64(received)).Int(2, m.id).Exec(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Done answers the sender. Messages that could not be written are still handled, and handled again when the sender repeats
// them.
func (f *forwarding) Done(err error) {
	mq := f.queue
	mq.mu.Lock()
	defer mq.mu.Unlock()
	for _, m := range f.msgs {
		if m.place != placeAccepted {
			m.row = rowWritten
			if err != nil {
				m.row, f.err = rowFailed, err
			}
			f.closeOne()
		}
		mq.window.pass(m)
	}
}
