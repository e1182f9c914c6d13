package sqlite

// deque is a queue with a front that also takes values back. It is a ring, so that both ends cost the same at any length.
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

// pushFront puts vs, in their order, before everything else.
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

// group is the ready messages of one group, in their order. A group that has any
// is in the ring, unless its queue is FIFO and a batch locks it, or it is at its bound.
type group struct {
	name    string
	ready   deque[*message]
	bytes   int  // of the bodies of ready messages
	handled int  // of the bodies of messages in handlers
	busy    int  // messages of a standard queue in handlers
	locked  bool // by a batch of a FIFO queue
	bounded bool // out of the ring until one of its messages is settled
}

func (g *group) pop() *message {
	m := g.ready.pop()
	g.bytes -= len(m.body)
	return m
}

// ready holds the messages that can be delivered, by group, each group in turn. A FIFO queue keeps the order within a
// group. On a standard queue, a group with many messages does not delay the others.
type ready struct {
	fifo   bool
	groups map[string]*group
	ring   deque[*group]
	count  int

	handled int // bytes of the bodies in handlers
}

func (r *ready) group(name string) *group {
	g := r.groups[name]
	if g == nil {
		g = &group{name: name}
		r.groups[name] = g
	}
	return g
}

func (r *ready) add(m *message) {
	g := r.group(m.group)
	g.ready.push(m)
	g.bytes += len(m.body)
	r.count++
	if g.ready.len() == 1 && !g.locked {
		r.ring.push(g)
	}
}

// available reports that take may find a message.
func (r *ready) available() bool { return r.ring.len() > 0 }

// take removes up to n messages. On a FIFO queue it locks their groups, each until [ready.unlock]; on a standard one at most
// perGroup of a group are in handlers until [ready.settled], if that is not 0. Messages in handlers have at most the given
// number of bytes, unless it is 0.
//
// A message that failed before is a batch of its own, so that a message that always fails fails no others.
func (r *ready) take(n, perGroup, bytes int) (batch []*message) {
	for len(batch) < n && r.available() {
		g := r.ring.first()
		m := g.ready.first()
		if bytes > 0 && r.handled > 0 && r.handled+len(m.body) > bytes {
			break
		}
		most := bytes > 0 && g.handled > 0 && g.handled+len(m.body) > bytes/2
		if !r.fifo && g.name != "" && (perGroup > 0 && g.busy >= perGroup || most) {
			g.bounded = true
			r.ring.pop()
			continue
		}
		again := m.received > 0
		if again && len(batch) > 0 {
			break
		}
		r.ring.pop()
		batch = append(batch, r.handle(g))
		if r.fifo {
			g.locked = true
			for !again && len(batch) < n && g.ready.len() > 0 && g.ready.first().received == 0 &&
				(bytes == 0 || r.handled+len(g.ready.first().body) <= bytes) {
				batch = append(batch, r.handle(g))
			}
		} else if g.busy++; g.ready.len() > 0 {
			r.ring.push(g)
		}
		if again {
			break
		}
	}
	r.count -= len(batch)
	return batch
}

// pushFront returns messages of one group to its front. On a FIFO queue the group
// stays locked.
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
		r.ring.push(g)
	}
}

// handle removes the first message of a group for a handler.
func (r *ready) handle(g *group) *message {
	m := g.pop()
	m.handled = len(m.body)
	g.handled += m.handled
	r.handled += m.handled
	return m
}

// release takes a message out of its handler.
func (r *ready) release(m *message) {
	g := r.groups[m.group]
	r.handled -= m.handled
	g.handled -= m.handled
	m.handled = 0
	if r.fifo {
		return // the group stays locked
	}
	if g.busy--; g.bounded {
		g.bounded = false
		r.ring.push(g)
	} else if g.busy == 0 && g.ready.len() == 0 {
		delete(r.groups, m.group)
	}
}

// unlock lets a group of a FIFO queue be taken from again.
func (r *ready) unlock(name string) {
	g := r.groups[name]
	if g == nil {
		return
	}
	g.locked = false
	if g.ready.len() > 0 {
		r.ring.push(g)
	} else {
		delete(r.groups, name)
	}
}
