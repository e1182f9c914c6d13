package quota

import "github.com/mcp-events/mcpevents/shared/auth"

// Share divides memory between principals. A principal may hold as much as it leaves free, so at most half of it alone, and the more
// principals hold memory, the less each of them may hold. It counts in this process only.
type Share struct {
	name, what string
	total      int
	held       holdings
}

// NewShare divides total bytes. The error contains name, the name of the limit, and what, the use of the bytes.
func NewShare(name, what string, total int) *Share {
	return &Share{name: name, what: what, total: total}
}

// Take counts bytes until release is called once. Over the limit it fails with fault.Exhausted and [RetryAfter].
func (s *Share) Take(p auth.Principal, bytes int) (release func(), err error) {
	who := principal{p.Workspace, p.ID}
	s.held.mu.Lock()
	defer s.held.mu.Unlock()
	if s.held.of[who]+bytes > s.total-s.held.all-bytes {
		return nil, Exceeded(s.name, float64(s.total), "the limit %s of %d bytes of %s is reached", s.name, s.total, s.what)
	}
	return s.held.add(who, bytes), nil
}
