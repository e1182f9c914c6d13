package stream

import (
	"sync"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
)

// inbox holds the batches of log entries that wait to be read by one feed, which serves one open stream. The goroutines that read the
// event log (the tails) add these batches. If too many entries wait, the inbox ends the feed, so that a slow stream does not use
// unlimited memory.
type inbox struct {
	most load // the maximum load that may wait
	// wake receives a value when there may be an entry to return, and when the feed ends.
	wake chan struct{}

	mu      sync.Mutex
	batches []*batch
	waiting load // the number and the size of the entries in batches
	taken   load // the entries that the merge has taken from batches and the feed has not returned yet
	// catchingUp is true while the feed still returns older entries that it read from the log itself. Meanwhile, too many waiting entries
	// do not end the feed.
	catchingUp bool
	missed     map[string]bool // partitions of which a batch was dropped because too many entries waited
	later      map[string]bool // partitions whose tails have stopped before an item that a later release wrote
	held       bool            // batches without entries wake the reader, too; see hold
	err        error           // the error that ended the feed, or nil
}

// offer adds a tail's batch to the inbox. If too many entries wait, offer ends the feed. But while the feed is catching up on older
// entries, offer drops the batch instead, and all further batches of the same partition. The feed then reads these entries from the log.
//
// A batch without entries normally does not wake the reader. It only tells up to which position (the floor) the tail has read its
// partition.
func (in *inbox) offer(b *batch) {
	in.mu.Lock()
	defer in.mu.Unlock()
	name := b.part.Name()
	switch {
	case in.err != nil:
		return
	case b.later:
		addTo(&in.later, name)
		in.signal()
		return
	}
	if in.held {
		in.signal()
	}
	switch {
	case in.missed[name]: // drop this batch too, because its floor says that all entries before it have arrived
	case len(b.entries) == 0:
		in.addFloor(b)
	case !in.waiting.plus(in.taken).reaches(in.most):
		in.batches = append(in.batches, b)
		in.waiting = in.waiting.plus(b.load)
		in.signal()
	case in.catchingUp:
		addTo(&in.missed, name)
		in.signal()
	default:
		in.stop(ErrSlow)
	}
}

// addFloor adds a batch without entries. It replaces an earlier such batch of the same partition, because only the latest position
// (floor) matters. The caller holds in.mu.
func (in *inbox) addFloor(b *batch) {
	n := len(in.batches)
	for i := n - 1; i >= 0 && len(in.batches[i].entries) == 0; i-- {
		if in.batches[i].part == b.part {
			in.batches[i] = b
			return
		}
	}
	if n < maxFloors { // otherwise drop the batch, because a later one moves the floor further
		in.batches = append(in.batches, b)
	}
}

func addTo(set *map[string]bool, name string) {
	if *set == nil {
		*set = map[string]bool{}
	}
	(*set)[name] = true
}

// arrivals is the content that was taken out of an inbox. Its fields are explained in [inbox].
type arrivals struct {
	batches       []*batch
	missed, later map[string]bool
	err           error
}

func (a arrivals) isEmpty() bool {
	return len(a.batches) == 0 && len(a.missed) == 0 && len(a.later) == 0
}

func (in *inbox) take() arrivals {
	in.mu.Lock()
	defer in.mu.Unlock()
	got := arrivals{in.batches, in.missed, in.later, in.err}
	in.batches, in.waiting, in.missed, in.later = nil, load{}, nil, nil
	return got
}

// takeMissed returns and forgets the names of the partitions with dropped batches. It also drops the waiting batches of these partitions,
// because the feed will read the entries from the log.
func (in *inbox) takeMissed() map[string]bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	missed := in.missed
	if len(missed) == 0 {
		return nil
	}
	kept := in.batches[:0]
	for _, b := range in.batches {
		if missed[b.part.Name()] {
			in.waiting = in.waiting.minus(b.load)
		} else {
			kept = append(kept, b)
		}
	}
	clear(in.batches[len(kept):])
	in.batches, in.missed, in.catchingUp = kept, nil, true
	return missed
}

// takeFloors removes and returns the batches without entries from the front of the inbox.
func (in *inbox) takeFloors() (floors []*batch) {
	in.mu.Lock()
	defer in.mu.Unlock()
	n := 0
	for n < len(in.batches) && len(in.batches[n].entries) == 0 {
		n++
	}
	floors = in.batches[:n]
	if in.batches = in.batches[n:]; len(in.batches) == 0 {
		in.batches = nil // a quiet stream keeps no memory
	}
	return floors
}

// setTaken tells the inbox about the entries that the feed has not returned yet. The parameter taken is the load of the entries that the
// merge has taken out of the inbox. The parameter readsPast says that sources still have older entries to read from the log. The
// parameter hasPast says that the merge holds such older entries.
func (in *inbox) setTaken(taken load, readsPast, hasPast bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.taken = taken
	in.catchingUp = readsPast || in.catchingUp && (hasPast || taken.reaches(in.most.half()))
}

func (in *inbox) startCatchUp() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.catchingUp = true
}

// hold sets whether batches without entries wake the reader. This is necessary while an entry waits for other sources, because such a
// batch may show that another source has no earlier entries.
func (in *inbox) hold(held bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.held = held
}

func (in *inbox) hasMissed(p eventlog.Partition) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.missed[p.Name()]
}

// wakeReader makes [Feed.Ready] receive, so that the reader calls [Feed.Poll] again.
func (in *inbox) wakeReader() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.signal()
}

func (in *inbox) signal() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

func (in *inbox) endError() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.err
}

// end ends the feed with an error, unless it has ended already.
func (in *inbox) end(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err == nil {
		in.stop(err)
	}
}

// stop ends the feed with an error, and drops the waiting batches. The caller holds in.mu.
func (in *inbox) stop(err error) {
	in.err, in.batches, in.waiting, in.missed = err, nil, load{}, nil
	in.signal()
}

// load is a number of entries and the size of their payloads.
type load struct{ entries, bytes int }

func loadOf(entries []eventlog.Entry) load {
	l := load{entries: len(entries)}
	for _, e := range entries {
		l.bytes += sizeOf(e)
	}
	return l
}

func sizeOf(e eventlog.Entry) int {
	if e.Event != nil {
		return len(e.Event.Data)
	}
	return len(e.Notice)
}

func (l load) plus(other load) load { return load{l.entries + other.entries, l.bytes + other.bytes} }

func (l load) minus(other load) load { return load{l.entries - other.entries, l.bytes - other.bytes} }

func (l load) half() load { return load{l.entries / 2, l.bytes / 2} }

func (l load) reaches(limit load) bool { return l.entries >= limit.entries || l.bytes >= limit.bytes }
