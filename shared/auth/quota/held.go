package quota

import (
	"context"
	"sync"

	"github.com/mcp-events/mcpevents/shared/auth"
)

// holdings counts how much each principal holds.
type holdings struct {
	mu  sync.Mutex
	of  map[principal]int
	all int
}

// add counts n more until release is called once. The caller holds the lock.
func (h *holdings) add(who principal, n int) (release func()) {
	if h.of == nil {
		h.of = map[principal]int{}
	}
	h.of[who] += n
	h.all += n
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.all -= n
		if h.of[who] -= n; h.of[who] == 0 {
			delete(h.of, who)
		}
	}
}

// Held limits how many things a principal may hold concurrently, such as open calls. Like [Rate] it counts in this process only.
type Held struct {
	name, what string
	most       Of
	total      int // of all principals together
	held       holdings
}

// NewHeld returns a Held with a limit for each principal and a total for all of them. Errors contain name, the name of the limit, and
// what, a plural for the counted things.
func NewHeld(name, what string, most Of, total int) *Held {
	return &Held{name: name, what: what, most: most, total: total}
}

// Take counts a thing until release is called, which must happen once. At the limit the error is of kind fault.Exhausted with
// [RetryAfter]. Only the total limits the anonymous principal, because that stands for all callers.
func (h *Held) Take(ctx context.Context, p auth.Principal) (release func(), err error) {
	if h == nil {
		return func() {}, nil
	}
	limit := h.total
	if own := int(h.most(ctx, p)); own > 0 && !p.Anonymous {
		limit = min(limit, own)
	}
	who := principal{p.Workspace, p.ID}
	h.held.mu.Lock()
	defer h.held.mu.Unlock()
	switch {
	case h.held.of[who] >= limit:
	case h.held.all >= h.total:
		limit = h.total
	default:
		return h.held.add(who, 1), nil
	}
	return nil, Exceeded(h.name, float64(limit), "the limit %s of %d %s at the same time is reached", h.name, limit, h.what)
}

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
