// Package minutes helps a periodic job to find its stored work, such as the retries that are due. The work is stored in one partition per
// minute. The package visits these minutes in turn and saves the last visited one.
package minutes

import (
	"context"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Position reads and saves the minute that a periodic job has reached.
type Position struct {
	DB store.DB
	// Key is the key of the item in DB that stores the position. The item's version is the minute that the job has reached, in seconds
	// since 1970.
	Key store.Key
	// CatchUp limits how far before the current time a walk starts, for example after the server was off for days.
	CatchUp time.Duration
	// SaveEvery is the age of the saved position at which a walk saves a new one; 0 saves after each walk. A larger value means fewer
	// writes, but each walk revisits the minutes since the last save. Because the saved position may then lag behind by SaveEvery, it
	// does not reveal that the clock was set back by less than that.
	SaveEvery time.Duration
	// Ahead is called by Walk with the saved position if that position is more than [Tolerance] in the future, because the clock must
	// then have been set back. Ahead may be nil.
	Ahead func(ctx context.Context, was time.Time) error
}

const (
	// lookBack is how far before the saved position a call of [Position.Walk] starts. A slow writer, or a writer with a skewed clock, may
	// store an entry after the previous call has visited the entry's minute.
	lookBack = 5 * time.Minute
	// stretch is how much time [Position.Walk] covers before it saves the position, so that an interrupted walk does not start over.
	stretch = 10 * time.Minute
	// maxFailures is how many minutes may fail before [Position.Walk] gives up, because the store is probably down.
	maxFailures = 5
	// Tolerance is how far the saved position may be in the future before a walk assumes that the clock was set back. The clocks of two
	// processes may differ by that much.
	Tolerance = 5 * time.Minute
)

// Walk calls visit for each minute from the saved position to now. It visits the latest minutes first, so that a long walk does not delay
// the work that is due now. If visit fails for a minute, Walk continues with the other minutes, and the next walk visits the failed one
// again.
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
	// If the saved position is in the future, the clock was set back. Start from now instead, because new work is stored under the
	// minutes of the clock, which are before the saved position.
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

// position returns the saved minute and the version of the item that stores it. The parameter last is the current minute. If no minute is
// saved, position returns the time one hour before last and version 0.
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

// save stores a minute, in seconds since 1970, as the position. The parameter had points to the version of the stored item, as this walk
// has last read or written it. If another walk has changed the item since then, save returns false.
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
