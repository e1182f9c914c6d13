package stream

import (
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
)

// Batches of tails wait in f.in until the goroutine of the feed takes them.

// load is a number of entries and the size of their payloads.
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

// offer adds a batch of a tail. A batch without entries only moves a floor and does not wake the reader.
//
// If too many entries wait, the feed ends, because its reader is slow. But while the feed reads its past, the entries wait
// even for a fast reader. Then offer drops the batches of this partition until the reader reads them from the log.
func (f *Feed) offer(b *batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return
	}
	if b.later {
		if f.later == nil {
			f.later = map[string]bool{}
		}
		f.later[b.part.Name()] = true
		f.signal()
		return
	}
	n := len(f.in)
	if f.held {
		f.signal()
	}
	if f.missed[b.part.Name()] { // the batch's floor would pass the dropped batch
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

// overflow handles a batch for which there is no room; f.mu is held.
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

// endError returns the error that ended the feed.
func (f *Feed) endError() error {
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
