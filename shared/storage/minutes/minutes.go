// Package minutes walks through the stored work of a periodic job, such as the retries that are due. The work is in one
// partition per minute. The package visits the minutes in turn and saves how far it got.
package minutes

import (
	"context"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Position tracks how far a job has come through its minutes.
type Position struct {
	DB store.DB
	// Key names the item that keeps the position. The item's version is the minute, in seconds since 1970.
	Key store.Key
	// CatchUp limits how far back a walk starts after a long pause, for example because the server was off.
	CatchUp time.Duration
	// SaveEvery is how old the saved position may become before a complete walk saves it again; 0 saves after each walk. A
	// larger value means fewer writes, but each walk revisits the minutes since the last save, and a clock that was set back by less
	// than SaveEvery may go unnoticed.
	SaveEvery time.Duration
	// Walk calls Ahead, if it is not nil, with the saved position if that is more than [Tolerance] in the future, because the
	// clock must have been set back since it was saved.
	Ahead func(ctx context.Context, was time.Time) error
}

const (
	// lookBack is how far before the position a walk starts, because a slow writer, or one with a skewed clock, may write an
	// entry just after its minute was visited.
	lookBack = 5 * time.Minute
	// A long walk saves the position after each stretch, so that an interrupted walk does not start over.
	stretch = 10 * time.Minute
	// maxFailures is how many minutes may fail before a walk gives up, because the store is probably down.
	maxFailures = 5
	// Tolerance is how far the clocks of two processes may differ before a walk assumes that one was set back.
	Tolerance = 5 * time.Minute
)

// Walk visits the minutes from the position up to now. It visits the latest minutes first, because their work is due now. A minute that
// fails does not stop the walk; the next walk visits it again.
func (p Position) Walk(ctx context.Context, now time.Time, visit func(ctx context.Context, minute time.Time) error) error {
	last := now.Truncate(time.Minute)
	from, had, err := p.position(ctx, last)
	if err != nil {
		return err
	}
	if p.Ahead != nil && from.Sub(last) > Tolerance {
		if err := p.Ahead(ctx, from); err != nil {
			return err
		}
	}
	// If the clock was set back, the position is in the future. Then start from now instead, because new work is in earlier
	// minutes than the position.
	from = periodic.Earlier(from, last).Add(-lookBack)
	if oldest := last.Add(-p.CatchUp); from.Before(oldest) {
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
	old := had > last.Unix() || last.Sub(time.Unix(had, 0)) >= p.SaveEvery
	save := func(to time.Time) bool {
		if !old || len(errs) > 0 || ctx.Err() != nil {
			return true
		}
		saved, err := p.save(ctx, to.Unix(), &had)
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
		to := periodic.Earlier(from.Add(stretch), latest).Add(-time.Minute)
		each(from, to)
		if !save(to) {
			return nil // another walk is under way
		}
	}
	save(last)
	return errors.Join(append(errs, ctx.Err())...)
}

// position returns the saved minute and the version of its item. If no minute is saved, it returns version 0 and the time one
// hour before last.
func (p Position) position(ctx context.Context, last time.Time) (at time.Time, version int64, err error) {
	it, err := store.One(ctx, p.DB, p.Key, "read a job's position")
	if err != nil {
		return at, 0, err
	}
	if it == nil {
		return last.Add(-time.Hour), 0, nil
	}
	return time.Unix(it.Version, 0).UTC(), it.Version, nil
}

// save stores minute, in seconds since 1970, as the position. had points to the version of the position's item that this walk has
// read or written last. If another walk has changed the item since, save returns false.
func (p Position) save(ctx context.Context, minute int64, had *int64) (bool, error) {
	if minute == *had {
		return true, nil
	}
	cond := store.Absent()
	if *had != 0 {
		cond = store.VersionIs(*had)
	}
	err := p.DB.Write(ctx, store.Put(store.Item{Key: p.Key, Version: minute}, cond))
	if errors.Is(err, store.ErrConflict) {
		return false, nil
	}
	*had = minute
	return true, fault.Wrap(fault.Unavailable, err, "write a job's position")
}
