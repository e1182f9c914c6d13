package stream

import (
	"context"
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
	*Feed
	ahead load // live entries in the sources
	old   int  // other entries there
}

// begin does nothing, because the sources begin at the end of the log.
func (*exactMerge) begin(context.Context) error { return nil }

func (f *exactMerge) forget(s *source) {
	for _, q := range s.ahead {
		f.countReturned(q)
	}
}

func (f *exactMerge) pending() bool { return f.first() != nil }

func (f *exactMerge) poll(ctx context.Context) (Delivery, bool, error) {
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
			f.countReturned(q)
			if d, ok := f.take(q); ok {
				d.InOrder = true
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

// first returns the source with the first entry that was read ahead, or nil.
func (f *exactMerge) first() (first *source) {
	for _, s := range f.parts {
		if len(s.ahead) > 0 && (first == nil || s.ahead[0].entry.Key < first.ahead[0].entry.Key) {
			first = s
		}
	}
	return first
}

// mayFollow reports whether an entry with the key can be returned now, because no source can have another entry before it.
func (f *exactMerge) mayFollow(key int64) bool {
	for _, s := range f.parts {
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

// readAhead reads one page of the past of a source.
func (f *exactMerge) readAhead(ctx context.Context, s *source) error {
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
	f.addAhead(s, entries, next, time.Now(), false)
	f.mu.Lock()
	s.caughtUp = !more && !f.missed[s.part.Name()]
	f.mu.Unlock()
	if s.caughtUp {
		f.leaveBack(s)
	}
	return nil
}

// addAhead adds entries to a source that was read up to a position.
func (f *exactMerge) addAhead(s *source, entries []eventlog.Entry, upTo int64, read time.Time, live bool) {
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

// countReturned counts an entry that is no longer ahead.
func (f *exactMerge) countReturned(q queued) {
	if q.live {
		f.ahead = f.ahead.minus(load{1, size(q.entry)})
	} else {
		f.old--
	}
}

// drain takes the batches of the tails. It drops batches for a source that still reads older entries from the log, because the
// source will read these entries there, too. A source that missed a batch reads the log again.
func (f *exactMerge) drain() (some bool, err error) {
	f.mu.Lock()
	in, missed, later, err := f.in, f.missed, f.later, f.err
	f.in, f.waiting, f.missed, f.later = nil, load{}, nil, nil
	f.mu.Unlock()
	for _, b := range in {
		if s := f.parts[b.part.Name()]; s != nil && s.caughtUp {
			f.addAhead(s, b.entries, b.floor, b.read, true)
		}
	}
	for name := range missed {
		if s := f.parts[name]; s != nil && s.caughtUp {
			s.caughtUp = false
			f.back = append(f.back, s)
		}
	}
	for name := range later {
		if s := f.parts[name]; s != nil && s.caughtUp { // otherwise its own reads will find the item
			s.caughtUp, s.stuck = false, true
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.taken = f.ahead
	f.catchingUp = len(f.back) > 0 || f.catchingUp && (f.old > 0 || f.taken.reaches(f.tails.mostWaiting.half()))
	return len(in) > 0 || len(missed) > 0 || len(later) > 0, err
}

// returnedUntil returns the position up to which every entry of the source was returned. end is the end of the log,
// as it was read earlier.
func (s *source) returnedUntil(end int64) int64 {
	if len(s.ahead) > 0 {
		return s.ahead[0].entry.Key - 1
	}
	return s.readTo(end)
}

func (f *exactMerge) cursor() (c eventlog.Cursor, placed bool) {
	_, _ = f.drain()              // the next poll returns the error
	end := f.tails.Log.Position() // before reached reads the last writes
	at := int64(-1)
	for _, s := range f.parts {
		if f.sole && s.topic {
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
		c.Given = f.tails.Log.Time().UnixMicro()
	case at >= f.begun:
		c.Given = f.given // everything after the position is later than that
	}
	return c, false
}
