package stream

import (
	"slices"
	"time"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
)

// What tails bring waits in f.in until the goroutine of the feed takes it.

// load is an amount of entries.
type load struct{ entries, bytes int }

// loadOf returns the load of some entries.
func loadOf(entries []eventlog.Entry) load {
	l := load{entries: len(entries)}
	for _, e := range entries {
		l.bytes += size(e)
	}
	return l
}

func size(e eventlog.Entry) int {
	if e.Event != nil {
		return len(e.Event.Data)
	}
	return len(e.Notice)
}

func (l load) plus(other load) load { return load{l.entries + other.entries, l.bytes + other.bytes} }

func (l load) minus(other load) load { return load{l.entries - other.entries, l.bytes - other.bytes} }

func (l load) half() load { return load{l.entries / 2, l.bytes / 2} }

// reaches reports whether the entries or the bytes reach a limit.
func (l load) reaches(limit load) bool { return l.entries >= limit.entries || l.bytes >= limit.bytes }

// offer takes a batch from a tail. A batch without entries moves only a floor and does not wake the reader.
//
// If too many entries wait, the feed ends, because its reader is slow. But while the feed reads its past, even the entries
// for a fast reader wait. Then offer drops the batches of this partition until the reader goes back to the log for them.
func (f *Feed) offer(b *batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return
	}
	if b.later {
		if f.ordered { // otherwise the floor of the source stays, and holds up no other
			if f.later == nil {
				f.later = map[string]bool{}
			}
			f.later[b.part.Name()] = true
			f.signal()
		}
		return
	}
	n := len(f.in)
	if f.held {
		f.signal()
	}
	if f.missed[b.part.Name()] { // its floor would pass the batch that was dropped
		return
	}
	if len(b.entries) > 0 {
		if f.waiting.plus(f.taken).reaches(f.tails.mostWaiting) {
			f.overflow(b.part)
			return
		}
		f.in = append(f.in, b)
		f.waiting = f.waiting.plus(b.load)
		f.signal()
		return
	}
	for i := n - 1; i >= 0 && len(f.in[i].entries) == 0; i-- {
		if f.in[i].part == b.part {
			f.in[i] = b
			return
		}
	}
	if n < maxFloors { // otherwise the next batch moves the floor further
		f.in = append(f.in, b)
	}
}

// overflow handles a batch that no longer fits; f.mu is held.
func (f *Feed) overflow(part eventlog.Partition) {
	if !f.catchingUp {
		f.end(ErrSlow)
		return
	}
	if f.missed == nil {
		f.missed = map[string]bool{}
	}
	f.missed[part.Name()] = true
	f.signal()
}

// readMissed has the sources whose batches were dropped read the log again, from the position at which a client would
// resume.
func (f *Feed) readMissed() {
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

// wakeLater makes [Feed.Ready] receive, so that the reader calls [Feed.Poll] again.
func (f *Feed) wakeLater() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.signal()
}

// signal wakes the reader.
func (f *Feed) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// ended returns the error that ended the feed.
func (f *Feed) ended() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// fail ends the feed unless it has ended.
func (f *Feed) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.end(err)
	}
}

// end ends the feed; f.mu is held.
func (f *Feed) end(err error) {
	f.err, f.in, f.waiting, f.missed = err, nil, load{}, nil
	f.signal()
}

// enqueue queues what was read of a source. Where keys grow in commit order, each entry moves the floor of the source.
// Elsewhere only the whole batch does.
func (f *Feed) enqueue(s *source, entries []eventlog.Entry, floor int64, read time.Time, live bool) {
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
func (f *Feed) settle() {
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
