package stream

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Feed has the events and notices of one stream. Only one goroutine may call its methods.
type Feed struct {
	// Truncated reports that the log no longer holds everything since the cursor. Events may be missing.
	Truncated bool

	tails     *Tails
	workspace string
	principal string
	sole      bool
	wants     func(*event.Event) bool
	merge     merge
	// begun is the position from which the feed was opened, and given is when that was the end of the log; see
	// [eventlog.Cursor.Given].
	begun, given int64
	// wake receives when there is an entry to return, and when the feed has ended.
	wake chan struct{}

	mu      sync.Mutex
	in      []*batch // from the tails, not taken yet
	waiting load     // of in
	taken   load     // live entries that the reader has taken from in and not returned
	// catchingUp says that the feed first returns entries of the past, so the number of waiting entries does not show the
	// reader's speed.
	catchingUp bool
	missed     map[string]bool // partitions with a batch that was dropped because too many entries wait
	later      map[string]bool // partitions whose tails stay before an item of a later release
	held       bool            // every batch wakes the reader, because an entry waits for the other sources
	err        error

	parts  map[string]*source
	back   []*source // the sources that still read their past
	passed bool      // entries of the past were dropped since the last delivery
	sent   recent
	resume map[uint64]struct{} // the hashes of the cursor whose entries were not found yet
}

// merge brings the entries of a feed's sources into one sequence. Its two implementations belong to the two kinds of keys
// that package eventlog describes.
type merge interface {
	// begin skips the existing entries of the log when a feed without a cursor opens.
	begin(ctx context.Context) error
	// poll is [Feed.Poll].
	poll(ctx context.Context) (d Delivery, ok bool, err error)
	// forget drops the entries of a source that was removed.
	forget(s *source)
	// cursor returns the position after all returned entries. placed reports whether each partition has a position of its
	// own.
	cursor() (c eventlog.Cursor, placed bool)
	// pending reports whether entries were read and not returned yet.
	pending() bool
}

// source is one partition of a feed.
type source struct {
	part    eventlog.Partition
	pattern string // the key of the pattern, or the topic; no two patterns share a partition
	topic   bool
	start   int64
	floor   int64  // every entry with a key up to it was returned
	past    int64  // how far the feed itself has read
	bound   int64  // no floor of the past may pass it; 0 is no bound
	handed  int64  // the greatest key returned, where keys grow in commit order
	place   uint64 // names the partition of a concrete URI in a cursor
	// stuck says that the next item is of a later release. The source keeps its position, so that a client that resumes
	// when that release runs gets all entries after it. The other sources continue.
	stuck bool

	// The rest is for [exactMerge].
	ahead    []queued     // read and not returned yet
	caughtUp bool         // the tail has all later entries
	written  func() int64 // returns the last key that was written; nil if the store cannot be watched
}

type queued struct {
	src   *source
	entry eventlog.Entry
	floor int64 // the source's floor after this entry; 0 keeps the floor
	read  time.Time
	live  bool // from a tail, so it counts as waiting
}

// Open starts a feed. It records the interest in parents and wildcards before it returns, so the feed returns every event that
// is published afterwards. Without a cursor the feed begins at the end of the log. If the cursor is from another server, Open
// returns an error of kind Invalid.
func (ts *Tails) Open(ctx context.Context, r Request) (*Feed, error) {
	f := &Feed{
		tails: ts, workspace: r.Workspace, principal: r.Principal, sole: r.Sole, wants: r.Wants,
		wake: make(chan struct{}, 1), parts: map[string]*source{},
	}
	f.merge = &stampedMerge{Feed: f}
	if ts.Log.TotalOrder() {
		f.merge = &exactMerge{Feed: f}
	}
	for _, p := range r.Patterns { // before the feed takes its position, because the relay may have to subscribe first
		if err := ts.Demand.Want(ctx, r.Workspace, r.Principal, p.Key); err != nil {
			return nil, err
		}
	}
	opened, now := ts.Log.Time().UnixMicro(), ts.Log.Position()
	from := func(eventlog.Partition) int64 { return now }
	f.begun, f.given = now, opened
	topics := cmp.Or(r.TopicsAfter, now)
	if r.Cursor != "" {
		c, err := ts.Sealer.Open(r.Workspace, r.Cursor)
		if err != nil {
			return nil, err
		}
		f.begun, f.given = c.At, c.Given
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
	if r.Cursor == "" {
		if err := f.merge.begin(ctx); err != nil {
			f.Close()
			return nil, err
		}
	}
	for _, t := range r.Topics {
		for _, p := range ts.topics(ctx, r.Workspace, t) {
			f.join(&source{part: p, pattern: t, topic: true}, topics, renewal{})
		}
	}
	return f, nil
}

// Add subscribes the feed to another pattern, from a position on (see [eventlog.Log.Position]).
func (f *Feed) Add(ctx context.Context, p match.Pattern, after int64) error {
	return f.add(ctx, p, func(eventlog.Partition) int64 { return after })
}

func (f *Feed) add(ctx context.Context, p match.Pattern, from func(eventlog.Partition) int64) error {
	parts := p.Partitions(f.tails.Log, f.workspace)
	if len(parts) == 1 {
		part := parts[0]
		f.join(&source{part: part, pattern: p.Key, place: f.tails.Sealer.PlaceOf(part, 0).Partition}, from(part), f.renewDemand(p))
		return nil
	}
	renew := renewal{every: min(renewEvery, f.tails.Log.Reaches()/8), do: func(ctx context.Context) error {
		_, err := subscription.Interested(ctx, f.tails.DB, f.tails.Log, f.workspace, p)
		return err
	}}
	in, err := subscription.Interested(ctx, f.tails.DB, f.tails.Log, f.workspace, p)
	if err != nil {
		return err
	}
	for _, part := range parts {
		start := from(part)
		if since := in.Reaches(); since > max(start, f.given) && f.resume != nil {
			f.Truncated = true
			start = since
		}
		f.join(&source{part: part, pattern: p.Key}, start, renew)
	}
	return nil
}

// renewDemand returns the renewal of a demand for events of a backend. For other events it is zero.
func (f *Feed) renewDemand(p match.Pattern) renewal {
	if catalog.BackendOf(p.Key) == "" {
		return renewal{}
	}
	return renewal{every: demand.RenewEvery, do: func(ctx context.Context) error {
		return f.tails.Demand.Want(ctx, f.workspace, f.principal, p.Key)
	}}
}

func (f *Feed) join(s *source, start int64, renew renewal) {
	if f.parts[s.part.Name()] != nil {
		return
	}
	s.start, s.floor, s.past = start, start, start
	f.parts[s.part.Name()] = s
	f.back = append(f.back, s)
	f.mu.Lock()
	f.catchingUp = true
	f.mu.Unlock()
	s.written = f.tails.join(f, s.part, renew)
}

// Remove ends the subscription to a pattern. The feed may still return events that match another of its patterns.
func (f *Feed) Remove(p match.Pattern) { f.remove(p.Key, false) }

// Follow adds a topic to the feed, from a position on; see [Request.Topics].
func (f *Feed) Follow(topic string, after int64) {
	f.join(&source{part: eventlog.Topic(f.workspace, topic), pattern: topic, topic: true}, after, renewal{})
}

// Unfollow removes a topic that [Feed.Follow] added.
func (f *Feed) Unfollow(topic string) { f.remove(topic, true) }

func (f *Feed) remove(pattern string, topic bool) {
	for name, s := range f.parts {
		if s.pattern == pattern && s.topic == topic {
			f.tails.leave(f, s.part)
			delete(f.parts, name)
			f.merge.forget(s)
		}
	}
}

// Ready returns a channel that gets a value when [Feed.Poll] had no delivery and may have one now.
func (f *Feed) Ready() <-chan struct{} { return f.wake }

// Poll returns the next delivery. ok is false if there is no delivery now. It is also false after Poll has dropped many
// entries, so that the caller can do other work, e.g. send a heartbeat; then [Feed.Ready] receives immediately. Poll fails
// with [ErrSlow] or [ErrClosed] when the feed has ended.
func (f *Feed) Poll(ctx context.Context) (d Delivery, ok bool, err error) {
	if err := f.endError(); err != nil {
		return Delivery{}, false, err
	}
	return f.merge.poll(ctx)
}

// effort bounds one call of [Feed.Poll]. Each entry that it drops costs 1, and each page that it reads costs pageEffort.
const (
	effort     = 1000
	pageEffort = effort / 25
)

// CursorMoved reports whether the feed has dropped entries of its past since its last delivery or the last call. Then
// [Feed.Cursor] may be far after the last delivery's cursor, and a client that gets it need not read them again.
func (f *Feed) CursorMoved() bool {
	moved := f.passed
	f.passed = false
	return moved
}

// take turns an entry into a delivery, unless it was sent before or its pattern was removed.
func (f *Feed) take(q queued) (Delivery, bool) {
	if f.parts[q.src.part.Name()] != q.src {
		return Delivery{}, false
	}
	q.src.floor = max(q.src.floor, q.floor)
	id := q.entry.ID()
	if id == "" || q.entry.Key <= max(q.src.start, q.src.handed) {
		return Delivery{}, false
	}
	f.passed = f.passed || !q.live
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
			delete(f.resume, hash) // f.sent has it now
			return Delivery{}, false
		}
	}
	d := Delivery{Event: q.entry.Event, Cursor: f.Cursor(), Read: q.read}
	switch {
	case q.src.topic: // a lost notice is a notice without a text
		d.Topic, d.Notice = q.src.pattern, q.entry.Notice
	case q.entry.Lost:
		d.Lost = q.src.pattern
	}
	f.passed = false
	return d, true
}

// Cursor returns the position after everything that the feed has returned. Any instance can resume from it.
func (f *Feed) Cursor() string {
	c, placed := f.merge.cursor()
	for _, id := range f.sent.idsAfter(c.At, placed) {
		c.Sent = append(c.Sent, f.tails.Sealer.Hash(id))
	}
	if len(f.back) > 0 || f.merge.pending() { // some entries of the old cursor may not have been found yet
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

// furthestBack returns the source that is furthest back in its past, or nil if no source reads its past.
func (f *Feed) furthestBack() (behind *source) {
	if len(f.back) == 0 {
		return nil
	}
	f.back = slices.DeleteFunc(f.back, func(s *source) bool { return f.parts[s.part.Name()] != s }) // removed
	for _, s := range f.back {
		if behind == nil || s.past < behind.past {
			behind = s
		}
	}
	return behind
}

// readPage reads one page between the start of a source and its tail.
func (f *Feed) readPage(ctx context.Context, s *source) (entries []eventlog.Entry, more bool, next int64, err error) {
	entries, more, next, err = f.tails.Log.Read(ctx, s.part, s.past, max(minPage, pageSize/len(f.back)))
	return entries, more, next, fault.Wrap(fault.Unavailable, err, "read the past of a stream")
}

// stay reports whether the error says that the next item of a source is of a later release. If so, it leaves the source at
// its position.
func (f *Feed) stay(s *source, err error) bool {
	if !errors.Is(err, eventlog.ErrLater) {
		return false
	}
	s.stuck, s.caughtUp = true, false
	f.leaveBack(s)
	return true
}

// leaveBack notes that a source has read its past.
func (f *Feed) leaveBack(s *source) {
	f.back = slices.DeleteFunc(f.back, func(other *source) bool { return other == s })
}

// recent remembers recently returned entries, oldest first. With it a feed drops entries that it reads twice, from the past
// and the tail of a partition or from overlapping partitions.
type recent struct {
	keys  map[string]handedOut
	order []string
}

// handedOut is the position of an entry that was returned.
type handedOut struct {
	key    int64
	placed bool // its partition has a place of its own in cursors
}

// maxRecent bounds the memory of a feed. Duplicates are at most [eventlog.Window] and a page apart. If there are more entries
// in that time, a feed may repeat some.
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

// idsAfter returns the ids of the entries with a greater key, and forgets old entries. If places is true, it leaves out entries
// of partitions with a place in the cursor.
func (r *recent) idsAfter(at int64, places bool) []string {
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
