package sqlite

import "time"

// message is a message that is, or was, in memory.
type message struct {
	id       int64
	group    string
	body     []byte // nil: to be read from its row
	sent     int64  // microseconds since 1970
	received int
	handled  int // bytes of its body that count as in a handler

	place      place // changed by [window.move] only
	row        row
	forwarding *forwarding // of a forwarded message
}

// place is where a message of a queue is. Every message is in exactly one place.
type place uint8

const (
	// placeFile is a row that is not in memory and can be delivered.
	placeFile place = iota
	// placeDelayed is a row that is not due yet. It is not in memory either.
	placeDelayed
	// placeReady is in memory, in its group.
	placeReady
	// placeInFlight is with a handler.
	placeInFlight
	// placeBlocked is at the front of its group in a FIFO queue. The group waits for the back-off of its first message.
	placeBlocked
	// placeBackOff is in the heap of back-offs of a standard queue. The message stays in memory, but does not count against
	// the bounds, so that failing messages do not keep others out of memory.
	placeBackOff
	// placeAccepted and placeDead have left the queue, although their rows may not be deleted yet.
	placeAccepted
	placeDead
	places
)

// inWindow reports whether messages in this place count against the bounds of the window.
func (p place) inWindow() bool {
	return p == placeReady || p == placeInFlight || p == placeBlocked
}

// row says whether a message has a row in the file. The row of a message that was not forwarded is always written.
type row uint8

const (
	rowWritten row = iota
	// rowAwaited is not written yet. A message that is accepted in this state never gets a row.
	rowAwaited
	// rowWriting is part of a transaction that has not ended.
	rowWriting
	// rowFailed could not be written, so the body is only in memory.
	rowFailed
)

// backoff is a failed message of a standard queue, or a group of a FIFO queue whose first count messages are blocked.
type backoff struct {
	until time.Time
	msg   *message
	group string
	count int
}

// backoffHeap is a heap by time.
type backoffHeap []backoff

func (h backoffHeap) Len() int           { return len(h) }
func (h backoffHeap) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h backoffHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *backoffHeap) Push(x any)        { *h = append(*h, x.(backoff)) }

func (h *backoffHeap) Pop() any {
	last := len(*h) - 1
	v := (*h)[last]
	(*h)[last] = backoff{}
	*h = (*h)[:last]
	return v
}
