package sqlite

import (
	"bytes"
	"context"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/store/sqlite/engine"
)

// forwardWithin is how long a message that was forwarded may go without a row. What is
// accepted before, or before any other commit, never gets one.
const forwardWithin = 10 * time.Millisecond

// forwarding is messages that are handed out before they are written. Their sender waits
// until each is one or the other: a row, or accepted.
//
//	Forward ─▶ ready ─▶ handler ─▶ accepted: no row
//	    └─▶ job of the engine, soon: a row for each that is not accepted yet
type forwarding struct {
	line *line
	msgs []*message
	open atomic.Int64 // messages that are neither
	err  error
	done chan struct{}
}

var _ queue.Forwarder = (*Queues)(nil)

// Forward implements [queue.Forwarder]. Messages with a delay, of a FIFO queue, or beyond
// what fits into memory are sent.
func (q *Queues) Forward(ctx context.Context, name queue.Name, msgs ...queue.Outgoing) error {
	l, err := q.line(name)
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
	f := &forwarding{line: l, done: make(chan struct{})}
	if !plain || !l.forward(f, msgs, size) {
		return q.Send(ctx, name, msgs...)
	}
	if err := q.engine.Within(forwardWithin, f); err != nil {
		return fault.Wrap(engine.Kind(err), err, "forward %d messages to %s", len(msgs), name)
	}
	select {
	case <-f.done:
		return fault.Wrap(engine.Kind(f.err), f.err, "forward %d messages to %s", len(msgs), name)
	case <-ctx.Done():
		return ctx.Err() // they are handled and written all the same
	}
}

// forward makes messages ready that have no row, and reports false where they do not fit.
func (l *line) forward(f *forwarding, msgs []queue.Outgoing, size int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.loaded != l.newest || l.resident+len(msgs) > l.q.opts.MaxReady || l.bytes+size > l.q.opts.MaxBytes {
		return false
	}
	sent := l.q.engine.Now().UnixMicro()
	f.open.Store(int64(len(msgs)))
	for i := range msgs {
		m := &message{
			id: l.lastID.Add(1), group: msgs[i].Group, body: bytes.Clone(msgs[i].Body), sent: sent, forwarded: f,
		}
		f.msgs = append(f.msgs, m)
		l.unloaded[m.id] = struct{}{}
		l.total++
		l.enter(m)
	}
	l.wakeWorker()
	return true
}

// closeOne counts a message that is a row or accepted.
func (f *forwarding) closeOne() {
	if f.open.Add(-1) == 0 {
		close(f.done)
	}
}

// Apply writes the messages that are not accepted yet.
func (f *forwarding) Apply(tx *engine.Tx) error {
	l := f.line
	for _, m := range f.msgs {
		l.mu.Lock()
		accepted, received, body := m.accepted, m.received, m.body
		m.hasRow = !accepted
		l.mu.Unlock()
		if accepted {
			continue
		}
		stmt, err := tx.Stmt(l.sql.insert)
		if err != nil {
			return err
		}
		if err := stmt.Int(1, m.id).Text(2, m.group).Int(3, 0).Int(4, m.sent).Blob(5, body).Exec(); err != nil {
			return err
		}
		if received > 1 {
			if stmt, err = tx.Stmt(l.sql.fail); err != nil {
				return err
			}
			if err := stmt.Int(1, int64(received)).Int(2, m.id).Exec(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Done answers the sender. What could not be written is handled all the same, and then
// again when its sender repeats it.
func (f *forwarding) Done(err error) {
	l := f.line
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range f.msgs {
		if m.forwarded != nil {
			m.forwarded, m.bare, f.err = nil, err != nil, err
			f.closeOne()
		}
		l.pass(m)
	}
}

// pass notes that a message is in memory whose row [line.load] has not come to: where all before it are, it need not.
func (l *line) pass(m *message) {
	if l.loaded == l.newest {
		l.newest = max(l.newest, m.id)
		l.loaded = l.newest
		delete(l.unloaded, m.id)
	}
}
