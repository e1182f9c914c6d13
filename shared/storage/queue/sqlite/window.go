package sqlite

import (
	"math"
	"strings"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

const (
	// fetchRows and fetchBytes limit how much one read of the file brings into memory.
	fetchRows  = 500
	fetchBytes = 8 << 20
	// spillShare limits the ready messages of one group to an eighth (1/spillShare) of the free room in memory, so that they do not
	// keep other groups out; see [window.groupLimit].
	spillShare = 8
	// spillIDs limits how many ids one read scans for the rows of a spilled group, which is a group with rows left in the file. Most of
	// the scanned rows may belong to other groups, so the read could otherwise take long.
	spillIDs = 20_000
)

// window holds the messages of a queue that are in memory, and knows which rows of the file are not in memory.
//
// The rows up to the id loaded are, or were, in memory. The rows after loaded, up to the id newest, arrived while memory had no room, and
// [window.nextFetch] says when to read them. Three kinds of rows need more than these two ids:
//
//   - Delayed rows are not in the window. They become ordinary rows when they are due.
//   - Forwarded messages, and delayed messages that became due, may be in memory although their ids are greater than loaded. The map
//     early has their ids, so that a later read skips their rows.
//   - A group with many messages must not fill the memory, because all other groups would then wait for it. So each group may use an
//     eighth of the room that is free in one half of the memory. This half never becomes full: n such groups fill n/(n+8) of it, for
//     example 8 groups fill half of it. The remaining rows of a large group are spilled: they stay in the file until few messages of the
//     group are left in memory.
type window struct {
	maxMessages, maxBytes int

	ready           ready
	counts          [places]int
	messages, bytes int // messages for which [place.inWindow] returns true, and the total size of their bodies

	loaded, newest int64
	early          map[int64]string // the early rows with ids greater than loaded, and their groups
	spills         map[string]*spill
}

// spill describes a group with rows that stay in the file because the group has many messages in memory. As long as there are such rows,
// the group's new messages stay in the file too, so that they do not overtake the older ones.
type spill struct {
	group string
	// from is the id of the first row that stayed in the file. All rows of the group from there to [window.loaded] stayed in the file,
	// except the rows in early.
	from  int64
	early map[int64]bool
	// late has the ids of the group's rows that stayed in the file although their ids are less than the field from. Their messages were
	// delayed, and became due after the rows around them had been read.
	late []int64
}

// move changes the place of a message, for example from placeReady to placeInFlight, and updates the window's counts.
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

// depth counts the messages by their places. A failed message that waits for its back-off counts as in flight.
func (w *window) depth() queue.Depth {
	n := &w.counts
	return queue.Depth{
		Visible:  max(n[placeFile]+n[placeReady], 0), // a message may be accepted before publish counts it
		InFlight: n[placeInFlight] + n[placeBlocked] + n[placeBackOff],
		Delayed:  n[placeDelayed],
	}
}

// dropBody frees the body of a message if the bodies in memory exceed maxBytes. The next worker reads the body from the message's row.
func (w *window) dropBody(m *message) {
	if w.bytes > w.maxBytes && m.row == rowWritten {
		w.bytes -= len(m.body)
		m.body, m.value = nil, nil
	}
}

// fits reports whether memory has room for the given number of additional messages with the given total size of their bodies.
func (w *window) fits(messages, bytes int) bool {
	return messages <= w.free() && w.bytes+bytes <= w.maxBytes
}

func (w *window) free() int { return w.maxMessages - w.messages }

// hasRoom reports whether memory has room to read rows from the file. Usually half of the memory must be free. If no message in memory is
// ready, room for one message is enough, because workers would otherwise have no work.
func (w *window) hasRoom() bool {
	if w.ready.count == 0 {
		return w.free() > 0
	}
	return w.messages <= w.maxMessages/2 && w.bytes <= w.maxBytes/2
}

// groupLimit returns how many ready messages of one group may be in memory, and how many bytes their bodies may have in total. The
// comment of [window] explains the limit.
func (w *window) groupLimit() (messages, bytes int) {
	return (w.maxMessages/2 - w.messages) / spillShare, (w.maxBytes/2 - w.bytes) / spillShare
}

// complete reports whether all messages in the SQLite file are, or were, in memory. It ignores two kinds of messages: delayed messages that
// are not due yet, and messages that stay in the file because their group has too many ("spilled" messages).
func (w *window) complete() bool { return w.loaded == w.newest }

func (w *window) add(m *message) {
	w.move(m, placeReady)
	w.ready.add(m)
}

// append adds a new message if memory has room and all earlier rows are or were in memory. Otherwise a later read finds the message in
// the file.
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

// addDue makes a delayed message ready after its delay has ended. The message's id may be less or greater than [window.loaded].
func (w *window) addDue(m *message) {
	if w.mustSpill(m.group) {
		w.spill(m, w.loaded+1) // fetches must leave out the rows up to loaded, which may be in memory
		return
	}
	w.addEarly(m)
	w.pass(m)
}

// addEarly makes a message ready that was forwarded, or whose delay has ended. If its id is greater than [window.loaded],
// addEarly records the id, so that a later fetch skips the row.
func (w *window) addEarly(m *message) {
	if m.id > w.loaded {
		w.early[m.id] = m.group
	}
	w.add(m)
}

// pass records that a message is in memory. If all earlier rows are or were in memory too, it advances [window.loaded].
func (w *window) pass(m *message) {
	if w.complete() {
		w.newest = max(w.newest, m.id)
		w.loaded = w.newest
		delete(w.early, m.id)
	}
}

// mustSpill reports whether a new message of the group must be "spilled": it stays only in the file and does not come into memory. That
// is so if older messages of the group are spilled, or if the group's ready messages have reached [window.groupLimit]. A group without
// ready and spilled messages may always have one message in memory. Messages without a group are never spilled.
func (w *window) mustSpill(group string) bool {
	if w.spills[group] != nil {
		return true
	}
	g := w.ready.groups[group]
	if group == "" || g == nil || g.ready.len() == 0 {
		return false
	}
	messages, bytes := w.groupLimit()
	return g.ready.len() >= messages || g.bytes >= bytes
}

// spill leaves a message in the file because its group has many messages in memory. The parameter from matters only for the first message
// that the group leaves in the file: it is the id at which later reads of the group begin.
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
		w.newest = max(w.newest, m.id) // makes a later fetch read the row
	case m.id < sp.from:
		sp.late = append(sp.late, m.id)
	}
	w.move(m, placeFile)
}

type fetch struct {
	spill       *spill // the group to read; nil to read the rows after [window.loaded]
	from, to    int64
	late        []int64 // if not empty, only these ids are read, and not the range
	rows, bytes int
}

// nextFetch returns which rows to read from the file next. It returns false if memory has no room or there is nothing to read.
func (w *window) nextFetch() (f fetch, ok bool) {
	if w.complete() && len(w.spills) == 0 || !w.hasRoom() {
		return fetch{}, false
	}
	if !w.complete() {
		return fetch{from: w.loaded + 1, to: w.newest, rows: min(w.free(), fetchRows), bytes: fetchBytes}, true
	}
	messages, bytes := w.groupLimit()
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

// read reads the rows of a fetch. Rows that an operator has deleted with SQL are missing in the result.
func (f *fetch) read(c *engine.Conn, sql *statements) ([]*message, error) {
	if f.spill == nil {
		return readMessages(c.Stmt(sql.after).Int(1, f.from-1).Int(2, int64(f.rows)), f.bytes)
	}
	if len(f.late) == 0 {
		return readMessages(c.Stmt(sql.ofGroup).Int(1, f.from).Int(2, f.to).Text(3, f.spill.group).Int(4, int64(f.rows)), f.bytes)
	}
	s := c.Stmt(sql.row)
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

// readMessages reads messages from the rows of s until the total size of their bodies is at least limit bytes, or until there are no more
// rows.
func readMessages(s *engine.Stmt, limit int) (msgs []*message, err error) {
	defer s.Reset()
	for size := 0; size < limit; {
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

func (w *window) finish(f *fetch, msgs []*message) {
	if f.spill != nil {
		w.finishSpill(f, msgs)
		return
	}
	w.loaded = f.to // if the fetch found no row, the file has no further rows up to f.to
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
			delete(w.early, id) // early has only ids after loaded
		}
	}
	w.newest = max(w.newest, w.loaded) // a fetch may find rows before [memoryQueue.publish] has added them
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

// deque is a double-ended queue in a ring buffer.
type deque[T any] struct {
	items []T // its length is 0 or a power of two
	head  int
	count int
}

func (d *deque[T]) len() int { return d.count }

func (d *deque[T]) at(i int) *T { return &d.items[(d.head+i)&(len(d.items)-1)] }

func (d *deque[T]) first() T { return *d.at(0) }

func (d *deque[T]) push(v T) {
	d.reserve(1)
	*d.at(d.count) = v
	d.count++
}

func (d *deque[T]) pop() (v T) {
	v, *d.at(0) = *d.at(0), v
	d.head++
	d.count--
	return v
}

func (d *deque[T]) pushFront(vs ...T) {
	d.reserve(len(vs))
	d.head = (d.head - len(vs)) & (len(d.items) - 1)
	d.count += len(vs)
	for i, v := range vs {
		*d.at(i) = v
	}
}

func (d *deque[T]) reserve(n int) {
	size := max(len(d.items), 4)
	for size < d.count+n {
		size *= 2
	}
	if size == len(d.items) {
		return
	}
	items := make([]T, size)
	for i := range d.count {
		items[i] = *d.at(i)
	}
	d.items, d.head = items, 0
}

// groupOf returns the name of a message's group in this package. The name includes the owner, so that each owner's messages wait in a
// group of their own.
func groupOf(m *queue.Outgoing) string {
	if m.Owner == "" {
		return m.Group
	}
	return m.Group + "/" + m.Owner
}

func splitGroup(name string) (group, owner string) {
	group, owner, _ = strings.Cut(name, "/")
	return group, owner
}

// group holds the ready messages of one group, as [groupOf] names it. A group with ready messages waits for its turn in its owner's ring,
// unless it is locked or has reached its limit.
type group struct {
	name   string // see [groupOf]
	owner  *owner
	limit  *limit
	ready  deque[*message]
	bytes  int  // of the bodies of ready messages
	busy   int  // messages in handlers
	locked bool // the group must wait, because a batch or a back-off has messages of it; only in a FIFO queue
}

func (g *group) pop() *message {
	m := g.ready.pop()
	g.bytes -= len(m.body)
	return m
}

type owner struct {
	groups int           // number of this owner's groups
	busy   int           // messages in handlers
	ring   deque[*group] // groups with messages that can be delivered
}

// limit counts the messages in handlers, because [queue.ConsumeOptions] limits them for each [queue.Outgoing.Group]. If messages with the
// same Group have different owners, they are in several groups of this package, such as g/ann and g/bob. These groups share a limit.
type limit struct {
	groups  int           // number of the groups that share this limit
	busy    int           // messages in handlers
	handled int           // bytes of the bodies in handlers
	bounded deque[*group] // groups of a standard queue that wait because handlers have too many of their messages or bytes
}

// ready holds the messages that can be delivered. The owners take turns, and so do the groups of each owner, so that an owner or group
// with many messages does not delay the others. A FIFO queue keeps the order within a group.
type ready struct {
	fifo    bool
	groups  map[string]*group
	owners  map[string]*owner
	limits  map[string]*limit
	noOwner owner         // owns the groups without an owner
	ring    deque[*owner] // owners with groups in their rings
	count   int

	busy    int // messages in handlers
	handled int // bytes of the bodies in handlers
}

func newReady(fifo bool) ready {
	return ready{fifo: fifo, groups: map[string]*group{}, owners: map[string]*owner{}, limits: map[string]*limit{}}
}

func (r *ready) group(name string) *group {
	g := r.groups[name]
	if g == nil {
		base, of := splitGroup(name)
		g = &group{name: name, owner: &r.noOwner, limit: getOrAdd(r.limits, base)}
		if of != "" {
			g.owner = getOrAdd(r.owners, of)
		}
		g.owner.groups++
		g.limit.groups++
		r.groups[name] = g
	}
	return g
}

func getOrAdd[V any](m map[string]*V, key string) *V {
	if m[key] == nil {
		m[key] = new(V)
	}
	return m[key]
}

func (r *ready) forget(g *group) {
	delete(r.groups, g.name)
	base, of := splitGroup(g.name)
	if g.owner.groups--; g.owner.groups == 0 {
		delete(r.owners, of)
	}
	if g.limit.groups--; g.limit.groups == 0 {
		delete(r.limits, base)
	}
}

func (r *ready) add(m *message) {
	g := r.group(m.group)
	g.ready.push(m)
	g.bytes += len(m.body)
	r.count++
	if g.ready.len() == 1 && !g.locked {
		r.enqueue(g)
	}
}

// enqueue puts a group at the end of its owner's ring, where the group waits for its turn.
func (r *ready) enqueue(g *group) {
	g.owner.ring.push(g)
	if g.owner.ring.len() == 1 {
		r.ring.push(g.owner)
	}
}

// dequeue ends the turn of the group that [ready.next] has returned, and removes the group from its owner's ring.
func (r *ready) dequeue() {
	o := r.ring.pop()
	o.ring.pop()
	if o.ring.len() > 0 {
		r.ring.push(o)
	}
}

// available reports whether messages may be ready for [ready.take].
func (r *ready) available() bool { return r.ring.len() > 0 }

// next returns the group whose turn it is, or nil. The parameter capacity is how many messages the handlers can have in total. Of the
// capacity that other owners do not use, one owner gets at most three quarters, so that an owner with slow messages does not take all of
// it.
func (r *ready) next(capacity int) *group {
	for range r.ring.len() {
		o := r.ring.first()
		if free := capacity - (r.busy - o.busy); o == &r.noOwner || o.busy < max(1, free*3/4) {
			return o.ring.first()
		}
		r.ring.push(r.ring.pop())
	}
	return nil
}

// take removes up to opts.Batch messages for a handler. The handler has them until [ready.release]. A message that failed before gets a
// batch of its own, so that a message that always fails does not fail others.
//
// On a FIFO queue, take locks the groups of these messages until [ready.unlock]. On a standard queue, opts.PerGroup limits the messages
// of a group that handlers have at a time, and one group gets at most half of opts.Bytes. Groups that differ only in their owner share
// these limits.
func (r *ready) take(opts *queue.ConsumeOptions) (batch []*message) {
	n, bytes := opts.Batch, opts.Bytes
	for len(batch) < n {
		g := r.next(n * opts.Concurrency)
		if g == nil {
			break
		}
		m, l := g.ready.first(), g.limit
		if bytes > 0 && r.handled > 0 && r.handled+len(m.body) > bytes {
			break
		}
		most := bytes > 0 && l.handled > 0 && l.handled+len(m.body) > bytes/2
		if !r.fifo && g.name != "" && (opts.PerGroup > 0 && l.busy >= opts.PerGroup || most) {
			l.bounded.push(g)
			r.dequeue()
			continue
		}
		again := m.received > 0
		if again && len(batch) > 0 {
			break
		}
		r.dequeue()
		batch = append(batch, r.handle(g))
		if r.fifo {
			g.locked = true
			for !again && len(batch) < n && g.ready.len() > 0 && g.ready.first().received == 0 &&
				(bytes == 0 || r.handled+len(g.ready.first().body) <= bytes) {
				batch = append(batch, r.handle(g))
			}
		} else if g.ready.len() > 0 {
			r.enqueue(g)
		}
		if again {
			break
		}
	}
	r.count -= len(batch)
	return batch
}

// pushFront puts messages back at the front of their group. On a FIFO queue, the group stays locked until [ready.unlock].
func (r *ready) pushFront(name string, msgs ...*message) {
	if len(msgs) == 0 {
		return
	}
	g := r.group(name)
	was := g.ready.len()
	g.ready.pushFront(msgs...)
	for _, m := range msgs {
		g.bytes += len(m.body)
	}
	r.count += len(msgs)
	if was == 0 && !g.locked {
		r.enqueue(g)
	}
}

func (r *ready) handle(g *group) *message {
	m := g.pop()
	m.handled = len(m.body)
	g.limit.handled += m.handled
	r.handled += m.handled
	g.busy++
	g.limit.busy++
	g.owner.busy++
	r.busy++
	return m
}

// release records that a handler is done with a message. If groups had to wait because their limit was reached, release gives them turns
// again.
func (r *ready) release(m *message) {
	g := r.groups[m.group]
	g.limit.handled -= m.handled
	r.handled -= m.handled
	m.handled = 0
	g.busy--
	g.limit.busy--
	g.owner.busy--
	r.busy--
	if r.fifo {
		return // the group gets no turn before [ready.unlock]
	}
	for g.limit.bounded.len() > 0 { // wake all of them, because the first may then wait long for its turn
		r.enqueue(g.limit.bounded.pop())
	}
	if g.busy == 0 && g.ready.len() == 0 {
		r.forget(g)
	}
}

func (r *ready) unlock(name string) {
	g := r.groups[name]
	if g == nil {
		return
	}
	g.locked = false
	if g.ready.len() > 0 {
		r.enqueue(g)
	} else {
		r.forget(g)
	}
}
