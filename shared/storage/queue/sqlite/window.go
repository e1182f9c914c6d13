package sqlite

import (
	"math"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

const (
	// fetchRows and fetchBytes bound what one read of the file brings into memory.
	fetchRows  = 500
	fetchBytes = 8 << 20
	// spillShare is the part of the free room that one group may have.
	spillShare = 8
	// spillIDs bounds the ids that one read of a group looks at, because rows of other groups may be between them.
	spillIDs = 20_000
)

// window holds the messages of a queue that are in memory and knows which rows of the file are not.
//
// It moves over the rows in the order of their ids. The rows up to loaded are, or were, in memory. The rows after it, up
// to newest, arrived while memory had no room, and [window.nextFetch] says when to read them. Three kinds of rows need
// more than these two ids:
//
//   - Delayed rows are not in the window. They become ordinary rows when they are due.
//   - Forwarded messages, and delayed ones that became due, may be in memory before the window comes to their rows. It
//     skips these early rows.
//   - A group with many messages must not fill the memory, because the messages of all other groups would then wait for it
//     in the file. So a group may have an eighth of the free room. Memory with n such groups is full to n/(n+8), and there
//     is always room for the first messages of another group. The other rows of such a group are spilled: the window
//     passes over them, and reads them when few messages of the group are left in memory.
type window struct {
	maxMessages, maxBytes int

	ready           ready
	counts          [places]int
	messages, bytes int // in the places of [place.inWindow], and the size of their bodies

	loaded, newest int64
	early          map[int64]string // ids of rows after loaded, with their groups
	spills         map[string]*spill
}

// spill is a group with spilled rows. As long as there are any, its messages get into memory only from the spill.
type spill struct {
	group string
	// from is the id of the first spilled row. All rows of the group from there to [window.loaded] are spilled, except early
	// ones.
	from  int64
	early map[int64]bool
	// late are the ids of rows before from. They were delayed when the rows around them were read.
	late []int64
}

// move takes a message to another place.
func (w *window) move(m *message, to place) {
	w.counts[m.place]--
	w.counts[to]++
	if from := m.place.inWindow(); from != to.inWindow() {
		if from {
			w.messages--
			w.bytes -= len(m.body)
		} else {
			w.messages++
			w.bytes += len(m.body)
		}
	}
	m.place = to
}

// depth counts the messages by place. A failed message that waits for its back-off counts as in flight.
func (w *window) depth() queue.Depth {
	n := &w.counts
	return queue.Depth{
		Visible:  max(n[placeFile]+n[placeReady], 0), // a row may be read and accepted before its commit is published
		InFlight: n[placeInFlight] + n[placeBlocked] + n[placeBackOff],
		Delayed:  n[placeDelayed],
	}
}

// dropBody frees memory if there are too many bytes in it. The message reads its body again from its row.
func (w *window) dropBody(m *message) {
	if w.bytes > w.maxBytes && m.row == rowWritten {
		w.bytes -= len(m.body)
		m.body = nil
	}
}

// fits reports whether messages with so many bytes can be added without exceeding the bounds.
func (w *window) fits(messages, bytes int) bool {
	return messages <= w.free() && w.bytes+bytes <= w.maxBytes
}

// free returns how many messages can be added.
func (w *window) free() int { return w.maxMessages - w.messages }

// hasRoom reports whether rows should be read: when half of the memory is free, or when it has no message to deliver.
func (w *window) hasRoom() bool {
	if w.ready.count == 0 {
		return w.free() > 0
	}
	return w.messages <= w.maxMessages/2 && w.bytes <= w.maxBytes/2
}

// share returns how many messages and bytes one group may have ready.
func (w *window) share() (messages, bytes int) {
	return (w.maxMessages/2 - w.messages) / spillShare, (w.maxBytes/2 - w.bytes) / spillShare
}

// complete reports whether the window has come to all rows.
func (w *window) complete() bool { return w.loaded == w.newest }

// add makes a message ready.
func (w *window) add(m *message) {
	w.move(m, placeReady)
	w.ready.add(m)
}

// append moves the window over a new row if it has come to all rows before and there is room. Otherwise the row waits
// in the file.
func (w *window) append(m *message) {
	room := w.complete() && w.fits(1, 1)
	w.newest = max(w.newest, m.id)
	if m.id <= w.loaded || !room {
		return // a fetch read the row already, or will read it
	}
	w.loaded = m.id
	if w.mustSpill(m.group) {
		w.spill(m, m.id)
	} else {
		w.add(m)
	}
}

// addDue makes a message ready whose delay has ended. Its row may be anywhere in the window or after it.
func (w *window) addDue(m *message) {
	if w.mustSpill(m.group) {
		w.spill(m, w.loaded+1) // rows before that may be in memory
		return
	}
	w.addEarly(m)
	w.pass(m)
}

// addEarly makes a message ready to whose row the window may not have come.
func (w *window) addEarly(m *message) {
	if m.id > w.loaded {
		w.early[m.id] = m.group
	}
	w.add(m)
}

// pass moves a complete window over the row of a message that is in memory, so that no fetch reads it.
func (w *window) pass(m *message) {
	if w.complete() {
		w.newest = max(w.newest, m.id)
		w.loaded = w.newest
		delete(w.early, m.id)
	}
}

// mustSpill reports whether a message of the group stays in the file. Messages without a group and the first message of a
// group are never spilled.
func (w *window) mustSpill(group string) bool {
	if w.spills[group] != nil {
		return true
	}
	g := w.ready.groups[group]
	if group == "" || g == nil || g.ready.len() == 0 {
		return false
	}
	messages, bytes := w.share()
	return g.ready.len() >= messages || g.bytes >= bytes
}

// spill leaves a message in the file. If it is the first spilled message of its group, the spill begins at the id from.
func (w *window) spill(m *message, from int64) {
	sp := w.spills[m.group]
	if sp == nil {
		sp = &spill{group: m.group, from: from, early: map[int64]bool{}}
		for id, group := range w.early {
			if group == m.group {
				sp.early[id] = true
			}
		}
		w.spills[m.group] = sp
	}
	switch {
	case m.id > w.loaded:
		w.newest = max(w.newest, m.id) // the window will come to it
	case m.id < sp.from:
		sp.late = append(sp.late, m.id)
	}
	w.move(m, placeFile)
}

// fetch is one read of the file.
type fetch struct {
	spill       *spill // nil: the rows after the window
	from, to    int64
	late        []int64 // instead of from and to
	rows, bytes int
}

// nextFetch returns the next read for which memory has room. It reports false if there is no such read.
func (w *window) nextFetch() (f fetch, ok bool) {
	if w.complete() && len(w.spills) == 0 || !w.hasRoom() {
		return fetch{}, false
	}
	if !w.complete() {
		return fetch{from: w.loaded + 1, to: w.newest, rows: min(w.free(), fetchRows), bytes: fetchBytes}, true
	}
	messages, bytes := w.share()
	for group, sp := range w.spills {
		n := max(messages, 1)
		if g := w.ready.groups[group]; g != nil && g.ready.len() > 0 {
			if g.ready.len() > messages/2 || g.bytes > bytes/2 {
				continue
			}
			n = messages - g.ready.len()
		}
		n = min(n, fetchRows)
		return fetch{
			spill: sp, from: sp.from, to: min(w.loaded, sp.from+spillIDs-1), late: sp.late[:min(n, len(sp.late))],
			rows: n, bytes: min(max(bytes, 1), fetchBytes),
		}, true
	}
	return fetch{}, false
}

// read reads the rows of a fetch. A row that was deleted by hand is left out.
func (f *fetch) read(c *engine.Conn, sql *statements) ([]*message, error) {
	if f.spill == nil {
		s, err := c.Stmt(sql.after)
		if err != nil {
			return nil, err
		}
		return readMessages(s.Int(1, f.from-1).Int(2, int64(f.rows)), f.bytes)
	}
	if len(f.late) == 0 {
		s, err := c.Stmt(sql.ofGroup)
		if err != nil {
			return nil, err
		}
		return readMessages(s.Int(1, f.from).Int(2, f.to).Text(3, f.spill.group).Int(4, int64(f.rows)), f.bytes)
	}
	s, err := c.Stmt(sql.row)
	if err != nil {
		return nil, err
	}
	var all []*message
	for _, id := range f.late {
		msgs, err := readMessages(s.Int(1, id), math.MaxInt)
		if err != nil {
			return nil, err
		}
		all = append(all, msgs...)
	}
	return all, nil
}

// readMessages reads messages until their bodies have many bytes.
func readMessages(s *engine.Stmt, most int) (msgs []*message, err error) {
	defer s.Reset()
	for size := 0; size < most; {
		row, err := s.Step()
		if err != nil || !row {
			return msgs, err
		}
		m := &message{
			id: s.ColumnInt(0), group: s.ColumnText(1), received: int(s.ColumnInt(2)), sent: s.ColumnInt(3), body: s.ColumnBlob(4),
		}
		size += len(m.body)
		msgs = append(msgs, m)
	}
	return msgs, nil
}

// finish adds the messages that a fetch has read.
func (w *window) finish(f *fetch, msgs []*message) {
	if f.spill != nil {
		w.finishSpill(f, msgs)
		return
	}
	w.loaded = f.to // if there is no row, everything that was committed before the read is in memory
	if len(msgs) > 0 {
		w.loaded = msgs[len(msgs)-1].id
	}
	for _, m := range msgs {
		if _, early := w.early[m.id]; early {
			continue
		}
		if w.mustSpill(m.group) {
			w.spill(m, m.id)
		} else {
			w.add(m)
		}
	}
	for id := range w.early {
		if id <= w.loaded {
			delete(w.early, id) // the window has passed the row, or there will be none
		}
	}
	w.newest = max(w.newest, w.loaded) // a fetch may read a commit before it is published
}

func (w *window) finishSpill(f *fetch, msgs []*message) {
	sp := f.spill
	switch {
	case len(f.late) > 0:
		sp.late = sp.late[len(f.late):]
	case len(msgs) == 0:
		sp.from = f.to + 1
	default:
		sp.from = msgs[len(msgs)-1].id + 1
	}
	for _, m := range msgs {
		if !sp.early[m.id] {
			w.add(m)
		}
	}
	if len(sp.late) == 0 && sp.from > w.loaded {
		delete(w.spills, sp.group)
	}
}
