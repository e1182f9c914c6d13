package stream

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/fault"
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

// readPast reads one page between the start of a source and its tail. It takes the source that is furthest back, for
// the cursor is one position for all sources and stays there. So a client that is cut off while it catches up is
// further each time, and a resume repeats about one page.
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
	floor := began.Add(-eventlog.Window).UnixMicro()
	if more {
		floor = min(floor, next)
	} else {
		f.back = slices.Delete(f.back, n, n+1)
	}
	f.enqueue(s, entries, floor, time.Now())
	return nil
}
