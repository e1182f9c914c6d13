package stream

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

// Feed is what one stream reads. All its methods are called by one goroutine.
type Feed struct {
	// Truncated reports that the log no longer holds everything since the
	// cursor that was asked for: events may be missing.
	Truncated bool

	tails     *Tails
	workspace string
	sole      bool
	wants     func(*event.Event) bool
	ordered   bool // the store orders all partitions; see order.go
	// wake is told when there is something to hand out, or never will be again.
	wake chan struct{}

	mu   sync.Mutex
	in   []*batch // what the tails brought and was not taken yet
	held bool     // every batch wakes: an entry waits for the others to come as far
	err  error

	parts  map[string]*source
	back   []*source // sources that still read their past
	queue  []queued  // unless the store is ordered
	sent   recent
	resume map[uint64]struct{} // what the resumed cursor says was sent and was not met yet
}

// source is one partition of a feed.
type source struct {
	part    eventlog.Partition
	pattern string // the pattern's key or the topic; several patterns never share a partition
	topic   bool
	start   int64
	floor   int64  // everything with a key up to it was handed out
	past    int64  // how far the feed's own reading came
	handed  int64  // the greatest key handed out, where keys grow in commit order
	place   uint64 // names a concrete URI's partition in a cursor

	// Of an ordered store: what was read and not handed out; whether the tail brings the rest; and
	// what was written last, nil if the store does not tell.
	ahead    []queued
	caughtUp bool
	written  func() int64
}

type queued struct {
	src   *source
	entry eventlog.Entry
	floor int64 // of the source once this was handed out; 0 leaves it
	read  time.Time
}

// Open starts a feed. It returns after the interest in parents and wildcards is
// recorded: every event that is published after Open returned will be handed out. Without a cursor
// it begins at the end of the log. A cursor that is not ours is a fault of kind Invalid.
func (ts *Tails) Open(ctx context.Context, r Request) (*Feed, error) {
	f := &Feed{
		tails: ts, workspace: r.Workspace, sole: r.Sole, wants: r.Wants, ordered: ts.Log.DB.Ordered(),
		wake: make(chan struct{}, 1), parts: map[string]*source{},
	}
	now := ts.Log.Position()
	from := func(eventlog.Partition) int64 { return now }
	topics := cmp.Or(r.TopicsAfter, now)
	if r.Cursor != "" {
		c, err := ts.Sealer.Open(r.Workspace, r.Cursor)
		if err != nil {
			return nil, err
		}
		from = func(p eventlog.Partition) int64 {
			start, truncated := ts.reach(c, p, r.MaxAge)
			f.Truncated = f.Truncated || truncated
			return start
		}
		if !r.Sole && len(r.Topics) > 0 {
			topics = from(eventlog.Partition{})
		}
		f.resume = make(map[uint64]struct{}, len(c.Sent))
		for _, h := range c.Sent {
			f.resume[h] = struct{}{}
		}
	}
	for _, p := range r.Patterns {
		if err := f.add(ctx, p, from); err != nil {
			f.Close()
			return nil, err
		}
	}
	if r.Cursor == "" && !f.ordered {
		if err := f.beginAtEnd(ctx); err != nil {
			f.Close()
			return nil, err
		}
	}
	for _, t := range r.Topics {
		for _, p := range ts.topics(ctx, r.Workspace, t) {
			f.join(&source{part: p, pattern: t, topic: true}, topics, nil)
		}
	}
	return f, nil
}

// Add subscribes the feed to a further pattern, from a position on (see [eventlog.Log.Position]).
func (f *Feed) Add(ctx context.Context, p subscription.Pattern, after int64) error {
	return f.add(ctx, p, func(eventlog.Partition) int64 { return after })
}

func (f *Feed) add(ctx context.Context, p subscription.Pattern, from func(eventlog.Partition) int64) error {
	parts := p.Partitions(f.tails.Log, f.workspace)
	if len(parts) == 1 {
		part := parts[0]
		f.join(&source{part: part, pattern: p.Key, place: f.tails.Sealer.PlaceOf(part, 0).Partition}, from(part), nil)
		return nil
	}
	renew := func(ctx context.Context) error {
		_, err := subscription.Interested(ctx, f.tails.DB, f.tails.Log, f.workspace, p)
		return err
	}
	in, err := subscription.Interested(ctx, f.tails.DB, f.tails.Log, f.workspace, p)
	if err != nil {
		return err
	}
	for _, part := range parts {
		start := from(part)
		if since := in.Reaches(); since > start && f.resume != nil {
			f.Truncated = true
			start = since
		}
		f.join(&source{part: part, pattern: p.Key}, start, renew)
	}
	return nil
}

func (f *Feed) join(s *source, start int64, renew func(context.Context) error) {
	if f.parts[s.part.Name()] != nil {
		return
	}
	s.start, s.floor, s.past = start, start, start
	f.parts[s.part.Name()] = s
	s.written = f.tails.join(f, s.part, renew)
	f.back = append(f.back, s)
}

// maxReads is how many partitions a feed reads at once when it opens.
const maxReads = 16

// beginAtEnd takes what the log holds when the feed opens for handed out: the keys of what
// comes after may be smaller than the clock says, or than those of what is there, when the clock
// was set. The tails bring what is written from now on.
func (f *Feed) beginAtEnd(ctx context.Context) error {
	read, ctx := errgroup.WithContext(ctx)
	read.SetLimit(maxReads)
	var mu sync.Mutex
	for _, s := range f.back {
		read.Go(func() error {
			if s.place != 0 {
				end, err := f.tails.Log.EndOf(ctx, f.workspace, s.pattern)
				s.start, s.floor, s.past = end, end, end
				return err
			}
			for more, next := true, s.start; more; {
				var entries []eventlog.Entry
				var err error
				if entries, more, next, err = f.tails.Log.Read(ctx, s.part, next, pageSize); err != nil {
					return err
				}
				mu.Lock()
				for _, e := range entries {
					f.sent.add(e.ID(), e.Key, false)
				}
				mu.Unlock()
			}
			return nil
		})
	}
	f.back = nil
	return read.Wait()
}

// Remove ends the subscription to a pattern. What was read of it already may
// still be handed out.
func (f *Feed) Remove(p subscription.Pattern) {
	for name, s := range f.parts {
		if s.pattern == p.Key && !s.topic {
			f.tails.leave(f, s.part)
			delete(f.parts, name)
		}
	}
}

// Next waits for the next delivery. It returns [ErrSlow], [ErrClosed], or ctx's
// error when there will be none.
func (f *Feed) Next(ctx context.Context) (Delivery, error) {
	for {
		if d, ok, err := f.Poll(ctx); ok || err != nil {
			return d, err
		}
		select {
		case <-f.wake:
		case <-ctx.Done():
			return Delivery{}, ctx.Err()
		}
	}
}

// Ready receives when [Feed.Poll] is to be called again after it had nothing.
func (f *Feed) Ready() <-chan struct{} { return f.wake }

// Poll is [Feed.Next] without waiting: ok is false when there is nothing now.
func (f *Feed) Poll(ctx context.Context) (d Delivery, ok bool, err error) {
	if f.ordered {
		return f.pollInOrder(ctx)
	}
	for {
		for len(f.queue) > 0 {
			q := f.queue[0]
			if f.queue = f.queue[1:]; len(f.queue) == 0 {
				f.queue = nil // a quiet stream keeps no room
			}
			if d, ok := f.take(q); ok {
				return d, true, nil
			}
		}
		if len(f.back) > 0 {
			if err := f.readPast(ctx); err != nil {
				return Delivery{}, false, err
			}
			continue
		}
		f.mu.Lock()
		in, err := f.in, f.err
		f.in = nil
		f.mu.Unlock()
		if err != nil || len(in) == 0 {
			return Delivery{}, false, err
		}
		for _, b := range in {
			f.enqueue(b)
		}
	}
}

// take turns an entry into a delivery unless it was sent before or its pattern
// was removed.
func (f *Feed) take(q queued) (Delivery, bool) {
	if f.parts[q.src.part.Name()] != q.src {
		return Delivery{}, false
	}
	defer func() {
		if q.floor > q.src.floor {
			q.src.floor = q.floor
		}
	}()
	id := q.entry.ID()
	if id == "" || q.entry.Key <= max(q.src.start, q.src.handed) {
		return Delivery{}, false
	}
	if f.tails.Log.LookBack(q.src.part) == 0 {
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
			delete(f.resume, hash) // it is among what this feed knows as sent
			return Delivery{}, false
		}
	}
	if q.floor > q.src.floor {
		q.src.floor = q.floor
	}
	d := Delivery{Event: q.entry.Event, Cursor: f.Cursor(), Read: q.read}
	if q.src.topic {
		d.Topic, d.Notice = q.src.pattern, q.entry.Notice
	}
	return d, true
}

// enqueue takes a tail's batch. Where keys grow in commit order, each entry
// moves the source's floor; elsewhere only the whole batch does.
func (f *Feed) enqueue(b *batch) {
	s := f.parts[b.part.Name()]
	if s == nil {
		return
	}
	ordered := f.tails.Log.LookBack(b.part) == 0
	for _, e := range b.entries {
		q := queued{src: s, entry: e, read: b.read}
		if ordered {
			q.floor = e.Key
		}
		f.queue = append(f.queue, q)
	}
	f.queue = append(f.queue, queued{src: s, floor: b.floor})
}

// readPast reads one page of what lies between a source's start and its tail, of the
// source that is furthest behind: the cursor, one position for all, is where that one is.
// So whoever is cut off again and again while catching up comes further each time, and what is
// ahead of the cursor, and would be repeated, is about a page.
func (f *Feed) readPast(ctx context.Context) error {
	n := 0
	for i, s := range f.back {
		if s.past < f.back[n].past {
			n = i
		}
	}
	s := f.back[n]
	if f.parts[s.part.Name()] != s {
		f.back = slices.Delete(f.back, n, n+1)
		return nil
	}
	began := f.tails.now()
	entries, more, next, err := f.tails.Log.Read(ctx, s.part, s.past, max(minPage, pageSize/len(f.back)))
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "read the past of a stream")
	}
	s.past = next
	ordered := f.tails.Log.LookBack(s.part) == 0
	read := time.Now()
	for _, e := range entries {
		q := queued{src: s, entry: e, read: read}
		if ordered {
			q.floor = e.Key
		}
		f.queue = append(f.queue, q)
	}
	floor := began.Add(-eventlog.Window).UnixMicro()
	if more {
		floor = min(floor, next)
	} else {
		f.back = slices.Delete(f.back, n, n+1)
	}
	f.queue = append(f.queue, queued{src: s, floor: floor})
	return nil
}

// Cursor is the position behind everything that was handed out. Any instance
// can resume from it.
func (f *Feed) Cursor() string {
	if f.ordered {
		_, _ = f.drain() // the next [Feed.Poll] returns the error
	} else {
		f.settle()
	}
	end := f.tails.Log.Position() // before what was written is asked
	at, open := int64(-1), false
	var places []eventlog.Place
	for _, s := range f.parts {
		if f.sole && s.topic {
			continue
		}
		floor := s.floor
		if f.ordered {
			floor = s.reached(end)
		} else if s.place != 0 {
			places = append(places, eventlog.Place{Partition: s.place, At: floor})
		}
		open = open || s.place == 0 && !s.topic
		if at < 0 || floor < at {
			at = floor
		}
	}
	// Who resumes with a further pattern must find in it what is published from now on.
	if at < 0 || at > end && !f.ordered && !f.sole {
		at = end
	}
	c := eventlog.Cursor{At: at}
	if f.ordered && at >= end {
		c.Given = f.tails.now().UnixMicro()
	}
	placed := !open && len(places) > 0 && len(places) <= eventlog.MaxPlaces
	if placed && (len(places) > 1 || !f.sole) {
		slices.SortFunc(places, func(a, b eventlog.Place) int { return cmp.Compare(a.Partition, b.Partition) })
		c.Places = places
	}
	for _, id := range f.sent.after(at, placed) {
		c.Sent = append(c.Sent, f.tails.Sealer.Hash(id))
	}
	if len(f.back) > 0 || len(f.queue) > 0 || f.first() != nil { // some of it may not have been met yet
		for hash := range f.resume {
			c.Sent = append(c.Sent, hash)
		}
	}
	return f.tails.Sealer.Seal(f.workspace, c)
}

// Close ends the feed. It may be called more than once.
func (f *Feed) Close() {
	f.fail(ErrClosed)
	for _, s := range f.parts {
		f.tails.leave(f, s.part)
	}
}

// offer takes a batch from a tail. One that only moves a floor wakes nobody.
func (f *Feed) offer(b *batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return
	}
	n := len(f.in)
	if f.held {
		f.tell()
	}
	if len(b.entries) > 0 {
		if n >= f.tails.Options.Buffer {
			f.end(ErrSlow)
			return
		}
		f.in = append(f.in, b)
		f.tell()
		return
	}
	for i := n - 1; i >= 0 && len(f.in[i].entries) == 0; i-- {
		if f.in[i].part == b.part {
			f.in[i] = b
			return
		}
	}
	if n < f.tails.Options.Buffer { // else the next one says more
		f.in = append(f.in, b)
	}
}

func (f *Feed) tell() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *Feed) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.end(err)
	}
}

// end ends the feed; f.mu is held.
func (f *Feed) end(err error) {
	f.err, f.in = err, nil
	f.tell()
}

// settle moves the floors that nobody was woken for.
func (f *Feed) settle() {
	if len(f.queue) > 0 || len(f.back) > 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.in) > 0 && len(f.in[0].entries) == 0 {
		if s := f.parts[f.in[0].part.Name()]; s != nil {
			s.floor = max(s.floor, f.in[0].floor)
		}
		if f.in = f.in[1:]; len(f.in) == 0 {
			f.in = nil
		}
	}
}

// recent remembers what was handed out lately, oldest first: enough to drop what
// a partition's tail, its past and overlapping partitions bring twice.
type recent struct {
	keys  map[string]handedOut
	order []string
}

// handedOut is where an entry was: its key, and whether its partition has a place of its own in cursors.
type handedOut struct {
	key    int64
	placed bool
}

// maxRecent bounds the memory of a feed. Duplicates are at most [eventlog.Window]
// and a page apart; beyond this many in that time a feed repeats some.
const maxRecent = 4096

func (r *recent) add(id string, key int64, placed bool) bool {
	if _, ok := r.keys[id]; ok {
		return false
	}
	if r.keys == nil {
		r.keys = map[string]handedOut{}
	}
	if len(r.order) >= maxRecent {
		delete(r.keys, r.order[0])
		r.order = r.order[1:]
	}
	r.keys[id] = handedOut{key, placed}
	r.order = append(r.order, id)
	return true
}

// after lists what has a greater key, without what has a place if the cursor tells it, and forgets
// what is long past.
func (r *recent) after(at int64, places bool) []string {
	for len(r.order) > 0 && r.keys[r.order[0]].key < at-2*eventlog.Window.Microseconds() {
		delete(r.keys, r.order[0])
		r.order = r.order[1:]
	}
	var ids []string
	for _, id := range r.order {
		if h := r.keys[id]; h.key > at && !(places && h.placed) {
			if ids = append(ids, id); len(ids) > eventlog.MaxSent {
				return ids
			}
		}
	}
	return ids
}
