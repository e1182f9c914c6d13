package rate

import (
	"context"
	"sync"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/fault"
)

// Held limits how much of something a principal has at the same time. Like [Rate] it counts in this process only.
type Held struct {
	name, what string
	of         Of
	total      int // of all principals together

	mu   sync.Mutex
	held map[principal]int
	all  int
}

// NewHeld limits what a principal has by of, and what all have together by total. The limit's name and what is counted are
// for the error.
func NewHeld(name, what string, of Of, total int) *Held {
	return &Held{name: name, what: what, of: of, total: total, held: map[principal]int{}}
}

// Take counts one more, until release is called once. Over the limit it fails with fault.Exhausted and [RetryAfter].
// Without authentication all callers are one principal, which is bound by the total only.
func (h *Held) Take(ctx context.Context, p auth.Principal) (release func(), err error) {
	if h == nil {
		return func() {}, nil
	}
	limit := h.total
	if own := int(h.of(ctx, p)); own > 0 && !p.Anonymous {
		limit = min(limit, own)
	}
	who := principal{p.Workspace, p.ID}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held[who] >= limit || h.all >= h.total {
		if h.held[who] < limit {
			limit = h.total
		}
		return nil, fault.New(fault.Exhausted, "the limit %s of %d %s at the same time is reached", h.name, limit, h.what).
			With(RetryAfter{fault.Limit{Limit: h.name, Max: float64(limit)}, 1})
	}
	h.held[who]++
	h.all++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.all--
		if h.held[who]--; h.held[who] == 0 {
			delete(h.held, who)
		}
	}, nil
}
