// Package lease limits the open streams of each principal and of a whole fleet.
//
// A new stream beyond a limit ends the oldest stream of its principal, because a client may have left streams without the
// server noticing and must not lock itself out. Operators can choose that the new stream is refused instead. If the fleet has
// no room, a principal without streams is always refused.
//
// [Local] knows the streams of one process and is exact. [Shared] keeps leases in the store for instances that start and stop
// at any time. There, a stream learns at its next check that another stream has replaced it. Both then call superseded once.
// Their Take returns a function that releases the lease, which the caller must call once.
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

// Max returns how many streams a principal may have open.
type Max func(ctx context.Context, p auth.Principal) int

// NewLocal returns a Local that limits each principal to the number of streams that most returns; refuse is as in [Shared]. Streams
// of anonymous callers are not limited, because the server cannot tell these callers apart.
func NewLocal(most Max, refuse bool) *Local {
	return &Local{max: most, refuse: refuse, open: map[string]*list.List{}}
}

// full returns the error for a principal that has as many streams as it may have.
func full(most int) error {
	return fault.New(fault.Exhausted, "all %d streams that you may have are open", most).AtLimit(quota.Streams, float64(most))
}

// Take takes a lease for a stream. If the principal has too many streams, it ends the oldest or returns an error.
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
		open.Remove(place) // no effect if the stream was superseded
		if open.Len() == 0 && l.open[key] == open {
			delete(l.open, key)
		}
	}, nil
}
