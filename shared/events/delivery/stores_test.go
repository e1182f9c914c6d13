package delivery

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// The stores and queues of the tests in this package: mortal dies at a step, hooked fails or interrupts chosen calls, watched
// does the same for a queue, and unorderedStore behaves like DynamoDB.

func (r *rig) enter(ctx context.Context) {
	if r.before != nil {
		r.before(ctx)
	}
}

// mortal is the store and the queues as a process sees them.
type mortal struct {
	store.DB
	r *rig
}

func (m mortal) Stamps() bool { return m.DB.Stamps() && !m.r.unordered }
func (m mortal) Local() bool  { return m.DB.Local() && !m.r.unordered }

func (m mortal) Get(ctx context.Context, keys ...store.Key) (items []*store.Item, err error) {
	m.r.enter(ctx)
	err = m.r.step(func() (err error) { items, err = m.DB.Get(ctx, keys...); return err })
	return items, err
}

func (m mortal) Query(ctx context.Context, q store.Query) (page store.Page, err error) {
	m.r.enter(ctx)
	if strings.HasPrefix(q.Partition, "due#") || strings.HasPrefix(q.Partition, "x#") {
		return m.DB.Query(ctx, q) // one for every minute and shard; all reads alike
	}
	err = m.r.step(func() (err error) { page, err = m.DB.Query(ctx, q); return err })
	return page, err
}

func (m mortal) Write(ctx context.Context, ops ...store.Op) error {
	m.r.enter(ctx)
	return m.r.step(func() error { return m.DB.Write(ctx, ops...) })
}

func (m mortal) WriteAll(ctx context.Context, ops ...store.Op) error {
	m.r.enter(ctx)
	return m.r.step(func() error { return m.DB.WriteAll(context.Background(), ops...) }) // immediately, also if it is unhurried
}

func (m mortal) Send(ctx context.Context, q queue.Name, msgs ...queue.Outgoing) error {
	m.r.enter(ctx)
	if len(msgs) == 0 {
		return nil
	}
	return m.r.step(func() error {
		for _, o := range msgs {
			m.r.sent++
			m.r.queues[q] = append(m.r.queues[q], queue.Message{ID: fmt.Sprint(m.r.sent), Outgoing: o, Sent: m.r.now})
		}
		return nil
	})
}

// hooked is a store before whose calls something happens, which may fail them.
type hooked struct {
	store.DB
	query           func() error
	write, writeAll func(ctx context.Context, ops []store.Op) error
}

func (h hooked) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if h.query != nil {
		if err := h.query(); err != nil {
			return store.Page{}, err
		}
	}
	return h.DB.Query(ctx, q)
}

func (h hooked) Write(ctx context.Context, ops ...store.Op) error {
	if h.write != nil {
		if err := h.write(ctx, ops); err != nil {
			return err
		}
	}
	return h.DB.Write(ctx, ops...)
}

func (h hooked) WriteAll(ctx context.Context, ops ...store.Op) error {
	if h.writeAll != nil {
		if err := h.writeAll(ctx, ops); err != nil {
			return err
		}
	}
	return h.DB.WriteAll(ctx, ops...)
}

// failing fails while it is true.
func failing(broken *atomic.Bool) func(context.Context, []store.Op) error {
	return func(context.Context, []store.Op) error {
		if broken.Load() {
			return errDied
		}
		return nil
	}
}

// watched is a queue that can be out of order and is seen to be sent to.
type watched struct {
	queue.Sender
	broken bool
	seen   func(q queue.Name) // before messages are sent
	sent   func(q queue.Name) // afterwards
}

func (w *watched) Send(ctx context.Context, q queue.Name, msgs ...queue.Outgoing) error {
	if w.seen != nil && len(msgs) > 0 {
		w.seen(q)
	}
	if w.broken {
		return errDied
	}
	err := w.Sender.Send(ctx, q, msgs...)
	if w.sent != nil && err == nil {
		w.sent(q)
	}
	return err
}

// unorderedStore is a store whose writers stamp events themselves, like DynamoDB.
type unorderedStore struct{ store.DB }

func (unorderedStore) Stamps() bool { return false }
func (unorderedStore) Local() bool  { return false }
