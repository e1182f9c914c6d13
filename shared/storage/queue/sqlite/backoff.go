package sqlite

import "time"

// backoff is a message of a standard queue that failed and waits, or a group of
// a FIFO queue with count failed messages at its front.
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
