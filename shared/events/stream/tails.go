// Package stream reads the event log for open MCP streams of every revision, for polls, and for readers in the same
// process.
//
//	              ┌ tail of partition A ┐
//	event log ────┤ tail of partition B ├──▶ feed ──▶ one open stream
//	              └ …                   ┘     (cursor, duplicates, order)
//
// A process has one [Tails]. It reads each partition once for all of its streams. A [Feed] merges the partitions of one
// stream and drops duplicates. With its cursor another instance can continue the stream. feed.go follows an event from top to
// bottom. Wire formats are in shared/mcp and do not appear here.
package stream

import (
	"context"
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

const (
	// busyPoll is the time between polls if there was an entry within quiet. Otherwise it is idlePoll. They are for stores
	// that cannot be watched.
	busyPoll, idlePoll, quiet = 250 * time.Millisecond, time.Second, time.Minute
	// watched is the time between polls of a store that can be watched. These polls move the cursors of quiet streams.
	watched = 10 * time.Second
	// renewEvery is how often the interest in a pattern is renewed, unless an eighth of the retention is shorter.
	renewEvery = time.Hour
	// maxWaiting and maxWaitingBytes bound the entries, and their payloads, that wait for the reader of a feed. If its reader
	// falls further behind, the feed ends.
	maxWaiting, maxWaitingBytes = 10_000, 16 << 20
	// maxFloors is how many batches may wait before a feed ignores batches without entries.
	maxFloors = 256
)

// pageSize is the number of log items of one read. When a stream catches up, the reads of its partitions share this number,
// but each has at least minPage.
const (
	pageSize = 200
	minPage  = 5
)

// Tails owns the tails of a process. Create it with [New], and end it with [Tails.Close].
type Tails struct {
	Log    *eventlog.Log
	DB     store.DB
	Sealer *eventlog.Sealer
	// Shares reports whether a workspace has the catalog of [catalog.Shared]. If it is nil, no workspace has it.
	Shares func(ctx context.Context, workspace string) bool
	// Demand records which events of backends are read. It is nil if there are no backends.
	Demand *demand.Registry

	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	mostWaiting load // for each feed

	mu    sync.Mutex
	tails map[string]*tail

	// interests caches interests that are recorded in the store, so that not every poll has to read them.
	interests bounded.Map[string, eventlog.Interest]
}

// New returns the tails of a process over its log. sealer seals the cursors.
func New(log *eventlog.Log, db store.DB, sealer *eventlog.Sealer) *Tails {
	ctx, stop := context.WithCancel(context.Background())
	return &Tails{
		Log: log, DB: db, Sealer: sealer, ctx: ctx, stop: stop, tails: map[string]*tail{},
		mostWaiting: load{maxWaiting, maxWaitingBytes},
	}
}

// Close ends all tails and waits for them. Feeds that are still open get [ErrClosed].
func (ts *Tails) Close() {
	ts.stop()
	ts.mu.Lock()
	for _, t := range ts.tails {
		t.mu.Lock()
		for f := range t.feeds {
			f.in.end(ErrClosed)
		}
		t.mu.Unlock()
	}
	ts.mu.Unlock()
	ts.running.Wait()
}

// Running returns the number of partitions that are being read.
func (ts *Tails) Running() int {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return len(ts.tails)
}

// pause returns the time until the next poll. since is the time since the last entry.
func pause(since time.Duration) time.Duration {
	if since > quiet {
		return idlePoll
	}
	return busyPoll
}

// join adds f to the tail of p, which it starts if necessary.
func (ts *Tails) join(f *Feed, p eventlog.Partition, renew renewal) *tail {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.tails[p.Name()]
	if t == nil {
		ctx, cancel := context.WithCancel(ts.ctx)
		t = &tail{
			tails: ts, part: p, renew: renew, feeds: map[*Feed]struct{}{}, cancel: cancel,
			unwatch: func() {}, lookBack: ts.Log.LookBack(p),
		}
		if w, ok := ts.Log.DB.(store.Watcher); ok {
			t.changed, t.written, t.unwatch = w.Watch(p.Name())
		}
		t.window.from = ts.Log.Settled() // the feeds themselves read the entries before the watch
		ts.tails[p.Name()] = t
		ts.running.Add(1)
		go t.run(ctx)
	}
	t.mu.Lock()
	t.feeds[f] = struct{}{}
	t.mu.Unlock()
	return t
}

// leave removes f from the tail of p, and ends the tail after its last feed.
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
	// Event is set for an event.
	Event *event.Event
	// Topic and Notice are set for a notice. Notice is nil if the notice cannot be read.
	Topic  string
	Notice []byte
	// Lost is the key of a pattern if some of its events cannot be read. The client must be notified of the gap.
	Lost string
	// Cursor resumes after this delivery.
	Cursor string
	// InOrder says that the feed has returned every notice that was committed before this delivery.
	InOrder bool
	// Read is when this process read the entry from the log.
	Read time.Time
}

// ErrClosed ends a feed whose process is shutting down.
var ErrClosed = fault.New(fault.Unavailable, "the server is shutting down")

// ErrSlow ends a feed whose reader did not keep up. The client can resume from its last cursor.
var ErrSlow = fault.New(fault.Exhausted, "the reader is too slow; resume from the last cursor")

// recordInterest calls [subscription.Interested], but for each pattern at most once in an eighth of the retention.
func (ts *Tails) recordInterest(ctx context.Context, workspace string, p match.Pattern) (eventlog.Interest, error) {
	key := workspace + "#" + p.Key
	now := ts.Log.Time()
	in, ok := ts.interests.Get(key)
	retention := now.Sub(time.UnixMicro(ts.Log.Oldest()))
	if ok && in.Until.Sub(now) > retention-retention/8 {
		return in, nil
	}
	in, err := subscription.Interested(ctx, ts.DB, ts.Log, workspace, p)
	if err != nil {
		return in, err
	}
	ts.interests.Put(key, in)
	return in, nil
}
