package stream

import (
	"time"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
)

// exactMerge returns entries in the order of their commits, for a log with exact positions. All copies of an event have the
// same position there. So the position of the feed is one number, after all returned entries and before all others, and a
// resume repeats no entry.
//
// The next entry is the first one that a source has read ahead, if every other source was read up to the same position or
// was not written to since. The store knows the last write.
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

// first returns the source with the first entry that was read ahead, or nil.
func (m *exactMerge) first() (first *source) {
	for _, s := range m.at.sources {
		if len(s.ahead) > 0 && (first == nil || s.ahead[0].entry.Key < first.ahead[0].entry.Key) {
			first = s
		}
	}
	return first
}

// mayFollow reports whether an entry with the key can be returned now, because no source can have another entry before it.
func (m *exactMerge) mayFollow(key int64) bool {
	for _, s := range m.at.sources {
		if len(s.ahead) == 0 && !s.stuck && s.readTo(key) < key {
			return false
		}
	}
	return true
}

// readTo returns the position up to which every entry of the source was read. end is a position that the log had reached
// before the call. If the last write to the source was read, the source was read up to end. readTo records that in the source,
// because the store only knows the last write.
func (s *source) readTo(end int64) int64 {
	if s.caughtUp && s.past < end && s.written != nil && s.written() <= s.past {
		s.past = end
	}
	return s.past
}

// lagging empties the inbox first, so that the inbox drops no batch of the source that the page does not have.
func (m *exactMerge) lagging() *source {
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

// addAhead adds entries to a source that was read up to a position.
func (m *exactMerge) addAhead(s *source, entries []eventlog.Entry, upTo int64, read time.Time, live bool) {
	for _, e := range entries {
		if e.Key > s.past {
			s.ahead = append(s.ahead, queued{src: s, entry: e, read: read, live: live, inOrder: true})
			if live {
				m.ahead = m.ahead.plus(load{1, size(e)})
			} else {
				m.old++
			}
		}
	}
	s.past = max(s.past, upTo)
}

// countReturned counts an entry that is no longer ahead.
func (m *exactMerge) countReturned(q queued) {
	if q.live {
		m.ahead = m.ahead.minus(load{1, size(q.entry)})
	} else {
		m.old--
	}
}

func (m *exactMerge) receive() (some bool, err error) {
	m.in.hold(m.first() != nil)
	got := m.drain()
	return !got.none(), got.err
}

// drain takes the batches of the tails. It drops batches for a source that still reads older entries from the log, because the
// source will read these entries there, too. A source that missed a batch reads the log again.
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

func (m *exactMerge) pending() bool { return m.first() != nil }

// returnedUntil returns the position up to which every entry of the source was returned. end is the end of the log,
// as it was read earlier.
func (s *source) returnedUntil(end int64) int64 {
	if len(s.ahead) > 0 {
		return s.ahead[0].entry.Key - 1
	}
	return s.readTo(end)
}

func (m *exactMerge) cursor() (c eventlog.Cursor, placed bool) {
	m.drain()                  // the next poll returns the error
	end := m.at.log.Position() // before reached reads the last writes
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
