package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"mcpevents/shared/fault"
	"mcpevents/shared/queue"
	"mcpevents/shared/store"
)

// Retry moves due deliveries from the due table to the slow queue, and sweeps
// what expired. It runs every minute.
type Retry struct {
	DB    store.DB
	Queue queue.Sender
	// Sweep removes subscriptions that expired in the minute or up to back
	// minutes before; may be nil.
	Sweep func(ctx context.Context, minute time.Time, back int) (int, error)
	// Audit ends subscriptions that the catalog has left behind; see [Ender.Audit]. May be nil.
	Audit func(ctx context.Context) (int, error)
	Now   func() time.Time
}

var watermarkKey = store.Key{Table: store.Deliveries, Partition: "due#watermark", Sort: "-"}

const (
	// lookBack is how many minutes before the watermark are looked at again: an
	// entry may be written by a slow or skewed writer just after its minute was swept.
	lookBack = 5
	// catchUp bounds how far a first or long delayed run goes back: as long as
	// entries are kept, since a server may have been off for days.
	catchUp = int(keptFor / time.Minute)
	// stretch is after how many minutes of catching up the watermark is moved, so
	// that a round that is cut off is not begun anew.
	stretch = 10
)

// Run does one round and reports how many deliveries it moved. An entry is
// deleted after its message was sent: a crash in between sends it twice, and the second
// finds its attempt recorded.
func (r *Retry) Run(ctx context.Context) (moved int, err error) {
	moved, err = r.due(ctx)
	if err == nil && r.Audit != nil {
		_, err = r.Audit(ctx)
	}
	return moved, err
}

func (r *Retry) due(ctx context.Context) (moved int, err error) {
	now := time.Now()
	if r.Now != nil {
		now = r.Now()
	}
	minute := now.Truncate(time.Minute)
	items, err := r.DB.Get(ctx, watermarkKey)
	if err != nil {
		return 0, fault.Wrap(fault.Unavailable, err, "read the due table's watermark")
	}
	from, had := minute.Add(-time.Hour), int64(0)
	if items[0] != nil {
		had = items[0].Version
		from = time.Unix(had, 0).UTC()
	}
	// A clock that was set back must not leave out what lies until the watermark.
	from = earlier(from, minute).Add(-lookBack * time.Minute)
	if oldest := minute.Add(-time.Duration(catchUp) * time.Minute); from.Before(oldest) {
		from = oldest
	}
	for !from.After(minute) {
		until := earlier(from.Add(stretch*time.Minute), minute)
		n, err := r.minutes(ctx, from, until, now)
		moved += n
		if err != nil {
			return moved, err
		}
		if until.Unix() != had {
			cond := store.Absent()
			if had != 0 {
				cond = store.VersionIs(had)
			}
			had = until.Unix()
			err := r.DB.Write(ctx, store.Put(store.Item{Key: watermarkKey, Version: had}, cond))
			if errors.Is(err, store.ErrConflict) {
				return moved, nil // another round is under way
			}
			if err != nil {
				return moved, fault.Wrap(fault.Unavailable, err, "write the due table's watermark")
			}
		}
		from = until.Add(time.Minute)
	}
	return moved, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// minutes moves and sweeps what belongs to the minutes from one to another.
func (r *Retry) minutes(ctx context.Context, from, until, now time.Time) (moved int, err error) {
	for m := from; !m.After(until); m = m.Add(time.Minute) {
		for shard := range dueShards {
			n, err := r.move(ctx, duePartition(shard, m), now)
			moved += n
			if err != nil {
				return moved, err
			}
		}
	}
	if r.Sweep != nil {
		if _, err := r.Sweep(ctx, until, int(until.Sub(from)/time.Minute)); err != nil {
			return moved, err
		}
	}
	return moved, nil
}

// move sends the entries of a partition that are due before the next round.
func (r *Retry) move(ctx context.Context, partition string, now time.Time) (moved int, err error) {
	q := store.Query{Table: store.Deliveries, Partition: partition, Limit: 100}
	for {
		page, err := r.DB.Query(ctx, q)
		if err != nil {
			return moved, fault.Wrap(fault.Unavailable, err, "read the due table")
		}
		var out []queue.Outgoing
		var del []store.Op
		for _, it := range page.Items {
			var e dueEntry
			if err := json.Unmarshal(it.Value, &e); err != nil {
				return moved, fault.Wrap(fault.Internal, err, "decode a due entry")
			}
			out = append(out, e.outgoing(max(0, min(time.UnixMilli(e.At).Sub(now), time.Minute))))
			del = append(del, store.Delete(it.Key))
		}
		if len(out) > 0 {
			if err := r.Queue.Send(ctx, queue.Slow, out...); err != nil {
				return moved, fault.Wrap(fault.Unavailable, err, "queue due deliveries")
			}
			if err := r.DB.WriteAll(ctx, del...); err != nil {
				return moved, fault.Wrap(fault.Unavailable, err, "remove due entries")
			}
			moved += len(out)
		}
		if !page.More {
			return moved, nil
		}
		q.After = page.Last
	}
}
