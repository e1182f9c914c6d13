package eventlog

import (
	"context"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Interest says that a client reads a pattern in band, or may do so again soon. While it lasts, fanout writes the partitions
// of the pattern.
type Interest struct {
	// Since is the position at which it began. Earlier events are not in the partitions of the pattern.
	Since int64
	// Until is when it ends, unless it is renewed.
	Until time.Time
}

// Reaches returns the first position from which a cursor finds all events of the pattern. It is a window before Since,
// because a cursor is up to a window before the time at which it was given.
func (in Interest) Reaches() int64 { return in.Since - (Window + 2*MaxSkew).Microseconds() }

// InterestKey returns the key of the item that holds the interest in a pattern.
func InterestKey(workspace, key string) store.Key {
	return store.Key{Table: store.Log, Partition: "i#" + workspace + "#" + key, Sort: "-"}
}

const untilCount = "until"

// Interested makes sure that the partitions of a pattern are written until the given time, and for at least one retention
// from now. It returns the interest, which tells since when they are written. The caller must have marked the shape before.
func (l *Log) Interested(ctx context.Context, workspace, key string, until time.Time) (Interest, error) {
	k := InterestKey(workspace, key)
	if kept := l.KeptUntil(); until.Before(kept) {
		until = kept
	}
	for {
		had, err := l.Interest(ctx, workspace, key)
		if err != nil {
			return Interest{}, err
		}
		now := l.Time()
		since := l.keys().interestBegins()
		item := store.Item{Key: k, Version: since, Counts: map[string]int64{untilCount: until.Unix()}, Expires: until.Add(interestMargin)}
		cond := store.Absent()
		if had != (Interest{}) {
			cond = store.VersionIs(had.Since)
		}
		setBack := had.Since > since+2*MaxSkew.Microseconds() // the clock
		if had.Until.After(now) && !setBack {
			if until.Sub(had.Until) <= l.Reaches()/16 { // renew seldom
				return had, nil
			}
			// Each renewal changes the version, so that one of two concurrent renewals fails and tries again. That moves the
			// beginning by a microsecond, which does not matter.
			item.Version = had.Since + 1
		}
		err = l.DB.Write(ctx, store.Put(item, cond))
		if err == nil {
			return ReadInterest(&item), nil
		}
		if !errors.Is(err, store.ErrConflict) {
			return Interest{}, fault.Wrap(fault.Unavailable, err, "record the interest in %s", key)
		}
	}
}

// interestMargin is how much longer than the interest its item stays, so that a clock that is a little fast does not end the
// interest early.
const interestMargin = time.Hour

// Interest returns the interest in a pattern, or the zero value if its item does not exist or has expired.
func (l *Log) Interest(ctx context.Context, workspace, key string) (Interest, error) {
	it, err := store.One(ctx, l.DB, InterestKey(workspace, key), "read the interest in a pattern")
	return ReadInterest(it), err
}

// ReadInterest decodes an item of interest. A nil item is no interest.
func ReadInterest(it *store.Item) Interest {
	if it == nil {
		return Interest{}
	}
	return Interest{Since: it.Version, Until: time.Unix(it.Counts[untilCount], 0)}
}
