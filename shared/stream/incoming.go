package stream

import (
	"time"

	"github.com/mcp-events/mcpevents/shared/eventlog"
)

// What tails bring waits in f.in until the goroutine of the feed takes it.

// offer takes a batch from a tail. A batch without entries moves only a floor and does not wake the reader.
func (f *Feed) offer(b *batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return
	}
	n := len(f.in)
	if f.held {
		f.signal()
	}
	if len(b.entries) > 0 {
		if n >= buffer {
			f.end(ErrSlow)
			return
		}
		f.in = append(f.in, b)
		f.signal()
		return
	}
	for i := n - 1; i >= 0 && len(f.in[i].entries) == 0; i-- {
		if f.in[i].part == b.part {
			f.in[i] = b
			return
		}
	}
	if n < buffer { // else the next batch moves the floor further
		f.in = append(f.in, b)
	}
}

// signal wakes the reader.
func (f *Feed) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
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
	f.err, f.in = err, nil
	f.signal()
}

// enqueue queues what was read of a source. Where keys grow in commit order, each entry moves the floor of the source.
// Elsewhere only the whole batch does.
func (f *Feed) enqueue(s *source, entries []eventlog.Entry, floor int64, read time.Time) {
	ordered := f.tails.Log.LookBack(s.part) == 0
	for _, e := range entries {
		q := queued{src: s, entry: e, read: read}
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
		if s := f.parts[f.in[0].part.Name()]; s != nil {
			s.floor = max(s.floor, f.in[0].floor)
		}
		if f.in = f.in[1:]; len(f.in) == 0 {
			f.in = nil
		}
	}
}
