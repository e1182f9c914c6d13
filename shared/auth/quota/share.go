package quota

import "github.com/mcp-events/mcpevents/shared/auth"

// Share divides memory between principals. A principal may hold as much as is left free. A single principal can therefore hold at most
// half of the total, and the more principals hold memory, the less each of them may hold. It counts in this process only.
type Share struct {
	name, what string
	total      int
	held       holdings
}

// NewShare returns a Share of total bytes. Errors contain name, the name of the limit, and what, the use of the bytes.
func NewShare(name, what string, total int) *Share {
	return &Share{name: name, what: what, total: total}
}

// Take counts bytes until release is called, which must happen once. At the limit the error is of kind fault.Exhausted with
// [RetryAfter].
func (s *Share) Take(p auth.Principal, bytes int) (release func(), err error) {
	who := principal{p.Workspace, p.ID}
	s.held.mu.Lock()
	defer s.held.mu.Unlock()
	if s.held.of[who]+bytes > s.total-s.held.all-bytes {
		return nil, Exceeded(s.name, float64(s.total), "the limit %s of %d bytes of %s is reached", s.name, s.total, s.what)
	}
	return s.held.add(who, bytes), nil
}
