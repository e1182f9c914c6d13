// Package lease bounds how many streams are open, those of each principal and those of a whole fleet. A stream
// beyond either bound ends its principal's oldest, so that a client does not lock itself out with streams that it
// left without the server noticing, or is refused if the operator wants that. A principal without
// streams is refused if the fleet has no room.
//
// [Local] knows the streams of one process and is exact. [Shared] keeps leases in
// the store for instances that come and go; a stream learns there at its next check that
// another took its place. Both call superseded then, once, and give a function that gives the
// lease back, to be called once.
package lease

import (
	"container/list"
	"context"
	"sync"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Local gives leases to the streams of one process.
type Local struct {
	max    Max
	refuse bool

	mu   sync.Mutex
	open map[string]*list.List // of superseded, oldest first, by workspace and principal
}

// Max is how many streams a principal may have open.
type Max func(ctx context.Context, p auth.Principal) int

// NewLocal bounds the streams of each principal; refuse is that of [Shared]. No one is known as the
// anonymous one, so its streams are not bounded.
func NewLocal(most Max, refuse bool) *Local {
	return &Local{max: most, refuse: refuse, open: map[string]*list.List{}}
}

// full is the error for a principal who has as many streams as it may have.
func full(most int) error {
	return fault.New(fault.Exhausted, "all %d streams that you may have are open", most).AtLimit(quota.Streams, float64(most))
}

// Take gives a lease, and takes the oldest from a principal that has too many, or refuses.
func (l *Local) Take(ctx context.Context, p auth.Principal, superseded func()) (release func(), err error) {
	if p.Anonymous {
		return func() {}, nil
	}
	key, most := p.Workspace+"#"+p.ID, l.max(ctx, p)
	l.mu.Lock()
	defer l.mu.Unlock()
	open := l.open[key]
	if open == nil {
		open = list.New()
		l.open[key] = open
	}
	if l.refuse && open.Len() >= most {
		return nil, full(most)
	}
	for open.Len() >= most {
		go open.Remove(open.Front()).(func())()
	}
	place := open.PushBack(superseded)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		open.Remove(place) // does nothing when it was taken
		if open.Len() == 0 && l.open[key] == open {
			delete(l.open, key)
		}
	}, nil
}
