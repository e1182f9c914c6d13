package stream

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// tail reads one partition as it grows, for all feeds of the process that want it. It runs while it has feeds.
type tail struct {
	tails *Tails
	part  eventlog.Partition
	renew renewal

	mu    sync.Mutex
	feeds map[*Feed]struct{}

	cancel context.CancelFunc

	// These are nil if the store cannot be watched.
	changed <-chan struct{}
	written func() int64
	unwatch func()
	from    int64 // where the first poll begins; the feeds themselves read the entries before the watch
}

// renewal keeps the interest in a pattern alive. It is zero for tails that need none.
type renewal struct {
	do    func(context.Context) error
	every time.Duration
}

// batch is the result of one poll of a tail. All feeds share it and must not change it.
type batch struct {
	part    eventlog.Partition
	entries []eventlog.Entry
	load    load  // of the entries
	floor   int64 // every entry with a key up to it is in this or an earlier batch
	later   bool  // the next item is of a later release, so the tail stays before it; then there are no entries
	read    time.Time
}

func (t *tail) run(ctx context.Context) {
	defer t.tails.running.Done()
	changed := t.changed
	defer t.unwatch()

	log := t.tails.Log
	lookBack := log.LookBack(t.part)
	start, from := log.Time(), t.from
	seen := map[string]int64{}
	var previous time.Time // start of the last poll
	lastEntry, lastRenewal := start, start
	timer := time.NewTimer(watched)
	defer timer.Stop()
	for unread, first := true, true; ; first = false {
		notified := unread || changed == nil
		if !first {
			select {
			case <-ctx.Done():
				return
			case <-changed:
				notified = true
			case <-timer.C:
			}
		}
		began := log.Time()
		select { // after a pause of the whole process, both the timer and changed may be ready
		case <-changed:
			notified = true
		default:
		}
		if !notified { // only time has passed; feeds of a watched store know their position without a floor
			timer.Reset(watched)
			t.renewInterest(ctx, began, &lastRenewal)
			continue
		}
		settled := log.Settled()
		fresh, last, err := t.poll(ctx, from, seen)
		unread = err != nil
		wait := pause(began.Sub(lastEntry))
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			wait = idlePoll
			if errors.Is(err, eventlog.ErrLater) { // the log has logged it
				if wait = watched; len(fresh) > 0 {
					from = last
					t.spread(&batch{part: t.part, entries: fresh, floor: last})
				}
				t.spread(&batch{part: t.part, later: true})
				break
			}
			slog.WarnContext(ctx, "tail read failed", "error", err)
		default:
			if len(fresh) > 0 {
				lastEntry = began
				wait = pause(0)
			}
			if lookBack > 0 && !previous.IsZero() {
				t.countLate(fresh, previous)
			}
			previous = began
			floor := settled
			if lookBack == 0 {
				from, floor = max(from, last), max(floor, last)
			} else {
				from = began.Add(-lookBack).UnixMicro()
				prune(seen, from)
			}
			t.spread(&batch{part: t.part, entries: fresh, floor: floor})
		}
		t.renewInterest(ctx, began, &lastRenewal)
		if changed != nil && !unread {
			wait = watched // the store notifies of writes; the timer moves floors and interest
		}
		timer.Reset(wait)
	}
}

// countLate counts entries that arrived later than slow appends and skewed clocks explain. They were still within the reserve
// of the window, but readers would miss entries that are a little later.
func (t *tail) countLate(fresh []eventlog.Entry, previous time.Time) {
	bound := previous.Add(-eventlog.SlowAppend - 2*eventlog.MaxSkew).UnixMicro()
	for _, e := range fresh {
		if e.Key < bound {
			t.tails.Log.Late.Add(1)
		}
	}
}

func (t *tail) renewInterest(ctx context.Context, now time.Time, last *time.Time) {
	if t.renew.do == nil || now.Sub(*last) < t.renew.every {
		return
	}
	*last = now
	if err := t.renew.do(ctx); err != nil {
		slog.WarnContext(ctx, "interest not renewed", "error", err)
	}
}

// poll reads all entries after from that were not seen. It marks them as seen only if the whole poll succeeds, because
// otherwise the feeds do not get them. If keys grow in the order of commits, poll also returns the entries before an item of a
// later release.
func (t *tail) poll(ctx context.Context, from int64, seen map[string]int64) (fresh []eventlog.Entry, last int64, err error) {
	next, more := from, true
	for more {
		var page []eventlog.Entry
		page, more, next, err = t.tails.Log.Read(ctx, t.part, next, pageSize)
		if errors.Is(err, eventlog.ErrLater) && t.tails.Log.LookBack(t.part) == 0 {
			return fresh, next, err
		}
		if err != nil {
			return nil, 0, err
		}
		for _, e := range page {
			if _, ok := seen[e.ID()]; !ok {
				fresh = append(fresh, e)
			}
		}
	}
	if t.tails.Log.LookBack(t.part) > 0 {
		for _, e := range fresh {
			seen[e.ID()] = e.Key
		}
	}
	return fresh, next, nil
}

func prune(seen map[string]int64, from int64) {
	for id, key := range seen {
		if key <= from {
			delete(seen, id)
		}
	}
}

// spread gives a batch to every feed. A feed without room for it ends, so that it does not hold up the others. Its client can
// resume from its cursor.
func (t *tail) spread(b *batch) {
	b.read, b.load = time.Now(), loadOf(b.entries)
	t.mu.Lock()
	defer t.mu.Unlock()
	for f := range t.feeds {
		f.offer(b)
	}
}

func (t *tail) watch() {
	t.unwatch = func() {}
	if w, ok := t.tails.Log.DB.(store.Watcher); ok {
		t.changed, t.written, t.unwatch = w.Watch(t.part.Name())
	}
	t.from = t.tails.Log.Settled()
}
