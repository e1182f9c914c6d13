package stream

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sort"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// exactMerge is the [merge] for a log whose store chooses the keys in the order of commits (SQLite). All copies of an event have the same
// key. exactMerge returns the entries of all sources in the order of their keys. So one key describes how far the feed has come: it has
// returned all entries up to this key, and no later ones.
//
// Before exactMerge returns the entry with the smallest key, it makes sure that the other sources can no longer get an entry with a
// smaller key. This is certain for a source that was read up to this key. It is also certain if the store says that the source's
// partition has had no write since the last read.
type exactMerge struct {
	at   *position
	in   *inbox
	live load // entries that came from tails and were not returned yet
	old  int  // number of entries that the feed read from the log itself and has not returned yet
}

func (m *exactMerge) next() (queued, bool) {
	first := m.first()
	if first == nil || !m.isNext(first.ahead[0].entry.Key) {
		return queued{}, false
	}
	q := first.ahead[0]
	if first.ahead = first.ahead[1:]; len(first.ahead) == 0 {
		first.ahead = nil // free the memory, because the stream may be quiet for long
	}
	m.countReturned(q)
	return q, true
}

// first returns the source whose next entry has the smallest key, or nil if no entries were read ahead.
func (m *exactMerge) first() (first *source) {
	for _, s := range m.at.sources {
		if len(s.ahead) > 0 && (first == nil || s.ahead[0].entry.Key < first.ahead[0].entry.Key) {
			first = s
		}
	}
	return first
}

// isNext reports whether an entry with the given key may be returned now, because the other sources can no longer get an entry with a
// smaller key.
func (m *exactMerge) isNext(key int64) bool {
	for _, s := range m.at.sources {
		if len(s.ahead) == 0 && !s.stuck && s.readTo(key) < key {
			return false
		}
	}
	return true
}

// readTo returns s.past, the position up to which the feed has read the source. The parameter end is a position that the log has already
// reached. If the feed has read everything in the source's partition and the store reports writes, readTo first raises s.past to end,
// because new entries can only get keys after end.
//
// The raised position is stored, so that a later call returns no smaller position, even if an entry was written in between.
func (s *source) readTo(end int64) int64 {
	if s.caughtUp && s.past < end && s.written != nil && s.written() <= s.past {
		s.past = end
	}
	return s.past
}

// findLagging returns the source that is furthest behind, so that the feed reads a page of it from the log. It returns nil if no source
// is behind, or if the feed already holds an entry that comes before everything that the sources still have to read.
//
// findLagging empties the inbox before this read. The log already has every batch that the inbox has dropped until then, and the feed
// finds it there. So addPast only has to check for batches that the inbox drops afterwards.
func (m *exactMerge) findLagging() *source {
	first, behind := m.first(), m.at.furthestBehind()
	if behind == nil || first != nil && behind.past >= first.ahead[0].entry.Key {
		return nil
	}
	m.drain()
	return behind
}

func (m *exactMerge) addPast(s *source, p logPage, _ time.Time) (caughtUp bool) {
	m.addAhead(s, p.entries, p.next, time.Now(), false)
	s.caughtUp = !p.more && !m.in.hasMissed(s.part)
	return s.caughtUp
}

// addAhead adds the entries after s.past to the source, and records that the source was read up to the position upTo. The parameter live
// says that the entries come from the source's tail, which reads new entries.
func (m *exactMerge) addAhead(s *source, entries []eventlog.Entry, upTo int64, read time.Time, live bool) {
	for _, e := range entries {
		if e.Key > s.past {
			s.ahead = append(s.ahead, queued{src: s, entry: e, read: read, live: live, inOrder: true})
			if live {
				m.live = m.live.plus(load{1, sizeOf(e)})
			} else {
				m.old++
			}
		}
	}
	s.past = max(s.past, upTo)
}

func (m *exactMerge) countReturned(q queued) {
	if q.live {
		m.live = m.live.minus(load{1, sizeOf(q.entry)})
	} else {
		m.old--
	}
}

func (m *exactMerge) receive() (some bool, err error) {
	m.in.hold(m.first() != nil)
	got := m.drain()
	return !got.isEmpty(), got.err
}

// drain moves the batches from the tails, which read new entries, out of the inbox to their sources. It drops the batches of a source
// that still reads older entries from the log, because the source will find these batches in the log too. If the inbox itself has dropped
// a batch of a source, the source reads its partition from the log again.
func (m *exactMerge) drain() arrivals {
	got := m.in.take()
	for _, b := range got.batches {
		if s := m.at.sources[b.part.Name()]; s != nil && s.caughtUp {
			m.addAhead(s, b.entries, b.floor, b.read, true)
		}
	}
	for name := range got.missed {
		if s := m.at.sources[name]; s != nil && s.caughtUp {
			s.caughtUp = false
			m.at.behind = append(m.at.behind, s)
		}
	}
	for name := range got.later {
		if s := m.at.sources[name]; s != nil && s.caughtUp { // a source that still reads the log finds the item itself
			s.caughtUp, s.stuck = false, true
		}
	}
	m.in.setTaken(m.live, len(m.at.behind) > 0, m.old > 0)
	return got
}

func (m *exactMerge) forget(s *source) {
	for _, q := range s.ahead {
		m.countReturned(q)
	}
}

func (m *exactMerge) hasPending() bool { return m.first() != nil }

// returnedUntil returns the position up to which the feed has returned all entries of the source. The parameter end is a position that the
// log has already reached, as in readTo.
func (s *source) returnedUntil(end int64) int64 {
	if len(s.ahead) > 0 {
		return s.ahead[0].entry.Key - 1
	}
	return s.readTo(end)
}

func (m *exactMerge) cursor() (c eventlog.Cursor, placed bool) {
	m.drain()                  // ignore the error, because the next Poll returns it
	end := m.at.log.Position() // read before the sources' last writes, because an entry may be written in between
	at := int64(-1)
	for _, s := range m.at.sources {
		if m.at.sole && s.topic {
			continue
		}
		if reached := s.returnedUntil(end); at < 0 || reached < at {
			at = reached
		}
	}
	if at < 0 {
		at = end
	}
	c.At = at
	switch {
	case at >= end:
		c.Given = m.at.log.Time().UnixMicro()
	case at >= m.at.begun:
		c.Given = m.at.given // every entry after this position was written after the time m.at.given
	}
	return c, false
}

// stampedMerge is the [merge] for a log whose writers choose the keys (DynamoDB). A smaller key may be committed after larger ones, so
// stampedMerge does not sort the entries. It returns them in the order in which they arrive. Each source has a floor, which is a position
// up to which all its entries were returned. The cursor consists of the lowest floor and the hashes of the returned entries after this
// floor.
type stampedMerge struct {
	at    *position
	in    *inbox
	queue []queued
}

func (m *stampedMerge) next() (q queued, ok bool) {
	if len(m.queue) == 0 {
		return queued{}, false
	}
	q = m.queue[0]
	if m.queue = m.queue[1:]; len(m.queue) == 0 {
		m.queue = nil // free the memory, because the stream may be quiet for long
	}
	return q, true
}

// findLagging returns the source that is furthest behind. The cursor is one position for all sources, so it moves only if the slowest
// source does. Because the feed reads this source first, a client makes progress even if it is often disconnected while it catches up.
func (m *stampedMerge) findLagging() *source {
	m.readAgain(m.in.takeMissed())
	return m.at.furthestBehind()
}

func (m *stampedMerge) addPast(s *source, p logPage, began time.Time) (caughtUp bool) {
	s.past = p.next
	settled := began.Add(-eventlog.Window).UnixMicro()
	if s.bound == 0 && p.next > settled {
		// Other entries with keys after the settled position may still be committed. The feed gets these entries from the tail, and
		// returns them only after it has read the older entries of the log. Until then, the source's floor, and with it the cursor, must
		// not pass the settled position.
		s.bound = settled
	}
	floor := cmp.Or(s.bound, settled)
	if p.more {
		floor = min(floor, p.next)
	}
	m.enqueue(s, p.entries, floor, time.Now(), false)
	return !p.more
}

// receive takes the batches of new entries that the tails have put into the inbox, and appends their entries to m.queue. [Feed.Poll]
// calls it only when no source has older entries to read from the log. If the inbox had to drop a batch of a source, the source reads the
// log again.
func (m *stampedMerge) receive() (some bool, err error) {
	got := m.in.take()
	m.in.setTaken(load{}, len(got.missed) > 0, false)
	for _, b := range got.batches {
		name := b.part.Name()
		if s := m.at.sources[name]; s != nil && !s.stuck && !got.missed[name] {
			m.enqueue(s, b.entries, b.floor, b.read, true)
		}
	}
	m.readAgain(got.missed)
	return len(got.batches)+len(got.missed) > 0, got.err
}

// readAgain makes sources read the log again, because the inbox has dropped some of their batches. They begin at their floors, where a
// client would resume. The parameter missed has the names of the sources' partitions.
func (m *stampedMerge) readAgain(missed map[string]bool) {
	for name := range missed {
		if s := m.at.sources[name]; s != nil {
			s.past, s.bound = s.floor, 0
			if !slices.Contains(m.at.behind, s) {
				m.at.behind = append(m.at.behind, s)
			}
		}
	}
}

// enqueue queues entries of a source. When the feed has returned all of them, the source's floor (the position up to which all its
// entries were returned) moves to the parameter floor. If the source's keys grow in commit order, the floor also moves to the key of each
// returned entry.
func (m *stampedMerge) enqueue(s *source, entries []eventlog.Entry, floor int64, read time.Time, live bool) {
	for _, e := range entries {
		q := queued{src: s, entry: e, read: read, live: live}
		if s.growing {
			q.floor = e.Key
		}
		m.queue = append(m.queue, q)
	}
	m.queue = append(m.queue, queued{src: s, floor: floor})
}

func (*stampedMerge) forget(*source) {}

func (m *stampedMerge) hasPending() bool { return len(m.queue) > 0 }

// settle moves the floors of sources whose tails have read further without finding entries. (All entries up to a source's floor were
// returned.) It takes these empty batches from the inbox before each cursor, because an empty batch does not wake the reader to call
// receive.
func (m *stampedMerge) settle() {
	if len(m.queue) > 0 || len(m.at.behind) > 0 {
		return
	}
	for _, b := range m.in.takeFloors() {
		if s := m.at.sources[b.part.Name()]; s != nil && !s.stuck {
			s.floor = max(s.floor, b.floor)
		}
	}
}

func (m *stampedMerge) cursor() (c eventlog.Cursor, placed bool) {
	m.settle()
	at, unplaced := int64(-1), false
	var places []eventlog.Place
	for _, s := range m.at.sources {
		if m.at.sole && s.topic {
			continue
		}
		if s.place != 0 {
			places = append(places, eventlog.Place{Partition: s.place, At: s.floor})
		}
		unplaced = unplaced || s.place == 0 && !s.topic
		if at < 0 || s.floor < at {
			at = s.floor
		}
	}
	// The cursor must not be after the end of the log. Otherwise a client that resumes with another pattern would miss events of that
	// pattern that are published from now on. If at.sole is true, the client will resume with the same pattern, and this does not matter.
	if end := m.at.log.Position(); at < 0 || at > end && !m.at.sole {
		at = end
	}
	c.At = at
	placed = !unplaced && len(places) > 0 && len(places) <= eventlog.MaxPlaces
	if placed && (len(places) > 1 || !m.at.sole) {
		// Use sort.Slice, because slices.SortFunc would make the binary 12 KB larger for each type of elements.
		sort.Slice(places, func(i, j int) bool { return places[i].Partition < places[j].Partition })
		c.Places = places
	}
	return c, placed
}

const maxReads = 16 // partitions that a feed reads concurrently when it opens

// begin makes a feed without a cursor skip the entries that the log already has. It reads these entries and marks them as sent. Their
// keys are not enough to recognize them, because new entries may have smaller keys after a writer's clock was set back. But in a
// partition with a single writer, keys always grow, so its source starts after the last key.
func (m *stampedMerge) begin(ctx context.Context, workspace string, sent *recent) error {
	log := m.at.log
	read, ctx := errgroup.WithContext(ctx)
	read.SetLimit(maxReads)
	var mu sync.Mutex
	for _, s := range m.at.behind {
		read.Go(func() (err error) {
			defer fault.Recovered(&err)
			if s.place != 0 {
				end, err := log.EndOf(ctx, workspace, s.pattern)
				s.start, s.floor, s.past = end, end, end
				return err
			}
			for more, next := true, s.start; more; {
				var entries []eventlog.Entry
				var err error
				entries, more, next, err = log.Read(ctx, s.part, next, pageSize)
				if errors.Is(err, eventlog.ErrLater) {
					return nil // the feed's tail also stops before this item, and retries it
				}
				if err != nil {
					return err
				}
				mu.Lock()
				for _, e := range entries {
					sent.add(e.ID(), e.Key, false)
				}
				mu.Unlock()
			}
			return nil
		})
	}
	m.at.behind = nil
	return read.Wait()
}

// position describes how far a feed has read each of its partitions.
type position struct {
	log     *eventlog.Log
	sources map[string]*source // by the names of their partitions
	behind  []*source          // sources for which the feed still reads older entries from the log itself
	sole    bool               // see [Request.Sole]
	// begun is the log position of the request's cursor, and given is [eventlog.Cursor.Given] of this cursor. Without a cursor, begun is
	// the end of the log, and given is the time of the request.
	begun, given int64
}

// source is one partition that a feed reads.
type source struct {
	part    eventlog.Partition
	pattern string // the key of the pattern, or the name of the topic; a partition belongs to only one of them
	topic   bool
	growing bool // the partition's keys grow in commit order
	start   int64
	floor   int64  // every entry with a key up to floor was returned
	past    int64  // the position up to which the feed has read the log itself or, in exactMerge, the log and the tail
	bound   int64  // the maximum of floor while the feed still reads older entries from the log; 0 is no maximum
	handed  int64  // the greatest key that was returned, if growing is true
	place   uint64 // identifies the partition of a concrete URI in cursors (see [eventlog.Place]); 0 for other partitions
	// stuck says that the source has stopped before an item that a later release of the server wrote. A client that resumes at a process
	// of that release gets all entries. The other sources of the feed continue.
	stuck bool

	// The remaining fields are used only by [exactMerge].
	ahead    []queued     // entries that were read and not returned yet
	caughtUp bool         // the feed has read all older entries, and the tail has the later ones
	written  func() int64 // returns the last key written to the partition; nil if the store cannot report writes
}

func (at *position) has(s *source) bool { return at.sources[s.part.Name()] == s }

// furthestBehind returns the source in at.behind whose position is the earliest, or nil if at.behind is empty.
func (at *position) furthestBehind() *source {
	at.behind = slices.DeleteFunc(at.behind, func(s *source) bool { return !at.has(s) }) // drop sources that were removed from the feed
	if len(at.behind) == 0 {
		return nil
	}
	return slices.MinFunc(at.behind, func(a, b *source) int { return cmp.Compare(a.past, b.past) })
}

// finishPast removes a source from at.behind, because the feed has read all of its older entries from the log, or cannot read further.
func (at *position) finishPast(s *source) {
	at.behind = slices.DeleteFunc(at.behind, func(other *source) bool { return other == s })
}

// recent has the recently returned entries, oldest first, so that the feed drops second copies of them. A feed may read an entry twice:
// once from the log and once from the partition's tail, or from the partitions of two patterns that match the event.
type recent struct {
	ids   map[string]struct{}
	order []handedOut
}

// handedOut is an entry that the feed has returned.
type handedOut struct {
	id     string
	key    int64
	placed bool // cursors can have a separate position for the entry's partition; see [eventlog.Place]
}

// maxRecent limits the length of [recent], and with it the memory of a feed. The second copy of an entry arrives at most
// [eventlog.Window] and one page after the first. If more than maxRecent entries arrive in between, the feed may return both copies.
const maxRecent = 4096

func (r *recent) add(id string, key int64, placed bool) bool {
	if _, ok := r.ids[id]; ok {
		return false
	}
	if r.ids == nil {
		r.ids = map[string]struct{}{}
	}
	if len(r.order) >= maxRecent {
		r.forget()
	}
	r.ids[id] = struct{}{}
	r.order = append(r.order, handedOut{id, key, placed})
	return true
}

func (r *recent) forget() {
	delete(r.ids, r.order[0].id)
	r.order[0] = handedOut{} // so that the id can be garbage-collected
	r.order = r.order[1:]
}

// idsAfter returns the ids of the returned entries whose keys are greater than the parameter at. A cursor with the position at must name
// these entries, so that a resumed feed does not repeat them. If places is true, the cursor has separate positions for the partitions of
// concrete URIs, so idsAfter omits the entries in these partitions.
//
// idsAfter also removes entries from r that are too old for a cursor.
func (r *recent) idsAfter(at int64, places bool) []string {
	for len(r.order) > 0 && r.order[0].key < at-2*eventlog.Window.Microseconds() {
		r.forget()
	}
	var ids []string
	for _, h := range r.order {
		if h.key > at && !(places && h.placed) {
			if ids = append(ids, h.id); len(ids) > eventlog.MaxSent {
				return ids
			}
		}
	}
	return ids
}
