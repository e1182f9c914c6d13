package rate

import (
	"sync"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/fault"
)

// Share divides memory between principals. A principal may hold as much as it leaves free, so at most half of it alone, and the more
// principals hold memory, the less each of them may hold. It counts in this process only.
type Share struct {
	name, what string
	total      int

	mu   sync.Mutex
	held map[principal]int
	all  int
}

// NewShare divides total bytes. The limit's name and what the bytes are for are for the error.
func NewShare(name, what string, total int) *Share {
	return &Share{name: name, what: what, total: total, held: map[principal]int{}}
}

// Take counts bytes until release is called once. Over the limit it fails with fault.Exhausted and [RetryAfter].
func (s *Share) Take(p auth.Principal, bytes int) (release func(), err error) {
	who := principal{p.Workspace, p.ID}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[who]+bytes > s.total-s.all-bytes {
		return nil, fault.New(fault.Exhausted, "the limit %s of %d bytes of %s is reached", s.name, s.total, s.what).
			With(RetryAfter{fault.Limit{Limit: s.name, Max: float64(s.total)}, 1})
	}
	s.held[who] += bytes
	s.all += bytes
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all -= bytes
		if s.held[who] -= bytes; s.held[who] == 0 {
			delete(s.held, who)
		}
	}, nil
}
