package catalog

import (
	"context"
	"errors"
	"time"

	"mcpevents/shared/config/versioned"
	"mcpevents/shared/fault"
	"mcpevents/shared/store"
)

// A stored catalog is announced to connected clients only when every function uses
// it, so that who asks for a list after the announcement gets the new one at any
// instance. Until then an item beside the documents says that it is still to be
// done; it is written with the catalog, so that no crash loses it.

const unannouncedPartition = "announce"

func unannounced(workspace string, version int64, now time.Time) store.Op {
	return store.Put(store.Item{
		Key:     store.Key{Table: store.Settings, Partition: unannouncedPartition, Sort: workspace},
		Version: version, Counts: map[string]int64{appliedAt: now.UnixMilli()},
	})
}

const appliedAt = "at" // milliseconds since 1970

// Announce tells of the catalogs that [Apply] stored at least [versioned.MaxAge]
// before now, each once unless a crash or another announcer comes between. tell gets the
// catalog's version to name the announcement by. waiting is how many are too new.
func Announce(ctx context.Context, db store.DB, now time.Time, tell func(ctx context.Context, workspace string, version int64) error) (waiting int, err error) {
	q := store.Query{Table: store.Settings, Partition: unannouncedPartition}
	for {
		page, err := db.Query(ctx, q)
		if err != nil {
			return waiting, fault.Wrap(fault.Unavailable, err, "read which catalogs are to be announced")
		}
		for _, it := range page.Items {
			if now.Sub(time.UnixMilli(it.Counts[appliedAt])) < versioned.MaxAge {
				waiting++
				continue
			}
			if err := tell(ctx, it.Sort, it.Version); err != nil {
				return waiting, err
			}
			err := db.Write(ctx, store.Delete(it.Key, store.VersionIs(it.Version)))
			if err != nil && !errors.Is(err, store.ErrConflict) { // a newer one waits for its turn
				return waiting, fault.Wrap(fault.Unavailable, err, "record that a catalog was announced")
			}
		}
		if !page.More {
			return waiting, nil
		}
		q.After = page.Last
	}
}
