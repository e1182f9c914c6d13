package sqlite

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

const (
	// maxSend and maxSendBytes limit how many messages and bytes Send writes in one transaction, so that other writes do not wait long
	// for a large send.
	maxSend      = 250
	maxSendBytes = 4 << 20
)

// Send writes the messages to the file in their order. A large send takes several transactions.
func (q *Queues) Send(ctx context.Context, name queue.Name, msgs ...queue.Outgoing) error {
	mq, err := q.findQueue(name)
	if err != nil {
		return err
	}
	for i := range msgs {
		if err := queue.Check(name, &msgs[i]); err != nil {
			return err
		}
	}
	if len(msgs) == 0 {
		return ctx.Err()
	}
	for len(msgs) > 0 {
		n := 0
		for size := 0; n < min(len(msgs), maxSend) && size < maxSendBytes; n++ {
			size += len(msgs[n].Body)
		}
		if err := mq.send(ctx, msgs[:n]); err != nil {
			return fault.Wrap(engine.Kind(err), err, "send %d messages to %s", len(msgs), name)
		}
		msgs = msgs[n:]
	}
	return nil
}

// send writes messages in one transaction. If a call of [Queues.Forward] is still writing a message with the same deduplication id, send
// waits for the end of that call and then tries again. It has to wait because the call may still fail.
func (mq *memoryQueue) send(ctx context.Context, msgs []queue.Outgoing) error {
	for {
		s := &sending{queue: mq, msgs: msgs}
		err := mq.q.engine.Do(ctx, s)
		if s.repeated == nil {
			return err
		}
		select {
		case <-s.repeated.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

type sending struct {
	queue *memoryQueue
	msgs  []queue.Outgoing

	ready   []*message
	delayed int
	due     int64 // when the first of the delayed messages is due
	at      time.Time
	fresh   []digest // deduplication ids that the queue has not accepted before
	// repeated is the job that is still forwarding a message with the same deduplication id, or nil. While there is such a job, Apply
	// writes no messages.
	repeated *forwarding
}

var errForwarding = errors.New("a message with the same deduplication id is being forwarded")

func (s *sending) Apply(tx *engine.Tx) error {
	mq := s.queue
	s.ready, s.delayed, s.due = s.ready[:0], 0, 0
	s.at = tx.Now
	msgs := s.msgs
	if mq.dedup != nil {
		if msgs, s.repeated = mq.dedup.claim(tx, s); s.repeated != nil {
			return errForwarding
		}
	}
	sent := tx.Now.UnixMicro()
	for i := range msgs {
		m := &msgs[i]
		due := int64(0)
		if m.Delay > 0 {
			due = (tx.Now.Add(m.Delay).UnixMicro() + 999) / 1000
		}
		id := mq.lastID.Add(1)
		stmt := tx.Stmt(mq.sql.insert)
		group := groupOf(m)
		if err := stmt.Int(1, id).Text(2, group).Int(3, due).Int(4, sent).Blob(5, m.Body).Exec(); err != nil {
			return err
		}
		if due > 0 {
			s.delayed++
			if s.due == 0 || due < s.due {
				s.due = due
			}
			continue
		}
		s.ready = append(s.ready, &message{id: id, group: group, body: m.Body, value: m.Value, sent: sent})
	}
	if len(s.fresh) > 0 {
		return mq.dedup.write(tx, s.fresh)
	}
	return nil
}

func (s *sending) Done(err error) {
	if err != nil {
		return
	}
	if s.queue.dedup != nil {
		s.queue.dedup.add(s.fresh, s.at)
	}
	s.queue.publish(s.ready, s.delayed, s.due)
}

const (
	// dedupWindow is how long a queue drops further messages with the same deduplication id. It is five minutes, as in SQS.
	dedupWindow = 5 * time.Minute
	// dedupSpan is the time that a [generation] of deduplication ids covers. The queue forgets old ids one generation at a time.
	dedupSpan = dedupWindow / 2
	// maxDedup limits the deduplication ids in memory, which take about 50 bytes each. If there are more, the queue forgets the oldest
	// [generation] early.
	maxDedup = 1 << 22
	// dedupStep limits how many rows with old deduplication ids one job deletes, so that other writes do not wait long for the job.
	dedupStep = 1000
	// dedupStepBack is how far the clock may be set back before [dedup.rewind] corrects the times of all deduplication ids. After a
	// smaller step, the queue remembers ids up to a minute too long.
	dedupStepBack = time.Minute
)

// digest is the truncated hash of a deduplication id. Among a million ids within [dedupWindow], the chance that two have the
// same digest is below 1 in 10^26.
type digest [16]byte

func digestOf(id string) digest {
	sum := sha256.Sum256([]byte(id))
	return digest(sum[:16])
}

// dedup remembers the deduplication ids that a queue has accepted in the last five minutes, in memory and in the file. Each [sending] or
// [forwarding] job writes its new ids into one row.
type dedup struct {
	table   string
	insert  string
	lastRow int64 // at least the largest id of a row; only the engine's writer uses it

	mu          sync.Mutex
	generations []generation // oldest first
	latest      int64        // the time of the newest id, in seconds since 1970
	// pending has the deduplication ids that jobs have claimed in the engine's latest transaction. The field attempt is the number of
	// that transaction.
	pending    map[digest]bool
	attempt    int64
	forwarding map[digest]*forwarding
}

// generation has the deduplication ids that the queue accepted within [dedupSpan] after start, and when it accepted each of them.
type generation struct {
	start time.Time
	ids   map[digest]int64 // seconds since 1970
}

func newDedup(table string) *dedup {
	return &dedup{
		table: table, insert: "INSERT INTO " + table + " (id, digests) VALUES (?, ?)",
		pending: map[digest]bool{}, forwarding: map[digest]*forwarding{},
	}
}

// setUp reads the deduplication ids of the last five minutes from the file. The id of a row is the time when its deduplication ids were
// accepted, in microseconds since 1970.
func (d *dedup) setUp(tx *engine.Tx) error {
	if err := tx.Exec("CREATE TABLE IF NOT EXISTS " + d.table + " (id INTEGER PRIMARY KEY, digests BLOB NOT NULL)"); err != nil {
		return err
	}
	s := tx.Stmt("SELECT id, digests FROM " + d.table + " WHERE id > ? ORDER BY id")
	defer s.Reset()
	s.Int(1, tx.Now.Add(-dedupWindow).UnixMicro())
	for {
		row, err := s.Step()
		if err != nil || !row {
			return err
		}
		d.lastRow = s.ColumnInt(0)
		var ids []digest
		for part := range slices.Chunk(s.ColumnBlob(1), len(digest{})) {
			ids = append(ids, digest(part))
		}
		d.add(ids, periodic.Earlier(time.UnixMicro(d.lastRow), tx.Now)) // a time in the future is from before the clock was set back
	}
}

// claim returns the messages of s whose deduplication ids are new. It marks these ids as pending, so that later messages with the same
// ids in this transaction are dropped too. If another job is still forwarding a message with one of the ids, claim returns that job as
// repeated and no messages.
func (d *dedup) claim(tx *engine.Tx, s *sending) (fresh []queue.Outgoing, repeated *forwarding) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.attempt != tx.Attempt {
		d.attempt = tx.Attempt
		clear(d.pending)
	}
	ids := make([]digest, len(s.msgs))
	for i := range s.msgs {
		if s.msgs[i].Dedup == "" {
			continue
		}
		ids[i] = digestOf(s.msgs[i].Dedup)
		if f := d.forwarding[ids[i]]; f != nil {
			return nil, f
		}
	}
	fresh, s.fresh = make([]queue.Outgoing, 0, len(s.msgs)), s.fresh[:0]
	for i, m := range s.msgs {
		if m.Dedup != "" {
			if d.pending[ids[i]] || d.accepted(ids[i], tx.Now) {
				continue
			}
			d.pending[ids[i]] = true
			s.fresh = append(s.fresh, ids[i])
		}
		fresh = append(fresh, m)
	}
	return fresh, nil
}

// rewind corrects the times of deduplication ids after the clock was set back: it changes times in the future to now. Otherwise the queue
// would remember these ids until the clock has caught up.
func (d *dedup) rewind(now time.Time) {
	if d.latest <= now.Add(dedupStepBack).Unix() {
		return
	}
	for i := range d.generations {
		g := &d.generations[i]
		if g.start.Unix() > now.Unix() {
			g.start = now
		}
		for id, at := range g.ids {
			g.ids[id] = min(at, now.Unix())
		}
	}
	d.latest = now.Unix()
}

func (d *dedup) accepted(id digest, now time.Time) bool {
	d.rewind(now)
	oldest := now.Add(-dedupWindow).Unix()
	for _, g := range d.generations {
		if at, ok := g.ids[id]; ok && at > oldest {
			return true
		}
	}
	return false
}

// reserve records the deduplication ids of the messages that f forwards, so that a [Queues.Send] with one of these ids waits for f. It
// returns false if one of the ids is not new.
func (d *dedup) reserve(f *forwarding, msgs []queue.Outgoing, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range msgs {
		if msgs[i].Dedup == "" {
			continue
		}
		id := digestOf(msgs[i].Dedup)
		if d.forwarding[id] != nil || d.pending[id] || d.accepted(id, now) {
			d.release(f)
			return false
		}
		d.forwarding[id] = f
		f.ids = append(f.ids, id)
	}
	return true
}

// settle ends the reservation of f's deduplication ids after f has ended with the error err. If err is nil, the queue remembers the ids
// as accepted.
func (d *dedup) settle(f *forwarding, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		d.remember(f.ids, f.at)
	}
	d.release(f)
}

func (d *dedup) release(f *forwarding) {
	for _, id := range f.ids {
		delete(d.forwarding, id)
	}
	f.ids = nil
}

func (d *dedup) write(tx *engine.Tx, ids []digest) error {
	digests := make([]byte, 0, len(ids)*len(digest{}))
	for _, id := range ids {
		digests = append(digests, id[:]...)
	}
	d.lastRow = max(d.lastRow+1, tx.Now.UnixMicro())
	return tx.Stmt(d.insert).Int(1, d.lastRow).Blob(2, digests).Exec()
}

func (d *dedup) add(ids []digest, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remember(ids, at)
}

func (d *dedup) remember(ids []digest, at time.Time) {
	if len(ids) == 0 {
		return
	}
	n := len(d.generations)
	if n == 0 || at.Sub(d.generations[n-1].start) >= dedupSpan {
		d.generations = append(d.generations, generation{start: at, ids: map[digest]int64{}})
		n++
	}
	total := 0
	for _, g := range d.generations {
		total += len(g.ids)
	}
	for n > 1 && (at.Sub(d.generations[0].start) > dedupWindow+dedupSpan || total > maxDedup) {
		total -= len(d.generations[0].ids)
		d.generations = slices.Delete(d.generations, 0, 1)
		n--
	}
	for _, id := range ids {
		d.generations[n-1].ids[id] = at.Unix()
	}
	d.latest = max(d.latest, at.Unix())
}

// forgetting is an [engine.Job] that deletes up to [dedupStep] rows with deduplication ids that are older than [dedupWindow].
//
// It also deletes rows that are more than [dedupStepBack] in the future, which were written before the clock was set back. The id of a
// row is its time, and a new row needs a greater id than all existing rows. So without the deletion, every new row would be in the future
// too.
type forgetting struct {
	d    *dedup
	last int64 // the largest id of a row that may stay
	more bool
}

func (f *forgetting) Apply(tx *engine.Tx) error {
	s := tx.Stmt("DELETE FROM " + f.d.table + " WHERE id IN (SELECT id FROM " + f.d.table + " WHERE id < ? OR id > ? LIMIT ?)")
	f.last = tx.Now.Add(dedupStepBack).UnixMicro()
	if err := s.Int(1, tx.Now.Add(-dedupWindow).UnixMicro()).Int(2, f.last).Int(3, dedupStep).Exec(); err != nil {
		return err
	}
	f.more = tx.Changes() == dedupStep
	return nil
}

func (f *forgetting) Done(err error) {
	if err == nil && !f.more {
		f.d.lastRow = min(f.d.lastRow, f.last)
	}
}

// forget deletes old deduplication ids from the file. It also calls [dedup.rewind], because the clock may have been set back while no
// messages were sent.
func (d *dedup) forget(e *engine.Engine) error {
	d.mu.Lock()
	d.rewind(e.Now())
	d.mu.Unlock()
	for {
		job := &forgetting{d: d}
		if err := e.Do(context.Background(), job); err != nil || !job.more {
			return err
		}
	}
}

// forwardWithin is how long a message of [Queues.Forward] may wait for its row in the file. If a handler accepts the message before the
// next commit, it never gets a row.
const forwardWithin = 10 * time.Millisecond

// forwardEventWithin replaces [forwardWithin] on a FIFO queue. It is shorter because the sender always waits for the row.
const forwardEventWithin = time.Millisecond

// forwarding is an [engine.Job] that writes the messages of one call of [Queues.Forward] to the file. A handler may receive the messages
// before they are written. On a standard queue, the sender waits until each message has a row or is accepted:
//
//	Forward ─▶ ready ─▶ handler ─▶ accepted: no row
//	    └─▶ job: a row for each message that is not accepted yet
//
// On a FIFO queue, the sender waits for the job, which also writes the deduplication ids. The job is submitted before a worker can take
// the messages. So the handler's own writes are committed with the job or later, and the handler learns whether they succeeded after
// [forwarding.Done].
type forwarding struct {
	queue *memoryQueue
	msgs  []*message
	ids   []digest
	at    time.Time
	open  atomic.Int64 // how many messages the sender still waits for; on a FIFO queue, plus one for the job
	err   error
	done  chan struct{}
}

var _ queue.Forwarder = (*Queues)(nil)

// Forward implements [queue.Forwarder]. It calls Send instead in these cases:
//
//   - A message has a delay.
//   - Memory has no room for the messages, or earlier messages are still only in the file.
//   - The queue is a FIFO queue, and the messages would have to wait for a worker or for their group.
//   - The queue is a FIFO queue, and it may already have accepted a message with the same deduplication id.
func (q *Queues) Forward(ctx context.Context, name queue.Name, msgs ...queue.Outgoing) error {
	mq, err := q.findQueue(name)
	if err != nil {
		return err
	}
	size, delayed := 0, false
	for i := range msgs {
		if err := queue.Check(name, &msgs[i]); err != nil {
			return err
		}
		delayed = delayed || msgs[i].Delay != 0
		size += len(msgs[i].Body)
	}
	if len(msgs) == 0 {
		return ctx.Err()
	}
	var f *forwarding
	if !delayed {
		f, err = mq.forward(msgs, size)
	}
	if f == nil && err == nil {
		return q.Send(ctx, name, msgs...)
	}
	if err == nil {
		select {
		case <-f.done:
			err = f.err
		case <-ctx.Done():
			return ctx.Err() // the messages are handled and written nevertheless
		}
	}
	return fault.Wrap(engine.Kind(err), err, "forward %d messages to %s", len(msgs), name)
}

// forward gives messages to the workers immediately, and submits a job that writes the messages to the SQLite file later. If this is not
// possible now, both results are nil. The caller must then call [Queues.Send], which writes the messages first.
func (mq *memoryQueue) forward(msgs []queue.Outgoing, size int) (*forwarding, error) {
	mq.mu.Lock()
	defer mq.mu.Unlock()
	w := &mq.window
	fifo := mq.name.FIFO()
	if !w.complete() || !w.fits(len(msgs), size) || fifo && len(mq.waiting) == 0 {
		return nil, nil
	}
	for i := range msgs {
		group := groupOf(&msgs[i])
		g := w.ready.groups[group]
		if w.mustSpill(group) || fifo && g != nil && g.ready.len() > 0 {
			return nil, nil
		}
	}
	f := &forwarding{queue: mq, done: make(chan struct{})}
	f.open.Store(int64(len(msgs)))
	within, now := forwardWithin, mq.q.engine.Now()
	if fifo {
		if !mq.dedup.reserve(f, msgs, now) {
			return nil, nil
		}
		f.open.Add(1)
		within = forwardEventWithin
	}
	for i := range msgs {
		f.msgs = append(f.msgs, &message{
			id: mq.lastID.Add(1), group: groupOf(&msgs[i]), body: msgs[i].Body, value: msgs[i].Value, sent: now.UnixMicro(), row: rowAwaited, forwarding: f,
		})
	}
	if err := mq.q.engine.Within(within, f); err != nil {
		if fifo {
			mq.dedup.settle(f, err)
		}
		return nil, err
	}
	for _, m := range f.msgs {
		w.counts[m.place]++
		w.addEarly(m)
	}
	mq.wakeWorker()
	return f, nil
}

// closeOne counts down [forwarding.open], which is the number of messages and jobs that the sender still waits for. At zero the sender
// stops waiting.
func (f *forwarding) closeOne() {
	if f.open.Add(-1) == 0 {
		close(f.done)
	}
}

func (f *forwarding) Apply(tx *engine.Tx) error {
	mq := f.queue
	f.at = tx.Now
	if len(f.ids) > 0 {
		if err := mq.dedup.write(tx, f.ids); err != nil {
			return err
		}
	}
	for _, m := range f.msgs {
		mq.mu.Lock()
		accepted, received, body := m.place == placeAccepted, m.received, m.body
		if !accepted {
			m.row = rowWriting
		}
		mq.mu.Unlock()
		if accepted {
			continue
		}
		stmt := tx.Stmt(mq.sql.insert)
		if err := stmt.Int(1, m.id).Text(2, m.group).Int(3, 0).Int(4, m.sent).Blob(5, body).Exec(); err != nil {
			return err
		}
		if received > 1 {
			stmt = tx.Stmt(mq.sql.fail)
			if err := stmt.Int(1, int64(received)).Int(2, m.id).Exec(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Done ends the wait of the sender. If the messages could not be written, the sender gets an error.
//
// After an error, a standard queue still delivers the messages from memory, so they arrive twice if the sender sends them again. A FIFO
// queue drops them, unless a handler already has them and succeeds.
func (f *forwarding) Done(err error) {
	mq := f.queue
	if mq.dedup != nil {
		mq.dedup.settle(f, err)
	}
	mq.mu.Lock()
	defer mq.mu.Unlock()
	for _, m := range f.msgs {
		if m.place != placeAccepted {
			m.row = rowWritten
			if err != nil {
				m.row, f.err = rowFailed, err
			}
			f.closeOne()
		}
		mq.window.pass(m)
	}
	if mq.name.FIFO() {
		f.err = err
		f.closeOne()
	}
}
