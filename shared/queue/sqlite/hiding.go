package sqlite

import "time"

// hide is what has failed and waits: a message of a standard queue, or a group of
// a FIFO queue with count failed messages at its front.
type hide struct {
	until time.Time
	msg   *message
	group string
	count int
}

// hiding is a heap by time.
type hiding []hide

func (h hiding) Len() int           { return len(h) }
func (h hiding) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h hiding) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *hiding) Push(x any)        { *h = append(*h, x.(hide)) }

func (h *hiding) Pop() any {
	last := len(*h) - 1
	v := (*h)[last]
	(*h)[last] = hide{}
	*h = (*h)[:last]
	return v
}
