package delivery

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// budgets bound the memory of the bodies in flight: for each attempt its event and its
// webhook. Half is for first attempts, a quarter for further ones to healthy endpoints, and a
// quarter for those to endpoints that hang, which keep it for long. So large
// bodies for a slow endpoint take nothing from the others.
type budgets struct {
	pages, singles, hanging *semaphore.Weighted

	most [3]int64
}

// perAttempt is how often an attempt holds its event's bytes, about.
const perAttempt = 2

func newBudgets(total int64) budgets {
	most := [3]int64{total / 2, total / 4, total / 4}
	return budgets{semaphore.NewWeighted(most[0]), semaphore.NewWeighted(most[1]), semaphore.NewWeighted(most[2]), most}
}

// share is an attempt's part of a budget.
type share struct {
	mu     sync.Mutex
	of     *semaphore.Weighted
	weight int64
}

func (s *share) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of.Release(s.weight)
	s.weight = 0
}

// fast waits until a first attempt with an event of n bytes fits.
func (b *budgets) fast(n int) *share {
	weight := min(int64(n)*perAttempt, b.most[0])
	_ = b.pages.Acquire(context.Background(), weight) // attempts keep it for their patience
	return &share{of: b.pages, weight: weight}
}

// hang moves the share of a first attempt to the budget of those that hang, if it fits there.
func (b *budgets) hang(s *share) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	weight := min(s.weight, b.most[2])
	if !b.hanging.TryAcquire(weight) {
		return false
	}
	s.of.Release(s.weight)
	s.of, s.weight = b.hanging, weight
	return true
}

// slow takes a share for a further attempt, or reports that none is left.
func (b *budgets) slow(n int, hangs bool) (held *share, ok bool) {
	of, most := b.singles, b.most[1]
	if hangs {
		of, most = b.hanging, b.most[2]
	}
	weight := min(int64(n)*perAttempt, most)
	return &share{of: of, weight: weight}, of.TryAcquire(weight)
}
