package sqlite

import (
	"bytes"
	"context"
	"time"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

const (
	// maxSend and maxSendBytes bound one transaction, so that other writes do not wait long for a large send.
	maxSend      = 250
	maxSendBytes = 4 << 20
	// maxID is the length of a group or a deduplication id.
	maxID = 128
)

// Send writes the messages in their order. Many messages take several transactions.
func (q *Queues) Send(ctx context.Context, name queue.Name, msgs ...queue.Outgoing) error {
	mq, err := q.findQueue(name)
	if err != nil {
		return err
	}
	for i := range msgs {
		if err := check(name, &msgs[i]); err != nil {
			return err
		}
	}
	if len(msgs) == 0 {
		return ctx.Err()
	}
	for len(msgs) > 0 {
		n := 0
		for size := 0; n < min(len(msgs), maxSend) && size < maxSendBytes; n++ {
			size += len(msgs[n].Body)
		}
		if err := q.engine.Do(ctx, &sending{queue: mq, msgs: msgs[:n]}); err != nil {
			return fault.Wrap(engine.Kind(err), err, "send %d messages to %s", len(msgs), name)
		}
		msgs = msgs[n:]
	}
	return nil
}

// check checks a message against the limits of package queue.
func check(name queue.Name, m *queue.Outgoing) error {
	switch {
	case len(m.Body) == 0 || !utf8.Valid(m.Body):
		return fault.New(fault.Invalid, "a message for %s is empty or not UTF-8", name)
	case len(m.Body) > queue.MaxBody:
		return fault.New(fault.TooLarge, "a message for %s has %d bytes (allowed: up to %d)", name, len(m.Body), queue.MaxBody)
	case !validID(m.Group) || !validID(m.Dedup):
		return fault.New(fault.Invalid, "group or deduplication id of a message for %s is invalid (allowed: up to %d characters of [A-Za-z0-9_-])", name, maxID)
	case m.Delay < 0 || m.Delay > queue.MaxDelay:
		return fault.New(fault.Invalid, "delay %v of a message for %s is not allowed (allowed: 0 to %v)", m.Delay, name, queue.MaxDelay)
	case name.FIFO() && m.Group == "":
		return fault.New(fault.Invalid, "a message for %s needs a group", name)
	case name.FIFO() && m.Delay != 0:
		return fault.New(fault.Invalid, "a message for %s cannot be delayed", name)
	case !name.FIFO() && m.Dedup != "":
		return fault.New(fault.Invalid, "%s does not deduplicate", name)
	}
	return nil
}

func validID(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return len(s) <= maxID
}

// sending is a job that writes messages of one Send.
type sending struct {
	queue *memoryQueue
	msgs  []queue.Outgoing

	ready   []*message
	delayed int
	due     int64 // when the first delayed message is due
	at      time.Time
	fresh   []digest // deduplication ids
}

func (s *sending) Apply(tx *engine.Tx) error {
	mq := s.queue
	s.ready, s.fresh, s.delayed, s.due = s.ready[:0], s.fresh[:0], 0, 0
	s.at = tx.Now
	sent := tx.Now.UnixMicro()
	for i := range s.msgs {
		m := &s.msgs[i]
		if m.Dedup != "" {
			id := digestOf(m.Dedup)
			if !mq.dedup.claim(tx, id) {
				continue
			}
			s.fresh = append(s.fresh, id)
		}
		due := int64(0)
		if m.Delay > 0 {
			due = (tx.Now.Add(m.Delay).UnixMicro() + 999) / 1000
		}
		id := mq.lastID.Add(1)
		stmt, err := tx.Stmt(mq.sql.insert)
		if err != nil {
			return err
		}
		if err := stmt.Int(1, id).Text(2, m.Group).Int(3, due).Int(4, sent).Blob(5, m.Body).Exec(); err != nil {
			return err
		}
		if due > 0 {
			s.delayed++
			if s.due == 0 || due < s.due {
				s.due = due
			}
			continue
		}
		s.ready = append(s.ready, &message{id: id, group: m.Group, body: bytes.Clone(m.Body), sent: sent})
	}
	if len(s.fresh) > 0 {
		return mq.dedup.write(tx, s.fresh)
	}
	return nil
}

// Done publishes the messages after their commit.
func (s *sending) Done(err error) {
	if err != nil {
		return
	}
	if len(s.fresh) > 0 {
		s.queue.dedup.add(s.fresh, s.at)
	}
	s.queue.publish(s.ready, s.delayed, s.due)
}
