package stream

import (
	"context"
	"time"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
)

// An ordered store has one order for all entries of the log, and all copies of an event have the same position. A feed
// over it returns entries in that order. So its position is one number, after everything that was returned and before
// everything else, and a resume repeats nothing.
//
// The next entry is the first one that a source has read ahead, if every other source has been read as far or nothing
// was written to it since. The store tells which.

// pollInOrder is [Feed.Poll] over an ordered store.
func (f *Feed) pollInOrder(ctx context.Context) (Delivery, bool, error) {
	for left := effort; ; {
		if left <= 0 {
			f.wakeLater()
			return Delivery{}, false, nil
		}
		first := f.first()
		behind := f.furthestBack()
		switch {
		case behind != nil && (first == nil || behind.past < first.ahead[0].entry.Key):
			left -= pageEffort
			if err := f.readAhead(ctx, behind); err != nil {
				return Delivery{}, false, err
			}
			continue
		case first != nil && f.mayFollow(first.ahead[0].entry.Key):
			left--
			q := first.ahead[0]
			if first.ahead = first.ahead[1:]; len(first.ahead) == 0 {
				first.ahead = nil // a quiet stream keeps no memory
			}
			f.left(q)
			if d, ok := f.take(q); ok {
				return d, true, nil
			}
			continue
		}
		f.mu.Lock()
		f.held = first != nil
		f.mu.Unlock()
		drained, err := f.drain()
		if err != nil || !drained {
			return Delivery{}, false, err
		}
	}
}

// first is the source with the first entry read ahead, or nil.
func (f *Feed) first() (first *source) {
	for _, s := range f.parts {
		if len(s.ahead) > 0 && (first == nil || s.ahead[0].entry.Key < first.ahead[0].entry.Key) {
			first = s
		}
	}
	return first
}

// mayFollow reports that no source can still bring an entry before the key, which is the key of an entry that was read.
func (f *Feed) mayFollow(key int64) bool {
	for _, s := range f.parts {
		if len(s.ahead) == 0 && !s.stuck && s.readTo(key) < key {
			return false
		}
	}
	return true
}

// readTo returns the position up to which every entry of the source has been read. end is a position that the log had
// reached before the call. If nothing was written to the source since it was read, it is read up to end. The source
// remembers that: once something is written to it, the store no longer tells.
func (s *source) readTo(end int64) int64 {
	if s.caughtUp && s.past < end && s.written != nil && s.written() <= s.past {
		s.past = end
	}
	return s.past
}

// readAhead reads one page of the past of a source.
func (f *Feed) readAhead(ctx context.Context, s *source) error {
	if _, err := f.drain(); err != nil {
		return err
	}
	entries, more, next, err := f.readPage(ctx, s)
	if f.stay(s, err) {
		return nil
	}
	if err != nil {
		return err
	}
	f.bring(s, entries, next, time.Now(), false)
	f.mu.Lock()
	s.caughtUp = !more && !f.missed[s.part.Name()]
	f.mu.Unlock()
	if s.caughtUp {
		f.leaveBack(s)
	}
	return nil
}

// bring adds entries to a source that was read up to a position.
func (f *Feed) bring(s *source, entries []eventlog.Entry, upTo int64, read time.Time, live bool) {
	for _, e := range entries {
		if e.Key > s.past {
			s.ahead = append(s.ahead, queued{src: s, entry: e, read: read, live: live})
			if live {
				f.ahead = f.ahead.plus(load{1, size(e)})
			} else {
				f.old++
			}
		}
	}
	s.past = max(s.past, upTo)
}

// left counts an entry that is no longer ahead.
func (f *Feed) left(q queued) {
	if q.live {
		f.ahead = f.ahead.minus(load{1, size(q.entry)})
	} else {
		f.old--
	}
}

// drain takes what the tails brought. It drops what they bring to a source that still reads its past, which reads it
// there. A source that missed a batch reads on from the log itself.
func (f *Feed) drain() (some bool, err error) {
	f.mu.Lock()
	in, missed, later, err := f.in, f.missed, f.later, f.err
	f.in, f.waiting, f.missed, f.later = nil, load{}, nil, nil
	f.mu.Unlock()
	for _, b := range in {
		if s := f.parts[b.part.Name()]; s != nil && s.caughtUp {
			f.bring(s, b.entries, b.floor, b.read, true)
		}
	}
	for name := range missed {
		if s := f.parts[name]; s != nil && s.caughtUp {
			s.caughtUp = false
			f.back = append(f.back, s)
		}
	}
	for name := range later {
		if s := f.parts[name]; s != nil && s.caughtUp { // otherwise its own reads tell
			s.caughtUp, s.stuck = false, true
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.taken = f.ahead
	f.catchingUp = len(f.back) > 0 || f.catchingUp && (f.old > 0 || f.taken.reaches(f.tails.mostWaiting.half()))
	return len(in) > 0 || len(missed) > 0 || len(later) > 0, err
}

// reached is the position up to which every entry of the source was returned. end is an earlier end of the log.
func (s *source) reached(end int64) int64 {
	if len(s.ahead) > 0 {
		return s.ahead[0].entry.Key - 1
	}
	return s.readTo(end)
}
