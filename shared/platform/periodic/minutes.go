package periodic

import (
	"context"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Minutes is the position of a job whose work lies in partitions by minute.
type Minutes struct {
	DB store.DB
	// Key is the item that keeps the position; its version is the minute, in seconds since 1970.
	Key store.Key
	// Before is where the position was kept in the version before; may be zero.
	Before store.Key
	// CatchUp bounds how far a long delayed walk goes back.
	CatchUp time.Duration
	// SaveEvery is how old the kept position may become before a walk that came to its end
	// writes it; 0 is always. A server at rest then writes nothing for as long, visits that many
	// minutes again each time, and does not see that its clock was set back by less.
	SaveEvery time.Duration
	// Ahead is called, before anything else, when the clock was set back: it read was at
	// the last walk. May be nil.
	Ahead func(ctx context.Context, was time.Time) error
}

const (
	// lookBack is how far before the position is looked at again: an entry may be
	// written by a slow or skewed writer just after its minute was visited.
	lookBack = 5 * time.Minute
	// stretch is after how much of catching up the position is moved, so that a
	// walk that is cut off is not begun anew.
	stretch = 10 * time.Minute
	// maxFailures is after how many failed minutes a walk gives up: the store is down.
	maxFailures = 5
	// Tolerance is how much clocks may differ without one of them having been set.
	Tolerance = 5 * time.Minute
)

// Walk visits the minutes from the position up to now: first the latest, which are due now
// whatever has to be caught up with, then the others in their order. A minute that fails
// is visited again by the next walk; it keeps the others from nothing.
func (m Minutes) Walk(ctx context.Context, now time.Time, visit func(ctx context.Context, minute time.Time) error) error {
	last := now.Truncate(time.Minute)
	from, had, err := m.position(ctx, last)
	if err != nil {
		return err
	}
	if m.Ahead != nil && from.Sub(last) > Tolerance {
		if err := m.Ahead(ctx, from); err != nil {
			return err
		}
	}
	// A clock that was set back must not leave out what lies until the position.
	from = earlier(from, last).Add(-lookBack)
	if oldest := last.Add(-m.CatchUp); from.Before(oldest) {
		from = oldest
	}
	var errs []error
	each := func(from, to time.Time) {
		for minute := from; !minute.After(to) && len(errs) < maxFailures && ctx.Err() == nil; minute = minute.Add(time.Minute) {
			if err := visit(ctx, minute); err != nil {
				errs = append(errs, err)
			}
		}
	}
	old := had > last.Unix() || last.Sub(time.Unix(had, 0)) >= m.SaveEvery
	save := func(to time.Time) bool {
		if !old || len(errs) > 0 || ctx.Err() != nil {
			return true
		}
		saved, err := m.save(ctx, to.Unix(), &had)
		if err != nil {
			errs = append(errs, err)
		}
		return saved
	}
	latest := last.Add(-lookBack)
	if latest.Before(from) {
		latest = from
	}
	each(latest, last)
	for ; from.Before(latest); from = from.Add(stretch) {
		to := earlier(from.Add(stretch), latest).Add(-time.Minute)
		each(from, to)
		if !save(to) {
			return nil // another walk is under way
		}
	}
	save(last)
	return errors.Join(append(errs, ctx.Err())...)
}

// position is the minute that was visited last, and the version of its item; 0 has none.
func (m Minutes) position(ctx context.Context, last time.Time) (at time.Time, version int64, err error) {
	keys := []store.Key{m.Key}
	if m.Before != (store.Key{}) {
		keys = append(keys, m.Before)
	}
	items, err := m.DB.Get(ctx, keys...)
	if err != nil {
		return at, 0, fault.Wrap(fault.Unavailable, err, "read a job's position")
	}
	switch {
	case items[0] != nil:
		return time.Unix(items[0].Version, 0).UTC(), items[0].Version, nil
	case len(items) > 1 && items[1] != nil:
		return time.Unix(items[1].Version, 0).UTC(), 0, nil
	}
	return last.Add(-time.Hour), 0, nil
}

// save moves the position on. It reports false when another walk did.
func (m Minutes) save(ctx context.Context, to int64, had *int64) (bool, error) {
	if to == *had {
		return true, nil
	}
	cond := store.Absent()
	if *had != 0 {
		cond = store.VersionIs(*had)
	}
	err := m.DB.Write(ctx, store.Put(store.Item{Key: m.Key, Version: to}, cond))
	if errors.Is(err, store.ErrConflict) {
		return false, nil
	}
	*had = to
	return true, fault.Wrap(fault.Unavailable, err, "write a job's position")
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
