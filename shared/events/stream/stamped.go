package stream

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// stampedMerge returns entries as they arrive, because a smaller key may be committed to a partition after larger ones. Each
// source has a floor, up to which it has no more entries. The cursor is the lowest floor and names the returned entries after
// it.
type stampedMerge struct {
	*Feed
	queue []queued
}

func (*stampedMerge) forget(*source) {}

func (f *stampedMerge) pending() bool { return len(f.queue) > 0 }

func (f *stampedMerge) poll(ctx context.Context) (Delivery, bool, error) {
	for left := effort; ; {
		for len(f.queue) > 0 {
			if left <= 0 {
				f.wakeLater()
				return Delivery{}, false, nil
			}
			left--
			q := f.queue[0]
			if f.queue = f.queue[1:]; len(f.queue) == 0 {
				f.queue = nil // a quiet stream keeps no memory
			}
			if d, ok := f.take(q); ok {
				return d, true, nil
			}
		}
		f.readMissed()
		if len(f.back) > 0 {
			if left <= 0 {
				f.wakeLater()
				return Delivery{}, false, nil
			}
			left -= pageEffort
			if err := f.readPast(ctx); err != nil {
				return Delivery{}, false, err
			}
			continue
		}
		f.mu.Lock()
		in, err := f.in, f.err
		f.in, f.waiting, f.catchingUp, f.later = nil, load{}, false, nil // a floor that stays holds up no other source
		f.mu.Unlock()
		if err != nil || len(in) == 0 {
			return Delivery{}, false, err
		}
		for _, b := range in {
			if s := f.parts[b.part.Name()]; s != nil && !s.stuck {
				f.enqueue(s, b.entries, b.floor, b.read, true)
			}
		}
	}
}

// maxReads is the number of partitions that a feed reads concurrently when it opens.
const maxReads = 16

// begin marks the existing entries of the log as sent. It does not compare keys, because later entries may have smaller keys
// if a clock was set back. The tails read the entries that are written from now on.
func (f *stampedMerge) begin(ctx context.Context) error {
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

// readPast reads one page of the source that is furthest back, because the cursor, which is one position for all sources,
// cannot pass that source. So a client that is disconnected while it catches up makes progress each time, and a resume repeats
// about one page.
func (f *stampedMerge) readPast(ctx context.Context) error {
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
		// After this position, smaller keys may still be committed. The tail reads these entries, but the feed returns them
		// only after the past, which may take long if the client reads slowly.
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

// readMissed lets sources with dropped batches read the log again, from the position at which a client would resume.
func (f *stampedMerge) readMissed() {
	f.mu.Lock()
	missed := f.missed
	f.missed = nil
	if len(missed) > 0 {
		f.catchingUp = true
		f.in = slices.DeleteFunc(f.in, func(b *batch) bool {
			if missed[b.part.Name()] {
				f.waiting = f.waiting.minus(b.load)
			}
			return missed[b.part.Name()]
		})
	}
	f.mu.Unlock()
	for name := range missed {
		if s := f.parts[name]; s != nil {
			s.past, s.bound = s.floor, 0
			if !slices.Contains(f.back, s) {
				f.back = append(f.back, s)
			}
		}
	}
}

// enqueue queues entries of a source. If keys grow in commit order, each entry moves the floor of the source. Otherwise only
// the whole batch does.
func (f *stampedMerge) enqueue(s *source, entries []eventlog.Entry, floor int64, read time.Time, live bool) {
	ordered := f.tails.Log.LookBack(s.part) == 0
	for _, e := range entries {
		q := queued{src: s, entry: e, read: read, live: live}
		if ordered {
			q.floor = e.Key
		}
		f.queue = append(f.queue, q)
	}
	f.queue = append(f.queue, queued{src: s, floor: floor})
}

// settle moves the floors for which the reader was not woken.
func (f *stampedMerge) settle() {
	if len(f.queue) > 0 || len(f.back) > 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.in) > 0 && len(f.in[0].entries) == 0 {
		if s := f.parts[f.in[0].part.Name()]; s != nil && !s.stuck {
			s.floor = max(s.floor, f.in[0].floor)
		}
		if f.in = f.in[1:]; len(f.in) == 0 {
			f.in = nil
		}
	}
}

func (f *stampedMerge) cursor() (c eventlog.Cursor, placed bool) {
	f.settle()
	at, open := int64(-1), false
	var places []eventlog.Place
	for _, s := range f.parts {
		if f.sole && s.topic {
			continue
		}
		if s.place != 0 {
			places = append(places, eventlog.Place{Partition: s.place, At: s.floor})
		}
		open = open || s.place == 0 && !s.topic
		if at < 0 || s.floor < at {
			at = s.floor
		}
	}
	// A client that resumes with another pattern must find that pattern's events that are published from now on.
	if end := f.tails.Log.Position(); at < 0 || at > end && !f.sole {
		at = end
	}
	c.At = at
	placed = !open && len(places) > 0 && len(places) <= eventlog.MaxPlaces
	if placed && (len(places) > 1 || !f.sole) {
		slices.SortFunc(places, func(a, b eventlog.Place) int { return cmp.Compare(a.Partition, b.Partition) })
		c.Places = places
	}
	return c, placed
}
