// Package sqlite keeps the queues of the stand-alone server in the store's SQLite file, and calls their handlers in the same process.
//
// Send writes each message to a row of the file before it returns. After the message's handler has accepted it, the next commit deletes
// the row. Sends share their commits with all other writes of the file (see package engine). Delivering a message needs no SQL, because
// each queue has a [window] of messages in memory. Every message is in one [place]:
//
//	Send ─▶ file or delayed ─▶ ready ─▶ in flight ─┬─▶ accepted: the next commit deletes its row
//	                             ▲                 ├─▶ dead: the next commit moves it to the dead letters
//	                             └─────────────────┴─▶ back-off, or blocked in a FIFO queue
//
// The file does not say which messages are in flight or wait for their back-off. After a crash, the next process delivers all messages in
// the file again. Any of them may have caused the crash, so the next process counts a receive of each message in the file before it calls
// the handler.
//
// The queues behave like SQS queues with an event source mapping, as the test suite queue/queuetest defines. The package does not decode
// message bodies.
package sqlite

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// Options are the settings of [Queues]. The zero value has the defaults.
type Options struct {
	// Log defaults to [slog.Default].
	Log *slog.Logger
	// MaxReady limits how many messages of one queue are ready or in flight in memory; 0 means 65,536.
	MaxReady int
	// MaxBytes limits the total size of the message bodies that one queue has in memory; 0 means 64 MiB.
	MaxBytes int
	// DeadLettered, if not nil, is called after n messages of the queue q became dead letters because they failed too often.
	DeadLettered func(q queue.Name, n int)
}

// Queues holds the queues in one SQLite file. Close it before the engine of the file, because Close writes the last results of handlers.
type Queues struct {
	engine *engine.Engine
	opts   Options
	queues map[queue.Name]*memoryQueue

	open    context.Context // ends at Close
	end     context.CancelFunc
	once    sync.Once
	running sync.WaitGroup

	mu        sync.Mutex
	consumers sync.WaitGroup
}

var (
	_ queue.Sender   = (*Queues)(nil)
	_ queue.Consumer = (*Queues)(nil)
)

// Open opens the queues in the SQLite file of e.
func Open(e *engine.Engine, opts Options) (*Queues, error) {
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	if opts.MaxReady <= 0 {
		opts.MaxReady = 65_536
	}
	if opts.MaxBytes <= 0 {
		opts.MaxBytes = 64 << 20
	}
	q := &Queues{engine: e, opts: opts, queues: map[queue.Name]*memoryQueue{}}
	q.open, q.end = context.WithCancel(context.Background())
	for _, name := range queue.Names() {
		q.queues[name] = newMemoryQueue(q, name)
	}
	if err := e.Do(context.Background(), setup{q}); err != nil {
		return nil, fault.Wrap(engine.Kind(err), err, "open the queues")
	}
	for _, mq := range q.queues {
		q.running.Go(mq.pump)
	}
	return q, nil
}

// setup is an [engine.Job], which is a part of a write transaction. It creates the tables of all queues if they do not exist, and reads
// how many messages the previous process left in them.
type setup struct{ q *Queues }

func (s setup) Apply(tx *engine.Tx) error {
	for _, mq := range s.q.queues {
		if err := mq.setUp(tx); err != nil {
			return err
		}
	}
	return nil
}

func (setup) Done(error) {}

func (q *Queues) findQueue(name queue.Name) (*memoryQueue, error) {
	if mq := q.queues[name]; mq != nil {
		return mq, nil
	}
	return nil, fault.New(fault.Invalid, "unknown queue %q (queues: %s)", name, queue.Names())
}

// Depth returns how many messages a queue has, and when the oldest of them was sent.
func (q *Queues) Depth(ctx context.Context, name queue.Name) (queue.Depth, error) {
	mq, err := q.findQueue(name)
	if err != nil {
		return queue.Depth{}, err
	}
	mq.mu.Lock()
	d := mq.window.depth()
	mq.mu.Unlock()
	err = q.engine.Read(ctx, func(c *engine.Conn) error {
		sent, err := c.Int(mq.sql.oldest)
		if sent > 0 && d.Visible+d.InFlight+d.Delayed > 0 {
			d.Oldest = time.UnixMicro(sent).UTC()
		}
		return err
	})
	return d, fault.Wrap(engine.Kind(err), err, "read the depth of %s", name)
}

// closeTime is how long [Queues.Close] waits for handlers after it has ended their contexts.
const closeTime = 5 * time.Second

// Close ends the contexts of running handlers, waits up to [closeTime] for them, and writes their results. The result of a handler that
// returns later is lost, and the next process delivers its messages again.
func (q *Queues) Close() error {
	var err error
	q.once.Do(func() {
		q.mu.Lock()
		q.end()
		q.mu.Unlock()
		err = q.waitForConsumers()
		q.running.Wait()
		for _, mq := range q.queues {
			if e := mq.flush(); err == nil {
				err = e
			}
		}
	})
	return fault.Wrap(engine.Kind(err), err, "close the queues")
}

func (q *Queues) registerConsumer() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open.Err() != nil {
		return errClosed
	}
	q.consumers.Add(1)
	return nil
}

var errClosed = fault.New(fault.Unavailable, "the queues were closed")

func (q *Queues) waitForConsumers() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	if periodic.Wait(ctx, &q.consumers) != nil {
		return fault.New(fault.Unavailable, "consumers still run %v after their contexts ended", closeTime)
	}
	return nil
}
