package sqlite

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// memoryQueue is the part of one queue that is in memory: messages, the idle workers that wait for messages, and the results of handlers
// that are not written to the SQLite file yet.
type memoryQueue struct {
	q    *Queues
	name queue.Name
	sql  statements

	lastID atomic.Int64 // of the last message sent or forwarded
	// inherited is the largest id of a message that the previous process left in the file. Each of these messages may have crashed that
	// process, so workers write its receive count to the file before they call the handler. Otherwise, a message that crashes every
	// process would never become a dead letter.
	inherited int64

	dedup *dedup // nil on a standard queue

	mu       sync.Mutex // not held during SQL
	window   window
	waiting  []chan struct{} // the channels of idle workers; the last one is woken first
	backoffs backoffHeap
	nextDue  int64 // when the next delayed row is due, in milliseconds since 1970; 0 if no row is delayed

	settled    handlerResults
	submitted  bool      // the engine has a job that will write the results in settled
	resubmitAt time.Time // when to submit a new job for settled after one has failed; otherwise zero

	wake   chan struct{} // wakes the pump
	wakeAt time.Time     // when the pump wakes by itself; zero while it works
}

type statements struct {
	table, insert                  string
	remove, removeRange, fail      string
	after, ofGroup, row, body      string
	due, nextDue, endDelay, oldest string
}

func newMemoryQueue(q *Queues, name queue.Name) *memoryQueue {
	t := "queue_" + string(name)
	const columns = "id, grp, received, sent, body" // as readMessages reads them
	mq := &memoryQueue{
		q: q, name: name, wake: make(chan struct{}, 1),
		window: window{
			maxMessages: q.opts.MaxReady, maxBytes: q.opts.MaxBytes,
			ready: newReady(name.FIFO()), early: map[int64]string{}, spills: map[string]*spill{},
		},
		sql: statements{
			table:       t,
			insert:      "INSERT INTO " + t + " (id, grp, due, received, sent, body) VALUES (?, ?, ?, 0, ?, ?)",
			remove:      "DELETE FROM " + t + " WHERE id=?",
			removeRange: "DELETE FROM " + t + " WHERE id BETWEEN ? AND ?",
			fail:        "UPDATE " + t + " SET received=? WHERE id=?",
			after:       "SELECT " + columns + " FROM " + t + " WHERE id > ? AND due = 0 ORDER BY id LIMIT ?",
			ofGroup:     "SELECT " + columns + " FROM " + t + " WHERE id BETWEEN ? AND ? AND due = 0 AND grp = ? ORDER BY id LIMIT ?",
			row:         "SELECT " + columns + " FROM " + t + " WHERE id=?",
			body:        "SELECT body FROM " + t + " WHERE id=?",
			due:         "SELECT " + columns + " FROM " + t + " WHERE due > 0 AND due > ? AND due <= ? ORDER BY due, id LIMIT ?",
			nextDue:     "SELECT min(due) FROM " + t + " WHERE due > 0",
			endDelay:    "UPDATE " + t + " SET due=0 WHERE id=?",
			oldest:      "SELECT sent FROM " + t + " ORDER BY id LIMIT 1",
		},
	}
	if name.FIFO() {
		mq.dedup = newDedup(t + "_dedup")
	}
	return mq
}

func (mq *memoryQueue) setUp(tx *engine.Tx) error {
	err := tx.Exec(fmt.Sprintf(`
		CREATE TABLE IF NOT EXISTS %[1]s (id INTEGER PRIMARY KEY, grp TEXT NOT NULL, due INTEGER NOT NULL,
			received INTEGER NOT NULL, sent INTEGER NOT NULL, body BLOB NOT NULL);
		CREATE INDEX IF NOT EXISTS %[1]s_due ON %[1]s (due) WHERE due > 0;`, mq.sql.table))
	if err != nil {
		return err
	}
	var last, total, delayed int64
	for _, read := range []struct {
		sql string
		to  *int64
	}{
		{"SELECT max(id) FROM %s", &last},
		{"SELECT min(due) FROM %s WHERE due > 0", &mq.nextDue},
		{"SELECT count(*) FROM %s", &total},
		{"SELECT count(*) FROM %s WHERE due > 0", &delayed},
	} {
		if *read.to, err = tx.Int(fmt.Sprintf(read.sql, mq.sql.table)); err != nil {
			return err
		}
	}
	mq.lastID.Store(last)
	mq.inherited = last
	mq.window.newest = last
	mq.window.counts[placeDelayed], mq.window.counts[placeFile] = int(delayed), int(total-delayed)
	if mq.dedup != nil {
		return mq.dedup.setUp(tx)
	}
	return nil
}

// publish makes messages available to workers after their transaction was committed. The parameter msgs has the messages without a delay,
// in the order of their ids. The messages with a delay stay in the file. The parameter delayed is how many they are, and due is the
// earliest time when one of them is due, in milliseconds since 1970.
func (mq *memoryQueue) publish(msgs []*message, delayed int, due int64) {
	mq.mu.Lock()
	defer mq.mu.Unlock()
	w := &mq.window
	w.counts[placeFile] += len(msgs)
	if delayed > 0 {
		w.counts[placeDelayed] += delayed
		if mq.nextDue == 0 || due < mq.nextDue {
			mq.nextDue = due
			mq.wakePump(time.Now().Add(mq.untilDue(due)))
		}
	}
	for _, m := range msgs {
		w.append(m)
	}
	mq.wakeReader()
	mq.wakeWorker()
}

// wakeWorker wakes one idle worker if a message is ready. After that worker has taken a batch, it wakes the next worker. So batches fill
// before more workers run.
func (mq *memoryQueue) wakeWorker() {
	if n := len(mq.waiting); n > 0 && mq.window.ready.available() {
		mq.waiting[n-1] <- struct{}{}
		mq.waiting[n-1] = nil
		mq.waiting = mq.waiting[:n-1]
	}
}

// wakeReader wakes the pump (the queue's background goroutine) to read rows, if messages are only in the file and memory has room for
// them.
func (mq *memoryQueue) wakeReader() {
	if _, ok := mq.window.nextFetch(); ok {
		mq.wakePump(time.Time{})
	}
}

// wakePump makes the pump, the queue's background goroutine, run at the given time or earlier.
func (mq *memoryQueue) wakePump(at time.Time) {
	if mq.wakeAt.IsZero() || !at.Before(mq.wakeAt) {
		return // the pump is working, and checks the queue again before it sleeps, or it wakes early enough by itself
	}
	mq.wakeAt = time.Time{}
	select {
	case mq.wake <- struct{}{}:
	default:
	}
}

type message struct {
	id       int64
	group    string // see [groupOf]
	body     []byte // nil if it must be read from the row
	value    any    // [queue.Outgoing.Value] until a handler has received it; nil if the message was read from its row
	sent     int64  // microseconds since 1970
	received int
	tried    bool // true after a handler of this process has received the message; the field received may still be 0
	handled  int  // size of the body while a handler has the message, otherwise 0

	place      place // only [window.move] changes it
	row        row
	forwarding *forwarding // the job that writes the message if it was forwarded; otherwise nil
}

// place says where a message of a queue is, and why it waits. For example, a message in placeDelayed is only in the file and is not due
// yet. Every message is in exactly one place.
type place uint8

const (
	// placeFile means that the message is only in the file and can be delivered.
	placeFile place = iota
	// placeDelayed means that the message is only in the file and its delay has not ended.
	placeDelayed
	// placeReady means that the message is in memory and waits for a worker.
	placeReady
	placeInFlight
	// placeBlocked means that the message failed and is at the front of its group in a FIFO queue. The group waits until the back-off of
	// the message ends.
	placeBlocked
	// placeBackOff means that the message of a standard queue failed and waits until its back-off ends. It stays in memory, but does not
	// count against the window's limits, so that failing messages do not keep others out of memory.
	placeBackOff
	// placeAccepted means that a handler accepted the message, or that the queue dropped it because its sender got an error. placeDead
	// means that the message becomes a dead letter. In both places the message has left the queue, but its row in the file may not be
	// deleted yet.
	placeAccepted
	placeDead
	places
)

// inWindow reports whether messages in this place count against the limits of [window], maxMessages and maxBytes.
func (p place) inWindow() bool {
	return p == placeReady || p == placeInFlight || p == placeBlocked
}

// row is the state of a message's row in the file. Only a message of [Queues.Forward] can be in memory before its row is written.
type row uint8

const (
	rowWritten row = iota
	// rowAwaited means that the row is not written yet. If a handler accepts the message in this state, the message never gets a row.
	rowAwaited
	// rowWriting means that the row is part of a transaction that has not ended.
	rowWriting
	// rowFailed means that the row could not be written, so the message is only in memory.
	rowFailed
)

// backoff is an entry in the heap of back-offs. It says until when a failed message or group waits. On a standard queue, the message msg
// waits. On a FIFO queue, the group waits, and count is how many failed messages are at its front.
type backoff struct {
	until time.Time
	msg   *message
	group string
	count int
}

type backoffHeap []backoff

func (h backoffHeap) Len() int           { return len(h) }
func (h backoffHeap) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h backoffHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *backoffHeap) Push(x any)        { *h = append(*h, x.(backoff)) }

func (h *backoffHeap) Pop() any {
	last := len(*h) - 1
	v := (*h)[last]
	(*h)[last] = backoff{}
	*h = (*h)[:last]
	return v
}
