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

// lagging returns the source that is furthest back, because the cursor, which is one position for all sources, cannot pass that
// source. So a client that is disconnected while it catches up makes progress each time, and a resume repeats about one page.
func (m *stampedMerge) lagging() *source {
	m.readAgain(m.in.takeMissed())
	return m.at.furthestBack()
}

func (m *stampedMerge) addPast(s *source, p page, began time.Time) (caughtUp bool) {
	s.past = p.next
	settled := began.Add(-eventlog.Window).UnixMicro()
	if s.bound == 0 && p.next > settled {
		// After this position, smaller keys may still be committed. The tail reads these entries, but the feed returns them
		// only after the past, which may take long if the client reads slowly.
		s.bound = settled
	}
	floor := cmp.Or(s.bound, settled)
	if p.more {
		floor = min(floor, p.next)
	}
	m.enqueue(s, p.entries, floor, time.Now(), false)
	return !p.more
}

// receive takes batches only after the past, so that they count as waiting until then. A floor that stays before an item of a
// later release holds up no other source.
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

// readAgain lets sources with dropped batches read the log again, from the position at which a client would resume.
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

// enqueue queues entries of a source. If keys grow in commit order, each entry moves the floor of the source. Otherwise only
// the whole batch does.
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

func (m *stampedMerge) pending() bool { return len(m.queue) > 0 }

// settle moves the floors for which the reader was not woken.
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
	at, open := int64(-1), false
	var places []eventlog.Place
	for _, s := range m.at.sources {
		if m.at.sole && s.topic {
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
	if end := m.at.log.Position(); at < 0 || at > end && !m.at.sole {
		at = end
	}
	c.At = at
	placed = !open && len(places) > 0 && len(places) <= eventlog.MaxPlaces
	if placed && (len(places) > 1 || !m.at.sole) {
		slices.SortFunc(places, func(a, b eventlog.Place) int { return cmp.Compare(a.Partition, b.Partition) })
		c.Places = places
	}
	return c, placed
}

// maxReads is the number of partitions that a feed reads concurrently when it opens.
const maxReads = 16

// begin marks the existing entries of the log as sent. It does not compare keys, because later entries may have smaller keys
// if a clock was set back. The tails read the entries that are written from now on.
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
