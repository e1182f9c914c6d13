package stream

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// A feed itself reads what was in the log before its tails began.

// maxReads is the most partitions that a feed reads at once when it opens.
const maxReads = 16

// beginAtEnd skips what the log holds when the feed opens. It notes those entries as sent instead of comparing keys: if
// the clock was set, later entries may have smaller keys. The tails bring what is written from now on.
func (f *Feed) beginAtEnd(ctx context.Context) error {
	read, ctx := errgroup.WithContext(ctx)
	read.SetLimit(maxReads)
	var mu sync.Mutex
	for _, s := range f.back {
		read.Go(func() (err error) {
			defer fault.Recovered(&err)
			if s.place != 0 {
				end, err := f.tails.Log.EndOf(ctx, f.workspace, s.pattern)
				s.start, s.floor, s.past = end, end, end
				return err
			}
			for more, next := true, s.start; more; {
				var entries []eventlog.Entry
				var err error
				entries, more, next, err = f.tails.Log.Read(ctx, s.part, next, pageSize)
				if errors.Is(err, eventlog.ErrLater) {
					return nil // the tail stays before that item
				}
				if err != nil {
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

// readPast reads one page. It takes the source that is furthest back, for
// the cursor is one position for all sources and stays there. So a client that is cut off while it catches up is
// further each time, and a resume repeats about one page.
func (f *Feed) readPast(ctx context.Context) error {
	s := f.furthestBack()
	if s == nil {
		return nil
	}
	began := f.tails.Log.Time().Add(-eventlog.Window).UnixMicro()
	entries, more, next, err := f.readPage(ctx, s)
	if f.stay(s, err) {
		return nil
	}
	if err != nil {
		return err
	}
	s.past = next
	if s.bound == 0 && next > began {
		// From here on smaller keys may be committed after they were passed. The tail brings those entries, but only
		// after the past was read, which may take long if the client reads slowly.
		s.bound = began
	}
	floor := began
	if s.bound != 0 {
		floor = s.bound
	}
	if more {
		floor = min(floor, next)
	} else {
		f.leaveBack(s)
	}
	f.enqueue(s, entries, floor, time.Now(), false)
	return nil
}

// furthestBack is the source that still reads its past and is the furthest back, or nil.
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

// stay leaves a source at its position if the error says that the next item is of a later release, and reports whether it
// did.
func (f *Feed) stay(s *source, err error) bool {
	if !errors.Is(err, eventlog.ErrLater) {
		return false
	}
	s.stuck, s.caughtUp = true, false
	f.leaveBack(s)
	return true
}

// leaveBack notes that the past of a source was read.
func (f *Feed) leaveBack(s *source) {
	f.back = slices.DeleteFunc(f.back, func(other *source) bool { return other == s })
}
