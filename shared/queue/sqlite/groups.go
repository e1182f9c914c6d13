package sqlite

import "slices"

// deque is a queue that also takes back at its front.
type deque[T any] struct {
	items []T
	head  int
}

func (d *deque[T]) len() int { return len(d.items) - d.head }

func (d *deque[T]) push(v T) {
	if d.head > 32 && d.head > len(d.items)/2 {
		n := copy(d.items, d.items[d.head:])
		clear(d.items[n:])
		d.items, d.head = d.items[:n], 0
	}
	d.items = append(d.items, v)
}

func (d *deque[T]) pop() (v T) {
	v, d.items[d.head] = d.items[d.head], v
	if d.head++; d.head == len(d.items) {
		d.items, d.head = d.items[:0], 0
	}
	return v
}

// pushFront puts vs, in their order, before everything else.
func (d *deque[T]) pushFront(vs ...T) {
	d.items = slices.Concat(vs, d.items[d.head:])
	d.head = 0
}

// group is the ready messages of one group, in their order. A group that has any
// is in the ring, unless its queue is FIFO and a batch holds it.
type group struct {
	name  string
	ready deque[*message]
	held  bool
}

// ready is what can be handed out, group by group in turn: on a FIFO queue
// because the order within each is kept, on a standard one so that a group with
// many messages does not keep the others waiting.
type ready struct {
	fifo   bool
	groups map[string]*group
	ring   deque[*group]
	count  int
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
	r.count++
	if g.ready.len() == 1 && !g.held {
		r.ring.push(g)
	}
}

// available reports whether take would find anything.
func (r *ready) available() bool { return r.ring.len() > 0 }

// take removes up to n messages. On a FIFO queue it holds their groups, each until [ready.release].
func (r *ready) take(n int) (batch []*message) {
	for len(batch) < n && r.available() {
		g := r.ring.pop()
		if r.fifo {
			g.held = true
			for len(batch) < n && g.ready.len() > 0 {
				batch = append(batch, g.ready.pop())
			}
			continue
		}
		batch = append(batch, g.ready.pop())
		if g.ready.len() > 0 {
			r.ring.push(g)
		} else {
			delete(r.groups, g.name)
		}
	}
	r.count -= len(batch)
	return batch
}

// putBack returns messages of one group to its front. On a FIFO queue the group is
// held and stays so.
func (r *ready) putBack(name string, msgs ...*message) {
	g := r.group(name)
	was := g.ready.len()
	g.ready.pushFront(msgs...)
	r.count += len(msgs)
	if was == 0 && !g.held {
		r.ring.push(g)
	}
}

// release lets a group of a FIFO queue be taken from again.
func (r *ready) release(name string) {
	g := r.groups[name]
	if g == nil {
		return
	}
	g.held = false
	if g.ready.len() > 0 {
		r.ring.push(g)
	} else {
		delete(r.groups, name)
	}
}
