package property

import (
	"context"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// errDead is the answer to all later requests of a killed process.
var errDead = fault.New(fault.Unavailable, "the process was killed")

// errFailed is a request to the store or a queue that failed, before or after it took effect.
var errFailed = fault.New(fault.Unavailable, "the request got no answer")

// line is the way from one process to its store, its queues and its endpoints. It breaks at a chosen request: that one
// fails, or the process dies there.
type line struct {
	dead chan struct{} // closed when the process is killed
	once sync.Once
	// delay is how long a write takes; nil is no time.
	delay func() time.Duration

	mu    sync.Mutex
	after int  // requests until the fault; 0 is no fault
	late  bool // the request takes effect
	kills bool
}

func newLine(delay func() time.Duration) *line { return &line{dead: make(chan struct{}), delay: delay} }

// arm plans the next fault.
func (l *line) arm(after int, late, kills bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.after, l.late, l.kills = after, late, kills
}

func (l *line) kill() { l.once.Do(func() { close(l.dead) }) }

func (l *line) isDead() bool {
	select {
	case <-l.dead:
		return true
	default:
		return false
	}
}

// do makes one request.
func (l *line) do(request func() error) error {
	if l.isDead() {
		return errDead
	}
	l.mu.Lock()
	hit := false
	if l.after > 0 {
		l.after--
		hit = l.after == 0
	}
	late, kills := l.late, l.kills
	l.mu.Unlock()
	if !hit {
		return request()
	}
	if late {
		_ = request()
	}
	if kills {
		l.kill()
		return errDead
	}
	return errFailed
}

// write makes a request that changes something, like do.
func (l *line) write(ctx context.Context, request func() error) error {
	if l.delay == nil {
		return l.do(request)
	}
	return l.do(func() error {
		all := l.delay()
		before := time.Duration(float64(all) * 0.5)
		if err := pause(ctx, before); err != nil {
			return err
		}
		err := request()
		_ = pause(context.WithoutCancel(ctx), all-before)
		return err
	})
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lineStore is the store as a process reaches it.
type lineStore struct {
	store.DB
	*line
}

func (s lineStore) Get(ctx context.Context, keys ...store.Key) (items []*store.Item, err error) {
	err = s.do(func() (err error) { items, err = s.DB.Get(ctx, keys...); return err })
	return items, err
}

func (s lineStore) Query(ctx context.Context, q store.Query) (page store.Page, err error) {
	err = s.do(func() (err error) { page, err = s.DB.Query(ctx, q); return err })
	return page, err
}

func (s lineStore) Write(ctx context.Context, ops ...store.Op) error {
	return s.write(ctx, func() error { return s.DB.Write(ctx, ops...) })
}

func (s lineStore) WriteAll(ctx context.Context, ops ...store.Op) error {
	return s.write(ctx, func() error { return s.DB.WriteAll(ctx, ops...) })
}

func (s lineStore) Unhurried() store.DB { return lineStore{store.Unhurried(s.DB), s.line} }

// watchedStore is a lineStore that announces its writes.
type watchedStore struct {
	lineStore
	store.Watcher
}

// lineSender is the queues as a process reaches them.
type lineSender struct {
	queue.Sender
	*line
}

func (s lineSender) Send(ctx context.Context, q queue.Name, msgs ...queue.Outgoing) error {
	if len(msgs) == 0 {
		return nil
	}
	return s.do(func() error { return s.Sender.Send(ctx, q, msgs...) })
}

// forwardingSender is a lineSender whose consumers are in the same process.
type forwardingSender struct{ lineSender }

func (s forwardingSender) Forward(ctx context.Context, q queue.Name, msgs ...queue.Outgoing) error {
	if len(msgs) == 0 {
		return nil
	}
	return s.do(func() error { return s.Sender.(queue.Forwarder).Forward(ctx, q, msgs...) })
}
