package sqlite

// deque is a queue with a pushFront. It is a ring buffer, so that adding at either end is cheap at any length.
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

// pushFront adds vs, in their order, before all other values.
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

// group holds the ready messages of one group, in their order. A group with ready messages is in the ring, unless it is
// locked or bounded.
type group struct {
	name    string
	ready   deque[*message]
	bytes   int  // of the bodies of ready messages
	handled int  // of the bodies of messages in handlers
	busy    int  // messages of a standard queue in handlers
	locked  bool // in a FIFO queue, by a batch or a back-off
	bounded bool // in a standard queue, until one of its messages leaves its handler
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

// available reports whether take may find a message.
func (r *ready) available() bool { return r.ring.len() > 0 }

// take removes up to n messages for a handler. They stay with it until [ready.release].
//
// On a FIFO queue take locks their groups until [ready.unlock]. On a standard queue at most perGroup messages of a group are
// in handlers. The bodies in handlers have at most the given number of bytes. For both, 0 is no limit.
//
// A message that failed before gets a batch of its own, so that a message that always fails does not fail others.
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

// pushFront returns messages of one group to its front. On a FIFO queue the group stays locked.
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

// handle removes the first message of a group and counts it as in a handler.
func (r *ready) handle(g *group) *message {
	m := g.pop()
	m.handled = len(m.body)
	g.handled += m.handled
	r.handled += m.handled
	return m
}

// release counts a message as out of its handler.
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

// unlock makes a group of a FIFO queue available again.
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
