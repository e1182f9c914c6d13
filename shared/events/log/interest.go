package eventlog

import (
	"context"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Interest says that a client reads a pattern in band, or may come back to read it. While it lasts, fanout writes the
// partitions of the pattern.
type Interest struct {
	// Since is the position at which it began. Earlier events are not in the partitions of the pattern.
	Since int64
	// Until is when it ends, unless it is renewed.
	Until time.Time
}

// Reaches is the first position from which a cursor finds all events of the pattern. A cursor is up to a window before
// the moment at which it was given, so a cursor from the moment when the interest began has no gap.
func (in Interest) Reaches() int64 { return in.Since - (Window + 2*MaxSkew).Microseconds() }

// InterestKey is the key of the item that holds the interest in a pattern.
func InterestKey(workspace, key string) store.Key {
	return store.Key{Table: store.Log, Partition: "i#" + workspace + "#" + key, Sort: "-"}
}

const untilCount = "until"

// Interested makes sure that the partitions of a pattern are written until the given time, and at least for one retention
// from now. It returns since when they are. The caller has marked the shape before.
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
			// Each renewal moves the version, so that of two concurrent ones the shorter does not win. The beginning is
			// not exact to the microsecond.
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

// interestMargin is how much longer than the interest its item stays. Where a clock differs a little, the item must not
// be gone first.
const interestMargin = time.Hour

// Interest returns the interest in a pattern. It is the zero value if there is none, or if it ended a while ago.
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
