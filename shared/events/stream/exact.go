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

// exactMerge merges a log with exact keys. There, all copies of an event have the same key, so the position of the feed is a
// single key that lies after all returned entries and before all others. A resumed feed therefore repeats no entry.
//
// exactMerge returns the entry with the smallest key. First it makes sure that no other source can still get a smaller key:
// either it has read that source up to this key, or the store says that it has had no write since the last read.
type exactMerge struct {
	at    *position
	in    *inbox
	ahead load // live entries in the sources
	old   int  // other entries there
}

func (m *exactMerge) next() (queued, bool) {
	first := m.first()
	if first == nil || !m.mayFollow(first.ahead[0].entry.Key) {
		return queued{}, false
	}
	q := first.ahead[0]
	if first.ahead = first.ahead[1:]; len(first.ahead) == 0 {
		first.ahead = nil // a quiet stream keeps no memory
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

// mayFollow reports whether the entry with the key can be returned now, because no source can still get an entry before it.
func (m *exactMerge) mayFollow(key int64) bool {
	for _, s := range m.at.sources {
		if len(s.ahead) == 0 && !s.stuck && s.readTo(key) < key {
			return false
		}
	}
	return true
}

// readTo returns the position up to which all entries of the source were read. If the source's last write was read, that is
// end, a position that the log had reached before the call. readTo remembers it, because after the next write the store no
// longer knows about the gap before it.
func (s *source) readTo(end int64) int64 {
	if s.caughtUp && s.past < end && s.written != nil && s.written() <= s.past {
		s.past = end
	}
	return s.past
}

// findLagging empties the inbox before the feed reads a page, because the page or a later one will have every batch that the inbox
// has dropped so far. addPast then only has to look for batches dropped since.
func (m *exactMerge) findLagging() *source {
	first, behind := m.first(), m.at.furthestBack()
	if behind == nil || first != nil && behind.past >= first.ahead[0].entry.Key {
		return nil
	}
	m.drain()
	return behind
}

func (m *exactMerge) addPast(s *source, p page, _ time.Time) (caughtUp bool) {
	m.addAhead(s, p.entries, p.next, time.Now(), false)
	s.caughtUp = !p.more && !m.in.hasMissed(s.part)
	return s.caughtUp
}

// addAhead adds the entries after s.past to the source, and records that it was read up to a position. live says that they are
// from the tail.
func (m *exactMerge) addAhead(s *source, entries []eventlog.Entry, upTo int64, read time.Time, live bool) {
	for _, e := range entries {
		if e.Key > s.past {
			s.ahead = append(s.ahead, queued{src: s, entry: e, read: read, live: live, inOrder: true})
			if live {
				m.ahead = m.ahead.plus(load{1, sizeOf(e)})
			} else {
				m.old++
			}
		}
	}
	s.past = max(s.past, upTo)
}

// countReturned removes a returned entry from the counts.
func (m *exactMerge) countReturned(q queued) {
	if q.live {
		m.ahead = m.ahead.minus(load{1, sizeOf(q.entry)})
	} else {
		m.old--
	}
}

func (m *exactMerge) receive() (some bool, err error) {
	m.in.hold(m.first() != nil)
	got := m.drain()
	return !got.isEmpty(), got.err
}

// drain moves the tails' batches from the inbox to the sources. It skips a source that still reads its past, because it will
// find the same entries in the log. A source whose batch the inbox dropped reads the log again.
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
			m.at.back = append(m.at.back, s)
		}
	}
	for name := range got.later {
		if s := m.at.sources[name]; s != nil && s.caughtUp { // otherwise its own reads will find the item
			s.caughtUp, s.stuck = false, true
		}
	}
	m.in.setTaken(m.ahead, len(m.at.back) > 0, m.old > 0)
	return got
}

func (m *exactMerge) forget(s *source) {
	for _, q := range s.ahead {
		m.countReturned(q)
	}
}

func (m *exactMerge) hasPending() bool { return m.first() != nil }

// returnedUntil returns the position up to which all entries of the source were returned. end is the end of the log, which the
// caller has read before.
func (s *source) returnedUntil(end int64) int64 {
	if len(s.ahead) > 0 {
		return s.ahead[0].entry.Key - 1
	}
	return s.readTo(end)
}

func (m *exactMerge) cursor() (c eventlog.Cursor, placed bool) {
	m.drain()                  // the next poll returns the error
	end := m.at.log.Position() // before returnedUntil reads the last writes
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
		c.Given = m.at.given // everything after the position is later than that
	}
	return c, false
}

// stampedMerge merges a log whose writers stamp the keys. It returns entries as they arrive, because a smaller key may be
// committed after larger ones. Each source has a floor, a position up to which all its entries were returned. The cursor is the
// lowest floor, together with the hashes of the returned entries after it.
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
		m.queue = nil // a quiet stream keeps no memory
	}
	return q, true
}

// findLagging returns the source that is furthest back, because the cursor is one position for all sources and cannot pass that
// source. A client that is disconnected while it catches up thus makes progress each time, and repeats about one page when it
// resumes.
func (m *stampedMerge) findLagging() *source {
	m.readAgain(m.in.takeMissed())
	return m.at.furthestBack()
}

func (m *stampedMerge) addPast(s *source, p page, began time.Time) (caughtUp bool) {
	s.past = p.next
	settled := began.Add(-eventlog.Window).UnixMicro()
	if s.bound == 0 && p.next > settled {
		// After this position, smaller keys may still be committed. The tail reads their entries, but the feed returns them
		// only after the past, which may take long if the client reads slowly. Until then no floor may pass this position.
		s.bound = settled
	}
	floor := cmp.Or(s.bound, settled)
	if p.more {
		floor = min(floor, p.next)
	}
	m.enqueue(s, p.entries, floor, time.Now(), false)
	return !p.more
}

// receive takes batches only after all sources have read their past, so that until then the batches count as waiting. It
// ignores the floors of a stuck source.
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

// readAgain makes the sources with dropped batches read the log again, from the position at which a client would resume.
func (m *stampedMerge) readAgain(missed map[string]bool) {
	for name := range missed {
		if s := m.at.sources[name]; s != nil {
			s.past, s.bound = s.floor, 0
			if !slices.Contains(m.at.back, s) {
				m.at.back = append(m.at.back, s)
			}
		}
	}
}

// enqueue queues entries of a source, and then the floor that they reach together. If keys grow in commit order, each entry
// also moves the floor to its own key.
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

// settle takes the floors of batches without entries from the inbox, because these batches do not wake the reader.
func (m *stampedMerge) settle() {
	if len(m.queue) > 0 || len(m.at.back) > 0 {
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
	// A client may resume with another pattern and must then find all events that are published to it from now on.
	if end := m.at.log.Position(); at < 0 || at > end && !m.at.sole {
		at = end
	}
	c.At = at
	placed = !unplaced && len(places) > 0 && len(places) <= eventlog.MaxPlaces
	if placed && (len(places) > 1 || !m.at.sole) {
		sort.Slice(places, func(i, j int) bool { return places[i].Partition < places[j].Partition }) // slices.SortFunc takes 12 KB for each type
		c.Places = places
	}
	return c, placed
}

// maxReads is the number of partitions that a feed reads concurrently when it opens.
const maxReads = 16

// begin skips the entries that the log already has, for a feed without a cursor. If a clock was set back, they may have larger
// keys than entries that are yet to come, so begin cannot skip them by their keys. It reads them and marks them as sent. A
// source with a concrete URI starts after its last key instead.
func (m *stampedMerge) begin(ctx context.Context, workspace string, sent *recent) error {
	log := m.at.log
	read, ctx := errgroup.WithContext(ctx)
	read.SetLimit(maxReads)
	var mu sync.Mutex
	for _, s := range m.at.back {
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
					return nil // the tail stays before that item
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
	m.at.back = nil
	return read.Wait()
}

// position is how far a feed has read each of its partitions.
type position struct {
	log     *eventlog.Log
	sources map[string]*source // by the names of their partitions
	back    []*source          // the sources that still read their past
	sole    bool               // [Request.Sole]
	// begun is the position from which the feed was opened. given is when that position was the end of the log; see
	// [eventlog.Cursor.Given].
	begun, given int64
}

// source is one partition that a feed reads.
type source struct {
	part    eventlog.Partition
	pattern string // the key of the pattern, or the topic; no two patterns share a partition
	topic   bool
	growing bool // keys grow in commit order
	start   int64
	floor   int64  // every entry with a key up to it was returned
	past    int64  // how far the feed itself has read
	bound   int64  // no floor of the past may pass it; 0 is no bound
	handed  int64  // the greatest key returned, if keys are growing
	place   uint64 // names the partition of a concrete URI in a cursor
	// stuck says that the next item is of a later release. The source stays before it, so that a client that resumes at an
	// instance of that release gets all entries. The other sources continue.
	stuck bool

	// The rest is for [exactMerge].
	ahead    []queued     // read and not returned yet
	caughtUp bool         // the tail has all later entries
	written  func() int64 // returns the last key that was written; nil if the store cannot be watched
}

func (at *position) has(s *source) bool { return at.sources[s.part.Name()] == s }

// furthestBack returns the source whose past is read least far, or nil if all sources have read theirs.
func (at *position) furthestBack() (behind *source) {
	if len(at.back) == 0 {
		return nil
	}
	at.back = slices.DeleteFunc(at.back, func(s *source) bool { return !at.has(s) }) // removed
	for _, s := range at.back {
		if behind == nil || s.past < behind.past {
			behind = s
		}
	}
	return behind
}

// leaveBack removes a source that has read its past from the sources that still do.
func (at *position) leaveBack(s *source) {
	at.back = slices.DeleteFunc(at.back, func(other *source) bool { return other == s })
}

// recent remembers recently returned entries, oldest first. A feed may read an entry twice, from the past and from the tail of
// a partition, or from two patterns that match it. It drops the second one.
type recent struct {
	ids   map[string]struct{}
	order []handedOut
}

// handedOut is an entry that the feed has returned.
type handedOut struct {
	id     string
	key    int64
	placed bool // cursors can have a separate position for its partition; see [eventlog.Place]
}

// maxRecent bounds the memory of a feed. The second copy of an entry comes at most [eventlog.Window] and a page after the
// first. If more entries than this come between them, the feed may return both.
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

// forget removes the oldest entry.
func (r *recent) forget() {
	delete(r.ids, r.order[0].id)
	r.order[0] = handedOut{} // releases the id
	r.order = r.order[1:]
}

// idsAfter returns the ids of the returned entries with a greater key than at, and forgets old entries. If places is true, the
// cursor has a separate position for each partition that can have one. idsAfter then omits the entries of these partitions,
// because the cursor's position already says that they were returned.
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
