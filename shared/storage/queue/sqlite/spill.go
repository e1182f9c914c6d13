package sqlite

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// A group with many messages must not fill the memory, because the messages of all other groups would then wait for it
// in the file. A group may have an eighth of the room that is left. Memory with n such groups is full to n/(n+8), so
// there is always room for the first messages of another group.
//
// The other messages of such a group are spilled: they stay in the file, and the queue reads them when few of the group
// are left in memory.

const (
	// spillShare is the part of the free room that one group may have.
	spillShare = 8
	// refillWindow bounds the ids that one read of a group looks at, because rows of other groups may be between them.
	refillWindow = 20_000
)

// spill is what memory knows of a group with spilled messages.
type spill struct {
	// from is the id of the first spilled row. The rows from there to [memoryQueue.loaded] are spilled, except those in
	// except, which are or were in memory. No message of the group is added to memory other than by a refill.
	from   int64
	except map[int64]bool
	// late are the ids of rows before from. They were delayed when the others were read.
	late []int64
}

// share returns how many messages and bytes one group may have ready.
func (mq *memoryQueue) share() (messages, bytes int) {
	return (mq.q.opts.MaxReady/2 - mq.resident) / spillShare, (mq.q.opts.MaxBytes/2 - mq.bytes) / spillShare
}

// mustSpill reports whether a message of the group stays in the file. Messages without a group are never spilled, and
// neither is the first one of a group.
func (mq *memoryQueue) mustSpill(name string) bool {
	if mq.spilled[name] != nil {
		return true
	}
	g := mq.ready.groups[name]
	if name == "" || g == nil || g.ready.len() == 0 {
		return false
	}
	messages, bytes := mq.share()
	return g.ready.len() >= messages || g.bytes >= bytes
}

// spill leaves a message in the file. Its row is not delayed, or not any more. If it is the first spilled one of its
// group, all rows of the group from the given id to [memoryQueue.loaded] are spilled, except those in unloaded.
func (mq *memoryQueue) spill(m *message, from int64) {
	sp := mq.spilled[m.group]
	if sp == nil {
		sp = &spill{from: from, except: map[int64]bool{}}
		for id, group := range mq.unloaded {
			if group == m.group {
				sp.except[id] = true
			}
		}
		mq.spilled[m.group] = sp
	}
	switch {
	case m.id > mq.loaded:
		mq.newest = max(mq.newest, m.id) // load comes to it
	case m.id < sp.from:
		sp.late = append(sp.late, m.id)
	}
}

// toRefill returns a group of which memory has few messages and the file has more.
func (mq *memoryQueue) toRefill() (name string, sp *spill, n int) {
	if len(mq.spilled) == 0 || !mq.hasRoom() {
		return "", nil, 0
	}
	messages, bytes := mq.share()
	for name, sp := range mq.spilled {
		g := mq.ready.groups[name]
		if g == nil || g.ready.len() == 0 {
			return name, sp, min(max(messages, 1), readStep)
		}
		if g.ready.len() <= messages/2 && g.bytes <= bytes/2 {
			return name, sp, min(messages-g.ready.len(), readStep)
		}
	}
	return "", nil, 0
}

// refill reads spilled messages, while there is room and a group needs them.
func (mq *memoryQueue) refill() error {
	for {
		mq.mu.Lock()
		name, sp, n := mq.toRefill()
		if sp == nil {
			mq.mu.Unlock()
			return nil
		}
		_, share := mq.share()
		late := sp.late[:min(n, len(sp.late))]
		from, to := sp.from, min(mq.loaded, sp.from+refillWindow-1)
		mq.mu.Unlock()

		var msgs []*message
		whole := true // all rows of the group in the window were read
		err := mq.q.engine.Read(context.Background(), func(c *engine.Conn) (err error) {
			if len(late) > 0 {
				msgs, err = mq.rowsOf(c, late)
				return err
			}
			s, err := c.Stmt(mq.sql.refill)
			if err != nil {
				return err
			}
			msgs, err = rows(s.Int(1, from).Int(2, to).Text(3, name).Int(4, int64(n)), min(max(share, 1), readBytes), func() {})
			whole = len(msgs) == 0
			return err
		})
		if err != nil {
			return err
		}
		mq.mu.Lock()
		switch {
		case len(late) > 0:
			sp.late = sp.late[len(late):]
		case whole:
			sp.from = to + 1
		default:
			sp.from = msgs[len(msgs)-1].id + 1
		}
		for _, m := range msgs {
			if !sp.except[m.id] {
				mq.add(m)
			}
		}
		if len(sp.late) == 0 && sp.from > mq.loaded {
			delete(mq.spilled, name)
		}
		mq.wakeWorker()
		mq.mu.Unlock()
	}
}

// rowsOf reads rows by their ids. A row that was deleted by hand is left out.
func (mq *memoryQueue) rowsOf(c *engine.Conn, ids []int64) (msgs []*message, err error) {
	s, err := c.Stmt(mq.sql.row)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		found, err := rows(s.Int(1, id), readBytes, func() {})
		if err != nil {
			return nil, err
		}
		msgs = append(msgs, found...)
	}
	return msgs, nil
}
