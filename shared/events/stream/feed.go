// Package stream reads the event log for open MCP streams of every protocol revision, for polls, and for readers in the same process.
//
//	              ┌ tail of partition A ┐
//	event log ────┤ tail of partition B ├──▶ feed ──▶ one open stream
//	              └ …                   ┘     (cursor, duplicates, order)
//
// A process has one [Tails], which reads each partition once for all open streams. A [Feed] merges the partitions of one stream and drops
// duplicates. With the feed's cursor, another process can continue the stream.
//
// During an update, a later release of the server may already write log items that this release cannot read ([eventlog.ErrLater]).
// Readers stop before such an item in its partition. Wire formats are in shared/mcp.
package stream

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// An event gets from the log to a stream in three steps. tail.run reads the event from the log, and tail.distribute puts it into the
// inbox of every feed of the tail. [Feed.Poll] returns it as a [Delivery], when the feed's [merge] says that it is next.

// tail reads the new entries of one partition for all feeds (open streams) of this process that need them. It ends when its last feed
// leaves.
type tail struct {
	tails  *Tails
	part   eventlog.Partition
	every  time.Duration // the time between two renewals; 0 if the feeds need no renewals
	cancel context.CancelFunc

	mu       sync.Mutex
	feeds    map[*Feed]renewal
	renewing sync.Mutex // held while renewals run, so that they never overlap

	// If the store cannot report each write to this process, changed and written are nil, and unwatch does nothing.
	changed <-chan struct{}
	written func() int64 // returns the last key written to the partition
	unwatch func()

	lookBack time.Duration // see [eventlog.Log.LookBack]

	// The following fields need no lock, because only the goroutine of run uses them.
	window      window
	lastEntry   time.Time
	lastRenewal time.Time
}

// renewal regularly renews a record in the store, without which a partition would no longer get events. The record says that a client
// reads a pattern ([eventlog.Interest]), or that a principal wants a backend's events ([demand.Registry]). If several feeds of a tail
// have the same principal, the tail calls only one of their renewals.
type renewal struct {
	do        func(context.Context) error
	every     time.Duration
	principal string // the principal that wants a backend's events; "" for an interest, which all principals share
}

// batch is the result of one read by a tail. All feeds of the tail share it and must not change it.
type batch struct {
	part    eventlog.Partition
	entries []eventlog.Entry
	load    load  // the number and the size of the entries
	floor   int64 // every entry with a key up to floor is in this batch or an earlier one
	later   bool  // the tail has stopped before an item that a later release wrote; such a batch has no entries
	read    time.Time
}

// run reads the partition whenever the store reports a write. If the store cannot report writes, run reads at intervals.
func (t *tail) run(ctx context.Context) {
	defer t.tails.running.Done()
	defer t.unwatch()
	now := t.tails.Log.Time()
	t.lastEntry, t.lastRenewal = now, now
	timer := time.NewTimer(watched)
	defer timer.Stop()
	for unread := true; ; {
		began, wait := t.tails.Log.Time(), watched
		if unread {
			wait, unread = t.read(ctx, began)
		}
		if ctx.Err() != nil {
			return
		}
		t.renewInterests(ctx, began)
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-t.changed:
			unread = true
		case <-timer.C:
		}
		select { // select may have chosen the timer although the store also reported a write, e.g. after a pause of the process
		case <-t.changed:
			unread = true
		default:
		}
	}
}

// read reads the new entries of the partition and gives them to the feeds. The result wait limits how long run then waits for the store
// to report a write. If the result again is true, run must call read again after that time even without a reported write.
func (t *tail) read(ctx context.Context, began time.Time) (wait time.Duration, again bool) {
	settled := t.tails.Log.SettledPosition()
	entries, last, err := t.readNew(ctx)
	switch {
	case ctx.Err() != nil:
		return 0, false
	case errors.Is(err, eventlog.ErrLater): // package eventlog has already logged it
		if len(entries) > 0 {
			t.window.from = last
			t.distribute(&batch{part: t.part, entries: entries, floor: last})
		}
		t.distribute(&batch{part: t.part, later: true})
		return watched, true
	case err != nil:
		t.tails.logger().WarnContext(ctx, "tail read failed", "error", err)
		return idlePoll, true
	}
	if len(entries) > 0 {
		t.lastEntry = began
	}
	late, floor := t.window.advance(t.lookBack, began, entries, last, settled)
	t.tails.Log.Late.Add(late)
	t.distribute(&batch{part: t.part, entries: entries, floor: floor})
	if t.changed != nil {
		return watched, false // feeds need no further read to learn how far they are, because the store tells them the last key written
	}
	return pause(began.Sub(t.lastEntry)), true
}

// readNew returns the entries that the feeds do not have yet. The result last is the position up to which it has read. If it finds an
// item that a later release of the server wrote, it returns [eventlog.ErrLater]. If keys grow in commit order, it returns the entries
// before this item together with the error.
func (t *tail) readNew(ctx context.Context) (entries []eventlog.Entry, last int64, err error) {
	next, more := t.window.from, true
	for more {
		var page []eventlog.Entry
		page, more, next, err = t.tails.Log.Read(ctx, t.part, next, pageSize)
		if errors.Is(err, eventlog.ErrLater) && t.lookBack == 0 {
			return entries, next, err
		}
		if err != nil {
			return nil, 0, err
		}
		for _, e := range page {
			if _, ok := t.window.seen[e.ID()]; !ok {
				entries = append(entries, e)
			}
		}
	}
	return entries, next, nil
}

// window says where the next read of a tail begins. If smaller keys may be committed after larger ones, each read repeats the last few
// seconds. The window then tells which of the entries are new.
type window struct {
	from     int64
	seen     map[string]int64 // the keys of the entries that the feeds already have, by [eventlog.Entry.ID]
	previous time.Time        // the start of the last read
}

// advance updates the window after a read that began at the time began and returned the new entries up to the position last. The
// parameter lookBack says how far the next read goes back. The parameter settled is [eventlog.Log.SettledPosition] from before the read.
//
// The result floor is the position up to which the feeds now have all entries. The result late is the number of entries that were
// committed later than [eventlog.SlowAppend] and [eventlog.MaxSkew] allow. The tail got them only thanks to the safety margin in
// [eventlog.Window].
func (w *window) advance(lookBack time.Duration, began time.Time, entries []eventlog.Entry, last, settled int64) (late, floor int64) {
	if lookBack == 0 {
		w.from = max(w.from, last)
		return 0, max(last, settled)
	}
	if !w.previous.IsZero() {
		bound := w.previous.Add(-eventlog.SlowAppend - 2*eventlog.MaxSkew).UnixMicro()
		for _, e := range entries {
			if e.Key < bound {
				late++
			}
		}
	}
	w.previous, w.from = began, began.Add(-lookBack).UnixMicro()
	if w.seen == nil {
		w.seen = map[string]int64{}
	}
	for _, e := range entries {
		w.seen[e.ID()] = e.Key
	}
	for id, key := range w.seen {
		if key <= w.from {
			delete(w.seen, id)
		}
	}
	return late, settled
}

// renewInterests starts the renewals that are due. They run in the background, because a renewal may have to wait until the relay has
// subscribed at a backend.
func (t *tail) renewInterests(ctx context.Context, now time.Time) {
	if t.every == 0 || now.Sub(t.lastRenewal) < t.every || !t.renewing.TryLock() {
		return
	}
	t.lastRenewal = now
	due := map[string]renewal{} // by principal
	t.mu.Lock()
	for _, r := range t.feeds {
		due[r.principal] = r
	}
	t.mu.Unlock()
	t.tails.running.Go(func() {
		defer t.renewing.Unlock()
		for principal, r := range due {
			err := r.do(ctx)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				t.tails.logger().WarnContext(ctx, "interest not renewed", "error", err)
			}
			if fault.Is(err, fault.Unauthenticated) {
				t.end(ErrToken, func(r renewal) bool { return r.principal == principal })
			}
		}
	})
}

func (t *tail) end(err error, matches func(renewal) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for f, r := range t.feeds {
		if matches(r) {
			f.in.end(err)
		}
	}
}

// distribute gives a batch to every feed of the tail. It never waits for a slow feed; see [inbox.offer].
func (t *tail) distribute(b *batch) {
	b.read, b.load = time.Now(), loadOf(b.entries)
	t.mu.Lock()
	defer t.mu.Unlock()
	for f := range t.feeds {
		f.in.offer(b)
	}
}

// Feed returns the events and notices of one open stream. Only one goroutine may call its methods.
type Feed struct {
	// Truncated reports that events may be missing, because the log no longer has all entries after the request's cursor.
	Truncated bool

	tails     *Tails
	workspace string
	principal string
	wants     func(*event.Event) bool

	in    inbox
	at    position
	merge merge

	passed bool // since the last delivery, the feed has dropped entries that it read from the log itself
	sent   recent
	resume map[uint64]struct{} // hashes of entries that the request's cursor names, until the feed has read these entries
}

// merge brings the entries of a feed's sources into one sequence. A source is one of the partitions that the feed reads. It has a tail,
// which reads its new entries, while the feed itself reads the older entries since its cursor from the log. [exactMerge] is for logs
// whose store chooses the keys, and [stampedMerge] is for logs whose writers choose them; see package eventlog.
type merge interface {
	// next removes and returns the next entry. The result ok is false if no entry can be returned now.
	next() (q queued, ok bool)
	// findLagging returns a source whose older entries the feed must read from the log before it calls next again. It returns nil if there
	// is no such source.
	findLagging() *source
	// addPast adds a page of a source's older entries. The parameter began is when the read of this page began. The result caughtUp
	// reports that there are no more older entries, so that the source's next entries come from its tail.
	addPast(s *source, p logPage, began time.Time) (caughtUp bool)
	// receive takes the tails' batches from the inbox. The result some is false if the inbox was empty.
	receive() (some bool, err error)
	// forget drops the entries of a source that was removed.
	forget(s *source)
	// hasPending reports whether entries were read but not returned yet.
	hasPending() bool
	// cursor returns the position after all returned entries. If placed is true, the cursor has a separate position for each partition
	// that belongs to one URI. Entries from these partitions then need not be added to [eventlog.Cursor.Sent].
	cursor() (c eventlog.Cursor, placed bool)
}

type logPage struct {
	entries []eventlog.Entry
	more    bool
	next    int64
}

// queued is an entry that a [merge] has received and the feed has not returned yet.
type queued struct {
	src     *source
	entry   eventlog.Entry
	floor   int64 // the new floor of src (see [source]) after this entry; 0 keeps the floor
	read    time.Time
	live    bool // the entry came from a tail, so it counts towards the limit of waiting entries
	inOrder bool // see [Delivery.InOrder]
}

// effort limits the work of one call of [Feed.Poll], so that the caller can do other work in between. An entry costs 1, and each page
// that Poll reads from the log costs pageEffort.
const (
	effort     = 1000
	pageEffort = effort / 25
)

// Ready returns a channel that receives a value when [Feed.Poll] may have another delivery. Callers wait for it after a call of Poll that
// returned no delivery.
func (f *Feed) Ready() <-chan struct{} { return f.in.wake }

// Poll returns the next delivery. The result ok is false if no delivery is ready. It is also false after Poll has dropped many entries,
// so that the caller can do other work, for example send a heartbeat; in this case, [Feed.Ready] receives immediately. After the feed has
// ended, Poll fails with [ErrSlow], [ErrToken] or [ErrClosed].
func (f *Feed) Poll(ctx context.Context) (d Delivery, ok bool, err error) {
	if err := f.in.endError(); err != nil {
		return Delivery{}, false, err
	}
	for left := effort; left > 0; {
		if q, ok := f.merge.next(); ok {
			left--
			if d, ok := f.deliver(q); ok {
				return d, true, nil
			}
		} else if s := f.merge.findLagging(); s != nil {
			left -= pageEffort
			if err := f.readPast(ctx, s); err != nil {
				return Delivery{}, false, err
			}
		} else if some, err := f.merge.receive(); err != nil || !some {
			return Delivery{}, false, err
		}
	}
	f.in.wakeReader()
	return Delivery{}, false, nil
}

// readPast reads from the log the next page of a source's older entries, which are from before the feed joined the partition's tail. If a
// later release of the server wrote the next item, readPast marks the source as stuck (see [source]).
func (f *Feed) readPast(ctx context.Context, s *source) (err error) {
	var p logPage
	began := f.tails.Log.Time()
	p.entries, p.more, p.next, err = f.tails.Log.Read(ctx, s.part, s.past, max(minPage, pageSize/len(f.at.behind)))
	switch {
	case errors.Is(err, eventlog.ErrLater):
		s.stuck, s.caughtUp = true, false
		f.at.finishPast(s)
	case err != nil:
		return fault.Wrap(fault.Unavailable, err, "read the past of a stream")
	case f.merge.addPast(s, p, began):
		f.at.finishPast(s)
	}
	return nil
}

// deliver turns an entry into a delivery. It returns false if the feed must not return the entry, for example because the feed has
// returned it before or because the entry's pattern was removed.
func (f *Feed) deliver(q queued) (Delivery, bool) {
	if !f.at.has(q.src) {
		return Delivery{}, false
	}
	q.src.floor = max(q.src.floor, q.floor)
	id := q.entry.ID()
	if id == "" || q.entry.Key <= max(q.src.start, q.src.handed) {
		return Delivery{}, false
	}
	f.passed = f.passed || !q.live
	if q.src.growing {
		q.src.handed = q.entry.Key
	}
	if f.wants != nil && q.entry.Event != nil && !f.wants(q.entry.Event) {
		return Delivery{}, false
	}
	if !f.sent.add(id, q.entry.Key, q.src.place != 0) {
		return Delivery{}, false
	}
	if len(f.resume) > 0 {
		hash := f.tails.Sealer.Hash(id)
		if _, ok := f.resume[hash]; ok {
			delete(f.resume, hash) // f.sent now has the entry
			return Delivery{}, false
		}
	}
	d := Delivery{Event: q.entry.Event, Cursor: f.Cursor(), InOrder: q.inOrder, Read: q.read}
	switch {
	case q.src.topic: // a notice that cannot be read becomes a delivery without Notice
		d.Topic, d.Notice = q.src.pattern, q.entry.Notice
	case q.entry.Lost:
		d.Lost = q.src.pattern
	}
	f.passed = false
	return d, true
}

// CursorMoved reports whether the feed has dropped older entries of the log since its last delivery or the last call of CursorMoved. The
// caller should then send [Feed.Cursor] to the client, so that a resumed feed need not read these entries again.
func (f *Feed) CursorMoved() bool {
	moved := f.passed
	f.passed = false
	return moved
}

// Cursor returns the position after everything that the feed has returned. A feed in any process can resume from it.
func (f *Feed) Cursor() string {
	c, placed := f.merge.cursor()
	for _, id := range f.sent.idsAfter(c.At, placed) {
		c.Sent = append(c.Sent, f.tails.Sealer.Hash(id))
	}
	if len(f.at.behind) > 0 || f.merge.hasPending() { // the feed may still have to read entries that the request's cursor names
		for hash := range f.resume {
			c.Sent = append(c.Sent, hash)
		}
	}
	return f.tails.Sealer.Seal(f.workspace, c)
}

// Close ends the feed. It may be called more than once.
func (f *Feed) Close() {
	f.in.end(ErrClosed)
	for _, s := range f.at.sources {
		f.tails.leave(f, s.part)
	}
}

const (
	// A tail reads at intervals if the store does not report writes: every busyPoll or, if it has found no entries for the time quiet,
	// every idlePoll.
	busyPoll, idlePoll, quiet = 250 * time.Millisecond, time.Second, time.Minute
	// watched limits how long a tail waits for a write if the store reports writes. After this time, the tail renews its feeds' interests
	// in their patterns if that is due (see renewEvery). If the tail has stopped before an item of a later release, it also tries to read
	// the item again.
	watched = 10 * time.Second
	// renewEvery is how often a tail renews the [eventlog.Interest] in a pattern. If an eighth of the log's retention is shorter, it is
	// used instead.
	renewEvery = time.Hour
	// maxWaiting limits the entries that wait for the reader of a feed, and maxWaitingBytes limits the size of their payloads. Beyond a
	// limit, the feed ends with [ErrSlow], unless it is still catching up on older entries.
	maxWaiting, maxWaitingBytes = 10_000, 16 << 20
	// maxFloors limits the batches that wait for a feed. At this limit, the feed ignores new batches without entries. Such a batch only
	// says how far a tail has read, and a later batch says this, too.
	maxFloors = 256
)

// pageSize is the number of log items per read. A feed that catches up in several partitions divides this number by the number of
// partitions, down to minPage.
const (
	pageSize = 200
	minPage  = 5
)

// Tails runs the readers (tails) of the log's partitions in this process. Create it with [New], and end it with [Tails.Close].
type Tails struct {
	Log    *eventlog.Log
	DB     store.DB
	Sealer *eventlog.Sealer
	// Shares reports whether a workspace uses the catalog that several workspaces share ([catalog.Shared]). Nil means that no workspace
	// uses it.
	Shares func(ctx context.Context, workspace string) bool
	// Demand records which backends' events clients read, so that the relay subscribes to these events. It may be nil.
	Demand *demand.Registry

	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	mostWaiting load // maxWaiting and maxWaitingBytes, except in tests

	mu    sync.Mutex
	tails map[string]*tail

	// interests caches stored interests ([eventlog.Interest]), so that a poll need not read them.
	interests bounded.Map[string, eventlog.Interest]
}

// New returns the tails for a log. The parameter sealer encodes the cursors.
func New(log *eventlog.Log, db store.DB, sealer *eventlog.Sealer) *Tails {
	ctx, stop := context.WithCancel(context.Background())
	return &Tails{
		Log: log, DB: db, Sealer: sealer, ctx: ctx, stop: stop, tails: map[string]*tail{},
		mostWaiting: load{maxWaiting, maxWaitingBytes},
	}
}

func (ts *Tails) logger() *slog.Logger { return cmp.Or(ts.Log.Logger, slog.Default()) }

// Close ends all tails and waits for them. Feeds that are still open get [ErrClosed].
func (ts *Tails) Close() {
	ts.stop()
	ts.mu.Lock()
	for _, t := range ts.tails {
		t.end(ErrClosed, func(renewal) bool { return true })
	}
	ts.mu.Unlock()
	ts.running.Wait()
}

// Running returns the number of running tails.
func (ts *Tails) Running() int {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return len(ts.tails)
}

// pause returns how long to wait before the next read of a store that does not report writes. The parameter since is the time since the
// last entry.
func pause(since time.Duration) time.Duration {
	if since > quiet {
		return idlePoll
	}
	return busyPoll
}

// join adds the feed f to the tail of the partition p, and starts the tail if necessary. The tail calls renew regularly until the feed
// leaves.
func (ts *Tails) join(f *Feed, p eventlog.Partition, renew renewal) *tail {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.tails[p.Name()]
	if t == nil {
		ctx, cancel := context.WithCancel(ts.ctx)
		t = &tail{
			tails: ts, part: p, every: renew.every, feeds: map[*Feed]renewal{}, cancel: cancel,
			unwatch: func() {}, lookBack: ts.Log.LookBack(p),
		}
		if w, ok := ts.Log.DB.(store.Watcher); ok {
			t.changed, t.written, t.unwatch = w.Watch(p.Name())
		}
		t.window.from = ts.Log.SettledPosition() // the feeds themselves read the entries before this position
		ts.tails[p.Name()] = t
		ts.running.Add(1)
		go t.run(ctx)
	}
	t.mu.Lock()
	t.feeds[f] = renew
	t.mu.Unlock()
	return t
}

// leave removes the feed f from the tail of the partition p, and ends the tail if f was its last feed.
func (ts *Tails) leave(f *Feed, p eventlog.Partition) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.tails[p.Name()]
	if t == nil {
		return
	}
	t.mu.Lock()
	delete(t.feeds, f)
	empty := len(t.feeds) == 0
	t.mu.Unlock()
	if empty {
		t.cancel()
		delete(ts.tails, p.Name())
	}
}

// Delivery is an event, a notice or a gap that a feed returns.
type Delivery struct {
	// Event is the event, or nil for a notice or a gap.
	Event *event.Event
	// Topic and Notice are set for a notice. Notice is nil if the notice cannot be read.
	Topic  string
	Notice []byte
	// Lost is set for a gap, where an event cannot be read. It is the key of the pattern to which the event belongs. The client must be
	// told about the gap.
	Lost string
	// Cursor is the cursor with which a client resumes after this delivery.
	Cursor string
	// InOrder says that the feed has returned all notices that were committed before this delivery.
	InOrder bool
	// Read is when this process read the entry from the log.
	Read time.Time
}

// ErrClosed ends a feed whose process is shutting down.
var ErrClosed = fault.New(fault.Unavailable, "the server is shutting down")

// ErrSlow ends a feed whose reader did not keep up. The client can resume from its last cursor.
var ErrSlow = fault.New(fault.Exhausted, "the reader is too slow; resume from the last cursor")

// ErrToken ends a feed of a backend's events after the relay has lost the caller's token for the backend, for example because the backend
// refused the token. The client can resume from its last cursor with a new token.
var ErrToken = fault.New(fault.Unauthenticated, "the backend of these events needs another token of the caller; resume from the last cursor")

// recordInterest calls [subscription.RecordInterest], except if the cache has an interest that still lasts for most of the log's
// retention.
func (ts *Tails) recordInterest(ctx context.Context, workspace string, p match.Pattern) (eventlog.Interest, error) {
	key := workspace + "#" + p.Key
	now := ts.Log.Time()
	in, ok := ts.interests.Get(key)
	retention := now.Sub(time.UnixMicro(ts.Log.Oldest()))
	if ok && in.Until.Sub(now) > retention-retention/8 {
		return in, nil
	}
	in, err := subscription.RecordInterest(ctx, ts.DB, ts.Log, workspace, p)
	if err == nil {
		ts.interests.Put(key, in)
	}
	return in, err
}
