package stream

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/eventlog"
)

// An ordered store has one order for all entries of the log, and all copies of an event have the same position. A feed
// over it returns entries in that order. So its position is one number, after everything that was returned and before
// everything else, and a resume repeats nothing.
//
// The next entry is the first one that a source has read ahead, if every other source has been read as far or nothing
// was written to it since. The store tells which.

// pollInOrder is [Feed.Poll] over an ordered store.
func (f *Feed) pollInOrder(ctx context.Context) (Delivery, bool, error) {
	for {
		first := f.first()
		behind := f.furthestBack()
		switch {
		case behind != nil && (first == nil || behind.past < first.ahead[0].entry.Key):
			if err := f.readAhead(ctx, behind); err != nil {
				return Delivery{}, false, err
			}
			continue
		case first != nil && f.mayFollow(first.ahead[0].entry.Key):
			q := first.ahead[0]
			if first.ahead = first.ahead[1:]; len(first.ahead) == 0 {
				first.ahead = nil // a quiet stream keeps no memory
			}
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
		if len(s.ahead) == 0 && s.readTo(key) < key {
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
	entries, more, next, err := f.readPage(ctx, s)
	if err != nil {
		return err
	}
	s.bring(entries, next, time.Now())
	s.caughtUp = !more
	return nil
}

// bring adds what was read up to a position.
func (s *source) bring(entries []eventlog.Entry, upTo int64, read time.Time) {
	for _, e := range entries {
		if e.Key > s.past {
			s.ahead = append(s.ahead, queued{src: s, entry: e, read: read})
		}
	}
	s.past = max(s.past, upTo)
}

// drain takes what the tails brought. It drops what they bring to a source that still reads its past, which reads it
// there.
func (f *Feed) drain() (any bool, err error) {
	f.mu.Lock()
	in, err := f.in, f.err
	f.in = nil
	f.mu.Unlock()
	for _, b := range in {
		if s := f.parts[b.part.Name()]; s != nil && s.caughtUp {
			s.bring(b.entries, b.floor, b.read)
		}
	}
	return len(in) > 0, err
}

// reached is the position up to which every entry of the source was returned. end is an earlier end of the log.
func (s *source) reached(end int64) int64 {
	if len(s.ahead) > 0 {
		return s.ahead[0].entry.Key - 1
	}
	return s.readTo(end)
}
